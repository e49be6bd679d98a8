//! The API and the commands of the command line.

use serde_json::{Value, json};
use uuid::Uuid;

use super::super::support::World;
use super::super::support::http::Reply;
use super::super::support::process::Process;
use super::super::support::{LATER, crash, eventually};
use super::{PAID, PLACED, Shop, insert};

async fn served(world: &World) -> Process {
    let server = world.run(&["orders", "serve"]);
    eventually("orders are served", LATER, async || {
        world.get("/readyz").await.filter(|reply| reply.status == 200)
    })
    .await;
    server
}

async fn post(world: &World, path: &str, key: &str, body: Value) -> Reply {
    let headers = [("idempotency-key", key), ("x-actor", "ana")];
    world.request("POST", &format!("/api/v1/orders{path}"), &headers, Some(&body)).await.expect("an answer")
}

fn order() -> Value {
    json!({
        "tenantId": "t1", "customerId": "c1", "sellerId": "v1", "commissionPercent": "5",
        "items": [{"sku": "livro", "quantity": 2, "unitPriceCents": 5000}],
    })
}

#[tokio::test]
async fn an_order_lives_through_the_api_and_its_past_can_be_asked() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let _server = served(world).await;
    let placed = post(world, "", "k-1", order()).await;
    assert_eq!(placed.status, 201, "{}", placed.body);
    let again = post(world, "", "k-1", order()).await;
    assert_eq!((again.status, again.json()), (201, placed.json()), "the key names the order, too");
    let id = placed.json()["orderId"].as_str().expect("an id").to_owned();
    assert_eq!(placed.json(), json!({"orderId": id, "version": 1, "status": "placed"}));

    let paid =
        post(world, &format!("/{id}/pay"), "k-2", json!({"amountCents": 10000, "expectedVersion": 1})).await;
    assert_eq!((paid.status, paid.json()["version"].as_i64()), (200, Some(2)));
    let other = post(world, &format!("/{id}/pay"), "k-2", json!({"amountCents": 1})).await;
    assert_eq!((other.status, other.json()["code"].as_str()), (422, Some("idempotency-key-reused")));
    let late =
        post(world, &format!("/{id}/cancel"), "k-3", json!({"reason": "late", "expectedVersion": 1})).await;
    assert_eq!((late.status, late.json()["code"].as_str()), (409, Some("version-conflict")));
    let cancelled = post(world, &format!("/{id}/cancel"), "k-4", json!({"reason": "late"})).await;
    assert_eq!(cancelled.json()["status"], "cancelled");

    let shown = world.get(&format!("/api/v1/orders/{id}?version=2")).await.expect("an answer").json();
    assert_eq!((shown["status"].as_str(), shown["paidCents"].as_i64()), (Some("paid"), Some(10_000)));
    let told = world.get(&format!("/api/v1/orders/{id}/events")).await.expect("an answer").json();
    let last = &told["events"][2];
    assert_eq!(
        (&last["type"], &last["actor"], &last["reason"], &last["tenantId"]),
        (&json!("Cancelled"), &json!("ana"), &json!("late"), &json!("t1"))
    );
    assert_eq!(told["findings"], json!([]));
    let then = told["events"][0]["at"].as_str().expect("an instant").to_owned();
    let shown = world.json(&["orders", "show", &id, "--at", &then]).await;
    assert_eq!((shown["status"].as_str(), shown["version"].as_i64()), (Some("placed"), Some(1)));
    let missing = world.try_cli(&["orders", "show", &id, "--version", "9"]).await;
    assert_eq!(missing.code, Some(4), "{}", missing.stderr);
}

/// A server that dies at `point` of the first command, and what is there afterwards: events, messages.
async fn killed_at(shop: &Shop, point: &str, id: Uuid) -> (i64, i64) {
    let world = &shop.world;
    let mut command = world.command(&["orders", "serve"]);
    command.envs([crash(point)]);
    let mut server = world.spawn(command);
    eventually("orders are served", LATER, async || {
        world.get("/readyz").await.filter(|reply| reply.status == 200)
    })
    .await;
    let headers = [("idempotency-key", "k-1"), ("x-actor", "ana")];
    let mut body = order();
    body["orderId"] = json!(id);
    let answer = world.request("POST", "/api/v1/orders", &headers, Some(&body)).await;
    assert!(answer.is_none(), "it died before it answered");
    assert_eq!(server.ended(LATER).await.code, None);
    let events = shop.number("select count(*) from order_events").await;
    (events, shop.number("select count(*) from outbox").await)
}

#[tokio::test]
async fn killed_between_append_and_commit_or_after_it_the_same_key_gives_one_order() {
    for (point, expected) in [("orders_after_append", (0, 0)), ("orders_after_commit", (1, 1))] {
        let shop = Shop::open().await;
        let id = Uuid::new_v4();
        assert_eq!(killed_at(&shop, point, id).await, expected, "{point}");
        let _server = served(&shop.world).await;
        let mut body = order();
        body["orderId"] = json!(id);
        for _ in 0..2 {
            let placed = post(&shop.world, "", "k-1", body.clone()).await;
            let expected = json!({"orderId": id, "version": 1, "status": "placed"});
            assert_eq!((placed.status, placed.json()), (201, expected), "{point}");
        }
        assert_eq!(shop.number("select count(*) from order_events").await, 1, "{point}");
        assert_eq!(shop.number("select count(*) from outbox").await, 1, "{point}");
    }
}

#[tokio::test]
async fn the_api_describes_itself_and_nothing_that_is_not_there() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let _server = served(world).await;
    let described = world.get("/api/v1/orders/openapi.json").await.expect("an answer").json();
    let paths = described["paths"].as_object().expect("paths");
    let verbs =
        ["pay", "assign", "picked-up", "out-for-delivery", "delivered", "request-cancellation", "cancel"];
    for verb in verbs {
        assert!(paths.contains_key(&format!("/api/v1/orders/{{id}}/{verb}")), "{verb}");
    }
    for (path, methods) in paths {
        for method in methods.as_object().expect("methods").keys() {
            let path = path.replace("{id}", &Uuid::from_u128(7).to_string());
            let headers = [("idempotency-key", "k")];
            let answer = world.request(&method.to_uppercase(), &path, &headers, Some(&json!({}))).await;
            let answer = answer.expect("an answer");
            let code = answer.json()["code"].as_str().map(str::to_owned);
            let known =
                answer.status != 405 && (answer.status != 404 || code.as_deref() == Some("order-not-found"));
            assert!(known, "{method} {path}: {} {}", answer.status, answer.body);
        }
    }
}

#[tokio::test]
async fn bad_input_is_400_and_names_the_field() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let _server = served(world).await;
    let unknown = Uuid::from_u128(9);
    let cases = [
        ("", json!({"tenantId": "t1", "items": []}), 400, "customerId: is missing"),
        ("/x/pay", json!({"amountCents": 1}), 400, "id: must be the UUID of an order"),
        ("", json!({"tenantId": "t1", "orderId": "7"}), 400, "orderId: must be a UUID"),
    ];
    for (path, body, status, detail) in cases {
        let reply = post(world, path, "k", body).await;
        assert_eq!((reply.status, reply.json()["detail"].as_str()), (status, Some(detail)));
    }
    let reply = post(world, &format!("/{unknown}/pay"), "k", json!({"amountCents": 1})).await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (404, Some("order-not-found")));
    let path = format!("/api/v1/orders/{unknown}/delivered");
    let reply = world.request("POST", &path, &[], Some(&json!({}))).await.expect("an answer");
    assert_eq!(reply.status, 400, "{}", reply.body);
    let detail = reply.json()["detail"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(detail.starts_with("Idempotency-Key: is missing"), "{detail}");
    for asked in ["at=yesterday", "version=-1", "limit=5", "at=2026-10-14T12:00:00Z&version=1"] {
        let reply = world.get(&format!("/api/v1/orders/{unknown}?{asked}")).await.expect("an answer");
        assert_eq!(reply.status, 400, "{asked}: {}", reply.body);
    }
}

#[tokio::test]
async fn a_version_that_does_not_come_is_503_and_says_when_to_ask_again() {
    let shop = Shop::open().await;
    let world = &shop.world;
    let _server = served(world).await;
    let id = post(world, "", "k-1", order()).await.json()["orderId"].as_str().expect("an id").to_owned();
    let there = world.get(&format!("/api/v1/orders/{id}?min_version=1")).await.expect("an answer");
    assert_eq!((there.status, there.json()["version"].as_i64()), (200, Some(1)));
    let begun = std::time::Instant::now();
    let reply = world.get(&format!("/api/v1/orders/{id}?min_version=2")).await.expect("an answer");
    assert_eq!((reply.status, reply.json()["code"].as_str()), (503, Some("not-yet")));
    assert!(begun.elapsed().as_millis() >= 2_000, "it waited");
}

#[tokio::test]
async fn a_fault_that_the_row_hides_stands_in_the_history() {
    let shop = Shop::open().await;
    let mut connection = shop.connection().await;
    let id = Uuid::from_u128(5);
    insert(&mut connection, id, 1, "OrderPlaced", PLACED).await;
    insert(&mut connection, id, 2, "CourierAssigned", r#"{"courierId":"k1"}"#).await;
    insert(&mut connection, id, 3, "PickedUp", "{}").await;
    insert(&mut connection, id, 4, "OrderPaid", PAID).await;
    let text = id.to_string();
    let shown = shop.world.json(&["orders", "show", &text]).await;
    assert_eq!((shown["status"].as_str(), shown["paidCents"].as_i64()), (Some("paid"), Some(10_000)));
    let history = shop.world.json(&["orders", "history", &text]).await;
    let found: Vec<_> = history["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|finding| (finding["version"].as_i64(), finding["code"].as_str()))
        .collect();
    assert_eq!(found, [(Some(2), Some("not-assignable")), (Some(4), Some("not-payable"))]);
}
