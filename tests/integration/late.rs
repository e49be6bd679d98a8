//! The provider has answered, and the ledger cannot be told: the answer is kept, and nobody is called because of it.

use std::collections::BTreeMap;

use crate::support::provider::Memory;
use crate::support::{LATER, SOON, Setup, World, until};

const EFFECT: &str = "notificar-vendedor";

/// While it is there, no effect of `ped-0` to `ped-2` becomes `concluido`: the database answers with `code`. A sequence counts the
/// attempts, because it alone outlives a rollback.
async fn refuse_results(world: &World, code: &str) {
    world.execute("create sequence tentado").await;
    world
        .execute(&format!(
            "create function recusa() returns trigger language plpgsql as $$ begin
               if new.estado::text = 'concluido' and new.pedido_id in ('ped-0', 'ped-1', 'ped-2') then
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
    refuse_results(&world, "40001").await;
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
    refuse_results(&world, "40001").await;
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
async fn a_result_the_ledger_keeps_refusing_holds_up_no_other_order_and_is_written_in_the_end() {
    let world = world("manter").await;
    refuse_results(&world, "23514").await;
    let _live = world.live().await;
    world.feed(0, 1).await;
    refused(&world, 1).await;
    world.feed(10, 20).await;
    until("the others are done", SOON, async || world.done().await == 20).await;
    // Its lease is over: to everybody else nobody knows, and the answer is still in hand.
    until("it is in review", SOON, async || world.states().await.get("incerto") == Some(&1)).await;
    accept_results(&world).await;
    world.settled().await;
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 21)]), "a late yes is proof");
    assert_eq!(world.provider.count(), 21, "I2");
    assert!(world.dlq().await.is_empty());
}
