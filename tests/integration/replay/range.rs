//! What a range covers and what it says it does not: history that is gone, compaction, open transactions, partitions
//! that came later.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::json;

use super::{HOLD, args, count, start};
use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::kafka::{Kafka, Outgoing};
use crate::support::{Answer, LATER, SOON, Setup, World, kafka_servers, until};

const HOUR_MS: i64 = 3_600_000;
const LIMIT: Duration = Duration::from_secs(20);

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka_servers());
    config
}

/// Everything below `offset` of partition 0 is gone, as after retention.
async fn delete_below(world: &World, offset: i64) {
    world.kafka.delete_below(&world.topic, &BTreeMap::from([(0, offset)])).await;
}

#[tokio::test]
async fn b36_history_that_is_gone_is_refused_also_where_nothing_of_the_period_is_left() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.feed_from(0, 20, MIDNIGHT_MS + 24 * HOUR_MS).await;
    delete_below(&world, 10).await;
    let missing = [args("run", "replay-a"), vec!["--accept-gap"]].concat();
    let bounded = [args("run", "replay-b"), vec!["--to", "2026-10-14T12:00:00-03:00"]].concat();
    for refused in [&args("run", "replay-a"), &bounded, &args("plan", "replay-a")] {
        let ended = world.try_cli(refused).await;
        assert_eq!(ended.code, Some(3), "{refused:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("partitions [0]"), "{}", ended.stderr);
        assert!(ended.stderr.contains("--accept-gap"), "{}", ended.stderr);
    }
    assert_eq!(world.one::<i64>("select count(*) from reprocessamento").await, 0, "a refusal leaves nothing");
    assert_eq!(count(&world.json(&missing).await, &["eventos", "lidos"]), 10);
    // Nothing is missing of a period that begins with what is left.
    let later = ["replay", "run", "--id", "replay-c", "--from", "2026-10-15T00:00:15-03:00"];
    assert_eq!(count(&world.json(&later).await, &["eventos", "lidos"]), 5);
}

#[tokio::test]
async fn b36_records_deleted_under_a_running_replay_end_it_as_failed_with_the_remedy() {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.set(&["replay", "concorrencia"], 4);
    world.provider.default_answer(Answer::slow(Duration::from_millis(50), Answer::Status(200)));
    world.feed_from(0, 2000, MIDNIGHT_MS).await;
    let mut run = start(&world, "replay-a");
    until("it is under way", LATER, async || world.done().await > 40).await;
    run.terminate();
    assert_eq!(run.ended(LATER).await.code, Some(1));
    delete_below(&world, 1990).await;
    let ended = start(&world, "replay-a").ended(LATER).await;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("to 1989 were deleted") && ended.stderr.contains("--accept-gap"),
        "{}",
        ended.stderr
    );
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(status["situacao"], "falhou");
    assert_eq!(world.states().await.get("reservado"), None);
    world.cli(&["replay", "cancel", "--id", "replay-a"]).await;
}

#[tokio::test]
async fn a_compacted_topic_needs_to_be_accepted() {
    let setup =
        Setup { partitions: 1, topic_config: vec![("cleanup.policy", "compact")], ..Setup::default() };
    let world = World::with(setup).await;
    world.feed_from(0, 4, MIDNIGHT_MS).await;
    let refused = world.try_cli(&args("run", "replay-a")).await;
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("--accept-compacted"), "{}", refused.stderr);
    let run = world.json(&[args("run", "replay-a"), vec!["--accept-compacted"]].concat()).await;
    assert_eq!(count(&run, &["eventos", "lidos"]), 4);
}

#[tokio::test]
async fn b33_an_open_transaction_is_named_and_ends_the_range_and_an_aborted_one_is_passed() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.feed_from(0, 3, MIDNIGHT_MS).await;
    let producer: BaseProducer =
        client().set("transactional.id", format!("tx-{}", world.topic)).create().expect("a producer");
    producer.init_transactions(LIMIT).expect("transactions");
    producer.begin_transaction().expect("a transaction");
    let (key, value) = ("ped-9", event(9).to_string());
    let record = BaseRecord::to(&world.topic).key(key).payload(&value).timestamp(MIDNIGHT_MS + HOUR_MS);
    producer.send(record).map_err(|(error, _)| error).expect("sent");
    producer.flush(LIMIT).expect("written");
    let plan = world.cli(&[args("plan", "replay-a"), vec!["--output", "json"]].concat()).await;
    assert!(plan.stderr.contains("open transactions"), "{}", plan.stderr);
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).expect("JSON");
    assert_eq!(plan["particoes"], json!([{"particao": 0, "inicio": 0, "fim": 3, "posicao": 0}]));
    assert_eq!(count(&world.json(&args("run", "replay-a")).await, &["eventos", "lidos"]), 3);

    producer.abort_transaction(LIMIT).expect("aborted");
    let run = world.json(&args("run", "replay-b")).await;
    assert_eq!(run["particoes"], json!([{"particao": 0, "inicio": 0, "fim": 5, "posicao": 5}]));
    assert_eq!((count(&run, &["eventos", "lidos"]), &run["situacao"]), (3, &json!("concluido")));
}

#[tokio::test]
async fn b43_partitions_added_under_a_running_replay_are_not_its_own_and_it_says_so() {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.set(&["kafka", "propriedades", "topic.metadata.refresh.interval.ms"], "500");
    world.set(&["replay", "concorrencia"], 4);
    world.provider.default_answer(Answer::slow(Duration::from_millis(50), Answer::Status(200)));
    world.feed_from(0, 800, MIDNIGHT_MS).await;
    let mut run = start(&world, "replay-a");
    until("it is under way", LATER, async || world.done().await > 20).await;
    world.kafka.add_partitions(&world.topic, 3).await;
    until("the broker shows them", SOON, async || world.kafka.ends(&world.topic).await.len() == 3).await;
    // A producer that does not know the topic as it was.
    let producer = Kafka::connect(&kafka_servers());
    for n in 1000..1010_u32 {
        let partition = 1 + i32::try_from(n % 2).expect("small");
        let record = Outgoing::event(&event(n)).at(MIDNIGHT_MS + HOUR_MS).on(partition);
        producer.produce(&world.topic, &record).await;
    }
    until("it says so", LATER, async || run.stderr().contains("does not cover the partition")).await;
    assert_eq!(run.ended(LATER).await.code, Some(0));
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(
        (count(&status, &["eventos", "lidos"]), count(&status, &["efeitos", HOLD, "aplicado"])),
        (800, 800)
    );
    assert_eq!(status["particoes"], json!([{"particao": 0, "inicio": 0, "fim": 800, "posicao": 800}]));
}

#[tokio::test]
async fn b31_with_nothing_to_do_the_newest_time_is_told() {
    let world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    world.feed_from(0, 3, MIDNIGHT_MS).await;
    let late = ["replay", "run", "--id", "replay-a", "--from", "2026-11-01T00:00:00Z"];
    let ended = world.cli(&late).await;
    assert!(ended.stderr.contains("0 events"), "{}", ended.stderr);
    assert!(ended.stderr.contains("2026-10-14T03:00:02Z"), "{}", ended.stderr);
    // From before log times begin, it is everything.
    let early =
        world.json(&["replay", "run", "--id", "replay-b", "--from", "1969-12-31T23:59:59.999Z"]).await;
    assert_eq!(count(&early, &["eventos", "lidos"]), 3);
    // A record a tenth of a millisecond before the period is not of it.
    let exact = ["replay", "run", "--id", "replay-c", "--from", "2026-10-14T03:00:01.0001Z"];
    assert_eq!(count(&world.json(&exact).await, &["eventos", "lidos"]), 1);
}
