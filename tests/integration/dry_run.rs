//! Dry runs: the diff they make, and that they make nothing else.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event, event_at};
use crate::support::kafka::Outgoing;
use crate::support::{SOON, Setup, World, until};

const FROM: &str = "2026-10-14T00:00:00-03:00";
const ID: &str = "replay-a";

/// `count` orders from midnight on, applied by live.
async fn applied(count: u32) -> World {
    let world = World::start().await;
    world.feed_from(0, count, MIDNIGHT_MS).await;
    let mut live = world.live().await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(crate::support::LATER).await.code, Some(0));
    assert_eq!(world.done().await, i64::from(count));
    world
}

async fn dry_run(world: &World) -> Value {
    world.json(&["replay", "run", "--id", ID, "--from", FROM, "--dry-run"]).await
}

async fn diff(world: &World) -> Value {
    world.json(&["replay", "diff", "--id", ID]).await
}

/// Every table of the product but the bookkeeping of replays, row by row.
async fn dump(world: &World) -> BTreeMap<String, String> {
    let names = "select tablename::text from pg_tables where schemaname = 'public' and tablename not like 'reprocessamento%'";
    let mut tables = BTreeMap::new();
    for (name,) in world.rows::<(String,)>(names).await {
        let rows = format!("select coalesce(string_agg(t::text, E'\\n' order by t::text), '') from {name} t");
        tables.insert(name, world.one::<String>(&rows).await);
    }
    assert!(tables.contains_key("efeito_aplicado") && tables.contains_key("comissao"));
    tables
}

fn orders(diff: &Value) -> Vec<(&str, Option<i64>, Option<i64>)> {
    let rows = diff["pedidos"].as_array().expect("a list");
    let row =
        |row: &'_ Value| (row["antes"]["valorCentavos"].as_i64(), row["depois"]["valorCentavos"].as_i64());
    rows.iter().map(|r| (r["pedidoId"].as_str().expect("an id"), row(r).0, row(r).1)).collect()
}

#[tokio::test]
async fn b72_a_dry_run_changes_nothing_and_calls_nobody() {
    let world = applied(40).await;
    // The incident: two commissions a tenth too small, one notice lost.
    world.execute("update comissao set valor_centavos = 50 where pedido_id in ('ped-7', 'ped-8')").await;
    world.execute("delete from efeito_aplicado where pedido_id = 'ped-9'").await;
    let (rows, offsets, calls) = (dump(&world).await, world.committed().await, world.provider.count());

    let told = dry_run(&world).await;
    assert_eq!(
        (&told["situacao"], &told["simular"], &told["estado"]),
        (&json!("concluido"), &json!(true), &json!({"gravado": 2, "inalterado": 38}))
    );
    assert_eq!(told["efeitos"], json!({"notificar-vendedor": {"ja-registrado": 39, "seria-aplicado": 1}}));
    assert_eq!((&told["eventos"]["lidos"], &told["eventos"]["aplicados"]), (&json!(40), &json!(40)));

    assert_eq!(dump(&world).await, rows);
    assert_eq!((world.committed().await, world.provider.count()), (offsets, calls));
    let of_replay = world.kafka.committed(ID, &world.topic, world.partitions).await;
    assert!(of_replay.values().all(Option::is_none), "a dry run commits nothing: {of_replay:?}");
    assert_eq!(world.one::<i64>("select count(*) from reprocessamento_rascunho_pedido").await, 0);

    let diff = diff(&world).await;
    assert_eq!(orders(&diff), [("ped-7", Some(50), Some(500)), ("ped-8", Some(50), Some(500))]);
    assert_eq!(
        diff["totais"],
        json!({"pedidosAlterados": 2, "antesCentavos": 100, "depoisCentavos": 1000,
               "efeitos": {"notificar-vendedor": {"ja-registrado": 39, "seria-aplicado": 1}}})
    );
    let effect = &diff["efeitos"][0];
    assert_eq!(
        (&effect["chave"], &effect["desfecho"], &effect["requisicaoAntes"]),
        (&json!("evt-9-1:notificar-vendedor"), &json!("seria-aplicado"), &Value::Null)
    );
    assert_eq!(effect["requisicaoDepois"]["valorCentavos"], json!(500));
}

#[tokio::test]
async fn b14_a_dry_run_says_who_was_told_another_amount() {
    let world = applied(3).await;
    world.execute("update efeito_aplicado set requisicao = jsonb_set(requisicao, '{valorCentavos}', '50'), resumo_requisicao = sha256('other') where pedido_id = 'ped-1'").await;
    let told = dry_run(&world).await;
    assert_eq!(told["efeitos"], json!({"notificar-vendedor": {"ja-registrado": 2, "divergente": 1}}));
    let diff = diff(&world).await;
    let effect = &diff["efeitos"][0];
    assert_eq!((&effect["pedidoId"], &effect["desfecho"]), (&json!("ped-1"), &json!("divergente")));
    assert_eq!(effect["requisicaoAntes"]["valorCentavos"], json!(50));
    assert_eq!(effect["requisicaoDepois"]["valorCentavos"], json!(500));
    assert_eq!(diff["pedidos"], json!([]));

    let people = world.cli(&["replay", "diff", "--id", ID]).await.stdout;
    assert!(people.contains("ped-1    | notificar-vendedor | 0.50      | 5.00"), "{people}");
    let csv = world.cli(&["replay", "diff", "--id", ID, "--output", "csv"]).await.stdout;
    let line = csv.lines().nth(1).unwrap_or_default();
    assert!(
        line.starts_with("efeito,ped-1,,,,,evt-1-1:notificar-vendedor,notificar-vendedor,divergente,"),
        "{csv}"
    );
}

#[tokio::test]
async fn b25_a_rule_that_changed_later_leaves_the_diff_empty() {
    let mut world = applied(5).await;
    // The effect counts from November on; what was told before stays told, and the events keep their 5 %.
    world.set(&["efeitos", "notificar-vendedor", "vigente_desde"], "2026-11-01T00:00:00Z");
    let told = dry_run(&world).await;
    assert_eq!(told["estado"], json!({"inalterado": 5}));
    let diff = diff(&world).await;
    assert_eq!((&diff["pedidos"], &diff["efeitos"]), (&json!([]), &json!([])));
    assert_eq!(diff["totais"]["efeitos"], json!({"notificar-vendedor": {"ja-registrado": 5}}));
}

#[tokio::test]
async fn a_dry_run_is_repeated_until_the_real_run_has_begun() {
    let world = applied(6).await;
    world.execute("update comissao set valor_centavos = 50 where pedido_id = 'ped-2'").await;
    dry_run(&world).await;
    assert_eq!(orders(&diff(&world).await), [("ped-2", Some(50), Some(500))]);
    world.execute("update comissao set valor_centavos = 60 where pedido_id = 'ped-3'").await;
    world.execute("update comissao set valor_centavos = 500 where pedido_id = 'ped-2'").await;
    dry_run(&world).await;
    assert_eq!(orders(&diff(&world).await), [("ped-3", Some(60), Some(500))]);

    let args = ["replay", "run", "--id", ID, "--from", FROM, "--yes"];
    world.cli(&args).await;
    let again = world.try_cli(&[&args[..], &["--dry-run"]].concat()).await;
    assert_eq!(again.code, Some(3), "{}", again.stderr);
    let dry = world.json(&["replay", "diff", "--id", ID, "--dry-run"]).await;
    assert_eq!((&dry["simular"], orders(&dry)), (&json!(true), vec![("ped-3", Some(60), Some(500))]));
    assert_eq!(diff(&world).await["simular"], json!(false), "the real run's, since there is one");
    let unknown = world.try_cli(&["replay", "diff", "--id", "replay-b"]).await;
    assert_eq!(unknown.code, Some(4), "{}", unknown.stderr);
}

#[tokio::test]
async fn a_repeated_dry_run_shows_the_earlier_diff_until_it_is_done() {
    let world = applied(30).await;
    world.execute("update comissao set valor_centavos = 50 where pedido_id = 'ped-2'").await;
    dry_run(&world).await;
    let earlier = diff(&world).await;
    assert_eq!(orders(&earlier), [("ped-2", Some(50), Some(500))]);
    world.execute("delete from efeito_aplicado").await;
    world.execute("delete from comissao").await;

    let args = ["replay", "run", "--id", ID, "--from", FROM, "--dry-run", "--rate", "1"];
    let mut slow = world.run(&args);
    let read =
        "select coalesce(sum(posicao - inicio), 0)::bigint from reprocessamento_checkpoint where simular";
    until("some of it is compared", SOON, async || (1..30).contains(&world.one::<i64>(read).await)).await;
    assert_eq!(diff(&world).await, earlier);
    world.cli(&["replay", "cancel", "--id", ID, "--dry-run"]).await;
    let ended = slow.ended(SOON).await;
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert_eq!(diff(&world).await, earlier);

    let mut slow = world.run(&args);
    until("some of it is compared again", SOON, async || {
        let situation = "select situacao from reprocessamento where simular";
        world.one::<String>(situation).await == "executando"
            && (1..30).contains(&world.one::<i64>(read).await)
    })
    .await;
    slow.terminate();
    let ended = slow.ended(SOON).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert_eq!(world.one::<String>("select situacao from reprocessamento where simular").await, "falhou");
    assert_eq!(diff(&world).await, earlier);

    dry_run(&world).await;
    let diff = diff(&world).await;
    assert_eq!(diff["totais"]["pedidosAlterados"], json!(30));
    assert_eq!(diff["totais"]["efeitos"], json!({"notificar-vendedor": {"seria-aplicado": 30}}));
}

/// Far more than one batch apart on one partition: what would have been written is not forgotten in between.
#[tokio::test]
async fn a_dry_run_remembers_earlier_events_of_its_range() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let first = [event(0)];
    let later = [event_at(0, 2), event(0), {
        let mut rival = event_at(0, 2);
        rival["id"] = json!("evt-rival");
        rival
    }];
    let others: Vec<Value> = (1..9_000).map(event).collect();
    let all = first.iter().chain(&others).chain(&later);
    let records = all.map(|event| Outgoing::event(event).at(MIDNIGHT_MS)).collect::<Vec<_>>();
    world.kafka.produce_all(&world.topic, records).await;

    let told = dry_run(&world).await;
    assert_eq!((&told["eventos"]["lidos"], &told["eventos"]["cartasMortas"]), (&json!(9_003), &json!(1)));
    assert_eq!(
        told["estado"],
        json!({"gravado": 9_001, "ignorado-versao-mais-nova": 1, "conflito-de-versao": 1})
    );
    assert_eq!(told["efeitos"], json!({"notificar-vendedor": {"seria-aplicado": 9_001, "ja-registrado": 1}}));
    let diff = diff(&world).await;
    assert_eq!(diff["totais"]["pedidosAlterados"], json!(9_000));
    let row = diff["pedidos"].as_array().and_then(|rows| rows.iter().find(|row| row["pedidoId"] == "ped-0"));
    assert_eq!(
        row,
        Some(
            &json!({"pedidoId": "ped-0", "antes": null, "depois": {"valorCentavos": 500, "versaoEvento": 2}})
        )
    );
    assert!(world.commissions().await.is_empty() && world.provider.count() == 0);
}

#[tokio::test]
async fn a_large_diff_streams_and_a_reader_that_has_enough_is_no_error() {
    let world = World::start().await;
    let records = (0..20_000).map(|n| Outgoing::event(&event(n)).at(MIDNIGHT_MS)).collect::<Vec<_>>();
    world.kafka.produce_all(&world.topic, records).await;
    dry_run(&world).await;
    let diff = diff(&world).await;
    assert_eq!(diff["pedidos"].as_array().map(Vec::len), Some(20_000));
    assert_eq!(diff["efeitos"].as_array().map(Vec::len), Some(20_000));
    assert_eq!(diff["totais"]["depoisCentavos"], json!(10_000_000));
    let people = world.cli(&["replay", "diff", "--id", ID]).await.stdout;
    assert!(people.contains("20000 orders change: 0.00 before, 100000.00 after"), "{people}");
    assert!(people.contains("the first 50 of 20000"), "{people}");

    let mut command = world.command(&["replay", "diff", "--id", ID, "--output", "json"]);
    let mut reading = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut line = String::new();
    let pipe = reading.stdout.take().expect("its output");
    BufReader::with_capacity(64, pipe).read_line(&mut line).expect("a line");
    assert!(line.starts_with(r#"{"id":"replay-a","simular":true,"totais":"#), "{line}");
    let ended =
        tokio::task::spawn_blocking(move || reading.wait()).await.expect("a thread").expect("it ends");
    assert!(ended.success(), "{ended}");
}
