//! What never left the process is never in doubt, and what was refused is never lost.

use serde_json::json;

use crate::support::event::event;
use crate::support::kafka::header;
use crate::support::provider::Memory;
use crate::support::{Answer, Gate, LATER, SOON, Setup, World, until};

const HOLD: &str = "notificar-vendedor";
const RELEASE: &str = "pagar-repasse";

fn table(settings: &[(&str, &str)]) -> toml::Table {
    settings.iter().map(|(key, value)| ((*key).to_owned(), toml::Value::from(*value))).collect()
}

#[tokio::test]
async fn b51_a_refused_connection_and_an_unknown_name_are_proof_that_nothing_was_sent() {
    let effects = vec![(HOLD, toml::Table::new()), (RELEASE, table(&[("ao_falhar", "manter")]))];
    let mut world = World::with(Setup { partitions: 1, effects, ..Setup::default() }).await;
    let url = world.provider.url();
    world.set(&["efeitos", HOLD, "url"], "http://127.0.0.1:1/notificar");
    world.set(&["efeitos", RELEASE, "url"], "http://provedor.invalid/pagar");
    let mut live = world.live().await;
    world.feed(0, 3).await;
    for effect in [HOLD, RELEASE] {
        let attempts = format!(
            "select count(*) from tentativa_efeito where chave like '%:{effect}' and resposta = 'nao-enviado'"
        );
        until(effect, SOON, async || world.one::<i64>(&attempts).await >= 2).await;
    }
    let others: i64 =
        world.one("select count(*) from tentativa_efeito where resposta <> 'nao-enviado'").await;
    assert_eq!((others, world.states().await.get("incerto")), (0, None));
    assert_eq!(world.committed().await[&0].unwrap_or(0), 0);
    assert!(world.dlq().await.is_empty());
    live.terminate();
    live.ended(LATER).await;
    for effect in [HOLD, RELEASE] {
        world.set(&["efeitos", effect, "url"], url.clone());
    }
    let _live = world.live().await;
    world.settled().await;
    assert_eq!((world.done().await, world.provider.count()), (6, 6));
}

#[tokio::test]
async fn b12_a_refused_effect_leaves_its_neighbour_done_and_a_redrive_calls_only_it() {
    let effects = vec![(HOLD, toml::Table::new()), (RELEASE, table(&[("ao_falhar", "liberar")]))];
    let world = World::with(Setup { partitions: 1, effects, ..Setup::default() }).await;
    world.provider.script(&format!("ped-0/{RELEASE}"), [Answer::Status(422), Answer::Status(200)]);
    let _live = world.live().await;
    world.feed(0, 1).await;
    world.settled().await;
    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(header(&letters[0], "reprise-dlq-efeito"), RELEASE);
    let redriven = world.json(&["dlq", "redrive", "--all", "--yes"]).await;
    assert_eq!((&redriven["aplicadas"], &redriven["devolvidas"]), (&json!(1), &json!(0)));
    let effects: Vec<String> = world.provider.calls().into_iter().map(|call| call.effect).collect();
    assert_eq!(effects.iter().filter(|effect| *effect == HOLD).count(), 1, "{effects:?}");
    assert_eq!((effects.len(), world.done().await), (3, 2));
}

#[tokio::test]
async fn b05_a_row_refused_while_calls_are_out_mints_no_new_key() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200))]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    until("the call is out", SOON, async || world.provider.count() == 1).await;
    // From here on the business tables refuse everything about this order.
    world.execute("alter table comissao add constraint teste check (pedido_id <> 'ped-0') not valid").await;
    world.execute("delete from comissao").await;
    gate.open();
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    // Redelivered: the row is still refused, and the effect is known under its one key.
    world.send(&event(0)).await;
    let _live = world.live().await;
    world.settled().await;
    assert_eq!((world.provider.count(), world.done().await), (1, 1));
    assert_eq!(header(&world.dlq().await[0], "reprise-dlq-motivo"), "dado-recusado-pelo-banco");
}

#[tokio::test]
async fn b40_killed_in_mid_call_an_idempotent_provider_is_asked_again_with_the_same_key() {
    let effects = vec![(HOLD, table(&[("ao_falhar", "liberar"), ("prazo", "8s"), ("reserva", "12s")]))];
    let world = World::with(Setup { partitions: 1, effects, ..Setup::default() }).await;
    world.provider.remember(Memory::Idempotent);
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200))]);
    let mut live = world.live_as(world.command(&["live", "--grace", "1s"]), world.http_port).await;
    world.feed(0, 1).await;
    until("the call is out", SOON, async || world.provider.count() == 1).await;
    live.terminate();
    assert_ne!(live.ended(LATER).await.code, Some(0), "the grace is over");
    gate.open();
    let _live = world.live().await;
    world.settled().await;
    let calls = world.provider.calls_of("ped-0");
    assert_eq!(calls.len(), 2);
    assert_eq!((&calls[0].key, &calls[0].body), (&calls[1].key, &calls[1].body));
    assert_eq!((world.provider.performed(), world.done().await), (1, 1));
}
