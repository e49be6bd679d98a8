//! Effects that nobody knows about: swept from the ledger alone, shown with their evidence, decided once.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::process::Process;
use crate::support::{Answer, Gate, SOON, Setup, World, until};

const NOTIFY: &str = "notificar-vendedor";

fn settings(pairs: &[(&str, &str)]) -> toml::Table {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), toml::Value::from(*value))).collect()
}

async fn world(pairs: &[(&str, &str)]) -> World {
    let effects = vec![(NOTIFY, settings(pairs))];
    World::with(Setup { partitions: 1, effects, ..Setup::default() }).await
}

fn key(n: u32) -> String {
    format!("evt-{n}-1:{NOTIFY}")
}

fn states(pairs: &[(&str, i64)]) -> BTreeMap<String, i64> {
    pairs.iter().map(|(state, n)| ((*state).to_owned(), *n)).collect()
}

/// An event whose provider closes without an answer: `incerto` under `manter`.
async fn uncertain(world: &World, events: u32) -> Process {
    for n in 0..events {
        world.provider.script(&format!("ped-{n}"), [Answer::Close, Answer::Status(200)]);
    }
    let live = world.live().await;
    world.feed(0, events).await;
    world.settled().await;
    assert_eq!(world.states().await, states(&[("incerto", i64::from(events))]));
    live
}

async fn resolve(
    world: &World,
    n: u32,
    decision: &str,
    by: &str,
    more: &[&str],
) -> crate::support::process::Ended {
    let key = key(n);
    let args = ["effects", "resolve", &key, "--as", decision, "--by", by, "--reason", "seen in the panel"];
    world.try_cli(&[&args, more].concat()).await
}

/// One call of `live` hangs, then `live` is killed.
async fn killed_in_mid_call(world: &World) {
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200)), Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    until("the call has arrived", SOON, async || world.provider.count() == 1).await;
    live.kill();
    gate.open();
}

#[tokio::test]
async fn b13_beyond_the_providers_memory_an_abandoned_effect_goes_to_review() {
    let world = world(&[
        ("ao_falhar", "liberar"),
        ("janela_idempotencia", "24h"),
        ("prazo", "10s"),
        ("reserva", "20s"),
    ])
    .await;
    killed_in_mid_call(&world).await;
    let days = "interval '2 days'";
    world
        .execute(&format!(
            "update efeito_aplicado set criado_em = criado_em - {days}, atualizado_em = atualizado_em - {days},
             reserva_ate = reserva_ate - {days}"
        ))
        .await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("incerto", 1)]));
    assert_eq!(world.provider.count(), 1);
}

#[tokio::test]
async fn a_reservation_whose_lease_is_not_over_is_left_to_its_own_consumer() {
    let world = world(&[("ao_falhar", "liberar"), ("prazo", "10s"), ("reserva", "20s")]).await;
    killed_in_mid_call(&world).await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("reservado", 1)]));
    assert_eq!(world.provider.count(), 1);
}

#[tokio::test]
async fn what_a_provider_refuses_in_a_sweep_goes_to_review_and_a_type_that_is_gone_is_left_alone() {
    let mut world = world(&[("ao_falhar", "liberar"), ("prazo", "10s"), ("reserva", "20s")]).await;
    killed_in_mid_call(&world).await;
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
    world.provider.script("ped-0", [Answer::Status(422)]);

    let effects = world.config["efeitos"].as_table_mut().expect("a section");
    let effect = effects.remove(NOTIFY).expect("configured");
    effects.insert("pagar-repasse".to_owned(), effect.clone());
    world.write_config();
    let ended = world.cli(&["sweep", "--once"]).await;
    assert!(ended.stderr.contains("not configured"), "{}", ended.stderr);
    assert_eq!(world.states().await, states(&[("reservado", 1)]));

    world.config["efeitos"].as_table_mut().expect("a section").insert(NOTIFY.to_owned(), effect);
    world.write_config();
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("incerto", 1)]));
    let shown = world.json(&["effects", "show", &key(0)]).await;
    let answers: Vec<&Value> =
        shown["evidencia"].as_array().expect("evidence").iter().map(|line| &line["resposta"]).collect();
    assert_eq!(answers, ["abandonado", "recusado"]);
    assert!(world.dlq().await.is_empty());
}

#[tokio::test]
async fn b09_a_due_retry_happens_after_a_restart_with_the_same_key() {
    let world = world(&[("ao_falhar", "liberar"), ("recuo_inicial", "2s"), ("recuo_maximo", "4s")]).await;
    world.provider.script("ped-0", [Answer::Status(500), Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    let waiting = "select count(*) from efeito_pendente where situacao = 'espera'";
    until("it waits for its retry", SOON, async || world.one::<i64>(waiting).await == 1).await;
    live.kill();
    let _live = world.live().await;
    until("it is done", SOON, async || world.done().await == 1).await;
    let keys: Vec<String> = world.provider.calls().into_iter().map(|call| call.key).collect();
    assert_eq!(keys, [key(0), key(0)]);
}

#[tokio::test]
async fn b09_a_due_retry_without_its_consumer_is_swept() {
    let world = world(&[("ao_falhar", "liberar"), ("recuo_inicial", "30s"), ("recuo_maximo", "30s")]).await;
    world.provider.script("ped-0", [Answer::Status(500), Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    let waiting = "select count(*) from efeito_pendente where situacao = 'espera'";
    until("it waits for its retry", SOON, async || world.one::<i64>(waiting).await == 1).await;
    live.kill();
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.provider.count(), 1, "it is not due yet");
    world.execute("update efeito_pendente set tentar_em = now() - interval '1 minute'").await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("concluido", 1)]));
    assert_eq!(world.one::<i64>("select count(*) from efeito_pendente").await, 0);
}

#[tokio::test]
async fn a_sweep_keeps_the_providers_limit_of_calls_a_second() {
    let mut world =
        world(&[("ao_falhar", "liberar"), ("recuo_inicial", "30s"), ("recuo_maximo", "30s")]).await;
    for n in 0..12 {
        world.provider.script(&format!("ped-{n}"), [Answer::Status(500), Answer::Status(200)]);
    }
    let mut live = world.live().await;
    world.feed(0, 12).await;
    let waiting = "select count(*) from efeito_pendente where situacao = 'espera'";
    until("they wait for their retries", SOON, async || world.one::<i64>(waiting).await == 12).await;
    live.kill();
    world.execute("update efeito_pendente set tentar_em = now() - interval '1 minute'").await;
    world.set(&["efeitos", NOTIFY, "limite_por_segundo"], 4);
    let begun = std::time::Instant::now();
    world.cli(&["sweep", "--once"]).await;
    let took = begun.elapsed();
    assert_eq!(world.states().await, states(&[("concluido", 12)]));
    // Four at once, and then four a second.
    assert!(took >= std::time::Duration::from_millis(1900), "12 calls within {took:?}");
}

#[tokio::test]
async fn b54_an_outage_puts_nothing_into_review_though_it_is_swept() {
    let mut world = world(&[]).await;
    world.set(&["efeitos", NOTIFY, "circuito_limite"], 3);
    world.provider.shut().await;
    let _live = world.live().await;
    world.feed(0, 12).await;
    let open = async || world.metric("reprise_circuito_aberto", &[]).await == Some(1.0);
    until("the circuit is open", SOON, open).await;
    world.execute("update efeito_pendente set tentar_em = now() - interval '1 hour'").await;
    let last = async || world.metric("reprise_varredura_ultima_segundos", &[]).await.unwrap_or_default();
    let aged: f64 = world.one("select extract(epoch from now())::float8").await;
    // The service gives its consumer a lease (3 s) before it sweeps.
    until("it was swept with the rows due", SOON, async || last().await > aged + 5.0).await;
    assert!(!world.states().await.contains_key("incerto"), "{:?}", world.states().await);
    world.provider.open().await;
    until("the backlog is drained", SOON, async || world.done().await == 12).await;
    assert!(world.provider.repeated_calls().is_empty() && world.dlq().await.is_empty());
}

#[tokio::test]
async fn b38_a_late_answer_of_a_paused_owner_is_proof_and_does_not_overwrite() {
    let world = world(&[("prazo", "30s"), ("reserva", "31s")]).await;
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200))]);
    let live = world.live().await;
    world.feed(0, 1).await;
    until("the call has arrived", SOON, async || world.provider.count() == 1).await;
    live.pause();
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("incerto", 1)]));
    gate.open();
    live.resume();
    until("the late answer is proof", SOON, async || world.done().await == 1).await;
    let shown = world.json(&["effects", "show", &key(0)]).await;
    let answers: Vec<&Value> =
        shown["evidencia"].as_array().expect("evidence").iter().map(|line| &line["resposta"]).collect();
    assert_eq!(answers, ["abandonado", "feito-tardio"]);
    assert_eq!(world.provider.count(), 1);
}

#[tokio::test]
async fn b38_a_late_answer_never_overrules_a_person() {
    let world = world(&[("prazo", "30s"), ("reserva", "31s")]).await;
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200))]);
    let live = world.live().await;
    world.feed(0, 1).await;
    until("the call has arrived", SOON, async || world.provider.count() == 1).await;
    live.pause();
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(resolve(&world, 0, "descartado", "ana", &[]).await.code, Some(0));
    gate.open();
    live.resume();
    let late = "select count(*) from tentativa_efeito where resposta = 'feito-tardio'";
    until("the late answer is kept", SOON, async || world.one::<i64>(late).await == 1).await;
    let result: Value = world.one("select resultado from efeito_aplicado").await;
    assert_eq!((&result["decisao"], &result["por"]), (&json!("descartado"), &json!("ana")));
}

#[tokio::test]
async fn b38_a_late_answer_to_a_resend_is_proof_of_the_attempt_that_was_decided() {
    let world = world(&[("prazo", "30s"), ("reserva", "31s")]).await;
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::Close, Answer::hang(&gate, Answer::Status(200))]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(SOON).await.code, Some(0));
    let key = key(0);
    let resend =
        ["effects", "resolve", &key, "--as", "nao-enviado", "--by", "ana", "--reason", "asked", "--resend"];
    let sending = world.spawn(world.command(&resend));
    until("the resend has arrived", SOON, async || world.provider.count() == 2).await;
    sending.pause();
    world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
    world.cli(&["sweep", "--once"]).await;
    assert_eq!(world.states().await, states(&[("incerto", 1)]));
    gate.open();
    sending.resume();
    until("the late answer is proof", SOON, async || world.done().await == 1).await;
    assert_eq!(world.provider.count(), 2);
}

#[tokio::test]
async fn uncertain_effects_are_listed_and_shown_with_their_evidence() {
    let world = world(&[]).await;
    let _live = uncertain(&world, 2).await;
    let listed = world.json(&["effects", "list"]).await;
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert_eq!((&listed[0]["estado"], &listed[0]["tentativas"]), (&json!("incerto"), &json!(1)));
    assert_eq!(world.json(&["effects", "list", "--order", "ped-1"]).await[0]["chave"], key(1));
    assert_eq!(world.json(&["effects", "list", "--tipo", "outro"]).await, json!([]));
    assert_eq!(world.json(&["effects", "list", "--estado", "concluido"]).await, json!([]));

    let shown = world.json(&["effects", "show", &key(0)]).await;
    assert_eq!(shown["requisicao"]["valorCentavos"], 500);
    assert_eq!(
        (&shown["evidencia"][0]["resposta"], &shown["evidencia"][0]["alcance"]),
        (&json!("desconhecido"), &json!("enviado"))
    );
    assert_eq!((&shown["revisoes"], &shown["resultado"]), (&json!([]), &Value::Null));
    assert_eq!(shown["comissao"]["valorCentavos"], 500);
    assert_eq!(world.try_cli(&["effects", "show", "nobody:knows"]).await.code, Some(4));
}

#[tokio::test]
async fn what_a_person_puts_back_is_sent_by_the_service_and_what_is_discarded_is_not() {
    let world = world(&[]).await;
    let _live = uncertain(&world, 2).await;
    assert_eq!(resolve(&world, 0, "nao-enviado", "ana", &[]).await.code, Some(0));
    assert_eq!(resolve(&world, 1, "descartado", "rui", &[]).await.code, Some(0));
    until("both are settled", SOON, async || world.done().await == 2).await;
    assert_eq!((world.provider.count_of("ped-0"), world.provider.count_of("ped-1")), (2, 1));
    assert_eq!(world.json(&["effects", "list", "--order", "ped-1"]).await, json!([]));
    let rulings: Vec<(String, i32, String, String)> =
        world.rows("select chave, rodada, decisao, por from revisao_efeito order by chave").await;
    let expected = [(key(0), 1, "nao-enviado", "ana"), (key(1), 1, "descartado", "rui")];
    assert_eq!(rulings, expected.map(|(k, n, d, p)| (k, n, d.to_owned(), p.to_owned())));
}

#[tokio::test]
async fn a_resend_reports_the_answer_and_may_become_uncertain_again() {
    let world = world(&[]).await;
    let live = uncertain(&world, 1).await;
    drop(live);
    world.provider.script("ped-0", [Answer::Close, Answer::Status(200)]);
    let again = resolve(&world, 0, "nao-enviado", "ana", &["--resend"]).await;
    assert_eq!((again.code, world.states().await), (Some(1), states(&[("incerto", 1)])));
    let done = resolve(&world, 0, "nao-enviado", "rui", &["--resend"]).await;
    assert_eq!((done.code, world.states().await), (Some(0), states(&[("concluido", 1)])));
    assert_eq!(world.provider.count(), 3);
    let rounds: Vec<(i32, String)> =
        world.rows("select rodada, por from revisao_efeito order by rodada").await;
    assert_eq!(rounds, [(1, "ana".to_owned()), (2, "rui".to_owned())]);
    assert_eq!(world.one::<i64>("select count(*) from efeito_pendente").await, 0);
    let misplaced = resolve(&world, 0, "concluido", "ana", &["--resend"]).await;
    assert_eq!(misplaced.code, Some(2));
}

#[tokio::test]
async fn b77_what_is_done_is_not_sent_again_and_says_so() {
    let world = world(&[]).await;
    let _live = world.live().await;
    world.feed(0, 1).await;
    until("it is done", SOON, async || world.done().await == 1).await;
    for _ in 0..2 {
        let refused = resolve(&world, 0, "nao-enviado", "ana", &["--resend"]).await;
        assert_eq!(refused.code, Some(4));
        assert!(refused.stderr.contains("is concluido"), "{}", refused.stderr);
    }
    assert_eq!(world.provider.count(), 1);
    assert_eq!(world.one::<i64>("select count(*) from revisao_efeito").await, 0);
}

#[tokio::test]
async fn two_decisions_at_once_have_one_winner() {
    let world = world(&[]).await;
    drop(uncertain(&world, 4).await);
    for n in 0..4 {
        let (ana, rui) = tokio::join!(
            resolve(&world, n, "concluido", "ana", &[]),
            resolve(&world, n, "nao-enviado", "rui", &["--resend"]),
        );
        let mut codes = [ana.code, rui.code];
        codes.sort_unstable();
        assert_eq!(codes, [Some(0), Some(4)], "{}{}", ana.stderr, rui.stderr);
        let (loser, winner) = if ana.code == Some(4) { (ana, "rui") } else { (rui, "ana") };
        assert!(loser.stderr.contains(&format!("{winner} decided")), "{}", loser.stderr);
        let calls = if winner == "rui" { 2 } else { 1 };
        assert_eq!(world.provider.count_of(&format!("ped-{n}")), calls);
    }
    assert_eq!(world.one::<i64>("select count(*) from revisao_efeito").await, 4);
}

#[tokio::test]
async fn a_service_tells_when_it_swept_and_a_sweep_with_nothing_due_says_so() {
    let world = world(&[]).await;
    let _live = world.live().await;
    until("it has swept", SOON, async || {
        world.metric("reprise_varredura_ultima_segundos", &[]).await.is_some_and(|at| at > 0.0)
    })
    .await;
    let report = world.json(&["sweep", "--once"]).await;
    let idle =
        json!([{ "tipoEfeito": NOTIFY, "aplicados": 0, "incertos": 0, "emEspera": 0, "intocados": 0 }]);
    assert_eq!(report, idle);
}

#[cfg(feature = "crash-points")]
mod killed {
    use super::*;
    use crate::support::crash;
    use crate::support::provider::Memory;

    /// `live` dies as named while one event is on its way; its lease and one more are then moved into the past.
    async fn killed_at(world: &World, point: &str) {
        let mut command = world.command(&["live"]);
        let (name, value) = crash(point);
        command.env(name, value);
        let mut live = world.live_as(command, world.http_port).await;
        world.feed(0, 1).await;
        live.ended(SOON).await;
        let moved =
            world.execute("update efeito_aplicado set reserva_ate = reserva_ate - interval '1 hour'").await;
        assert_eq!(moved, 1, "it was reserved");
    }

    #[tokio::test]
    async fn b03_a_kill_on_either_side_of_the_call_ends_in_review_for_a_plain_provider() {
        for (point, calls) in [("before_call", 0), ("after_call", 1)] {
            let world = world(&[]).await;
            killed_at(&world, point).await;
            world.cli(&["sweep", "--once"]).await;
            assert_eq!(world.states().await, states(&[("incerto", 1)]), "{point}");
            assert_eq!(world.provider.count(), calls, "{point}: the sweeper calls nobody");
            let shown = world.json(&["effects", "show", &key(0)]).await;
            assert_eq!(shown["evidencia"][0]["resposta"], "abandonado", "{point}");
        }
    }

    #[tokio::test]
    async fn b03_a_kill_on_either_side_of_the_call_is_called_again_where_the_provider_deduplicates() {
        for (point, calls) in [("before_call", 1), ("after_call", 2)] {
            let world = world(&[("ao_falhar", "liberar")]).await;
            world.provider.remember(Memory::Idempotent);
            killed_at(&world, point).await;
            let report = world.json(&["sweep", "--once"]).await;
            assert_eq!(report[0]["aplicados"], 1, "{point}");
            assert_eq!(world.states().await, states(&[("concluido", 1)]), "{point}");
            assert_eq!((world.provider.count(), world.provider.performed()), (calls, 1), "{point}");
            let body = &world.provider.calls()[calls - 1].body;
            assert_eq!((&body["chave"], &body["valorCentavos"]), (&json!(key(0)), &json!(500)), "{point}");
            assert_eq!(
                world.one::<i64>("select count(*) from onda_aberta where reserva_ate <= now()").await,
                0
            );
        }
    }
}
