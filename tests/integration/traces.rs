//! Traces: the tree of one event at a real OTLP receiver, by HTTP and by gRPC; new traces for redrive and replay; and
//! a collector that never answers.

use std::fs;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;

use crate::support::collector::{attribute, hex};
use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::kafka::{Outgoing, header};
use crate::support::{Answer, Collector, LATER, SOON, Setup, World, until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const CONSUMER: i32 = 5;
const CLIENT: i32 = 3;
const PRODUCER: i32 = 4;

fn with_context(n: u32) -> Outgoing {
    let context = format!("00-{TRACE}-{PARENT}-01");
    Outgoing {
        headers: vec![("traceparent".to_owned(), Some(context.into_bytes()))],
        ..Outgoing::event(&event(n))
    }
}

async fn traced(collector: &Collector, protocol: &str) -> World {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let port = if protocol == "grpc" { collector.grpc_port } else { collector.http_port };
    let headers = world.write_config_as("cabecalhos", &toml::Table::new());
    fs::write(&headers, "x-acesso: senha-do-coletor\n").expect("a file can be written");
    world.set(&["telemetria", "endpoint"], format!("http://127.0.0.1:{port}"));
    world.set(&["telemetria", "protocolo"], protocol);
    world.set(&["telemetria", "cabecalhos_arquivo"], headers.display().to_string());
    world.set(&["telemetria", "nome_servico"], "comissao-de-teste");
    world
}

fn links_to(span: &Span, trace_id: &[u8], span_id: &[u8]) -> bool {
    span.links.iter().any(|link| link.trace_id == trace_id && link.span_id == span_id)
}

async fn the_tree_of_one_event(protocol: &str) {
    let collector = Collector::start().await;
    let world = traced(&collector, protocol).await;
    let _live = world.live().await;
    world.kafka.produce(&world.topic, &with_context(1)).await;
    world.settled().await;

    let named = |name: String| move |span: &Span| span.name == name;
    let process = collector.span("the event", named(format!("process {}", world.topic))).await;
    assert_eq!((hex(&process.trace_id), hex(&process.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!(process.kind, CONSUMER);
    for (key, value) in [
        ("messaging.system", "kafka"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", world.topic.as_str()),
        ("messaging.destination.partition.id", "0"),
        ("messaging.kafka.offset", "0"),
        ("messaging.consumer.group.name", world.group.as_str()),
        ("messaging.message.id", "evt-1-1"),
        ("reprise.execucao", "ao-vivo"),
    ] {
        assert_eq!(attribute(&process, key).as_deref(), Some(value), "{key}");
    }
    let receive = collector.span("the batch", named(format!("receive {}", world.topic))).await;
    assert!(links_to(&receive, &process.trace_id, &process.parent_span_id), "{receive:?}");
    assert_eq!(attribute(&receive, "messaging.batch.message_count").as_deref(), Some("1"));

    let reserves = |span: &Span| attribute(span, "reprise.onda.reservados").as_deref() == Some("1");
    let wave = collector.span("the reservation", |span| span.name == "ledger wave" && reserves(span)).await;
    assert_eq!((&wave.trace_id, &wave.parent_span_id), (&process.trace_id, &process.span_id));
    let call = collector.span("the call", named("POST notificar-vendedor".to_owned())).await;
    assert_eq!((&call.trace_id, &call.parent_span_id), (&process.trace_id, &process.span_id));
    assert!(links_to(&call, &wave.trace_id, &wave.span_id), "{call:?}");
    assert_eq!(call.kind, CLIENT);
    assert_eq!(attribute(&call, "http.response.status_code").as_deref(), Some("200"));
    assert_eq!(attribute(&call, "reprise.prova").as_deref(), Some("feito"));

    let sent = &world.provider.calls()[0].headers["traceparent"];
    assert_eq!(*sent, format!("00-{TRACE}-{}-01", hex(&call.span_id)));
    assert!(collector.services().iter().all(|name| name == "comissao-de-teste"));
    assert!(collector.access().iter().all(|access| access.as_deref() == Some("senha-do-coletor")));
    until("delivered spans are counted", SOON, async || {
        let delivered = world.metric("reprise_rastros_total", &[("resultado", "entregue")]).await;
        delivered.is_some_and(|count| count >= 4.0)
    })
    .await;
}

#[tokio::test]
async fn the_tree_of_one_event_arrives_by_http() {
    the_tree_of_one_event("http").await;
}

#[tokio::test]
async fn the_tree_of_one_event_arrives_by_grpc() {
    the_tree_of_one_event("grpc").await;
}

#[tokio::test]
async fn without_an_endpoint_the_header_is_passed_on_as_it_came() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let _live = world.live().await;
    world.kafka.produce(&world.topic, &with_context(1)).await;
    world.settled().await;
    assert_eq!(world.provider.calls()[0].headers["traceparent"], format!("00-{TRACE}-{PARENT}-01"));
}

#[tokio::test]
async fn b75_the_dead_letter_keeps_its_trace_and_handling_it_again_is_a_new_one_linked_to_it() {
    let collector = Collector::start().await;
    let world = traced(&collector, "http").await;
    world.provider.script("ped-1", [Answer::Status(400), Answer::Status(200)]);
    let mut live = world.live().await;
    world.kafka.produce(&world.topic, &with_context(1)).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));

    let letters = world.dlq().await;
    assert_eq!(header(&letters[0], "traceparent"), format!("00-{TRACE}-{PARENT}-01"), "the producer's own");
    let send = format!("send {}", world.dlq_topic);
    let send = collector.span("the letter", |span| span.name == send).await;
    assert_eq!((hex(&send.trace_id), send.kind), (TRACE.into(), PRODUCER));

    world.cli(&["dlq", "redrive", "--all", "--yes"]).await;
    again(&collector, &world, "redrive", 1).await;

    world.kafka.produce(&world.topic, &with_context(2).at(MIDNIGHT_MS)).await;
    world.cli(&["replay", "run", "--id", "replay-outra-vez", "--from", "2026-10-14T00:00:00-03:00"]).await;
    again(&collector, &world, "replay", 2).await;
}

/// The event's span in a run of this kind, and the call it made, are a trace of their own.
async fn again(collector: &Collector, world: &World, run: &str, call: usize) {
    let process = format!("process {}", world.topic);
    let of_run = |span: &Span| attribute(span, "reprise.execucao").as_deref() == Some(run);
    let event = collector.span(run, |span| span.name == process && of_run(span)).await;
    assert_ne!(hex(&event.trace_id), TRACE, "{run} is a trace of its own");
    assert!(event.parent_span_id.is_empty());
    let linked: Vec<_> = event.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
    assert_eq!(linked, [(TRACE.to_owned(), PARENT.to_owned())], "linked to the original");
    let called = collector
        .span("its call", |span| span.name.starts_with("POST") && span.trace_id == event.trace_id)
        .await;
    let sent = &world.provider.calls()[call].headers["traceparent"];
    assert_eq!(*sent, format!("00-{}-{}-01", hex(&event.trace_id), hex(&called.span_id)));
}

#[tokio::test]
async fn b74_a_collector_that_never_answers_delays_neither_work_nor_the_end() {
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let port = silent.local_addr().expect("bound").port();
    let held = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((socket, _)) = silent.accept().await {
            open.push(socket);
        }
    });
    for protocol in ["http", "grpc"] {
        let mut world = World::start().await;
        world.set(&["telemetria", "endpoint"], format!("http://127.0.0.1:{port}"));
        world.set(&["telemetria", "protocolo"], protocol);
        let mut live = world.live().await;
        world.feed_from(0, 200, MIDNIGHT_MS).await;
        world.settled().await;
        assert_eq!((world.done().await, world.provider.count()), (200, 200));
        live.terminate();
        let asked = Instant::now();
        let ended = live.ended(LATER).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(asked.elapsed() < Duration::from_secs(15), "well inside the grace of 25 s");
        assert!(ended.stderr.contains("the last traces are lost"), "it is said:\n{}", ended.stderr);

        world.feed_from(200, 1, MIDNIGHT_MS + 200_000).await;
        let asked = Instant::now();
        let replay =
            world.cli(&["replay", "run", "--id", "replay-r", "--from", "2026-10-14T00:00:00-03:00"]).await;
        assert!(asked.elapsed() < Duration::from_secs(30));
        assert!(replay.stderr.contains("the last traces are lost"), "it is said:\n{}", replay.stderr);
        assert_eq!(world.provider.count(), 201);
    }
    held.abort();
}
