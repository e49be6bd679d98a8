//! Killed between two durable steps, and killed again while it recovers; judged from outside after every death:
//! the ledger, the provider's count by key, the committed offset, the dead letters.
#![cfg(feature = "crash-points")]

use std::collections::{BTreeMap, HashSet};

use crate::support::event::event;
use crate::support::kafka::Outgoing;
use crate::support::provider::Memory;
use crate::support::{Answer, LATER, SOON, Setup, World, crash, crash_at, eventually, until};

const EFFECT: &str = "notificar-vendedor";
/// Calls that can be in flight: what one crash may leave uncertain.
const SLOTS: i64 = 4;
/// Offset `n` holds the event of `ped-<n>`, but every eighth record is poison.
const RECORDS: u32 = 24;

fn is_poison(offset: i64) -> bool {
    offset % 8 == 0
}

async fn world(on_failure: &str) -> World {
    let settings = toml::Table::from_iter([
        ("ao_falhar".to_owned(), toml::Value::from(on_failure)),
        ("concorrencia".to_owned(), SLOTS.into()),
        ("recuo_inicial".to_owned(), "30s".into()),
        ("recuo_maximo".to_owned(), "30s".into()),
    ]);
    let mut world =
        World::with(Setup { partitions: 1, effects: vec![(EFFECT, settings)], ..Setup::default() }).await;
    // Several batches, so that a point is passed several times.
    world.set(&["lote", "max_eventos"], 4);
    // A static member has its partition back at once; the others wait for the session of the dead to be over.
    world.set(&["kafka", "instancia"], "pod-0");
    if on_failure == "liberar" {
        world.provider.remember(Memory::Idempotent);
    }
    world
}

/// One life of `live`, until it dies at the `n`-th passage of `point` or has nothing left to do.
async fn life(world: &World, point: &str, n: u32) -> bool {
    let mut command = world.command(&["live"]);
    let (name, value) = crash_at(point, n);
    command.env(name, value);
    let mut live = world.spawn(command);
    eventually("it dies or has caught up", LATER, async || {
        if !live.is_alive() {
            return Some(true);
        }
        world.caught_up().await.then_some(false)
    })
    .await
}

/// What must hold at any moment, with nobody running. Returns the committed offset.
async fn judge(world: &World, committed_before: i64) -> i64 {
    let rows: Vec<(String, String, String)> =
        world.rows("select chave, pedido_id, estado from efeito_aplicado").await;
    let keys: HashSet<&str> = rows.iter().map(|(key, ..)| key.as_str()).collect();
    let calls = world.provider.calls();
    for call in &calls {
        assert!(keys.contains(&call.key[..]), "I1: {} was called without a reservation", call.key);
    }
    let called: HashSet<&str> = calls.iter().map(|call| &call.key[..]).collect();
    let done: Vec<&str> =
        rows.iter().filter(|(.., state)| state == "concluido").map(|(key, ..)| &key[..]).collect();
    assert!(done.iter().all(|key| called.contains(key)), "nothing is done that was not called: {done:?}");

    let letters: Vec<(i64,)> = world.rows(r#"select "offset" from carta_morta"#).await;
    let committed = world.committed().await[&0].unwrap_or(0);
    assert!(committed >= committed_before, "I4: {committed_before} -> {committed}");
    for offset in 0..committed {
        let order = format!("ped-{offset}");
        let settled = if is_poison(offset) {
            letters.contains(&(offset,))
        } else {
            rows.iter().any(|(_, of, state)| *of == order && state != "reservado")
        };
        assert!(settled, "I4: offset {offset} is not settled, and {committed} is committed");
    }
    committed
}

async fn dies_and_dies_again(point: &str, on_failure: &str) {
    let world = world(on_failure).await;
    let records = (0..RECORDS)
        .map(|n| if is_poison(n.into()) { Outgoing::raw("torto", b"{") } else { Outgoing::event(&event(n)) });
    world.kafka.produce_all(&world.topic, records).await;
    let mut deaths = i64::from(life(&world, point, 2).await);
    assert_eq!(deaths, 1, "the point is passed a second time");
    let mut committed = judge(&world, 0).await;
    deaths += i64::from(life(&world, point, 1).await);
    committed = judge(&world, committed).await;

    let mut live = world.live().await;
    until("it is worked off", LATER, async || world.caught_up().await).await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    assert_eq!(judge(&world, committed).await, i64::from(RECORDS));

    let states = world.states().await;
    assert_eq!(states.values().sum::<i64>(), 21, "I3: {states:?}");
    assert_eq!(states.get("reservado"), None, "I3: nothing is left in flight");
    let uncertain = states.get("incerto").copied().unwrap_or(0);
    if on_failure == "manter" {
        assert!(world.provider.repeated_calls().is_empty(), "I2: {:?}", world.provider.repeated_calls());
        assert!(uncertain <= deaths * SLOTS, "I11: {uncertain} uncertain after {deaths} deaths");
    } else {
        assert_eq!((uncertain, world.provider.performed()), (0, 21), "asked again under the same key");
        assert!(world.provider.repeated_effects().is_empty());
    }
    let letters: i64 = world.one("select count(*) from carta_morta").await;
    assert_eq!(letters, 3, "one row per dead letter");
    let copies = i64::try_from(world.dlq().await.len()).expect("few");
    assert!((3..=3 + 3 * deaths).contains(&copies), "I7: {copies} copies, after {deaths} deaths");
}

/// An effect waits, proven not done, and its consumer is gone.
async fn waiting(on_failure: &str) -> World {
    let world = world(on_failure).await;
    world.provider.script("ped-1", [Answer::Status(401), Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(1, 1).await;
    let waiting = "select count(*) from efeito_pendente where situacao = 'espera'";
    until("it waits for its retry", SOON, async || world.one::<i64>(waiting).await == 1).await;
    live.kill();
    world.execute("update efeito_pendente set tentar_em = now() - interval '1 minute'").await;
    world
}

/// Runs a command that dies at the point, and lets the lease of what it reserved be over.
async fn dies_in(world: &World, point: &str, args: &[&str]) {
    let mut command = world.command(args);
    let (name, value) = crash(point);
    command.env(name, value);
    assert_eq!(world.spawn(command).ended(SOON).await.code, None, "{point}: by a signal");
    assert_eq!(world.states().await, BTreeMap::from([("reservado".to_owned(), 1)]), "{point}");
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
}

/// `calls`: how many have arrived when the sweeper dies, the refused first one included.
async fn sweeper_dies(point: &str, calls: usize) {
    let held = waiting("manter").await;
    dies_in(&held, point, &["sweep", "--once"]).await;
    held.cli(&["sweep", "--once"]).await;
    assert_eq!(held.states().await, BTreeMap::from([("incerto".to_owned(), 1)]), "{point}: I2");
    assert_eq!(held.provider.count(), calls, "{point}: I2, nobody is called again");

    let released = waiting("liberar").await;
    dies_in(&released, point, &["sweep", "--once"]).await;
    released.cli(&["sweep", "--once"]).await;
    assert_eq!(released.states().await, BTreeMap::from([("concluido".to_owned(), 1)]), "{point}: I3");
    assert_eq!((released.provider.count(), released.provider.performed()), (calls + 1, 1), "{point}");
    let keys: HashSet<String> = released.provider.calls().into_iter().map(|call| call.key).collect();
    assert_eq!(keys, HashSet::from([format!("evt-1-1:{EFFECT}")]), "{point}: one key");
}

/// A person's resend dies: the decision stays, and what happened is a new question with its own answer.
async fn resend_dies(point: &str, calls: usize) {
    let world = world("manter").await;
    world.provider.script("ped-1", [Answer::Close, Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(1, 1).await;
    world.settled().await;
    live.kill();
    let key = format!("evt-1-1:{EFFECT}");
    let resolve = |decision| {
        ["effects", "resolve", &key, "--as", decision, "--by", "ana", "--reason", "asked the provider"]
    };
    dies_in(&world, point, &[&resolve("nao-enviado")[..], &["--resend"]].concat()).await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, BTreeMap::from([("incerto".to_owned(), 1)]), "{point}: I2");
    world.cli(&resolve("concluido")).await;
    let decisions: Vec<(i32, String)> =
        world.rows("select rodada, decisao from revisao_efeito order by rodada").await;
    assert_eq!(decisions, [(1, "nao-enviado".to_owned()), (2, "concluido".to_owned())], "{point}: I9");
    assert_eq!((world.provider.count(), world.done().await), (calls, 1), "{point}");
}

macro_rules! lives {
    ($($held:ident, $released:ident: $point:literal;)*) => { $(
        #[tokio::test]
        async fn $held() {
            dies_and_dies_again($point, "manter").await;
        }

        #[tokio::test]
        async fn $released() {
            dies_and_dies_again($point, "liberar").await;
        }
    )* };
}

lives! {
    i1_i4_i11_after_state_held, i1_i4_after_state_released: "after_state";
    i1_i4_i11_after_wave_held, i1_i4_after_wave_released: "after_wave";
    i1_i4_i11_before_call_held, i1_i4_before_call_released: "before_call";
    i1_i4_i11_after_call_held, i1_i4_after_call_released: "after_call";
    i1_i4_i11_after_dlq_ack_held, i1_i4_after_dlq_ack_released: "after_dlq_ack";
    i1_i4_i11_after_dlq_index_held, i1_i4_after_dlq_index_released: "after_dlq_index";
}

#[tokio::test]
async fn i2_i3_a_sweeper_that_dies_neither_loses_nor_repeats() {
    for (point, calls) in [("sweep_reserved", 1), ("before_call", 1), ("after_call", 2)] {
        sweeper_dies(point, calls).await;
    }
}

#[tokio::test]
async fn i2_i9_a_resend_that_dies_keeps_its_decision_and_is_asked_about_again() {
    for (point, calls) in [("before_call", 1), ("after_call", 2)] {
        resend_dies(point, calls).await;
    }
}
