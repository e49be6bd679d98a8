//! The demo: its story, what it leaves alone, and what it leaves behind.

use std::process::Command;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};

use crate::support::process::Ended;
use crate::support::{LATER, Setup, World, eventually, kafka_servers, postgres_server, until};

/// A whole story with a debug binary on a machine that other cases keep busy.
const STORY: Duration = Duration::from_mins(2);

fn demo(world: &World, events: &str, folder: &str) -> Command {
    let mut command = world.command(&["demo", "--events", events, "--dir", folder]);
    command.env("REPRISE_KAFKA__BROKERS", kafka_servers());
    // Without a database's name: the demo makes its own, and needs none.
    command.env("REPRISE_POSTGRES__URL", postgres_server());
    command
}

async fn told(world: &World, command: Command) -> Ended {
    let ended = world.spawn(command).ended(STORY).await;
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    ended
}

/// The number that this demo gave everything of its own.
fn number(ended: &Ended) -> String {
    let (_, rest) =
        ended.stdout.split_once("Written to pedido.pago.demo-").expect("the demo names its topic");
    rest.chars().take_while(char::is_ascii_digit).collect()
}

fn topics() -> Vec<String> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", kafka_servers()).create().expect("a client");
    let metadata = consumer.fetch_metadata(None, LATER).expect("the broker lists its topics");
    metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
}

async fn databases(world: &World, number: &str) -> i64 {
    world.one(&format!("select count(*) from pg_database where datname = 'reprise_demo_{number}'")).await
}

/// Command lines of the processes that were started with a file in this folder.
fn started_from(folder: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("a list of processes").flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&format!("--config {folder}/reprise.toml"))).collect()
}

#[tokio::test]
async fn the_demo_tells_its_story_and_proves_it() {
    let world = World::bare(Setup::default()).await;
    let ended = told(&world, demo(&world, "400", "demo")).await;
    for line in [
        "1. A morning of orders",
        "2. An incident",
        "4. The dry run",
        "│ uncertain effects",
        "│ divergente: sent, with another amount; not sent again",
        "│ missing notices sent, once each                          │  25 │",
        "│ sellers notified twice, since the demo began             │   0 │",
        "nobody was notified",
        "effects show evt-ped-00333-1:notificar-vendedor",
    ] {
        assert!(ended.stdout.contains(line), "{line}\n{}", ended.stdout);
    }
    assert!(!ended.stdout.contains('\u{1b}'), "colours are for terminals");
}

#[tokio::test]
async fn a_demo_leaves_a_running_one_alone_and_clears_away_an_ended_one() {
    let world = World::bare(Setup::default()).await;
    let mut first = world.spawn(demo(&world, "400", "first"));
    let mut second = world.spawn(demo(&world, "400", "second"));
    let (first, second) = (first.ended(STORY).await, second.ended(STORY).await);
    for ended in [&first, &second] {
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    }
    assert_ne!(number(&first), number(&second));

    let third = told(&world, demo(&world, "400", "third")).await;
    for ended in [&first, &second] {
        assert_eq!(databases(&world, &number(ended)).await, 0);
        let topic = format!("pedido.pago.demo-{}", number(ended));
        until("its topics are gone", LATER, async || !topics().iter().any(|t| t.starts_with(&topic))).await;
    }
    assert_ne!(number(&third), number(&second));
    assert!(topics().contains(&world.topic), "a topic that is not the demo's is left alone");
}

#[tokio::test]
async fn an_interrupted_demo_ends_the_service_that_it_started() {
    let world = World::bare(Setup::default()).await;
    // The folder is in the command line of the service: by its name it is found among all processes.
    let folder = format!("interrupted-{}", world.topic);
    let mut running = world.spawn(demo(&world, "20000", &folder));
    let service = eventually("the service runs", LATER, async || {
        started_from(&folder).into_iter().find(|line| line.contains(" live"))
    });
    assert!(service.await.contains("reprise"));
    running.terminate();
    let ended = running.ended(LATER).await;
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    until("its service is gone", LATER, async || started_from(&folder).is_empty()).await;
}

#[tokio::test]
async fn servers_that_are_not_there_are_named_with_the_remedy() {
    let world = World::bare(Setup::default()).await;
    let mut command = demo(&world, "400", "nowhere");
    command.env("REPRISE_KAFKA__BROKERS", "127.0.0.1:9");
    let ended = world.spawn(command).ended(LATER).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("Kafka at 127.0.0.1:9"), "{}", ended.stderr);
    assert!(ended.stderr.contains("make up"), "{}", ended.stderr);
}
