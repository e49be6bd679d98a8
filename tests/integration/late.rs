//! The provider has answered, and the ledger cannot be told: the answer is kept, and nobody is called because of it.

use std::collections::BTreeMap;

use crate::support::provider::Memory;
use crate::support::{LATER, SOON, Setup, World, until};

const EFFECT: &str = "notificar-vendedor";

/// While it is there, no effect of `ped-0` to `ped-2` becomes one of `states`: the database answers with `code`. A
/// sequence counts the attempts, because it alone outlives a rollback.
async fn refuse(world: &World, states: &str, code: &str) {
    world.execute("create sequence tentado").await;
    world
        .execute(&format!(
            "create function recusa() returns trigger language plpgsql as $$ begin
               if new.estado::text in ({states}) and old.estado = 'reservado' and new.pedido_id in ('ped-0', 'ped-1', 'ped-2') then
                 perform nextval('tentado');
                 raise exception 'de teste' using errcode = '{code}';
               end if;
               return new;
             end $$"
        ))
        .await;
    world
        .execute(
            "create trigger recusa before update on efeito_aplicado for each row execute function recusa()",
        )
        .await;
}

async fn refused(world: &World, times: i64) {
    let sql = "select case when is_called then last_value else 0 end from tentado";
    until("the ledger refused to be told", SOON, async || world.one::<i64>(sql).await >= times).await;
}

async fn accept_results(world: &World) {
    world.execute("drop trigger recusa on efeito_aplicado").await;
}

async fn world(on_failure: &str) -> World {
    let mut settings = toml::Table::new();
    settings.insert("ao_falhar".into(), on_failure.into());
    let world =
        World::with(Setup { partitions: 1, effects: vec![(EFFECT, settings)], ..Setup::default() }).await;
    world.provider.remember(Memory::Idempotent);
    world
}

#[tokio::test]
async fn b05_answers_the_ledger_cannot_take_yet_are_written_later_and_nobody_is_called_again() {
    let world = world("manter").await;
    refuse(&world, "'concluido'", "40001").await;
    let _live = world.live().await;
    world.feed(0, 5).await;
    refused(&world, 3).await;
    assert_eq!(world.committed().await[&0].unwrap_or(0), 0, "I4: nothing is settled");
    accept_results(&world).await;
    world.settled().await;
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 5)]));
    assert_eq!(world.provider.count(), 5);
    assert!(world.dlq().await.is_empty(), "I7");
}

#[tokio::test]
async fn b05_killed_with_the_answers_untold_hold_goes_to_review() {
    killed_with_the_answers_untold("manter", "incerto", 3).await;
}

#[tokio::test]
async fn b05_killed_with_the_answers_untold_release_asks_again_with_the_same_key() {
    killed_with_the_answers_untold("liberar", "concluido", 6).await;
}

async fn killed_with_the_answers_untold(on_failure: &str, state: &str, calls: usize) {
    let world = world(on_failure).await;
    refuse(&world, "'concluido'", "40001").await;
    let mut live = world.live().await;
    world.feed(0, 3).await;
    until("all were called", SOON, async || world.provider.count() == 3).await;
    refused(&world, 1).await;
    live.kill();
    accept_results(&world).await;
    let _live = world.live().await;
    until("it is worked off", LATER, async || world.caught_up().await).await;
    assert_eq!(world.states().await, BTreeMap::from([(state.into(), 3)]), "{on_failure}");
    assert_eq!(world.provider.count(), calls, "{on_failure}");
    assert_eq!(world.provider.performed(), 3, "{on_failure}: each effect happened once");
}

#[tokio::test]
async fn a_done_the_ledger_does_not_take_goes_to_review_with_what_was_said_and_holds_up_nobody() {
    let world = world("manter").await;
    refuse(&world, "'concluido'", "23514").await;
    let _live = world.live().await;
    world.feed(0, 20).await;
    world.settled().await;
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 17), ("incerto".into(), 3)]));
    let shown = world.json(&["effects", "show", &format!("evt-1-1:{EFFECT}")]).await;
    assert_eq!(shown["evidencia"][0]["resposta"], "feito");
    let words = shown["evidencia"][0]["detalhe"].as_str().expect("words");
    assert!(words.contains("the provider said done") && words.contains("de teste"), "{words}");
    assert_eq!(world.provider.count(), 20, "I2");
    assert!(world.dlq().await.is_empty());
}

#[tokio::test]
async fn an_outcome_the_ledger_takes_in_no_form_holds_its_partition_and_says_so_until_it_is_written() {
    let world = world("manter").await;
    refuse(&world, "'concluido', 'incerto'", "23514").await;
    let _live = world.live().await;
    world.feed(0, 1).await;
    refused(&world, 3).await;
    world.feed(10, 20).await;
    until("the others are done", SOON, async || world.done().await == 20).await;
    until("it is not ready", SOON, async || {
        let reply = world.get("/readyz").await;
        reply.is_some_and(|r| {
            r.status == 503 && r.body.contains("evt-0-1") && r.body.contains("particao-parada")
        })
    })
    .await;
    until("the alert rises", SOON, async || {
        world.metric("reprise_particao_parada", &[("particao", "0")]).await == Some(1.0)
    })
    .await;
    assert_eq!(world.committed().await[&0].unwrap_or(0), 0, "I4: nothing is settled");
    accept_results(&world).await;
    world.settled().await;
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 21)]), "the answer was kept");
    until("it is ready again", SOON, async || world.get("/readyz").await.is_some_and(|r| r.status == 200))
        .await;
    assert_eq!(world.provider.count(), 21, "I2");
    assert!(world.dlq().await.is_empty());
}
