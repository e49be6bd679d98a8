//! Members come and go, offsets are lost, topics vanish: positions never go backwards and every member can stop.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::event::event_at;
use crate::support::kafka::{self, Outgoing};
use crate::support::process::Process;
use crate::support::{Answer, Gate, LATER, SOON, Setup, World, event::event, http, kafka_servers, until};

const HOLD: &str = "notificar-vendedor";

/// Another member of the same group, ready, and its port.
async fn second(world: &World) -> (Process, u16) {
    let (path, port) = world.second_instance();
    let mut command = world.command(&["live"]);
    command.arg("--config").arg(&path);
    (world.live_as(command, port).await, port)
}

/// A group whose members hear of a rebalance within half a second.
fn heed_rebalances(world: &mut World) {
    world.set(&["kafka", "propriedades", "heartbeat.interval.ms"], "500");
}

async fn metric_at(port: u16, name: &str, labels: &[(&str, &str)]) -> f64 {
    let reply = http::request("GET", &format!("http://127.0.0.1:{port}/metrics"), &[], None).await;
    http::metric(&reply.expect("metrics are served").body, name, labels).unwrap_or(0.0)
}

#[tokio::test]
async fn b01_b80_offsets_that_were_forgotten_are_read_from_the_start_and_nothing_happens_twice() {
    let mut world = World::start().await;
    heed_rebalances(&mut world);
    let mut live = world.live().await;
    world.feed(0, 200).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    // Row versions, so that even a write of the same values would show.
    let versions = "select pedido_id, xmin::text from comissao union all select chave, xmin::text from efeito_aplicado order by 1";
    let before: Vec<(String, String)> = world.rows(versions).await;
    world.kafka.forget_group(&world.group).await;
    assert!(world.committed().await.values().all(Option::is_none));

    let first = world.live().await;
    let (other, port) = second(&world).await;
    let known = [("desfecho", "ja-registrado"), ("execucao", "ao-vivo")];
    until("every effect is found in the ledger", SOON, async || {
        let ours = world.metric("reprise_efeitos_total", &known).await.unwrap_or(0.0);
        ours + metric_at(port, "reprise_efeitos_total", &known).await >= 200.0
    })
    .await;
    world.settled().await;
    assert_eq!(world.provider.count(), 200);
    assert_eq!(world.rows::<(String, String)>(versions).await, before);
    let begun = world.metric("reprise_sem_offset_total", &[]).await.unwrap_or(0.0)
        + metric_at(port, "reprise_sem_offset_total", &[]).await;
    assert!(begun >= 3.0, "{begun} partitions begun without an offset");
    let said = "no committed offset, starting at earliest";
    assert!(first.stderr().contains(said) || other.stderr().contains(said));
}

#[tokio::test]
async fn b41_b48_a_partition_that_goes_and_comes_back_takes_no_offset_back() {
    let mut world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    heed_rebalances(&mut world);
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    let first = world.live().await;
    for n in 0..10 {
        let partition = i32::try_from(n % 2).expect("small");
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).on(partition)).await;
    }
    world.settled().await;
    let mut last = world.committed().await;
    assert_eq!(last, BTreeMap::from([(0, Some(5)), (1, Some(5))]));

    let gate = Gate::default();
    for n in [20, 21] {
        world.provider.script(&format!("ped-{n}"), [Answer::hang(&gate, Answer::Status(200))]);
    }
    for n in 20..30 {
        let partition = i32::try_from(n % 2).expect("small");
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).on(partition)).await;
    }
    until("both first calls hang, the others are done", SOON, async || world.done().await == 18).await;
    // The whole runtime of a process is one thread: a rebalance in mid-call must not wait for it.
    let (mut other, port) = second(&world).await;
    until("a partition has moved", SOON, async || {
        never_back(&world, &mut last).await;
        owns_a_partition(port).await
    })
    .await;
    other.terminate();
    assert_eq!(other.ended(LATER).await.code, Some(0), "it stops without the effect it waited for");
    never_back(&world, &mut last).await;
    assert_eq!(last, BTreeMap::from([(0, Some(5)), (1, Some(5))]), "the hanging first records hold both");
    gate.open();
    until("all is settled", LATER, async || {
        never_back(&world, &mut last).await;
        world.caught_up().await
    })
    .await;
    assert_eq!(world.committed().await, BTreeMap::from([(0, Some(10)), (1, Some(10))]));
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 20)]));
    assert!(world.provider.repeated_calls().is_empty() && world.dlq().await.is_empty());
    drop(first);
}

/// Whether the member at `port` owns a partition.
async fn owns_a_partition(port: u16) -> bool {
    let reply = http::request("GET", &format!("http://127.0.0.1:{port}/metrics"), &[], None).await;
    reply.is_some_and(|reply| reply.body.contains("reprise_particao_lag{"))
}

async fn never_back(world: &World, last: &mut BTreeMap<i32, Option<i64>>) {
    let now = world.committed().await;
    for (partition, offset) in &now {
        assert!(*offset >= last[partition], "partition {partition}: {:?} -> {offset:?}", last[partition]);
    }
    *last = now;
}

#[tokio::test]
async fn b47_through_rebalances_every_partition_is_read_and_every_order_keeps_its_order() {
    let mut world = World::with(Setup { partitions: 12, ..Setup::default() }).await;
    heed_rebalances(&mut world);
    world.provider.default_answer(Answer::slow(Duration::from_millis(20), Answer::Status(200)));
    let _first = world.live().await;
    let mut members: Vec<Process> = Vec::new();
    for version in 1..=4 {
        let events = (0..48).map(|n| Outgoing::event(&event_at(n, version)));
        world.kafka.produce_all(&world.topic, events).await;
        // One joins, or the one that joined leaves, while these are on their way.
        match members.pop() {
            None => members.push(second(&world).await.0),
            Some(mut member) => {
                member.terminate();
                assert_eq!(member.ended(LATER).await.code, Some(0));
            }
        }
    }
    until("no partition is silent", LATER, async || world.caught_up().await).await;
    assert_eq!(world.done().await, 192);
    assert!(world.provider.repeated_calls().is_empty() && world.dlq().await.is_empty());
    for n in 0..48 {
        let calls = world.provider.calls_of(&format!("ped-{n}"));
        let events: Vec<&str> = calls.iter().filter_map(|call| call.body["eventoId"].as_str()).collect();
        assert_eq!(events, (1..=4).map(|v| format!("evt-{n}-{v}")).collect::<Vec<_>>(), "ped-{n}");
    }
}

#[tokio::test]
async fn b49_a_stop_ends_in_time_before_the_first_poll_and_after_the_topic_is_gone() {
    let world = World::start().await;
    let mut live = world.run(&["live", "--grace", "5s"]);
    until("it lives", SOON, async || world.get("/livez").await.is_some_and(|r| r.status == 200)).await;
    live.terminate();
    assert_eq!(live.ended(Duration::from_secs(8)).await.code, Some(0));

    let mut live = world.live_as(world.command(&["live", "--grace", "5s"]), world.http_port).await;
    world.feed(0, 5).await;
    world.settled().await;
    kafka::remove(&kafka_servers(), &[&world.topic], &[]).await;
    live.terminate();
    live.ended(Duration::from_secs(8)).await;
    assert_eq!((world.done().await, world.provider.count()), (5, 5));
}
