//! The archive: every record byte for byte, and replays of what the topic no longer has.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::kafka::Outgoing;
use crate::support::process::Process;
use crate::support::{Answer, LATER, SOON, Setup, World, until};

const HOLD: &str = "notificar-vendedor";
/// The events of the cases occurred at noon of this day.
const FROM: &str = "2026-10-14T00:00:00Z";

/// Offset, id, order and time of a record.
type Kept = (i64, Option<String>, Option<String>, Option<String>);

async fn archived(world: &World) -> i64 {
    world.one("select count(*) from evento_arquivado").await
}

/// Copies until `records` are there, and ends in order.
async fn archive(world: &World, records: i64) {
    let mut archiver = world.run(&["archive"]);
    until("all are archived", LATER, async || archived(world).await >= records).await;
    stop(&mut archiver).await;
}

async fn stop(process: &mut Process) {
    process.terminate();
    let ended = process.ended(LATER).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

/// Ten of the events that live has seen, and then retention took them from the topic.
async fn beyond_retention(partitions: i32, events: u32) -> World {
    let world = World::with(Setup { partitions, ..Setup::default() }).await;
    world.feed(0, events).await;
    let mut live = world.live().await;
    world.settled().await;
    stop(&mut live).await;
    archive(&world, i64::from(events)).await;
    world.kafka.delete_below(&world.topic, &world.kafka.ends(&world.topic).await).await;
    world
}

fn args<'a>(verb: &'a str, id: &'a str) -> Vec<&'a str> {
    vec!["replay", verb, "--id", id, "--from", FROM, "--source", "arquivo"]
}

fn count(run: &Value, path: &[&str]) -> i64 {
    path.iter().fold(run, |value, name| &value[*name]).as_i64().unwrap_or(0)
}

#[tokio::test]
async fn every_record_is_kept_byte_for_byte_whatever_it_says() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.send(&event(1)).await;
    let mut poison = Outgoing::raw("chave", b"\xff\x00 not json");
    poison.headers = vec![("a".into(), None), ("a".into(), Some(vec![0, 255]))];
    world.kafka.produce(&world.topic, &poison.at(MIDNIGHT_MS)).await;
    let huge =
        br#"{"id":"e-3","tipo":"outro","pedidoId":"p\u0000","payload":{"n":1e999999},"ocorridoEm":"nunca"}"#;
    world.kafka.produce(&world.topic, &Outgoing::raw("k", huge)).await;
    archive(&world, 3).await;
    let rows: Vec<Kept> = world
        .rows(r#"select "offset", id, pedido_id, ocorrido_em::text from evento_arquivado order by posicao"#)
        .await;
    let noon = Some("2026-10-14 12:00:00+00".to_owned());
    assert_eq!(rows[0], (0, Some("evt-1-1".into()), Some("ped-1".into()), noon));
    assert_eq!((rows[1].0, &rows[1].1, &rows[1].3), (1, &None, &None));
    assert_eq!(rows[2].0, 2, "what bytes say of themselves never decides whether they are kept");
    let bytes: Vec<u8> = world.one(r#"select valor from evento_arquivado where "offset" = 1"#).await;
    assert_eq!(bytes, b"\xff\x00 not json");
    let headers: Value = world.one(r#"select cabecalhos from evento_arquivado where "offset" = 1"#).await;
    assert_eq!(headers, json!([["a", null], ["a", "AP8="]]));
    let verified = world.json(&["archive", "verify"]).await;
    assert_eq!(
        verified,
        json!([{"particao": 0, "inicio": 0, "fim": 3, "iguais": 3, "faltando": 0, "diferentes": 0,
                "porArquivar": 0, "arquivados": 3}])
    );
}

#[tokio::test]
async fn a_copy_that_is_damaged_or_gone_is_found() {
    let world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    for n in 0..20_u32 {
        let on = i32::try_from(n % 2).expect("small");
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).on(on)).await;
    }
    archive(&world, 20).await;
    world
        .execute(r#"update evento_arquivado set valor = valor || '\x20' where particao = 0 and "offset" = 3"#)
        .await;
    world.execute(r#"delete from evento_arquivado where particao = 1 and "offset" in (2, 4)"#).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(99)).on(1)).await;
    let ended = world.try_cli(&["--output", "json", "archive", "verify"]).await;
    assert_eq!(ended.code, Some(1));
    let rows: Value = serde_json::from_str(&ended.stdout).expect("json");
    let of =
        |n: usize| ["iguais", "faltando", "diferentes", "porArquivar"].map(|name| count(&rows[n], &[name]));
    assert_eq!(of(0), [9, 0, 1, 0]);
    assert_eq!(of(1), [8, 2, 0, 1]);
    assert!(ended.stderr.contains("3 records"), "{}", ended.stderr);
}

#[cfg(feature = "crash-points")]
#[tokio::test]
async fn killed_between_its_rows_and_its_commit_the_archiver_keeps_each_record_once() {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.set(&["kafka", "instancia"], "pod-0");
    world.feed(0, 500).await;
    for _ in 0..3 {
        let mut command = world.command(&["archive"]);
        let (name, value) = crate::support::crash_at("after_archive", 1);
        command.env(name, value);
        let mut archiver = world.spawn(command);
        let ended = archiver.ended(LATER).await;
        assert!(ended.signal.is_some(), "it died at its point: {}", ended.stderr);
    }
    let mut archiver = world.run(&["archive"]);
    let group = format!("{}-arquivo", world.group);
    until("all is committed", LATER, async || {
        world.kafka.committed(&group, &world.topic, 1).await[&0] == Some(500)
    })
    .await;
    stop(&mut archiver).await;
    let distinct: i64 = world.one(r#"select count(distinct "offset") from evento_arquivado"#).await;
    assert_eq!((archived(&world).await, distinct), (500, 500));
}

#[tokio::test]
async fn b16_an_outage_of_the_database_is_waited_out_by_the_archiver() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let mut archiver = world.run(&["archive"]);
    world.feed(0, 50).await;
    until("it has begun", LATER, async || archived(&world).await == 50).await;
    world.database_away().await;
    world.feed(50, 50).await;
    until("it says that it waits", SOON, async || archiver.stderr().contains("its partitions wait")).await;
    world.database_back().await;
    until("the rest is there", SOON, async || archived(&world).await == 100).await;
    stop(&mut archiver).await;
}

#[tokio::test]
async fn what_retention_took_is_replayed_from_the_archive_by_the_same_road() {
    let world = beyond_retention(3, 60).await;
    world.execute("update comissao set valor_centavos = 50 where pedido_id in ('ped-3', 'ped-4')").await;
    world.execute("delete from efeito_aplicado where pedido_id = 'ped-5'").await;
    let gone = world.try_cli(&["replay", "plan", "--id", "replay-k", "--from", FROM]).await;
    assert_eq!(gone.code, Some(3));
    assert!(gone.stderr.contains("--source arquivo"), "{}", gone.stderr);

    let dry = world.json(&[args("run", "replay-a"), vec!["--dry-run"]].concat()).await;
    assert_eq!((&dry["fonte"], count(&dry, &["eventos", "lidos"])), (&json!("arquivo"), 60));
    assert_eq!(world.provider.count(), 60, "I6");
    let diff = world.json(&["replay", "diff", "--id", "replay-a"]).await;
    assert_eq!(
        (
            &diff["totais"]["pedidosAlterados"],
            &diff["totais"]["antesCentavos"],
            &diff["totais"]["depoisCentavos"]
        ),
        (&json!(2), &json!(100), &json!(1000))
    );
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!((&run["situacao"], count(&run, &["eventos", "lidos"])), (&json!("concluido"), 60));
    assert_eq!(count(&run, &["estado", "gravado"]), 2);
    assert_eq!(count(&run, &["efeitos", HOLD, "aplicado"]), 1);
    assert_eq!(count(&run, &["efeitos", HOLD, "ja-registrado"]), 59);
    assert_eq!((world.provider.count(), world.provider.count_of("ped-5")), (61, 2));
    assert!(world.commissions().await.values().all(|cents| *cents == 500));
    let again = world.json(&args("run", "replay-a")).await;
    assert_eq!(again["situacao"], "concluido");
    let other = world.try_cli(&["replay", "run", "--id", "replay-a", "--from", FROM]).await;
    assert_eq!(other.code, Some(3), "the same id with another source: {}", other.stderr);
}

#[tokio::test]
async fn the_period_of_an_archive_is_that_of_the_events_and_of_the_log_where_they_say_nothing() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let days = [
        "2026-10-12T12:00:00Z",
        "2026-10-16T23:59:59.999Z",
        "2026-10-15T00:00:00-03:00",
        "2026-10-17T00:00:00Z",
    ];
    for (n, at) in (0_u32..).zip(days) {
        let mut event = event(n);
        event["ocorridoEm"] = json!(at);
        // Log times say another day: they do not count.
        world.kafka.produce(&world.topic, &Outgoing::event(&event).at(MIDNIGHT_MS)).await;
    }
    let day = 86_400_000;
    for at in [MIDNIGHT_MS, MIDNIGHT_MS + 2 * day] {
        world.kafka.produce(&world.topic, &Outgoing::raw("k", b"nonsense").at(at)).await;
    }
    archive(&world, 6).await;
    let to = [
        "replay",
        "run",
        "--id",
        "replay-a",
        "--from",
        "2026-10-15T00:00:00-03:00",
        "--to",
        "2026-10-17T00:00:00Z",
        "--source",
        "arquivo",
    ];
    let run = world.json(&to).await;
    assert_eq!(count(&run, &["eventos", "lidos"]), 3, "{run}");
    assert_eq!((count(&run, &["eventos", "aplicados"]), count(&run, &["eventos", "cartasMortas"])), (2, 1));
    let told: Vec<String> = world.commissions().await.into_keys().collect();
    assert_eq!(told, ["ped-1", "ped-2"]);
}

#[tokio::test]
async fn b79_two_processes_share_a_replay_of_the_archive_and_a_killed_one_is_taken_over() {
    let mut world = World::with(Setup { partitions: 8, ..Setup::default() }).await;
    world.set(&["replay", "concorrencia"], 8);
    world.set(&["efeitos", HOLD, "ao_falhar"], "liberar");
    world.provider.default_answer(Answer::slow(Duration::from_millis(40), Answer::Status(200)));
    let records = (0..800_u32).map(|n| Outgoing::event(&event(n)).on(i32::try_from(n % 8).expect("small")));
    world.kafka.produce_all(&world.topic, records).await;
    archive(&world, 800).await;
    let (mut stays, mut dies) = (world.run(&args("run", "replay-a")), world.run(&args("run", "replay-a")));
    let readers = "select count(distinct leitor) from reprocessamento_checkpoint";
    until("both read", LATER, async || world.one::<i64>(readers).await == 2).await;
    dies.kill();
    let ended = stays.ended(LATER).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(count(&status, &["eventos", "lidos"]), 800);
    assert_eq!(count(&status, &["efeitos", HOLD, "aplicado"]), 800);
    assert_eq!(count(&status, &["estado", "gravado"]), 800);
    assert_eq!(world.done().await, 800);
}

#[tokio::test]
async fn an_archive_that_begins_too_late_or_holds_nothing_is_refused_with_the_remedy() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let empty = world.try_cli(&args("plan", "replay-a")).await;
    assert_eq!(empty.code, Some(3));
    assert!(empty.stderr.contains("reprise archive"), "{}", empty.stderr);
    world.feed_from(0, 20, MIDNIGHT_MS + 86_400_000).await;
    world.kafka.delete_below(&world.topic, &BTreeMap::from([(0, 10)])).await;
    archive(&world, 10).await;
    let late = world.try_cli(&args("plan", "replay-a")).await;
    assert_eq!(late.code, Some(3));
    assert!(
        late.stderr.contains("of the archive") && late.stderr.contains("--accept-gap"),
        "{}",
        late.stderr
    );
    let accepted = world.json(&[args("run", "replay-a"), vec!["--accept-gap"]].concat()).await;
    assert_eq!(count(&accepted, &["eventos", "lidos"]), 10);
}

#[tokio::test]
async fn what_the_topic_has_and_the_archive_not_yet_is_refused_with_the_remedy() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.feed_from(0, 10, MIDNIGHT_MS).await;
    archive(&world, 10).await;
    world.feed_from(10, 3, MIDNIGHT_MS + 60_000).await;
    let behind = world.try_cli(&args("run", "replay-a")).await;
    assert_eq!(behind.code, Some(3), "{}", behind.stderr);
    assert!(
        behind.stderr.contains("partition 0: 10 to 12") && behind.stderr.contains("`reprise archive`"),
        "{}",
        behind.stderr
    );
    let before = [args("plan", "replay-a"), vec!["--to", "2026-10-14T00:01:00-03:00"]].concat();
    assert_eq!(world.try_cli(&before).await.code, Some(0), "the period itself is archived");
    archive(&world, 13).await;
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!(count(&run, &["eventos", "lidos"]), 13);
}
