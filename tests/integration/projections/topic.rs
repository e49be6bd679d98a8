//! Rebuilds from the topic of orders: what the store no longer has, repeats, kills, holes.

use std::collections::BTreeMap;

use reprise::orders::desk::{Desk, DeskSettings};
use reprise::pg::connect::Database;
use serde_json::json;
use uuid::Uuid;

use crate::orders::{pay, place, request};
use crate::support::shop::{Shop, event};
use crate::support::{LATER, SOON, crash_at, until};

fn desk(shop: &Shop) -> Desk {
    let database = Database::new(&shop.world.database_url, 10).expect("a URL");
    Desk::new(database, DeskSettings { snapshot_every: 50, also_publish: Vec::new() })
}

async fn totals(shop: &Shop) -> BTreeMap<String, (i64, i64)> {
    let sql = "select status, orders, amount_cents from dashboard_aggregate where orders <> 0";
    let rows: Vec<(String, i64, i64)> = shop.world.rows(sql).await;
    rows.into_iter().map(|(status, orders, cents)| (status, (orders, cents))).collect()
}

async fn offsets_left(shop: &Shop) -> i64 {
    shop.world.one("select coalesce(sum(end_offset - next_offset), 0)::bigint from projection_offsets").await
}

#[tokio::test]
async fn b79_a_rebuild_from_the_topic_has_what_the_store_lost_and_goes_on_after_a_kill() {
    let shop = Shop::open().await;
    let _all = shop.start("all").await;
    let desk = desk(&shop);
    let ids: Vec<Uuid> = (0..60).map(|_| Uuid::new_v4()).collect();
    for (n, id) in ids.iter().enumerate() {
        desk.take(&request(*id, place())).await.expect("placed");
        if n < 30 {
            desk.take(&request(*id, pay())).await.expect("paid");
        }
    }
    let expected = BTreeMap::from([("placed".to_owned(), (30, 300_000)), ("paid".to_owned(), (30, 300_000))]);
    until("the views follow", LATER, async || totals(&shop).await == expected).await;
    shop.all_published().await;
    // Every message stands in the topic twice, and two thirds of the orders are gone from the store.
    shop.world.execute("update outbox set published_at = null where destination = 'events'").await;
    shop.all_published().await;
    let old: Vec<String> = ids.iter().take(40).map(|id| format!("'{id}'")).collect();
    shop.world.execute("alter table order_events disable trigger user").await;
    let gone = format!("delete from order_events where stream_id in ({})", old.join(","));
    assert_eq!(shop.world.execute(&gone).await, 70, "40 placed, 30 of them paid");
    shop.world.execute("alter table order_events enable always trigger order_events_no_change").await;
    shop.world.execute("alter table order_events enable always trigger order_events_announced").await;

    let rebuild = ["projections", "rebuild", "dashboard_aggregate", "--source", "kafka", "--rate", "200"];
    let mut command = shop.world.command(&rebuild);
    let (name, value) = crash_at("rebuild_before_commit", 3);
    command.env(name, value);
    let killed = shop.world.spawn(command).ended(LATER).await;
    assert_eq!(killed.code, None, "killed: {}", killed.stderr);
    let left = offsets_left(&shop).await;
    assert!(left > 0 && left < 180, "it was killed in the middle, {left} of at least 180 left");

    let refused = shop.world.try_cli(&rebuild).await;
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("--resume"), "{}", refused.stderr);
    let early = shop.world.try_cli(&["projections", "cut-over", "dashboard_aggregate"]).await;
    assert_eq!(early.code, Some(3), "half a generation is not shown: {}", early.stderr);

    let more = Uuid::new_v4();
    desk.take(&request(more, place())).await.expect("placed");
    let resume = ["projections", "rebuild", "dashboard_aggregate", "--resume", "--cut-over"];
    let ended = shop.world.cli(&resume).await;
    assert!(ended.stderr.contains("goes on with what was begun"), "{}", ended.stderr);
    assert_eq!(offsets_left(&shop).await, 0);
    let expected = BTreeMap::from([("placed".to_owned(), (31, 310_000)), ("paid".to_owned(), (30, 300_000))]);
    until("the new generation is shown", SOON, async || totals(&shop).await == expected).await;
    let active = "select max(generation)::bigint from projection_cursors
                  where name = 'dashboard_aggregate' and state = 'active' and fed_by = 'runner'";
    assert_eq!(shop.world.one::<i64>(active).await, 2);
    // A view with rows of its own: equal to the one that followed the store when it was whole.
    shop.world.cli(&["projections", "rebuild", "orders_view", "--source", "kafka", "--cut-over"]).await;
    assert_eq!(shop.world.one::<i64>("select count(*) from orders_view").await, 61);
}

#[tokio::test]
async fn a_topic_that_lost_the_beginning_of_an_order_is_refused_by_name() {
    let shop = Shop::open().await;
    let _relay = shop.start("relay").await;
    let id = Uuid::new_v4();
    let paid = json!({ "orderId": id, "tenantId": "t1", "version": 2, "occurredAt": "2026-10-14T03:00:00Z",
                       "sellerId": "v1", "amountCents": 100, "commissionPercent": "5" });
    shop.add(&[event(&id.to_string(), "OrderPaid", paid)]).await;
    shop.all_published().await;
    let refused = shop.world.try_cli(&["projections", "rebuild", "orders_view", "--source", "kafka"]).await;
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains(&format!("lacks version 1 of order {id}")), "{}", refused.stderr);
    assert_eq!(shop.world.one::<i64>("select count(*) from orders_view_g2").await, 0);
    shop.world.cli(&["projections", "drop", "orders_view"]).await;
}
