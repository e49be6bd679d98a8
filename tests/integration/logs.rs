//! What the process says of itself: JSON log lines with ids and without payloads or secrets, and series that do not
//! grow with what is processed.

use serde_json::{Value, json};

use crate::support::event::event;
use crate::support::kafka::Outgoing;
use crate::support::{Answer, LATER, SOON, Setup, World, until};

/// Texts that stand in a record, an answer or an address, and in no log line.
const SECRETS: [&str; 4] =
    ["conteudo-reservado", "resposta-reservada", "senha-do-banco", "senha-do-registro"];

#[tokio::test]
async fn json_logs_name_events_and_hold_neither_payloads_nor_secrets() {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let url = world.database_url.replacen("postgres@", "postgres:senha-do-banco@", 1);
    assert!(url.contains("senha-do-banco"), "the test server lets a user without a password in: {url}");
    world.set(&["postgres", "url"], url);
    world.set(&["kafka", "registro_url"], "http://ana:senha-do-registro@127.0.0.1:9");
    let body = r#"{"erro":"resposta-reservada"}"#.to_owned();
    world.provider.script("ped-1", [Answer::Full { status: 400, headers: Vec::new(), body }]);
    world.provider.script("ped-2", [Answer::Close]);
    let mut command = world.command(&["live", "--log", "json"]);
    command.env("REPRISE_LOG", "debug,rdkafka=info,sqlx=debug,hyper=debug");
    let mut live = world.live_as(command, world.http_port).await;

    let mut crooked = event(3);
    crooked["payload"]["valorCentavos"] = json!("conteudo-reservado");
    world.kafka.produce(&world.topic, &Outgoing::raw("torto", b"{\"id\": conteudo-reservado")).await;
    for refused in [event(1), event(2), crooked] {
        world.send(&refused).await;
    }
    world.settled().await;
    world.database_away().await;
    world.send(&event(4)).await;
    until("the outage is felt", SOON, async || {
        world.metric("reprise_banco_disponivel", &[]).await == Some(0.0)
    })
    .await;
    world.database_back().await;
    world.settled().await;
    live.terminate();
    let ended = live.ended(LATER).await;
    assert_eq!(ended.code, Some(0));

    let lines: Vec<Value> = ended
        .stderr
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}")))
        .collect();
    for (line, text) in lines.iter().zip(ended.stderr.lines()) {
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{text}");
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    let letters: Vec<&Value> = lines.iter().filter(|line| line["message"] == "dead-lettered").collect();
    let told: Vec<_> = letters.iter().map(|line| (&line["motivo"], &line["kafka.offset"])).collect();
    assert_eq!(told.len(), 3, "{letters:?}");
    for letter in [(json!("json-invalido"), json!(0)), (json!("efeito-recusado"), json!(1))] {
        assert!(told.contains(&(&letter.0, &letter.1)), "{letters:?}");
    }
    let refused = letters.iter().find(|line| line["motivo"] == "efeito-recusado").expect("asserted above");
    assert_eq!((&refused["evento.id"], &refused["pedido.id"]), (&json!("evt-1-1"), &json!("ped-1")));
    assert!(lines.iter().any(|line| line["message"] == "database step failed; trying again"));
}

async fn series(world: &World) -> usize {
    let body = world.get("/metrics").await.expect("live answers").body;
    body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count()
}

#[tokio::test]
async fn b76_the_number_of_series_is_the_same_after_100_and_after_20_000_orders() {
    let world = World::start().await;
    let _live = world.live().await;
    world.feed(0, 100).await;
    world.settled().await;
    let before = series(&world).await;
    assert!(before > 100, "{before}");

    world.feed(100, 19_900).await;
    let crooked = (0..500).map(|n| Outgoing::raw(&format!("torto-{n}"), format!("erro {n}: {{").as_bytes()));
    world.kafka.produce_all(&world.topic, crooked).await;
    until("everything is settled", LATER * 2, async || world.caught_up().await).await;
    for n in 0..30 {
        let id = format!("replay-{n}-{}", uuid::Uuid::new_v4().simple());
        world.cli(&["replay", "run", "--id", &id, "--from", "2099-01-01T00:00:00Z"]).await;
    }
    assert_eq!(world.done().await, 20_000);
    assert_eq!(world.one::<i64>("select count(*) from reprocessamento").await, 30);
    let after = series(&world).await;
    assert!(after.abs_diff(before) <= 10, "{before} series, then {after}");
}
