//! Any history, any interleaving: what live and replays leave behind together is the fold of the newest versions, and
//! no effect was called twice. And what else runs at once: a replay beside live, time zones, records read twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event, event_at};
use crate::support::kafka::Outgoing;
use crate::support::{Answer, LATER, SOON, Setup, World, until};

const FROM: &str = "2026-10-14T00:00:00-03:00";
const HOLD: &str = "notificar-vendedor";

fn args<'a>(id: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["replay", "run", "--id", id, "--from", FROM], more].concat()
}

fn count(run: &Value, path: &[&str]) -> i64 {
    path.iter().fold(run, |value, name| &value[*name]).as_i64().unwrap_or(0)
}

/// One record: an order, its version, the amount in units of 20 cents (at 5 %, the commission in cents).
#[derive(Debug, Clone, Copy)]
struct Paid {
    order: u32,
    version: u32,
    amount: i64,
}

/// Records of few orders: versions in any order, some records twice; and where the run is disturbed.
fn histories() -> impl Strategy<Value = (Vec<Paid>, u32, bool)> {
    let order = (1..5_u32, proptest::collection::vec(1..1000_i64, 4));
    let records = proptest::collection::vec(order, 8..20).prop_flat_map(|orders| {
        let all: Vec<Paid> = (0..)
            .zip(orders)
            .flat_map(|(order, (versions, amounts))| {
                (1..=versions).zip(amounts).map(move |(version, amount)| Paid { order, version, amount })
            })
            .collect();
        let again = proptest::sample::subsequence(all.clone(), 0..all.len() / 2);
        again.prop_flat_map(move |again| Just([all.clone(), again].concat()).prop_shuffle())
    });
    (records, 1..6_u32, any::<bool>())
}

fn record(paid: Paid, at: i64) -> Outgoing {
    let mut event = event_at(paid.order, paid.version);
    event["payload"]["valorCentavos"] = json!(paid.amount * 20);
    Outgoing::event(&event).at(MIDNIGHT_MS + at)
}

async fn plays(history: &[Paid], disturbed_after: u32, kills: bool) {
    let mut world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    world.set(&["replay", "concorrencia"], 3);
    world.set(&["efeitos", HOLD, "concorrencia"], 3);
    world.provider.default_answer(Answer::slow(Duration::from_millis(15), Answer::Status(200)));
    let half = history.len() / 2;
    let first = (0..).zip(&history[..half]).map(|(at, paid)| record(*paid, at));
    world.kafka.produce_all(&world.topic, first).await;
    let mut replay = world.run(&args("replay-a", &[]));
    let mut live = world.live().await;
    let second = (0..).zip(&history[half..]).map(|(at, paid)| record(*paid, 1000 + at));
    world.kafka.produce_all(&world.topic, second).await;
    let wanted = i64::from(disturbed_after);
    until("something is done", LATER, async || world.done().await >= wanted).await;
    if kills {
        replay.kill();
        replay = world.run(&args("replay-a", &[]));
    } else {
        live.kill();
        live = world.live().await;
    }
    let mut other = world.run(&args("replay-b", &[]));
    world.settled().await;
    for run in [&mut replay, &mut other] {
        let ended = run.ended(LATER).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    // The last one meets everything done, or in review; it changes nothing any more.
    let last = world.json(&args("replay-c", &[])).await;
    assert_eq!(count(&last, &["efeitos", HOLD, "aplicado"]), 0);
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));

    let mut newest: BTreeMap<u32, Paid> = BTreeMap::new();
    let mut keys: BTreeSet<String> = BTreeSet::new();
    for paid in history {
        let stands = newest.entry(paid.order).or_insert(*paid);
        if paid.version > stands.version {
            *stands = *paid;
        }
        keys.insert(format!("evt-{}-{}:{HOLD}", paid.order, paid.version));
    }
    let expected: BTreeMap<String, i64> =
        newest.values().map(|paid| (format!("ped-{}", paid.order), paid.amount)).collect();
    assert_eq!(world.commissions().await, expected);
    assert!(world.provider.repeated_calls().is_empty(), "{:?}", world.provider.repeated_calls());
    let settled: Vec<(String,)> =
        world.rows("select chave::text from efeito_aplicado where estado in ('concluido', 'incerto')").await;
    assert_eq!(settled.into_iter().map(|(key,)| key).collect::<BTreeSet<_>>(), keys, "no effect is lost");
}

#[tokio::test]
async fn whatever_the_history_and_the_interleaving_the_newest_versions_stand_and_no_effect_is_called_twice() {
    let mut runner = TestRunner::default();
    for case in 0..4 {
        let (history, after, kills) = histories().new_tree(&mut runner).expect("a history").current();
        eprintln!("case {case}: replay killed {kills}, after {after}: {history:?}");
        plays(&history, after, kills).await;
    }
}

#[tokio::test]
async fn b79_a_replay_beside_live_does_not_hold_live_up() {
    let mut world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    world.set(&["replay", "concorrencia"], 2);
    world.provider.default_answer(Answer::slow(Duration::from_millis(50), Answer::Status(200)));
    world.feed_from(0, 600, MIDNIGHT_MS).await;
    let mut run = world.run(&args("replay-a", &["--rate", "100"]));
    until("it is under way", LATER, async || world.done().await > 10).await;
    let mut live = world.live().await;
    let late = (10_000..10_040).map(|n| Outgoing::event(&event(n)).at(MIDNIGHT_MS + 900_000));
    world.kafka.produce_all(&world.topic, late).await;
    until("live is through", SOON, async || {
        world.one::<i64>("select count(*) from efeito_aplicado where execucao_id = 'ao-vivo' and estado = 'concluido' and pedido_id like 'ped-100__'").await == 40
    })
    .await;
    assert!(run.is_alive(), "the replay is what is slowed");
    let ended = run.ended(LATER).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let status = world.json(&["replay", "status", "--id", "replay-a"]).await;
    assert_eq!(count(&status, &["eventos", "lidos"]), 600, "what came later is live's");
    assert!(world.provider.repeated_calls().is_empty());
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
}

#[tokio::test]
async fn b35_an_instant_is_the_same_in_every_zone_and_one_without_a_zone_is_refused() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    for (n, at) in [(1, MIDNIGHT_MS - 1), (2, MIDNIGHT_MS), (3, MIDNIGHT_MS + 1)] {
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).at(at)).await;
    }
    for (n, from) in
        ["2026-10-14T00:00:00-03:00", "2026-10-14T03:00:00Z", "2026-10-14T12:00:00+09:00"].iter().enumerate()
    {
        let mut command = world.command(&[
            "replay",
            "plan",
            "--id",
            &format!("replay-{n}"),
            "--from",
            from,
            "--output",
            "json",
        ]);
        // A machine in another zone reads the same instant.
        command.env("TZ", "Asia/Tokyo");
        let ended = world.spawn(command).ended(LATER).await;
        let plan: Value = serde_json::from_str(&ended.stdout).expect("JSON");
        assert_eq!(plan["de"], "2026-10-14T03:00:00Z", "{from}");
        assert_eq!(
            plan["particoes"],
            json!([{"particao": 0, "inicio": 1, "fim": 3, "posicao": 1}]),
            "{from}"
        );
    }
    for vague in ["2026-10-14T00:00:00", "2026-10-14"] {
        let refused = world.try_cli(&["replay", "plan", "--id", "replay-x", "--from", vague]).await;
        assert_eq!(refused.code, Some(2), "{vague}: {}", refused.stderr);
    }
}

#[tokio::test]
async fn a_record_that_stands_in_the_range_twice_is_one_state_written() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    for n in [1, 2, 1] {
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).at(MIDNIGHT_MS)).await;
    }
    // Far enough behind to be of another batch.
    world.feed_from(100, 1500, MIDNIGHT_MS).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(2)).at(MIDNIGHT_MS + 3_600_000)).await;
    let dry = world.json(&args("replay-a", &["--dry-run"])).await;
    let run = world.json(&args("replay-a", &[])).await;
    for told in [&dry, &run] {
        assert_eq!(
            (
                count(told, &["eventos", "lidos"]),
                count(told, &["estado", "gravado"]),
                count(told, &["estado", "inalterado"])
            ),
            (1504, 1502, 2)
        );
    }
    assert_eq!(count(&run, &["efeitos", HOLD, "aplicado"]), 1502);
    assert_eq!(world.provider.count(), 1502);
}
