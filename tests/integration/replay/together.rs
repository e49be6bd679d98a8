//! Replays beside one another, stopped, paused, cancelled, cut off from the database, and watched.

use std::time::Duration;

use super::{HOLD, args, count, start};
use crate::support::event::MIDNIGHT_MS;
use crate::support::http::{self, metric};
use crate::support::{Answer, Gate, LATER, SOON, Setup, World, eventually, until};

/// Slow enough that something can happen meanwhile: a call takes 50 ms, 8 at once.
async fn slow(partitions: i32, events: u32) -> World {
    let mut world = World::with(Setup { partitions, ..Setup::default() }).await;
    world.set(&["replay", "concorrencia"], 8);
    world.provider.default_answer(Answer::slow(Duration::from_millis(50), Answer::Status(200)));
    world.feed_from(0, events, MIDNIGHT_MS).await;
    world
}

async fn situation(world: &World, id: &str) -> String {
    world.one(&format!("select situacao::text from reprocessamento where execucao_id = '{id}'")).await
}

async fn readers(world: &World) -> i64 {
    world.one("select count(distinct leitor) from reprocessamento_checkpoint").await
}

#[tokio::test]
async fn b79_a_killed_member_is_taken_over_by_the_one_it_shared_with() {
    let mut world = slow(4, 1200).await;
    world.set(&["efeitos", HOLD, "ao_falhar"], "liberar");
    let (mut stays, mut dies) = (start(&world, "replay-a"), start(&world, "replay-a"));
    until("both read", LATER, async || readers(&world).await == 2).await;
    dies.kill();
    assert_eq!(stays.ended(LATER).await.code, Some(0), "{}", stays.stderr());
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(status["situacao"], "concluido");
    assert_eq!(count(&status, &["eventos", "lidos"]), 1200);
    assert_eq!(count(&status, &["efeitos", HOLD, "aplicado"]), 1200);
    assert_eq!(count(&status, &["estado", "gravado"]), 1200);
    assert_eq!((world.done().await, readers(&world).await), (1200, 1));
}

#[tokio::test]
async fn b44_two_replays_at_once_share_neither_group_nor_position_and_no_effect_is_called_twice() {
    let world = slow(2, 600).await;
    let (mut first, mut second) = (start(&world, "replay-a"), start(&world, "replay-b"));
    assert_eq!([first.ended(LATER).await.code, second.ended(LATER).await.code], [Some(0), Some(0)]);
    let mut applied = 0;
    for id in ["replay-a", "replay-b"] {
        let status = world.json(&["replay", "status", "--id", id]).await;
        assert_eq!(
            (count(&status, &["eventos", "lidos"]), count(&status, &["eventos", "aplicados"])),
            (600, 600),
            "{id}"
        );
        applied += count(&status, &["efeitos", HOLD, "aplicado"]);
    }
    assert_eq!((applied, world.provider.count()), (600, 600));
    assert!(world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn cancelled_in_mid_call_it_settles_the_call_and_begins_no_other() {
    let mut world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    world.set(&["replay", "concorrencia"], 2);
    let gate = Gate::default();
    world.provider.default_answer(Answer::hang(&gate, Answer::Status(200)));
    world.feed_from(0, 50, MIDNIGHT_MS).await;
    let mut run = start(&world, "replay-a");
    until("two calls are out", LATER, async || world.provider.count() == 2).await;
    world.cli(&["replay", "cancel", "--id", "replay-a"]).await;
    until("it has heard", SOON, async || run.stderr().contains("no new work")).await;
    gate.open();
    let ended = run.ended(LATER).await;
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert_eq!(world.states().await.into_iter().collect::<Vec<_>>(), [("concluido".to_owned(), 2)]);
    assert_eq!(world.provider.count(), 2);
    let again = world.try_cli(&args("run", "replay-a")).await;
    assert_eq!(again.code, Some(3));
    assert!(again.stderr.contains("was cancelled"), "{}", again.stderr);
}

#[tokio::test]
async fn a_paused_one_starts_and_waits_is_stopped_with_1_and_goes_on_when_it_is_resumed() {
    let world = slow(2, 400).await;
    let mut run = start(&world, "replay-a");
    until("it is under way", LATER, async || world.done().await > 20).await;
    world.cli(&["replay", "pause", "--id", "replay-a"]).await;
    until("calls in flight are settled", SOON, async || {
        let open: i64 = world.one("select count(*) from efeito_aplicado where estado = 'reservado'").await;
        open == 0
    })
    .await;
    run.terminate();
    assert_eq!(run.ended(LATER).await.code, Some(1));
    let called = world.provider.count();
    let mut waiting = start(&world, "replay-a");
    until("it has its partitions", LATER, async || waiting.stderr().matches("partition begins").count() == 2)
        .await;
    assert_eq!((world.provider.count(), waiting.is_alive()), (called, true));
    assert_eq!(situation(&world, "replay-a").await, "pausado");
    world.cli(&["replay", "resume", "--id", "replay-a"]).await;
    assert_eq!(waiting.ended(LATER).await.code, Some(0));
    assert_eq!(situation(&world, "replay-a").await, "concluido");
    assert_eq!((world.done().await, world.provider.count()), (400, 400));
    let refused = world.try_cli(&["replay", "pause", "--id", "replay-a"]).await;
    assert_eq!(refused.code, Some(4), "what is done cannot be paused");
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for_and_a_stop_meanwhile_is_not_held_up() {
    let world = slow(2, 600).await;
    let mut run = start(&world, "replay-a");
    until("it is under way", LATER, async || world.done().await > 20).await;
    world.database_away().await;
    until("it notices", SOON, async || run.stderr().contains("waits for the database")).await;
    run.terminate();
    assert_eq!(run.ended(LATER).await.code, Some(1));
    world.database_back().await;
    let mut run = start(&world, "replay-a");
    until("it goes on", LATER, async || world.done().await > 200).await;
    world.database_away().await;
    until("it notices", SOON, async || run.stderr().contains("waits for the database")).await;
    world.database_back().await;
    assert_eq!(run.ended(LATER).await.code, Some(0), "{}", run.stderr());
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(
        (count(&status, &["eventos", "lidos"]), status["situacao"].as_str()),
        (600, Some("concluido"))
    );
    assert!(world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn a_replay_is_seen_in_its_own_metrics_and_in_those_of_live() {
    let world = slow(2, 600).await;
    let live = world.live().await;
    live.pause();
    let (_, port) = world.second_instance();
    let address = format!("127.0.0.1:{port}");
    let mut run = world.run(&[args("run", "replay-a"), vec!["--http", &address]].concat());
    let own = async |name: &str, labels: &[(&str, &str)]| {
        let reply = http::request("GET", &format!("http://{address}/metrics"), &[], None).await?;
        metric(&reply.body, name, labels)
    };
    until("its own metrics count", LATER, async || {
        own("reprise_efeitos_total", &[("execucao", "replay"), ("desfecho", "aplicado")]).await > Some(10.0)
    })
    .await;
    assert!(own("reprise_efeitos_total", &[("execucao", "ao-vivo")]).await <= Some(0.0));
    world.cli(&["replay", "pause", "--id", "replay-a"]).await;
    live.resume();
    let remaining = eventually("live shows it", LATER, async || {
        world.metric("reprise_replay_restante", &[]).await.filter(|remaining| *remaining > 0.0)
    })
    .await;
    assert!(remaining < 600.0, "{remaining}");
    world.cli(&["replay", "resume", "--id", "replay-a"]).await;
    assert_eq!(run.ended(LATER).await.code, Some(0));
    until("and no more once it is done", LATER, async || {
        world.metric("reprise_replay_restante", &[]).await.is_none()
    })
    .await;
}
