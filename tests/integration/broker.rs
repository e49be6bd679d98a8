//! The broker goes away while events are in hand: what was done is kept, what was not is waited for, and a stop
//! still ends in time.

use std::time::Duration;

use crate::support::event::event;
use crate::support::kafka::{Outgoing, header};
use crate::support::{Answer, Gate, LATER, Link, SOON, Setup, World, kafka_servers, until};

const HOLD: &str = "notificar-vendedor";

/// One partition, by way of a link that can be cut. The test's own Kafka client does not use it.
async fn linked() -> (World, Link) {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let link = Link::to_kafka(&kafka_servers()).await;
    world.set(&["kafka", "brokers"], link.address());
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    (world, link)
}

#[tokio::test]
async fn b49_a_stop_ends_in_time_with_the_broker_gone_and_keeps_what_was_answered() {
    let (world, link) = linked().await;
    let gate = Gate::default();
    world.provider.script("ped-3", [Answer::hang(&gate, Answer::Status(200))]);
    let mut live = world.live_as(world.command(&["live", "--grace", "6s"]), world.http_port).await;
    world.feed(0, 4).await;
    until("the last call is out, the others are done", SOON, async || {
        world.provider.count() == 4 && world.done().await == 3
    })
    .await;
    link.cut();
    live.terminate();
    gate.open();
    let stopped = live.ended(Duration::from_secs(9)).await;
    assert_eq!(stopped.signal, None, "it ended by itself, code {:?}", stopped.code);
    assert_eq!(world.done().await, 4, "the answer of the last call is in the ledger");
    assert!(!world.caught_up().await, "nobody could commit it");

    link.restore();
    let _live = world.live().await;
    world.settled().await;
    assert_eq!((world.done().await, world.provider.count()), (4, 4));
}

#[tokio::test]
async fn an_outage_of_the_broker_is_waited_out_by_the_same_process_and_repeats_nothing() {
    let (world, link) = linked().await;
    let gate = Gate::default();
    for n in 0..3 {
        world.provider.script(&format!("ped-{n}"), [Answer::hang(&gate, Answer::Status(200))]);
    }
    let mut live = world.live().await;
    world.feed(0, 10).await;
    until("three calls are out, the others are done", SOON, async || {
        world.provider.count() == 10 && world.done().await == 7
    })
    .await;
    link.cut();
    gate.open();
    until("what was in hand is settled without the broker", SOON, async || world.done().await == 10).await;
    // Longer than the session: the group forgets its member.
    until("the group is empty", LATER, async || world.kafka.members(&world.group).await == 0).await;
    world.feed(10, 10).await;
    link.restore();
    until("all is applied and committed", LATER, async || world.caught_up().await).await;
    assert!(live.is_alive(), "{}", live.stderr());
    assert_eq!((world.done().await, world.provider.count()), (20, 20));
    assert!(world.dlq().await.is_empty());
}

#[tokio::test]
async fn b50_a_dead_letter_the_broker_never_had_holds_its_offset_across_a_stop() {
    let (world, link) = linked().await;
    let gate = Gate::default();
    world.provider.script("ped-1", [Answer::hang(&gate, Answer::Status(422)), Answer::Status(422)]);
    let mut live = world.live_as(world.command(&["live", "--grace", "6s"]), world.http_port).await;
    for n in 0..3 {
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n))).await;
    }
    until("the neighbours are done and committed up to it", SOON, async || {
        world.done().await == 2 && world.committed().await[&0] == Some(1)
    })
    .await;
    link.cut();
    gate.open();
    until("a write of the letter has failed", SOON, async || {
        world.metric("reprise_dlq_tentativas_falhas_total", &[]).await >= Some(1.0)
    })
    .await;
    let indexed: i64 = world.one("select count(*) from carta_morta").await;
    assert_eq!(indexed, 0, "no row before the broker has it: a row would pass for a copy");
    live.terminate();
    let stopped = live.ended(Duration::from_secs(9)).await;
    assert_eq!(stopped.signal, None, "it ended by itself, code {:?}", stopped.code);
    assert_eq!(world.committed().await[&0], Some(1), "I4: nothing passes a letter nobody has");
    assert!(world.dlq().await.is_empty());

    link.restore();
    let _live = world.live().await;
    world.settled().await;
    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(header(&letters[0], "reprise-dlq-motivo"), "efeito-recusado");
    assert_eq!(world.one::<i64>("select count(*) from carta_morta where situacao = 'aberta'").await, 1);
    assert!(world.provider.count_of("ped-1") <= 2, "one more refused call at most");
    assert_eq!((world.provider.count_of("ped-0"), world.provider.count_of("ped-2")), (1, 1));
}
