//! The order side in the console: orders and their past, the dashboard, read models, sagas, flow.

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
    let built = "select count(*) from projection_cursors
                 where name = 'orders_view' and generation = 2 and state = 'building'
                   and last_processed_seq = (select max(global_seq) from order_events)";
    until("both shards are at the tip", SOON, async || shop.number(built).await == 2).await;
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
        ("forget", json!({}), "rebuild, compare, cut-over or drop"),
    ] {
        let refused = post(step, body).await;
        assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("invalid")), "{step}");
        assert!(refused.body.contains(named), "{}", refused.body);
    }
    let unknown = call(&shop.world, "POST", "/api/v1/projections/orders/drop", Some(&json!({}))).await;
    assert_eq!(unknown.status, 422, "{}", unknown.body);

    assert_eq!(post("rebuild", json!({ "shards": 1 })).await.status, 202);
    let built = "select count(*) from projection_cursors
                 where name = 'orders_view' and generation = 2 and last_processed_seq > 0";
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
}
