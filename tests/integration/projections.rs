//! Read models: they follow the events, count each once whatever is killed, and are rebuilt beside their readers.

mod topic;

use std::collections::BTreeMap;

use uuid::Uuid;

use super::orders::{Shop, pay, request};
use super::support::{LATER, SOON, until};

/// `orders` and `amount_cents` by status, those that are not empty.
async fn totals(shop: &Shop) -> BTreeMap<String, (i64, i64)> {
    let rows: Vec<(String, i64, i64)> = shop
        .world
        .rows(
            "select status, orders::bigint, amount_cents::bigint from dashboard_aggregate where orders <> 0",
        )
        .await;
    rows.into_iter().map(|(status, orders, cents)| (status, (orders, cents))).collect()
}

/// Orders of 100.00, the first `paid` of them paid.
async fn orders(shop: &Shop, count: usize, paid: usize) {
    for n in 0..count {
        let id = Uuid::new_v4();
        shop.place(id).await;
        if n < paid {
            shop.desk.take(&request(id, pay())).await.expect("paid");
        }
    }
}

fn expected(placed: i64, paid: i64) -> BTreeMap<String, (i64, i64)> {
    let rows = [("placed", placed), ("paid", paid)];
    rows.into_iter().filter(|(_, n)| *n > 0).map(|(s, n)| (s.to_owned(), (n, n * 10_000))).collect()
}

#[tokio::test]
async fn killed_anywhere_each_order_is_counted_once() {
    let shop = Shop::open().await;
    for _ in 0..4 {
        let mut runner = shop.world.run(&["projections", "run"]);
        orders(&shop, 10, 4).await;
        runner.kill();
    }
    let _runner = shop.world.run(&["projections", "run"]);
    let expected = expected(24, 16);
    until("the views have caught up", LATER, async || totals(&shop).await == expected).await;
    assert_eq!(shop.number("select count(*) from orders_view where status = 'paid'").await, 16);
}

#[tokio::test]
async fn b71_a_view_rebuilt_while_orders_come_in_equals_the_live_one_with_no_further_event() {
    let shop = Shop::open().await;
    let _runner = shop.world.run(&["projections", "run"]);
    orders(&shop, 20, 10).await;
    until("the views follow", SOON, async || totals(&shop).await == expected(10, 10)).await;
    // A hole, as a failed writer leaves one.
    let mut connection = shop.connection().await;
    sqlx::query("select nextval(pg_get_serial_sequence('order_events', 'global_seq'))")
        .execute(&mut connection)
        .await
        .expect("a number is taken");
    let rebuild = ["projections", "rebuild", "dashboard_aggregate", "--shards", "2", "--cut-over"];
    let (ended, ()) = tokio::join!(shop.world.cli(&rebuild), orders(&shop, 20, 10));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    until("nothing is missing after silence", SOON, async || totals(&shop).await == expected(20, 20)).await;
    let generation = "select max(generation)::bigint from projection_cursors
                      where name = 'dashboard_aggregate' and state = 'active'";
    assert_eq!(shop.number(generation).await, 2);
}

#[tokio::test]
async fn a_reader_finds_in_the_list_what_it_waited_for() {
    let shop = Shop::open().await;
    let (other, _) = shop.world.second_instance();
    let runner = || {
        let mut command = shop.world.command(&["projections", "run"]);
        command.arg("--config").arg(&other);
        shop.world.spawn(command)
    };
    let _server = shop.world.run(&["orders", "serve"]);
    let ready = async || shop.world.get("/readyz").await.is_some_and(|reply| reply.status == 200);
    until("orders are served", LATER, ready).await;
    let mut running = runner();
    let id = Uuid::new_v4();
    shop.place(id).await;
    until("the list follows", SOON, async || shop.number("select count(*) from orders_view").await == 1)
        .await;
    running.kill();
    shop.desk.take(&request(id, pay())).await.expect("paid");
    let path = format!("/api/v1/orders/{id}");
    let ask = async || shop.world.get(&format!("{path}?min_version=2")).await.expect("an answer");
    let reply = ask().await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (503, Some("not-yet")));
    // The past and the newest of the store do not wait for a view.
    for asked in ["", "?version=2", "?version=1"] {
        assert_eq!(
            shop.world.get(&format!("{path}{asked}")).await.expect("an answer").status,
            200,
            "{asked}"
        );
    }
    let _running = runner();
    until("the list has it", LATER, async || ask().await.status == 200).await;
    assert_eq!(shop.number("select version::bigint from orders_view where status = 'paid'").await, 2);
}
