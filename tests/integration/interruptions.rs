//! Interrupted between two durable steps: killed, stopped past the lease, or cut from the database, in `replay`,
//! `dlq redrive`, `sweep` and `live`; judged from outside when all have recovered. (`crashes` kills `live`, the
//! sweeper and a resend.)
#![cfg(feature = "crash-points")]

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::process::Process;
use crate::support::provider::Memory;
use crate::support::{Answer, LATER, SOON, Setup, World, crash_at, eventually, stop_at, until};

const EFFECT: &str = "notificar-vendedor";
/// Calls that can be in flight: what one interruption may leave uncertain.
const SLOTS: i64 = 4;
const EVENTS: u32 = 12;
const REPLAY: [&str; 6] = ["replay", "run", "--id", "replay-a", "--from", "2026-10-14T00:00:00-03:00"];
const REDRIVE: [&str; 4] = ["dlq", "redrive", "--all", "--yes"];
const SWEEP: [&str; 2] = ["sweep", "--once"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Killed,
    /// Stopped; its leases end, and a sweeper goes over them before it is continued.
    Paused,
    /// Stopped; its sessions are ended before it is continued.
    CutOff,
}

async fn world(on_failure: &str) -> World {
    let settings = toml::Table::from_iter([
        ("ao_falhar".to_owned(), toml::Value::from(on_failure)),
        ("concorrencia".to_owned(), SLOTS.into()),
        // Time enough for an answer on a machine that is busy.
        ("prazo".to_owned(), "5s".into()),
        ("reserva".to_owned(), "10s".into()),
    ]);
    let mut world =
        World::with(Setup { partitions: 1, effects: vec![(EFFECT, settings)], ..Setup::default() }).await;
    // Several batches, so that a point is passed several times.
    world.set(&["lote", "max_eventos"], 4);
    world.set(&["kafka", "instancia"], "pod-0");
    if on_failure == "liberar" {
        world.provider.remember(Memory::Idempotent);
    }
    world
}

/// A dead letter for each event, whose effect a provider refused and would take now.
async fn refused(world: &World) {
    for n in 0..EVENTS {
        world.provider.script(&format!("ped-{n}"), [Answer::Status(422), Answer::Status(200)]);
    }
    applied(world).await;
    assert_eq!(open_letters(world).await, i64::from(EVENTS));
}

async fn applied(world: &World) {
    let mut live = world.live().await;
    world.feed(0, EVENTS).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
}

async fn open_letters(world: &World) -> i64 {
    world.one("select count(*) from carta_morta where situacao = 'aberta'").await
}

fn interrupted(world: &World, args: &[&str], fault: Fault, point: &str, passage: u32) -> Command {
    let mut command = world.command(args);
    let (name, value) = match fault {
        Fault::Killed => crash_at(point, passage),
        Fault::Paused | Fault::CutOff => stop_at(point, passage),
    };
    command.env(name, value);
    command
}

/// Waits until the fault has struck, and sees to what others do meanwhile; a stopped process goes on.
async fn strike(world: &World, process: &mut Process, fault: Fault, point: &str) {
    if fault == Fault::Killed {
        assert_eq!(process.ended(LATER).await.code, None, "{point}: by a signal");
        return;
    }
    eventually("it has stopped", LATER, async || {
        assert!(process.is_alive(), "{point}: it ended\n{}", process.stderr());
        process.is_paused().then_some(())
    })
    .await;
    if fault == Fault::Paused {
        world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour' where estado = 'reservado'").await;
        world.cli(&SWEEP).await;
    } else {
        end_sessions(world).await;
    }
    process.resume();
}

async fn end_sessions(world: &World) {
    let ours = "from pg_stat_activity where datname = current_database() and application_name = 'reprise'";
    let ended: i64 = world.one(&format!("select count(pg_terminate_backend(pid)) {ours}")).await;
    assert!(ended > 0, "it had sessions");
    until("they are gone", SOON, async || world.one::<i64>(&format!("select count(*) {ours}")).await == 0)
        .await;
}

/// What must hold when everybody has recovered.
async fn judge(world: &World, what: &str, on_failure: &str) {
    let states = world.states().await;
    assert_eq!(states.values().sum::<i64>(), i64::from(EVENTS), "{what}: I3, {states:?}");
    assert_eq!(states.get("reservado"), None, "{what}: nothing is left in flight, {states:?}");
    let uncertain = states.get("incerto").copied().unwrap_or(0);
    let keys: Vec<(String, String)> = world.rows("select chave, estado from efeito_aplicado").await;
    // A refusal proves that nothing was done: what counts is what may have been.
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    for call in world.provider.calls() {
        assert!(keys.iter().any(|(key, _)| *key == call.key), "{what}: I1, {}", call.key);
        *reached.entry(call.key).or_default() += usize::from(call.answered != Some(422));
    }
    for (key, state) in &keys {
        assert!(state != "concluido" || reached.contains_key(key), "{what}: {key} was never called");
    }
    if on_failure == "manter" {
        assert!(reached.values().all(|calls| *calls <= 1), "{what}: I2, {reached:?}");
        assert!(uncertain <= SLOTS, "{what}: I11, {uncertain} uncertain");
    } else {
        assert_eq!(uncertain, 0, "{what}: asked again under the same key");
        assert!(world.provider.repeated_effects().is_empty(), "{what}");
    }
}

/// Runs `args` until it succeeds; a process that another one has replaced may end as it likes.
async fn completed(world: &World, args: &[&str], process: &mut Process, fault: Fault) {
    let ended = process.ended(LATER).await;
    if fault != Fault::Killed && ended.code == Some(0) {
        return;
    }
    // What was in flight is judged by its lease or its owner's session; nothing waits for a person.
    let again = world.try_cli(args).await;
    assert!(matches!(again.code, Some(0 | 1)), "{:?}\n{}", again.code, again.stderr);
}

async fn replay(fault: Fault, point: &str, on_failure: &str) {
    let world = world(on_failure).await;
    world.feed_from(0, EVENTS, MIDNIGHT_MS).await;
    let mut process = world.spawn(interrupted(&world, &REPLAY, fault, point, 2));
    strike(&world, &mut process, fault, point).await;
    completed(&world, &REPLAY, &mut process, fault).await;
    let what = format!("replay {fault:?} {point} {on_failure}");
    let run = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!((&run["situacao"], &run["eventos"]["lidos"]), (&"concluido".into(), &12.into()), "{what}");
    judge(&world, &what, on_failure).await;
    assert!(world.committed().await.values().all(Option::is_none), "{what}: I5, live's group is untouched");
}

async fn redrive(fault: Fault, point: &str, on_failure: &str) {
    let world = world(on_failure).await;
    refused(&world).await;
    let copies = world.dlq().await.len();
    let mut process = world.spawn(interrupted(&world, &REDRIVE, fault, point, 2));
    strike(&world, &mut process, fault, point).await;
    completed(&world, &REDRIVE, &mut process, fault).await;
    let what = format!("redrive {fault:?} {point} {on_failure}");
    judge(&world, &what, on_failure).await;
    let uncertain = world.states().await.get("incerto").copied().unwrap_or(0);
    assert!(
        open_letters(&world).await <= uncertain,
        "{what}: a letter is open only while its effect is not known"
    );
    assert_eq!(world.dlq().await.len(), copies, "{what}: no new copies");
}

async fn live(fault: Fault, point: &str, on_failure: &str) {
    let world = world(on_failure).await;
    world.feed(0, EVENTS).await;
    let mut process = world.spawn(interrupted(&world, &["live"], fault, point, 2));
    strike(&world, &mut process, fault, point).await;
    until("it is worked off", LATER, async || world.caught_up().await).await;
    assert!(process.is_alive(), "{point}: the same process goes on\n{}", process.stderr());
    judge(&world, &format!("live {fault:?} {point} {on_failure}"), on_failure).await;
    assert!(world.dlq().await.is_empty(), "I7");
}

/// An effect is due and its consumer is gone; a sweep takes it up and is interrupted. `live` goes over what it holds.
async fn sweep(fault: Fault, point: &str, on_failure: &str) {
    let mut world = world(on_failure).await;
    world.set(&["efeitos", EFFECT, "recuo_maximo"], "30s");
    world.set(&["efeitos", EFFECT, "recuo_inicial"], "30s");
    world.provider.script("ped-0", [Answer::Status(401), Answer::Status(200)]);
    let mut consumer = world.live().await;
    world.feed(0, 1).await;
    let waiting = "select count(*) from efeito_pendente where situacao = 'espera'";
    until("it waits for its retry", SOON, async || world.one::<i64>(waiting).await == 1).await;
    consumer.kill();
    world.execute("update efeito_pendente set tentar_em = now() - interval '1 minute'").await;

    let mut process = world.spawn(interrupted(&world, &SWEEP, fault, point, 1));
    eventually("it has stopped", LATER, async || process.is_paused().then_some(())).await;
    let _consumer = if fault == Fault::Paused {
        world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
        let live = world.live().await;
        world.settled().await;
        Some(live)
    } else {
        end_sessions(&world).await;
        None
    };
    process.resume();
    let ended = process.ended(LATER).await;
    let what = format!("sweep {fault:?} {point} {on_failure}: {:?}\n{}", ended.code, ended.stderr);
    if fault == Fault::CutOff {
        world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour' where estado = 'reservado'").await;
        world.cli(&SWEEP).await;
    }
    let states = world.states().await;
    assert!(!states.contains_key("reservado"), "{what}{states:?}");
    let reached = world.provider.calls().iter().filter(|call| call.answered != Some(401)).count();
    if on_failure == "manter" {
        assert!(reached <= 1, "{what}: I2");
        assert!(reached == 0 || world.done().await == 1, "{what}: the late answer is proof, {states:?}");
    } else {
        assert_eq!((world.done().await, world.provider.performed()), (1, 1), "{what}");
    }
}

macro_rules! interruptions {
    ($($name:ident: $command:ident, $fault:ident, [$($point:literal),*];)*) => { $(
        // Threads: the provider must answer while a process is started or a world taken away.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            for point in [$($point),*] {
                tokio::join!($command(Fault::$fault, point, "manter"), $command(Fault::$fault, point, "liberar"));
            }
        }
    )* };
}

interruptions! {
    i2_i3_a_replay_killed_between_its_steps_goes_on: replay, Killed, ["after_wave", "after_call"];
    i2_i3_a_replay_stopped_past_its_leases_goes_on: replay, Paused, ["after_wave", "after_call"];
    i2_i3_a_replay_cut_from_the_database_goes_on: replay, CutOff, ["after_state", "after_call"];
    i2_i3_a_redrive_killed_between_its_steps_goes_on: redrive, Killed, ["after_wave", "after_call"];
    i2_i3_a_redrive_stopped_past_its_leases_goes_on: redrive, Paused, ["before_call", "after_call"];
    i2_i3_a_redrive_cut_from_the_database_goes_on: redrive, CutOff, ["after_wave", "after_call"];
    i2_i3_a_service_stopped_past_its_leases_goes_on: live, Paused, ["before_call", "after_call"];
    i2_i3_a_service_cut_from_the_database_goes_on: live, CutOff, ["after_wave", "after_call"];
    i2_i3_a_sweep_stopped_past_its_leases_goes_on: sweep, Paused, ["sweep_reserved", "after_call"];
    i2_i3_a_sweep_cut_from_the_database_goes_on: sweep, CutOff, ["sweep_reserved", "after_call"];
}

/// What only the reservation's end can prove: a process that wakes up too late calls nobody.
#[tokio::test]
async fn i2_a_process_that_wakes_up_after_its_leases_does_not_begin_the_calls_it_had_reserved() {
    let mut world = world("manter").await;
    world.set(&["efeitos", EFFECT, "prazo"], "1s");
    world.set(&["efeitos", EFFECT, "reserva"], "3s");
    world.feed(0, 4).await;
    let mut process = world.spawn(interrupted(&world, &["live"], Fault::Paused, "before_call", 1));
    eventually("it has stopped", LATER, async || process.is_paused().then_some(())).await;
    let reserved = world.states().await.get("reservado").copied().unwrap_or(0);
    assert!(reserved > 0, "it had reserved");
    // By its own clock too: the lease is 3 s and the deadline of a call 1 s.
    let over = "select count(*) from efeito_aplicado where reserva_ate - interval '900 milliseconds' < clock_timestamp()";
    until("its leases are as good as over", SOON, async || world.one::<i64>(over).await == reserved).await;
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
    world.cli(&SWEEP).await;
    assert_eq!(world.states().await.get("incerto"), Some(&reserved));
    process.resume();
    until("it is worked off", LATER, async || world.caught_up().await).await;
    assert!(process.is_alive());
    assert_eq!(world.states().await.get("incerto"), Some(&reserved), "nobody called late");
    assert_eq!(i64::try_from(world.provider.count()).expect("few"), 4 - reserved);
    world.send(&event(99)).await;
    world.settled().await;
    assert_eq!(world.provider.count_of("ped-99"), 1);
}
