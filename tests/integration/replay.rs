//! Rewinding: where it starts, where it ends, what it leaves alone; tests bear the numbers of the cases.

mod range;
mod together;

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::kafka::Outgoing;
use crate::support::process::Process;
use crate::support::{Answer, LATER, SOON, Setup, World, until};

const FROM: &str = "2026-10-14T00:00:00-03:00";
const HOLD: &str = "notificar-vendedor";

fn args<'a>(verb: &'a str, id: &'a str) -> Vec<&'a str> {
    vec!["replay", verb, "--id", id, "--from", FROM]
}

/// Events on every partition in turn, a second apart, half of them before midnight; applied by live.
async fn applied(world: &World, count: u32) {
    let records = (0..count).map(|n| {
        let partition = i32::try_from(n).expect("small") % world.partitions;
        let at = MIDNIGHT_MS + (i64::from(n) - i64::from(count / 2)) * 1000;
        Outgoing::event(&event(n)).at(at).on(partition)
    });
    world.kafka.produce_all(&world.topic, records).await;
    let mut live = world.live().await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
}

fn count(run: &Value, path: &[&str]) -> i64 {
    path.iter().fold(run, |value, name| &value[*name]).as_i64().unwrap_or(0)
}

#[tokio::test]
async fn b31_b33_partitions_with_nothing_to_do_contribute_nothing_and_it_ends() {
    let world = World::with(Setup { partitions: 6, ..Setup::default() }).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(1)).at(MIDNIGHT_MS - 5000).on(0)).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(2)).at(MIDNIGHT_MS + 5000).on(1)).await;
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!((count(&run, &["eventos", "lidos"]), &run["situacao"]), (1, &json!("concluido")));
    assert_eq!(world.provider.count(), 1);
    let late = world.json(&["replay", "run", "--id", "replay-b", "--from", "2030-01-01T00:00:00Z"]).await;
    assert_eq!((count(&late, &["eventos", "lidos"]), &late["situacao"]), (0, &json!("concluido")));
}

#[tokio::test]
async fn b32_it_always_starts_at_the_computed_offsets() {
    let world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    applied(&world, 40).await;
    for n in 0..5 {
        let run = world.json(&args("run", &format!("replay-{n}"))).await;
        assert_eq!(count(&run, &["eventos", "lidos"]), 20, "run {n}");
        assert_eq!(count(&run, &["efeitos", HOLD, "ja-registrado"]), 20, "run {n}");
    }
    assert_eq!(world.provider.count(), 40);
}

#[tokio::test]
async fn b35_absurd_and_disordered_times_lose_nothing() {
    // Brokers may refuse times far from their own, either way, unless the topic takes them.
    let any_time = ["message.timestamp.before.max.ms", "message.timestamp.after.max.ms"]
        .map(|key| (key, "9223372036854775807"));
    let setup = Setup { partitions: 1, topic_config: any_time.into(), ..Setup::default() };
    let world = World::with(setup).await;
    let day = 86_400_000;
    let times = [
        MIDNIGHT_MS - 4 * day,
        (MIDNIGHT_MS + day) * 1000,
        MIDNIGHT_MS + day,
        MIDNIGHT_MS - day,
        MIDNIGHT_MS + 1,
    ];
    for (n, at) in (0_u32..).zip(times) {
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).at(at)).await;
    }
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!(
        count(&run, &["eventos", "lidos"]),
        4,
        "everything from the first record at or after the time"
    );
    assert_eq!(world.provider.count(), 4);
}

#[tokio::test]
async fn b44_a_replay_never_uses_the_live_group_and_leaves_its_offsets_alone() {
    let world = World::start().await;
    applied(&world, 30).await;
    let before = world.committed().await;
    for id in [world.group.as_str(), "outro"] {
        let refused = world.try_cli(&["replay", "run", "--id", id, "--from", FROM]).await;
        assert_eq!(refused.code, Some(3), "{id}");
    }
    world.json(&args("run", "replay-a")).await;
    assert_eq!(world.committed().await, before);
    let other = world
        .try_cli(&[args("run", "replay-a"), vec!["--effect", "notificar-vendedor=suprimir"]].concat())
        .await;
    assert_eq!(other.code, Some(3));
    assert!(
        other.stderr.contains("replay-a") && other.stderr.contains("effect policies"),
        "{}",
        other.stderr
    );
    let again = world.json(&args("run", "replay-a")).await;
    assert_eq!(again["situacao"], "concluido");
}

#[tokio::test]
async fn i6_b72_a_dry_run_changes_nothing_but_its_diff_and_can_be_repeated() {
    let world = World::start().await;
    applied(&world, 40).await;
    world.execute("update comissao set valor_centavos = 50 where pedido_id in ('ped-30', 'ped-31')").await;
    world.execute("delete from efeito_aplicado where pedido_id = 'ped-35'").await;
    let rows = async || {
        let commissions: Vec<(String,)> = world.rows("select comissao::text from comissao order by 1").await;
        let effects: Vec<(String,)> =
            world.rows("select efeito_aplicado::text from efeito_aplicado order by 1").await;
        (commissions, effects, world.committed().await, world.provider.count())
    };
    let before = rows().await;
    let dry = [args("run", "replay-a"), vec!["--dry-run"]].concat();
    for _ in 0..2 {
        let run = world.json(&dry).await;
        assert_eq!(count(&run, &["efeitos", HOLD, "seria-aplicado"]), 1);
        assert_eq!(count(&run, &["estado", "gravado"]), 2);
    }
    let diff = world.json(&["replay", "diff", "--id", "replay-a"]).await;
    assert_eq!(count(&diff, &["totais", "pedidosAlterados"]), 2);
    assert_eq!(
        (count(&diff, &["totais", "antesCentavos"]), count(&diff, &["totais", "depoisCentavos"])),
        (100, 1000)
    );
    assert_eq!(rows().await, before, "nothing but its diff");
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!(count(&run, &["efeitos", HOLD, "aplicado"]), 1);
    let real = world.json(&["replay", "diff", "--id", "replay-a"]).await;
    assert_eq!((&real["simular"], count(&real, &["totais", "pedidosAlterados"])), (&json!(false), 2));
    assert_eq!(world.commissions().await["ped-30"], 500);
    assert_eq!(world.provider.repeated_calls().len(), 1, "the notice whose row was deleted");
}

fn start(world: &World, id: &str) -> Process {
    world.run(&args("run", id))
}

#[tokio::test]
async fn b79_killed_and_run_again_its_totals_are_those_of_an_uninterrupted_one() {
    let mut world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    world.set(&["efeitos", HOLD, "ao_falhar"], "liberar");
    world.provider.default_answer(Answer::slow(Duration::from_millis(40), Answer::Status(200)));
    world.feed_from(0, 3000, MIDNIGHT_MS).await;
    let mut run = start(&world, "replay-a");
    until("it is under way", LATER, async || world.done().await > 1500).await;
    run.kill();
    let run = world.json(&args("run", "replay-a")).await;
    assert_eq!(run["situacao"], "concluido");
    assert_eq!(count(&run, &["eventos", "lidos"]), 3000);
    assert_eq!(count(&run, &["eventos", "aplicados"]), 3000);
    assert_eq!(count(&run, &["efeitos", HOLD, "aplicado"]), 3000);
    assert_eq!(count(&run, &["estado", "gravado"]), 3000);
    assert_eq!(world.done().await, 3000);
}

#[tokio::test]
async fn two_processes_share_a_replay_and_a_cancelled_one_leaves_nothing_reserved() {
    let world = World::with(Setup { partitions: 4, ..Setup::default() }).await;
    world.provider.default_answer(Answer::slow(Duration::from_millis(60), Answer::Status(200)));
    world.feed_from(0, 4000, MIDNIGHT_MS).await;
    let (mut first, mut second) = (start(&world, "replay-a"), start(&world, "replay-a"));
    let codes = [first.ended(LATER).await.code, second.ended(LATER).await.code];
    assert_eq!(codes, [Some(0), Some(0)]);
    assert_eq!(world.done().await, 4000);
    assert!(world.provider.repeated_calls().is_empty());

    world.provider.default_answer(Answer::slow(Duration::from_millis(300), Answer::Status(200)));
    world.execute("delete from efeito_aplicado").await;
    let mut run = start(&world, "replay-b");
    until("calls are out", SOON, async || world.done().await > 50).await;
    world.cli(&["replay", "cancel", "--id", "replay-b"]).await;
    assert_eq!(run.ended(LATER).await.code, Some(4));
    assert_eq!(world.states().await.get("reservado"), None);
}
