//! Where paid orders come from: commands, events, outbox, topic, applier; and what a history knows that a row does not.

use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;

use super::tell::Teller;
use super::{DemoError, Scene, expect};
use crate::orders::event::{CourierAssigned, Event, Item, OrderPaid, OrderPlaced};
use crate::pg::demo::{commission_of, hire, orders_in_windows};
use crate::pg::error::StoreError;
use crate::pg::orders::{Metadata, NewEvent, append};

/// Longest wait for the service to be ready, and for a paid order to reach its commission.
const WAIT_MAX: Duration = Duration::from_mins(1);

/// An id that ends so is refused by the demo's provider.
const REFUSED: u128 = 0x77;

pub(super) async fn play(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("7. Where paid orders come from");
    let mut service = scene.service.all()?;
    let begun = Instant::now();
    while !scene.service.ready().await {
        if service.has_ended()? {
            return Err(DemoError::ServiceEnded(scene.service.log()));
        }
        in_time(begun, scene)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let order_id = id(1);
    place_and_pay(scene, order_id).await?;
    let begun = Instant::now();
    let commission = loop {
        if let Some(cents) = commission_of(&scene.pool, &order_id.to_string()).await? {
            break cents;
        }
        in_time(begun, scene)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    expect(commission == 500, || format!("5 % of 10000 cents: {commission}, not 500"))?;
    teller.say(&format!(
        "`reprise all` took two commands for order {order_id}: placed, and paid with 100.00. Their events and the \
         messages that tell of them were written in one transaction; the relay published pedido.pago, and the \
         applier computed the commission of 5.00.",
    ));
    what_only_the_history_knows(scene, teller).await?;
    couriers(scene, teller).await?;
    views_and_windows(scene, teller).await?;
    service.stop().await
}

async fn place_and_pay(scene: &Scene, order_id: Uuid) -> Result<(), DemoError> {
    let order = json!({
        "orderId": order_id, "tenantId": "demo", "customerId": "c1", "sellerId": "v1", "commissionPercent": "5",
        "items": [{"sku": "livro", "quantity": 2, "unitPriceCents": 5000}],
    });
    scene.service.command_on("", "demo-place", &order).await?;
    let paid = scene
        .service
        .command_on(&format!("/{order_id}/pay"), "demo-pay", &json!({"amountCents": 10_000}))
        .await?;
    expect(paid["version"] == 2 && paid["status"] == "paid", || format!("the payment answered {paid}"))
}

/// An order as an older, wrong program left it. This is staged: the API would refuse it.
async fn what_only_the_history_knows(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    let order_id = id(2);
    let mut connection = scene.pool.acquire().await.map_err(StoreError::from)?;
    append(&mut connection, order_id, 0, &left_by_an_older_program(), |_| Vec::new()).await?;
    drop(connection);
    let shown = scene.service.json(&["orders", "show", &order_id.to_string()]).await?;
    let history = scene.service.json(&["orders", "history", &order_id.to_string()]).await?;
    expect(shown["status"] == "delivered" && shown["paidCents"] == 10_000, || {
        format!("the order is {shown}")
    })?;
    let findings = history["findings"].as_array().cloned().unwrap_or_default();
    let versions: Vec<i64> = findings.iter().filter_map(|finding| finding["version"].as_i64()).collect();
    expect(versions == [2, 3, 4], || format!("findings at versions {versions:?}, not 2, 3, 4"))?;
    teller.say(&format!(
        "Another order, {order_id}, was left by an older program (staged). Its row is in order: delivered, paid \
         100.00. Its history is not:",
    ));
    for finding in &findings {
        let word = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
        let version = finding["version"].as_i64().unwrap_or_default();
        teller.say(&format!("version {version}, {}: {} ({})", word("type"), word("detail"), word("code")));
    }
    teller.say("It was handed to a courier before anybody had paid. A table would have forgotten that.");
    teller.command(&format!("reprise --config {} orders history {order_id}", scene.service.config_path()));
    Ok(())
}

/// One saga that goes well, and one whose fee the provider refuses: its courier is released.
async fn couriers(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("8. A courier for an order, or none");
    hire(&scene.pool, "demo", &["k-1", "k-2"]).await?;
    for (order_id, state) in [(id(3), "succeeded"), (id(REFUSED), "failed")] {
        place_and_pay(scene, order_id).await?;
        let path = format!("/{order_id}/assign-courier");
        let begun = scene.service.command_on(&path, "demo-assign", &json!({})).await?;
        let saga = begun["sagaId"].as_str().unwrap_or_default().to_owned();
        let begun = Instant::now();
        let told = loop {
            let told = scene.service.json(&["saga", "show", &saga]).await?;
            if told["state"] == "succeeded" || told["state"] == "failed" {
                break told;
            }
            in_time(begun, scene)?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        expect(told["state"] == state, || format!("the saga of order {order_id} is {told}"))?;
        let steps = told["steps"].as_array().cloned().unwrap_or_default();
        let ended = |step: &&serde_json::Value| step["state"] == "done" || step["state"] == "failed";
        let word =
            |step: &serde_json::Value, field: &str| step[field].as_str().unwrap_or_default().to_owned();
        let story: Vec<String> = steps
            .iter()
            .filter(ended)
            .map(|step| format!("{} {}", word(step, "step"), word(step, "state")))
            .collect();
        teller.say(&format!("Order {order_id}, {state}: {}.", story.join(", ")));
        teller.command(&format!("reprise --config {} saga show {saga}", scene.service.config_path()));
    }
    Ok(())
}

/// A read model rebuilt while orders come in, and what windows have counted.
async fn views_and_windows(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("9. Read models and windows");
    let args = ["projections", "rebuild", "orders_view", "--shards", "2", "--cut-over"];
    let (rebuilt, placed) = tokio::join!(scene.service.json(&args), place_and_pay(scene, id(4)));
    placed?;
    let rebuilt = rebuilt?;
    expect(rebuilt["outcome"] == "active", || format!("the rebuild ended with {rebuilt}"))?;
    teller.say(&format!(
        "orders_view was built anew beside its readers while an order came in, compared, and cut over: generation {}.",
        rebuilt["generation"]
    ));
    let begun = Instant::now();
    let orders = loop {
        let orders = orders_in_windows(&scene.pool).await?;
        if orders >= 4 {
            break orders;
        }
        in_time(begun, scene)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    // Placed through the API: one at first, two with sagas, one during the rebuild.
    expect(orders == 4, || format!("windows counted {orders} orders, not 4"))?;
    teller.say("Windows by event time counted the 4 orders that were placed through the API, each once.");
    teller.command(&format!("reprise --config {} windows list", scene.service.config_path()));
    Ok(())
}

fn left_by_an_older_program() -> Vec<NewEvent> {
    let events = [
        Event::OrderPlaced(OrderPlaced {
            customer_id: "c1".to_owned(),
            seller_id: "v1".to_owned(),
            items: vec![Item { sku: "livro".to_owned(), quantity: 2, unit_price_cents: 5000 }],
            commission_percent: "5".to_owned(),
        }),
        Event::CourierAssigned(CourierAssigned {
            courier_id: "k1".to_owned(),
            vehicle_type: "bike".to_owned(),
        }),
        Event::OrderPaid(OrderPaid {
            seller_id: "v1".to_owned(),
            amount_cents: 10_000,
            commission_percent: "5".to_owned(),
        }),
        Event::PickedUp,
        Event::OutForDelivery,
        Event::Delivered,
    ];
    let row = |(index, event): (u32, Event)| NewEvent {
        name: event.name(),
        payload: event.payload(),
        metadata: Metadata {
            event_id: Uuid::now_v7(),
            command_id: format!("older-program-{index}"),
            command_digest: None,
            command_index: None,
            schema_version: event.form(),
            tenant_id: "demo".to_owned(),
            actor: "older-program".to_owned(),
            reason: None,
            traceparent: None,
        },
    };
    (1_u32..).zip(events).map(row).collect()
}

/// An id whose last digits the demo's provider accepts.
fn id(number: u128) -> Uuid {
    Uuid::from_u128((Uuid::now_v7().as_u128() & !0xfff) | number)
}

fn in_time(begun: Instant, scene: &Scene) -> Result<(), DemoError> {
    if begun.elapsed() > WAIT_MAX {
        return Err(DemoError::TooSlow(WAIT_MAX, scene.service.log()));
    }
    Ok(())
}
