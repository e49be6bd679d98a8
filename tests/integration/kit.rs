//! The kit itself: it needs the servers, and nothing of the product.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use rdkafka::Message;
use serde_json::json;
use sqlx::{Connection, PgConnection};

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::http::{self, Reply, metric};
use crate::support::kafka::{Outgoing, header, payload};
use crate::support::process::Process;
use crate::support::provider::Memory;
use crate::support::{Answer, Gate, Link, Provider, SOON, Setup, World, until};

/// A request as the product will send it.
async fn notify(provider: &Provider, order: &str) -> Option<Reply> {
    let body = json!({ "pedidoId": order, "tipoEfeito": "notificar-vendedor" });
    let key = format!("{order}:notificar-vendedor");
    http::request("POST", &provider.url(), &[("idempotency-key", &key)], Some(&body)).await
}

fn status(reply: Option<&Reply>) -> Option<u16> {
    reply.map(|r| r.status)
}

#[tokio::test]
async fn a_world_has_its_own_topics_and_database() {
    let world = World::bare(Setup { partitions: 2, ..Setup::default() }).await;

    let (partition, offset) =
        world.kafka.produce(&world.topic, &Outgoing::event(&event(7)).on(1).at(MIDNIGHT_MS)).await;
    assert_eq!((partition, offset), (1, 0));
    assert_eq!(world.kafka.ends(&world.topic).await, BTreeMap::from([(0, 0), (1, 1)]));
    assert_eq!(world.committed().await, BTreeMap::from([(0, None), (1, None)]));
    assert!(!world.caught_up().await);

    world.execute("create table t (n bigint)").await;
    assert_eq!(world.execute("insert into t values (40), (2)").await, 2);
    assert_eq!(world.one::<i64>("select sum(n)::bigint from t").await, 42);
}

#[tokio::test]
async fn many_events_stand_in_their_order() {
    let world = World::bare(Setup { partitions: 1, ..Setup::default() }).await;
    world.feed_from(0, 200, MIDNIGHT_MS).await;
    let records = world.kafka.read(&world.topic).await;
    let orders: Vec<String> =
        records.iter().map(|r| String::from_utf8_lossy(r.key().unwrap_or_default()).into_owned()).collect();
    let expected: Vec<String> = (0..200).map(|n| format!("ped-{n}")).collect();
    assert_eq!(orders, expected);
    assert_eq!(records[199].timestamp().to_millis(), Some(1_791_946_999_000));
}

#[tokio::test]
async fn a_record_is_read_back_byte_for_byte() {
    let world = World::bare(Setup::default()).await;
    let mut record = Outgoing::raw("chave", b"\xff\x00");
    record.headers = vec![("reprise-dlq-motivo".to_owned(), Some(b"json-invalido".to_vec()))];
    world.kafka.produce(&world.dlq_topic, &record).await;

    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(payload(&letters[0]), b"\xff\x00");
    assert_eq!(header(&letters[0], "reprise-dlq-motivo"), "json-invalido");
}

#[tokio::test]
async fn the_provider_answers_as_scripted_and_the_last_answer_repeats() {
    let provider = Provider::start().await;
    provider.script("ped-1", [Answer::Status(500), Answer::Status(201)]);
    provider.script("ped-2/notificar-vendedor", [Answer::with_header(429, "retry-after", "1")]);

    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(status(notify(&provider, "ped-1").await.as_ref()));
    }
    assert_eq!(seen, [Some(500), Some(201), Some(201)]);
    assert_eq!(status(notify(&provider, "ped-2").await.as_ref()), Some(429));
    let plain = notify(&provider, "ped-3").await;
    assert_eq!(plain, Some(Reply { status: 200, body: r#"{"ok":true}"#.to_owned() }));

    assert_eq!((provider.count(), provider.count_of("ped-1")), (5, 3));
    let call = &provider.calls_of("ped-1")[0];
    assert_eq!(call.line, "POST /notificar HTTP/1.1");
    assert_eq!((call.key.as_str(), call.answered), ("ped-1:notificar-vendedor", Some(500)));
    assert_eq!(provider.repeated_calls().len(), 1);
}

#[tokio::test]
async fn a_provider_can_close_or_break_off_and_still_have_done_it() {
    let provider = Provider::start().await;
    provider.script("ped-1", [Answer::Close]);
    provider.script("ped-2", [Answer::Half]);

    assert_eq!(notify(&provider, "ped-1").await, None);
    assert_eq!(notify(&provider, "ped-2").await, None);
    assert_eq!((provider.count(), provider.performed()), (2, 2));
    assert!(provider.calls().iter().all(|c| c.answered.is_none()));
}

#[tokio::test]
async fn an_idempotent_provider_does_a_key_once() {
    let provider = Provider::start().await;
    provider.remember(Memory::Idempotent);
    provider.script("ped-1", [Answer::Close, Answer::Status(500)]);

    assert_eq!(notify(&provider, "ped-1").await, None);
    assert_eq!(status(notify(&provider, "ped-1").await.as_ref()), Some(200));
    assert_eq!((provider.count(), provider.performed()), (2, 1));
    assert!(provider.repeated_effects().is_empty());
}

#[tokio::test]
async fn a_hanging_answer_waits_for_its_gate() {
    let provider = Provider::start().await;
    let gate = Gate::default();
    let slow = Answer::slow(Duration::from_millis(5), Answer::Status(202));
    provider.script("ped-1", [Answer::hang(&gate, slow)]);

    let answer = async { notify(&provider, "ped-1").await };
    let opening = async {
        until("the call has arrived", SOON, async || provider.count_of("ped-1") == 1).await;
        assert_eq!(provider.calls()[0].answered, None);
        gate.open();
    };
    let (answer, ()) = tokio::join!(answer, opening);
    assert_eq!(status(answer.as_ref()), Some(202));
    assert_eq!(provider.most_in_flight(), 1);
}

#[tokio::test]
async fn a_provider_that_was_shut_refuses_and_comes_back_on_its_port() {
    let mut provider = Provider::start().await;
    let url = provider.url();
    provider.shut().await;
    assert_eq!(notify(&provider, "ped-1").await, None);
    assert_eq!(provider.count(), 0);

    provider.open().await;
    assert_eq!(provider.url(), url);
    assert_eq!(status(notify(&provider, "ped-1").await.as_ref()), Some(200));
}

/// Whether the database behind `url` answers within a moment.
async fn answers(url: &str) -> bool {
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query_scalar::<_, i32>("select 1").fetch_one(&mut connection).await
    };
    matches!(tokio::time::timeout(Duration::from_millis(500), asking).await, Ok(Ok(1)))
}

#[tokio::test]
async fn a_database_can_go_away_and_come_back() {
    let world = World::bare(Setup::default()).await;
    assert!(answers(&world.database_url).await);
    world.database_away().await;
    assert!(!answers(&world.database_url).await);
    world.database_back().await;
    assert!(answers(&world.database_url).await);
}

#[tokio::test]
async fn a_link_is_cut_goes_silent_and_is_restored() {
    let world = World::bare(Setup::default()).await;
    let link = Link::to_url(&world.database_url).await;
    let url = link.url(&world.database_url);
    assert_ne!(url, world.database_url);
    let mut before = PgConnection::connect(&url).await.expect("a session through the link");

    link.silence();
    let asked = tokio::time::timeout(Duration::from_millis(200), before.ping()).await;
    assert!(asked.is_err(), "a silent link answers nothing");
    assert!(!answers(&url).await);
    link.cut();
    assert!(before.ping().await.is_err(), "the session is gone");
    assert!(!answers(&url).await);
    link.restore();
    assert!(answers(&url).await);
}

#[tokio::test]
async fn a_process_is_paused_killed_and_read() {
    let world = World::bare(Setup::default()).await;
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo data; echo news >&2; exec sleep 60"]);
    let mut process = world.spawn(shell);
    until("it has spoken", SOON, async || process.stderr() == "news\n").await;
    assert_eq!(process.stdout(), "data\n");
    process.pause();
    assert!(process.is_alive());
    process.resume();
    process.terminate();
    assert_eq!(process.ended(SOON).await.signal, Some(15));

    let mut shell = Command::new("sh");
    shell.args(["-c", "exit 3"]);
    let mut other: Process = world.spawn(shell);
    assert_eq!(other.ended(SOON).await.code, Some(3));
}

#[tokio::test]
async fn a_setting_is_written_under_its_path() {
    let mut world = World::bare(Setup::default()).await;
    world.set(&["efeitos", "notificar-vendedor", "ao_falhar"], "liberar");
    world.set(&["lote", "max_eventos"], 16);
    assert_eq!(world.config["efeitos"]["notificar-vendedor"]["ao_falhar"].as_str(), Some("liberar"));
    assert_eq!(world.config["efeitos"]["notificar-vendedor"]["reserva"].as_str(), Some("3s"));
    assert_eq!(world.config["lote"]["max_eventos"].as_integer(), Some(16));
    assert_eq!(world.config["kafka"]["propriedades"]["session.timeout.ms"].as_str(), Some("6000"));
    let (second, port) = world.second_instance();
    assert!(second.exists() && port != world.http_port);
}

#[test]
fn a_metric_is_summed_over_the_series_that_match() {
    let text = "# TYPE reprise_efeitos_total counter\n\
        reprise_efeitos_total{desfecho=\"aplicado\",efeito=\"a\"} 2\n\
        reprise_efeitos_total{desfecho=\"aplicado\",efeito=\"b\"} 3\n\
        reprise_efeitos_total{desfecho=\"incerto\",efeito=\"a\"} 7\n\
        reprise_efeitos_total_outra 9\n";
    assert_eq!(metric(text, "reprise_efeitos_total", &[("desfecho", "aplicado")]), Some(5.0));
    assert_eq!(metric(text, "reprise_efeitos_total", &[("efeito", "b")]), Some(3.0));
    assert_eq!(metric(text, "reprise_efeitos_total", &[("efeito", "c")]), None);
}
