//! Messages of other systems against the real broker and database.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

use super::super::support::kafka::{Outgoing, header};
use super::super::support::{LATER, until};
use super::Shop;

fn message(id: &str, tipo: &str, order: &str, payload: &Value) -> Outgoing {
    let value = json!({ "id": id, "tipo": tipo, "pedidoId": order, "payload": payload });
    Outgoing { key: Some(order.into()), value: Some(value.to_string().into()), ..Outgoing::default() }
}

#[tokio::test]
async fn foreign_messages_become_commands_once_and_what_cannot_is_a_dead_letter() {
    let mut shop = Shop::open().await;
    let world = &mut shop.world;
    let foreign = world.topic.replace("pedido.pago", "marketplace.pedidos");
    let dlq = format!("{foreign}.dlq");
    for topic in [&foreign, &dlq] {
        world.kafka.create_topic(topic, 2, &[("retention.ms", "-1")]).await;
    }
    world.set(&["orders", "format"], "json");
    world.set(&["orders", "dlq_topic"], dlq.clone());
    world.set(&["orders", "foreign_topic"], foreign.clone());
    world.set(&["orders", "foreign_group"], foreign.clone());
    let (paid, cheap) = (Uuid::new_v4(), Uuid::new_v4());
    shop.place(paid).await;
    shop.place(cheap).await;
    let (a, b) = (paid.to_string(), cheap.to_string());
    let stranger = Uuid::new_v4().to_string();
    let pay = |cents: i64| json!({ "valorCentavos": cents });
    let sent = [
        message("m-1", "pedido.pago", &a, &pay(10_000)),
        message("m-1", "pedido.pago", &a, &pay(10_000)),
        message(
            "m-2",
            "pedido.entregador-atribuido",
            &a,
            &json!({ "entregadorId": "k1", "veiculo": "moto" }),
        ),
        message("m-3", "estoque.baixado", &a, &json!({})),
        message("m-4", "pedido.pago", &b, &pay(9_999)),
        message("m-5", "pedido.pago", &stranger, &pay(10_000)),
        message("m-6", "pedido.pago", "P-77", &pay(1)),
        Outgoing { key: Some("x".into()), value: Some("no JSON".into()), ..Outgoing::default() },
    ];
    let world = &shop.world;
    world.kafka.produce_all(&foreign, sent).await;
    let mut server = world.run(&["orders", "serve"]);
    let counted =
        async |result: &str| world.metric("reprise_orders_foreign_total", &[("result", result)]).await;
    let all_dealt_with = async || {
        counted("taken").await == Some(3.0)
            && counted("passed-over").await == Some(1.0)
            && counted("dead-lettered").await == Some(4.0)
    };
    until("all are dealt with", LATER, all_dealt_with).await;
    let status =
        |id: &str| format!("select type from order_events where stream_id = '{id}' order by version");
    assert_eq!(names(world.rows(&status(&a)).await), ["OrderPlaced", "OrderPaid", "CourierAssigned"]);
    assert_eq!(names(world.rows(&status(&b)).await), ["OrderPlaced"]);
    let actor: String = world
        .one(&format!(
            "select metadata ->> 'actor' from order_events where stream_id = '{a}' and type = 'OrderPaid'"
        ))
        .await;
    assert_eq!(actor, format!("foreign:{foreign}"));
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for letter in world.kafka.read(&dlq).await {
        *reasons.entry(header(&letter, "reprise-dlq-motivo")).or_default() += 1;
    }
    let expected = [("campo-invalido", 1), ("comando-recusado", 2), ("json-invalido", 1)];
    assert_eq!(reasons, expected.map(|(reason, n)| (reason.to_owned(), n)).into());

    // Killed and read again from the beginning: nothing happens twice.
    server.kill();
    world.kafka.forget_group(&foreign).await;
    let _server = world.run(&["orders", "serve"]);
    until("all are read again", LATER, all_dealt_with).await;
    assert_eq!(world.one::<i64>("select count(*) from order_events").await, 4);
}

fn names(rows: Vec<(String,)>) -> Vec<String> {
    rows.into_iter().map(|(name,)| name).collect()
}
