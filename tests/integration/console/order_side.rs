//! The order side in the console: orders and their past, the dashboard, read models, sagas, flow.

use fantoccini::Locator;
use fantoccini::key::Key;
use reprise::orders::desk::{Desk, DeskSettings};
use reprise::orders::order::Command;
use reprise::pg::connect::Database;
use serde_json::json;
use uuid::Uuid;

use super::browser::Browser;
use super::{call, console, get, world};
use crate::orders::{Shop, pay, place, request};
use crate::support::event::event;
use crate::support::process::Process;
use crate::support::{LATER, SOON, until};

/// A world with a token, and a desk on its database.
async fn shop() -> Shop {
    let world = world().await;
    let database = Database::new(&world.database_url, 5).expect("a URL");
    let desk = Desk::new(database, DeskSettings { snapshot_every: 50, also_publish: Vec::new() });
    Shop { world, desk }
}

fn of_tenant(tenant: &str) -> Command {
    let Command::Place { placed, .. } = place() else { panic!("place places") };
    Command::Place { tenant_id: tenant.to_owned(), placed }
}

async fn take(shop: &Shop, id: Uuid, command: Command) {
    shop.desk.take(&request(id, command)).await.expect("the desk takes it");
}

/// The runner of read models, beside whoever serves the console.
fn runner(shop: &Shop) -> Process {
    let (config, _) = shop.world.second_instance();
    shop.world.run(&["--config", &config.display().to_string(), "projections", "run"])
}

async fn counted(shop: &Shop, orders: i64) {
    let sql = "select coalesce(sum(orders), 0)::bigint from dashboard_aggregate";
    until("the dashboard has counted", LATER, async || shop.number(sql).await == orders).await;
    let sql = "select count(*) from orders_view";
    until("the list has them", LATER, async || shop.number(sql).await == orders).await;
}

#[tokio::test]
async fn a_person_goes_from_a_number_to_an_order_and_through_its_past() {
    let shop = shop().await;
    let (id, other, foreign) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    take(&shop, id, place()).await;
    take(&shop, id, pay()).await;
    let assign = Command::Assign { courier_id: "moto-7".to_owned(), vehicle_type: "bike".to_owned() };
    take(&shop, id, assign).await;
    take(&shop, other, place()).await;
    take(&shop, foreign, of_tenant("t2")).await;
    let _live = shop.world.live().await;
    let mut paid = event(1);
    paid["pedidoId"] = json!(id);
    shop.world.send(&paid).await;
    shop.world.settled().await;
    let _runner = runner(&shop);
    counted(&shop, 3).await;

    let browser = Browser::open(&shop.world, &[]).await;
    browser.sign_in().await;
    browser.goto("/console/dashboard").await;
    assert_eq!(browser.text("[data-tenant=t1] .tile strong").await, "2");
    assert_eq!(browser.text("[data-tenant=t2] .tile strong").await, "1");
    browser.picture("dashboard").await;
    browser.click("[data-tenant=t1] a[href*='status=assigned']").await;
    assert_eq!(browser.text("tbody").await.matches(&id.to_string()).count(), 1);
    assert!(!browser.text("tbody").await.contains(&other.to_string()));
    browser.goto("/console/orders").await;
    browser.picture("orders").await;
    browser.fill("input[name=id]", &id.to_string()[..8]).await;
    browser.click("form.filter button").await;
    browser.click("td a").await;

    assert_eq!(browser.text("h1").await, format!("Order {id}"));
    browser.wait("#at[data-version='3']").await;
    assert!(browser.text("#changed").await.contains("moto-7"));
    assert!(browser.text("#history").await.contains("Paid: 100.00"));
    assert!(browser.text("#effects").await.contains("evt-1-1:notificar-vendedor"));
    browser.picture("order").await;
    // The slider keeps the keyboard: two steps back without touching anything else.
    let slider = browser.wait("#version").await;
    slider.send_keys(&Key::Left.to_string()).await.expect("a key");
    browser.wait("#at[data-version='2']").await;
    let changed = browser.text("#changed").await;
    assert!(
        changed.contains("placed") && changed.contains("paid") && !changed.contains("moto-7"),
        "{changed}"
    );
    let focused = browser.client.active_element().await.expect("something is focused");
    focused.send_keys(&Key::Left.to_string()).await.expect("a key");
    browser.wait("#at[data-version='1']").await;
    assert!(!browser.text("#moment").await.contains("moto-7"));
    // Without script it is a link.
    browser.goto(&format!("/console/orders/{id}?version=2")).await;
    browser.click("#history a[href='?version=3']").await;
    browser.wait("#at[data-version='3']").await;
    browser.goto(&format!("/console/orders/{id}?version=9")).await;
    assert!(browser.text("[role=alert]").await.contains("versions 1 to 3"));
    browser.close().await;
}

#[tokio::test]
async fn a_long_list_goes_on_where_its_page_ended() {
    let shop = shop().await;
    let all = "insert into orders_view_g1
        select ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 't' || n % 2, 'v1', 'paid', 2, 100, null,
               null, now(), now(), now()
        from generate_series(1, 410) as n";
    shop.world.execute(all).await;
    let _console = console(&shop.world).await;
    let browser = Browser::open(&shop.world, &[]).await;
    browser.sign_in().await;
    browser.goto("/console/orders?tenant=t1").await;
    assert_eq!(browser.client.find_all(Locator::Css("tbody tr")).await.expect("rows").len(), 200);
    // Of t1 there are the odd ones: 399 is the two hundredth.
    browser.click("a[rel=next]").await;
    browser.wait("tbody a[href$='000000000401']").await;
    let rows = browser.client.find_all(Locator::Css("tbody tr")).await.expect("rows").len();
    assert_eq!(rows, 5);
    assert!(browser.client.find(Locator::Css("a[rel=next]")).await.is_err(), "this is the last page");
    browser.goto("/console/orders?id=00000000-0000-4000-8000-0000000004").await;
    // 400 to 410.
    assert_eq!(browser.client.find_all(Locator::Css("tbody tr")).await.expect("rows").len(), 11);
    browser.close().await;
}

#[tokio::test]
async fn a_person_rebuilds_compares_shows_and_drops_a_read_model() {
    let shop = shop().await;
    for _ in 0..4 {
        shop.place(Uuid::new_v4()).await;
    }
    let _console = console(&shop.world).await;
    let _runner = runner(&shop);
    counted(&shop, 4).await;
    let browser =
        Browser::open(&shop.world, &["--accept-lang=pt-BR", "--blink-settings=preferredColorScheme=0"]).await;
    browser.sign_in().await;
    browser.goto("/console/projections").await;
    browser.click("form[data-name=orders_view] button[value=reconstruir]").await;
    browser.wait("form[data-name=orders_view] button[value=comparar-2]").await;
    // At the tip, and handed to the runners.
    let built = "select count(*) from projection_cursors c
                 where name = 'orders_view' and generation = 2 and state = 'building'
                   and coalesce(to_jsonb(c) ->> 'fed_by', 'runner') = 'runner'
                   and last_processed_seq = (select max(global_seq) from order_events)";
    until("both shards are at the tip", SOON, async || shop.number(built).await == 2).await;
    // As a rebuild that was killed before its end leaves it.
    let unfinished =
        "update projection_cursors set fed_by = 'rebuild' where name = 'orders_view' and generation = 2";
    assert_eq!(shop.world.execute(unfinished).await, 2);
    browser.goto("/console/projections").await;
    browser.wait("form[data-name=orders_view] button[value=continuar]").await;
    let compare = Locator::Css("form[data-name=orders_view] button[value=comparar-2]");
    assert!(browser.client.find(compare).await.is_err(), "what is not at its end is not compared");
    browser.click("form[data-name=orders_view] button[value=continuar]").await;
    until("it is at its end", SOON, async || shop.number(built).await == 2).await;
    browser.goto("/console/projections").await;
    browser.picture("projections-dark").await;
    browser.click("form[data-name=orders_view] button[value=comparar-2]").await;
    browser.wait("#compared[data-different='0']").await;
    browser.click("main p a").await;
    browser.click("form[data-name=orders_view] button[value=trocar-2]").await;
    browser.wait("form[data-name=orders_view] button[value=apagar-1]").await;
    let active = "select max(generation)::bigint from projection_cursors
                  where name = 'orders_view' and state = 'active'";
    assert_eq!(shop.number(active).await, 2);
    assert_eq!(shop.number("select count(*) from orders_view").await, 4);
    browser.click("form[data-name=orders_view] button[value=apagar-1]").await;
    let left = "select count(distinct generation) from projection_cursors where name = 'orders_view'";
    until("one generation is left", SOON, async || shop.number(left).await == 1).await;
    browser.close().await;
}

#[tokio::test]
async fn read_models_are_steered_over_http_and_refusals_name_their_field() {
    let shop = shop().await;
    shop.place(Uuid::new_v4()).await;
    let _console = console(&shop.world).await;
    let listed = get(&shop.world, "/api/v1/projections").await;
    let orders = &listed.as_array().expect("a list").iter().find(|lag| lag["name"] == "orders_view");
    assert_eq!(orders.expect("a view")["lagEvents"], 1, "nobody runs it");

    let path = "/api/v1/projections/orders_view";
    let post = async |step: &str, body: serde_json::Value| {
        call(&shop.world, "POST", &format!("{path}/{step}"), Some(&body)).await
    };
    for (step, body, named) in [
        ("rebuild", json!({ "shards": 0 }), "shards"),
        ("rebuild", json!({ "generation": 2 }), "generation"),
        ("drop", json!({ "shards": 2 }), "shards"),
        ("forget", json!({}), "rebuild, resume, compare, cut-over or drop"),
        ("rebuild", json!({ "source": "memory" }), "store or kafka"),
        ("resume", json!({ "source": "kafka" }), "source"),
        ("compare", json!({ "rate": 5 }), "rate"),
    ] {
        let refused = post(step, body).await;
        assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid")), "{step}");
        assert!(refused.body.contains(named), "{}", refused.body);
    }
    let unknown = call(&shop.world, "POST", "/api/v1/projections/orders/drop", Some(&json!({}))).await;
    assert_eq!(unknown.status, 422, "{}", unknown.body);

    assert_eq!(post("rebuild", json!({ "shards": 1 })).await.status, 202);
    let built = "select count(*) from projection_cursors c
                 where name = 'orders_view' and generation = 2 and last_processed_seq > 0
                   and coalesce(to_jsonb(c) ->> 'fed_by', 'runner') = 'runner'";
    until("it is built", LATER, async || shop.number(built).await == 1).await;
    let again = post("rebuild", json!({})).await;
    assert_eq!((again.status, &again.json()["code"]), (409, &json!("refused")), "{}", again.body);
    let compared = post("compare", json!({})).await;
    assert_eq!((compared.status, &compared.json()["different"]), (200, &json!(0)), "{}", compared.body);
    // One row that only the new generation has not.
    shop.world.execute("delete from orders_view_g2").await;
    let compared = post("compare", json!({ "generation": 2 })).await;
    assert_eq!((compared.status, &compared.json()["different"]), (200, &json!(1)), "{}", compared.body);
    assert_eq!(post("drop", json!({})).await.status, 200);
    assert_eq!(shop.number("select max(generation)::bigint from projection_cursors").await, 1);
    let gone = post("drop", json!({})).await;
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!("not-found")), "{}", gone.body);
}

async fn every(shop: &Shop, statements: &str) {
    for statement in statements.split(';') {
        shop.world.execute(statement).await;
    }
}

#[tokio::test]
async fn a_saga_that_waits_for_a_decision_says_so_and_leads_to_its_effect() {
    let shop = shop().await;
    let (order, saga, other) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    shop.place(order).await;
    let row = |id: Uuid, order: Uuid, state: &str, step: &str| {
        format!(
            r#"insert into saga (id, name, order_id, tenant_id, ordinal, state, step, context)
             values ('{id}', 'assign-order-to-courier', '{order}', 't1', 1, '{state}', '{step}',
                     '{{"courierId": "moto-7", "vehicleType": "bike", "feeCents": 350}}')"#
        )
    };
    let step = |step: &str, kind: &str, state: &str, key: &str| {
        format!(
            "insert into saga_step (saga_id, step, kind, state, chave)
             values ('{saga}', '{step}', '{kind}', '{state}', nullif('{key}', ''))"
        )
    };
    let key = format!("{saga}-ChargeFee:charge-fee");
    let rows = [
        row(saga, order, "started", "ChargeFee"),
        row(other, Uuid::new_v4(), "failed", "ReserveCourier"),
        "insert into courier (id, tenant_id, vehicle_type) values ('moto-7', 't1', 'bike')".to_owned(),
        format!(
            "insert into courier_reservation (courier_id, order_id, saga_id) values ('moto-7', '{order}', '{saga}')"
        ),
        step("ReserveCourier", "action", "done", ""),
        step("ChargeFee", "action", "started", &key),
        step("ChargeFee", "action", "uncertain", &key),
    ];
    every(&shop, &rows.join(";")).await;
    let _console = console(&shop.world).await;
    let browser = Browser::open(&shop.world, &[]).await;
    browser.sign_in().await;
    browser.goto(&format!("/console/orders/{order}")).await;
    browser.click("a[href^='/console/sagas/']").await;
    assert_eq!(browser.text("h1").await, format!("Saga {saga}"));
    assert!(browser.text(".box.warn").await.contains("until its effect is decided"));
    assert!(
        browser.text("dl.facts").await.contains("moto-7") && browser.text("dl.facts").await.contains("3.50")
    );
    let steps = browser.text("#steps").await;
    let places = ["ReserveCourier", "started", "uncertain"].map(|word| steps.find(word).expect("a step"));
    assert!(places.is_sorted(), "{steps}");
    assert!(steps.contains(&key), "{steps}");
    browser.picture("saga").await;
    browser.goto("/console/sagas?estado=failed").await;
    let listed = browser.text("tbody").await;
    assert!(listed.contains(&other.to_string()) && !listed.contains(&saga.to_string()), "{listed}");
    browser.close().await;
}

#[tokio::test]
async fn the_flow_is_drawn_for_one_tenant_or_all() {
    let shop = shop().await;
    // By the minute: what t1 and t2 had, from 03:00 on; 03:02 is empty.
    let minutes = [(0, 3, 1), (1, 5, 0), (3, 7, 4), (4, 6, 2), (5, 9, 1)];
    let mut rows = Vec::new();
    for (minute, t1, t2) in minutes {
        for (tenant, orders) in [("t1", t1), ("t2", t2)].into_iter().filter(|(_, n)| *n > 0) {
            for table in ["kpi_orders_per_minute", "kpi_orders_hour"] {
                let minute = if table == "kpi_orders_hour" { minute * 5 } else { minute };
                rows.push(format!(
                    "insert into {table} (tenant_id, window_start, orders, amount_cents)
                     values ('{tenant}', '2026-10-14T03:{minute:02}:00Z', {orders}, {})",
                    orders * 10_000
                ));
            }
        }
    }
    for (courier, back) in [("moto-7", "null"), ("moto-8", "'2026-10-14T03:30:00Z'")] {
        rows.push(format!(
            "insert into courier_offline (courier_id, tenant_id, last_seen_at, detected_at, back_at)
             values ('{courier}', 't1', '2026-10-14T03:00:00Z', '2026-10-14T03:10:00Z', {back})"
        ));
    }
    every(&shop, &rows.join(";")).await;
    let _console = console(&shop.world).await;
    let all = get(&shop.world, "/api/v1/kpis").await;
    let counts: Vec<_> = all["perMinute"].as_array().expect("windows").iter().map(|w| &w["orders"]).collect();
    assert_eq!(counts, [4, 5, 11, 8, 10]);
    assert_eq!(all["tenants"], json!(["t1", "t2"]));
    let one = get(&shop.world, "/api/v1/kpis?tenant=t2").await;
    let cents: Vec<_> =
        one["perHour"].as_array().expect("windows").iter().map(|w| &w["amountCents"]).collect();
    assert_eq!(cents, [10_000, 40_000, 20_000, 10_000]);

    let browser = Browser::open(&shop.world, &["--accept-lang=pt-BR"]).await;
    browser.sign_in().await;
    browser.goto("/console/kpis").await;
    browser.wait("#minute[data-newest='10'] polyline").await;
    browser.wait("#hour polyline").await;
    let couriers = browser.text("#couriers").await;
    assert!(couriers.find("moto-7") < couriers.find("moto-8"), "who is away comes first: {couriers}");
    browser.picture("flow").await;
    browser.click("a[href='?tenant=t2']").await;
    browser.wait("#minute[data-newest='1']").await;
    browser.close().await;
}

#[tokio::test]
async fn where_windows_are_not_set_up_the_page_says_so() {
    let shop = shop().await;
    every(&shop, "drop table if exists kpi_orders_per_minute, kpi_orders_hour, courier_offline cascade")
        .await;
    let _console = console(&shop.world).await;
    assert_eq!(get(&shop.world, "/api/v1/kpis").await["perMinute"], json!(null));
    let browser = Browser::open(&shop.world, &[]).await;
    browser.sign_in().await;
    browser.goto("/console/kpis").await;
    assert!(browser.text(".empty").await.contains("not set up"));
    browser.close().await;
}
