//! Rewinding, continued: what a replay does not cover, does not repeat, and does not forget; tests bear the numbers
//! of the cases.

use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::kafka::{Kafka, Outgoing};
use crate::support::{Answer, LATER, SOON, Setup, World, kafka_servers, until};

const FROM: &str = "2026-10-14T00:00:00-03:00";
const EFFECT: &str = "notificar-vendedor";

fn run_args<'a>(id: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["replay", "run", "--id", id, "--from", FROM], more].concat()
}

fn count(run: &Value, path: &[&str]) -> i64 {
    path.iter().fold(run, |value, name| &value[*name]).as_i64().unwrap_or(0)
}

/// How far all partitions of a run are together, beyond where they began.
async fn covered(world: &World, id: &str) -> i64 {
    let sql = "select coalesce(sum(posicao - inicio), 0)::bigint from reprocessamento_checkpoint";
    world.one(&format!("{sql} where execucao_id = '{id}' and not simular")).await
}

/// Events from midnight on, a second apart, applied by live.
async fn applied(world: &World, count: u32) {
    world.feed_from(0, count, MIDNIGHT_MS).await;
    let mut live = world.live().await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
}

#[tokio::test]
async fn b43_partitions_added_after_the_plan_are_named_and_not_read() {
    let world = World::start().await;
    world.feed_from(0, 30, MIDNIGHT_MS).await;
    let dry = world.json(&run_args("replay-a", &["--dry-run"])).await;
    assert_eq!(count(&dry, &["eventos", "lidos"]), 30);
    world.kafka.add_partitions(&world.topic, 6).await;
    let late = (0..10).map(|n| {
        Outgoing::event(&event(100 + n)).at(MIDNIGHT_MS).on(3 + i32::try_from(n).expect("small") % 3)
    });
    // A client of its own: the world's knows the topic as it was.
    Kafka::connect(&kafka_servers()).produce_all(&world.topic, late).await;

    let ended = world.cli(&run_args("replay-a", &["--output", "json"])).await;
    let run: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!((count(&run, &["eventos", "lidos"]), &run["situacao"]), (30, &json!("concluido")));
    assert_eq!(run["particoes"].as_array().map(Vec::len), Some(3));
    assert_eq!(world.provider.count(), 30, "what came later is live's");
    for partition in 3..6 {
        let named = ended.stderr.lines().any(|line| {
            line.contains("does not cover the partition") && line.contains(&format!("partition={partition}"))
        });
        assert!(named, "partition {partition}\n{}", ended.stderr);
    }
}

#[tokio::test]
async fn b72_everything_done_and_another_configuration_change_not_one_byte() {
    let mut world = World::start().await;
    applied(&world, 40).await;
    // Row versions too: a row that is written again, if only with its own values, has another xmin.
    let rows = async || -> Vec<(String,)> {
        let sql = "select c::text || c.xmin::text from comissao c
                   union all select e::text || e.xmin::text from efeito_aplicado e order by 1";
        world.rows(sql).await
    };
    let before = rows().await;
    assert_eq!(before.len(), 80);
    let config = {
        let mut config = world.config.clone();
        let effect = config["efeitos"][EFFECT].as_table_mut().expect("a section");
        effect.insert("ao_falhar".to_owned(), "liberar".into());
        effect.insert("max_tentativas".to_owned(), 9.into());
        config
    };
    let path = world.write_config_as("later.toml", &config);
    let path = path.to_str().expect("UTF-8");
    let run = world.json(&run_args("replay-a", &["--config", path])).await;
    assert_eq!(count(&run, &["efeitos", EFFECT, "ja-registrado"]), 40);
    assert_eq!(count(&run, &["estado", "inalterado"]), 40);
    assert_eq!(rows().await, before);
    assert_eq!(world.provider.count(), 40, "nobody was called again");
    world.set(&["efeitos", EFFECT, "modo"], "suprimir");
    let refused = world.try_cli(&run_args("replay-a", &[])).await;
    assert_eq!(refused.code, Some(3), "effective policies are part of what was asked");
}

#[tokio::test]
async fn b79_killed_in_its_first_seconds_it_goes_on_where_its_rows_end() {
    let world = World::start().await;
    world.provider.default_answer(Answer::slow(Duration::from_millis(50), Answer::Status(200)));
    world.feed_from(0, 2000, MIDNIGHT_MS).await;
    let mut run = world.run(&run_args("replay-a", &[]));
    until("a checkpoint follows its rows", SOON, async || covered(&world, "replay-a").await > 0).await;
    run.kill();
    assert!(
        covered(&world, "replay-a").await <= world.done().await,
        "a position never passes an open record"
    );

    let ended = world.cli(&run_args("replay-a", &["--output", "json"])).await;
    let run: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert!(
        ended.stderr.contains("goes on where it was left"),
        "it says that it continues\n{}",
        ended.stderr
    );
    assert_eq!((count(&run, &["eventos", "lidos"]), covered(&world, "replay-a").await), (2000, 2000));
    assert_eq!(world.states().await.values().sum::<i64>(), 2000);
    assert!(world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn a_stopped_replay_ends_with_1_leaves_nothing_reserved_and_goes_on() {
    let world = World::start().await;
    world.provider.default_answer(Answer::slow(Duration::from_millis(100), Answer::Status(200)));
    world.feed_from(0, 1000, MIDNIGHT_MS).await;
    let mut run = world.run(&run_args("replay-a", &[]));
    until("calls are out", SOON, async || world.done().await > 50).await;
    run.terminate();
    assert_eq!(run.ended(LATER).await.code, Some(1));
    assert_eq!(world.states().await.get("reservado"), None);
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(count(&status, &["eventos", "lidos"]), covered(&world, "replay-a").await);

    let run = world.json(&run_args("replay-a", &[])).await;
    assert_eq!((count(&run, &["eventos", "lidos"]), &run["situacao"]), (1000, &json!("concluido")));
    assert_eq!(
        count(&run, &["efeitos", EFFECT, "aplicado"]),
        1000,
        "what it did before it was stopped included"
    );
    assert_eq!((world.done().await, world.provider.count()), (1000, 1000));
}

#[tokio::test]
async fn a_stopped_dry_run_ends_with_1_and_the_earlier_diff_stands() {
    let world = World::start().await;
    world.feed_from(0, 20, MIDNIGHT_MS).await;
    world.json(&run_args("replay-a", &["--dry-run"])).await;
    let mut dry = world.run(&run_args("replay-a", &["--dry-run", "--rate", "1"]));
    until("it is being made again", SOON, async || {
        world.one::<i64>("select count(*) from reprocessamento_rascunho").await > 0
    })
    .await;
    dry.terminate();
    let ended = dry.ended(SOON).await;
    assert_eq!((ended.code, ended.signal), (Some(1), None), "{}", ended.stderr);
    assert_eq!(world.provider.count(), 0);
    let again = world.json(&run_args("replay-a", &["--dry-run"])).await;
    assert_eq!(count(&again, &["efeitos", EFFECT, "seria-aplicado"]), 20);
    let diff = world.json(&["replay", "diff", "--id", "replay-a"]).await;
    assert_eq!(count(&diff, &["totais", "pedidosAlterados"]), 20);
}

#[tokio::test]
async fn b33_an_open_transaction_ends_the_range_at_the_last_stable_offset_and_is_named() {
    let world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    for (n, partition) in [(1, 0), (2, 1)] {
        world
            .kafka
            .produce(&world.topic, &Outgoing::event(&event(n)).at(MIDNIGHT_MS + 1).on(partition))
            .await;
    }
    let topic = world.topic.clone();
    let open = tokio::task::spawn_blocking(move || {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", kafka_servers())
            .set("transactional.id", format!("open-{topic}"))
            .create()
            .expect("a producer");
        producer.init_transactions(SOON).expect("transactions");
        producer.begin_transaction().expect("a transaction");
        let value = event(3).to_string();
        let record =
            BaseRecord::to(&topic).key("ped-3").payload(&value).partition(0).timestamp(MIDNIGHT_MS + 2);
        producer.send(record).unwrap_or_else(|(error, _)| panic!("{error}"));
        producer.flush(SOON).expect("written");
        producer
    })
    .await
    .expect("a producer with an open transaction");

    let ended = world.cli(&run_args("replay-a", &["--output", "json"])).await;
    let run: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!((count(&run, &["eventos", "lidos"]), &run["situacao"]), (2, &json!("concluido")));
    let ends: Vec<i64> = (0..2).map(|at| run["particoes"][at]["fim"].as_i64().expect("an end")).collect();
    assert_eq!(ends, [1, 1]);
    let named = ended.stderr.lines().find(|line| line.contains("open transactions")).unwrap_or_default();
    assert!(named.contains("partitions=[0]"), "{}", ended.stderr);
    drop(open);
}

#[tokio::test]
async fn the_rate_bounds_a_replay_and_a_paused_one_begins_nothing() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.feed_from(0, 30, MIDNIGHT_MS).await;
    let since = Instant::now();
    let run = world.json(&run_args("replay-a", &["--rate", "10"])).await;
    assert_eq!(count(&run, &["eventos", "lidos"]), 30);
    assert!(since.elapsed() >= Duration::from_millis(1900), "{:?}", since.elapsed());

    world.json(&run_args("replay-b", &["--dry-run"])).await;
    world.execute("delete from efeito_aplicado").await;
    // A replay that is paused before its first process comes.
    world
        .execute(
            "insert into reprocessamento (execucao_id, simular, situacao, topico, de, fonte, politicas)
         select execucao_id, false, 'pausado', topico, de, fonte, politicas from reprocessamento
         where execucao_id = 'replay-b' and simular",
        )
        .await;
    world
        .execute(
            "insert into reprocessamento_checkpoint (execucao_id, simular, particao, inicio, fim, posicao)
         select execucao_id, false, particao, inicio, fim, inicio from reprocessamento_checkpoint
         where execucao_id = 'replay-b' and simular",
        )
        .await;
    let calls = world.provider.count();
    let mut run = world.run(&run_args("replay-b", &[]));
    until("it has its partition", LATER, async || {
        let sql = "select count(*) from reprocessamento_checkpoint where execucao_id = 'replay-b' and leitor is not null";
        world.one::<i64>(sql).await == 1
    })
    .await;
    assert_eq!((run.is_alive(), world.provider.count()), (true, calls), "it starts, and waits");
    world.cli(&["replay", "resume", "--id", "replay-b"]).await;
    assert_eq!(run.ended(LATER).await.code, Some(0));
    assert_eq!(world.provider.count(), calls + 30);
}
