//! Avro on the order side: registered, written in the wire format, read by old readers and by the applier.

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use apache_avro::types::Value as Avro;
use reprise::outbox::{Destination, Message};
use serde_json::json;

use crate::support::kafka::{Outgoing, header, payload};
use crate::support::registry::Registry;
use crate::support::shop::{Shop, event};
use crate::support::{LATER, SOON, until};

const ASSIGNED_V1: &str = include_str!("../../schemas/orders.events/CourierAssigned/1.avsc");

async fn shop_with_a_registry() -> (Shop, Registry) {
    let mut shop = Shop::open().await;
    let registry = Registry::start().await;
    shop.world.set(&["orders", "format"], "avro");
    shop.world.set(&["orders", "registry_url"], registry.url());
    (shop, registry)
}

fn assigned(order: &str, version: &str, payload: serde_json::Value) -> Message {
    let mut message = event(order, "CourierAssigned", payload);
    message.headers.insert("schema_version".to_owned(), version.to_owned());
    message
}

fn paid(order: &str) -> Message {
    let mut message = event(
        order,
        "pedido.pago",
        json!({ "id": format!("{order}-2"), "tipo": "pedido.pago", "pedidoId": order, "versao": 2,
                "payload": { "valorCentavos": 10_000, "percentual": "5" },
                "ocorridoEm": "2026-10-14T12:00:00.123456Z" }),
    );
    message.destination = Destination::Paid;
    message
}

/// The wire format taken apart: schema id and datum.
fn taken_apart(value: &[u8]) -> (u32, &[u8]) {
    assert_eq!(value[0], 0, "the magic byte");
    (u32::from_be_bytes(value[1..5].try_into().expect("four bytes")), &value[5..])
}

#[tokio::test]
async fn consumers_of_version_1_go_on_reading_what_version_2_says() {
    let (shop, registry) = shop_with_a_registry().await;
    let _relay = shop.start("relay").await;
    let common = json!({ "orderId": "order-1", "tenantId": "t1", "version": 3, "occurredAt": "2026-10-14T12:00:00Z",
                         "courierId": "k1" });
    let mut second = common.clone();
    second["vehicleType"] = json!("bike");
    second["fieldOfTheFuture"] = json!(7);
    shop.add(&[assigned("order-1", "1", common), assigned("order-1", "2", second)]).await;
    shop.all_published().await;

    let messages = shop.world.kafka.read(&shop.events).await;
    assert_eq!(messages.iter().map(|m| header(m, "schema_version")).collect::<Vec<_>>(), ["1", "2"]);
    let (_, first) = taken_apart(payload(&messages[0]));
    let (id, mut datum) = taken_apart(payload(&messages[1]));
    assert_ne!(first, datum, "version 2 says more");
    let (writer, reader) = (Schema::parse_str(&registry.schema(id)), Schema::parse_str(ASSIGNED_V1));
    let (writer, reader) = (writer.expect("registered"), reader.expect("published"));
    let reading =
        GenericDatumReader::builder(&writer).reader_schema(&reader).build().expect("they are compatible");
    let Avro::Record(fields) = reading.read_value(&mut datum).expect("read") else { panic!("no record") };
    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["orderId", "tenantId", "version", "occurredAt", "courierId"]);
    assert_eq!(fields[2].1, Avro::Long(3));
    assert_eq!(fields[3].1, Avro::TimestampMicros(1_791_979_200_000_000));
    assert_eq!(fields[4].1, Avro::String("k1".to_owned()));
    assert_eq!(registry.subjects(), [format!("{}-reprise.orders.CourierAssigned", shop.events)]);
}

#[tokio::test]
async fn pedido_pago_in_avro_goes_from_the_outbox_through_the_applier_in_one_process() {
    let (shop, registry) = shop_with_a_registry().await;
    let mut all = shop.start("all").await;
    shop.add(&[paid("order-1")]).await;
    until("the commission is there", LATER, async || shop.world.done().await == 1).await;
    assert_eq!(shop.world.commissions().await.into_iter().collect::<Vec<_>>(), [("order-1".to_owned(), 500)]);
    let messages = shop.world.kafka.read(&shop.world.topic).await;
    assert_eq!(taken_apart(payload(&messages[0])).0, 1);
    assert_eq!(registry.subjects(), [format!("{}-value", shop.world.topic)]);
    let occurred: String = shop.world.one("select requisicao ->> 'ocorridoEm' from efeito_aplicado").await;
    assert_eq!(occurred, "2026-10-14T12:00:00.123456Z");
    all.terminate();
    assert_eq!(all.ended(LATER).await.code, Some(0));
}

#[tokio::test]
async fn b69_a_registry_that_is_away_or_says_no_is_waited_for_and_nothing_is_parked() {
    let (shop, registry) = shop_with_a_registry().await;
    registry.away(true);
    let _relay = shop.start("relay").await;
    shop.add(&[paid("order-1")]).await;
    let away = async || shop.world.metric("reprise_outbox_failures_total", &[("cause", "away")]).await;
    until("it was asked twice", SOON, async || away().await >= Some(2.0)).await;
    let waiting: (bool, i32) =
        shop.world.rows("select published_at is null and parked_at is null, attempts from outbox").await[0];
    assert_eq!(waiting, (true, 0), "an outage is no attempt");
    registry.away(false);
    shop.all_published().await;
    assert_eq!(registry.registrations(), 1, "asked once where it answers");

    // Somebody has registered something incompatible under the subject of OrderPaid.
    registry.seed(
        &format!("{}-reprise.orders.OrderPaid", shop.events),
        r#"{"type":"record","name":"OrderPaid","namespace":"reprise.orders","fields":[{"name":"x","type":"long"}]}"#,
    );
    let before = away().await;
    let payload = json!({ "orderId": "order-2", "tenantId": "t1", "version": 2,
                          "occurredAt": "2026-10-14T12:00:00Z", "sellerId": "v1", "amountCents": 100,
                          "commissionPercent": "5" });
    shop.add(&[event("order-2", "OrderPaid", payload)]).await;
    until("it was refused", SOON, async || away().await > before).await;
    assert_eq!(shop.unpublished().await, 1);
    let refused: i32 = shop.world.one("select max(attempts) from outbox").await;
    assert_eq!(refused, 0, "the message is good");
}

#[tokio::test]
async fn every_event_of_an_order_fits_its_schema() {
    let (shop, registry) = shop_with_a_registry().await;
    let _all = shop.start("all").await;
    let order = "0199f0c4-5b7a-7c11-8d2e-3f4a5b6c7d8e";
    let post = async |path: &str, body: serde_json::Value| {
        let path = format!("/api/v1/orders{path}");
        let reply = shop.world.request("POST", &path, &[("idempotency-key", &path)], Some(&body)).await;
        let reply = reply.expect("an answer");
        assert!(reply.status < 300, "{path}: {} {}", reply.status, reply.body);
    };
    post(
        "",
        json!({ "orderId": order, "tenantId": "t1", "customerId": "c1", "sellerId": "v1", "commissionPercent": "5",
                "items": [{ "sku": "livro", "quantity": 2, "unitPriceCents": 5000 }] }),
    )
    .await;
    post(&format!("/{order}/pay"), json!({ "amountCents": 10_000 })).await;
    post(&format!("/{order}/assign"), json!({ "courierId": "k1", "vehicleType": "bike" })).await;
    for verb in ["picked-up", "out-for-delivery", "delivered"] {
        post(&format!("/{order}/{verb}"), json!({})).await;
    }
    shop.all_published().await;
    let events = shop.world.kafka.read(&shop.events).await;
    let types: Vec<String> = events.iter().map(|m| header(m, "event_type")).collect();
    assert_eq!(
        types,
        ["OrderPlaced", "OrderPaid", "CourierAssigned", "PickedUp", "OutForDelivery", "Delivered"]
    );
    let (id, mut datum) = taken_apart(payload(&events[0]));
    let schema = Schema::parse_str(&registry.schema(id)).expect("registered");
    let reading = GenericDatumReader::builder(&schema).build().expect("a reader");
    let Avro::Record(placed) = reading.read_value(&mut datum).expect("read") else { panic!("no record") };
    let field = |name: &str| placed.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone());
    assert_eq!(field("orderId"), Some(Avro::String(order.to_owned())));
    assert_eq!(field("version"), Some(Avro::Long(1)));
    assert_eq!(field("commissionPercent"), Some(Avro::String("5".to_owned())));
    until("the commission is there", LATER, async || shop.world.done().await == 1).await;
    assert_eq!(shop.world.commissions().await[order], 500);
}

#[tokio::test]
async fn a_message_that_does_not_fit_its_schema_is_parked_as_json_with_the_field_named() {
    let (mut shop, _registry) = shop_with_a_registry().await;
    shop.world.set(&["outbox", "max_attempts"], 1);
    let _relay = shop.start("relay").await;
    shop.add(&[event("order-1", "PickedUp", json!({ "orderId": "order-1" }))]).await;
    until("it is parked", SOON, async || {
        shop.world.one::<i64>("select count(*) from outbox where parked_at is not null").await == 1
    })
    .await;
    let letters = shop.world.kafka.read(&shop.dlq).await;
    assert_eq!(payload(&letters[0]), br#"{"orderId": "order-1"}"#);
    assert_eq!(header(&letters[0], "reprise-dlq-motivo"), "fora-do-esquema");
    assert_eq!(
        header(&letters[0], "reprise-dlq-mensagem"),
        "cannot be written as Avro: tenantId: is missing"
    );
}

#[tokio::test]
async fn b69_an_id_that_the_registry_does_not_know_is_asked_for_a_while_and_then_dead_lettered() {
    let (shop, registry) = shop_with_a_registry().await;
    let _live = shop.start("live").await;
    let world = &shop.world;
    world.kafka.produce(&world.topic, &Outgoing::raw("order-1", &[0, 0, 0, 0, 1, 2, 2])).await;
    world.kafka.produce(&world.topic, &Outgoing::raw("order-2", br#"{"tipo":"#)).await;
    until("both are dead letters", LATER, async || world.dlq().await.len() == 2).await;
    let mut reasons: Vec<String> =
        world.dlq().await.iter().map(|m| header(m, "reprise-dlq-motivo")).collect();
    reasons.sort();
    assert_eq!(reasons, ["avro-invalido", "json-invalido"]);
    assert_eq!(registry.registrations(), 0);
}
