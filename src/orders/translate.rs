//! The anti-corruption layer: the only place that knows the words of both sides.
//!
//! Outwards: an event becomes its message on the topic of orders, and `OrderPaid` becomes `pedido.pago`, in the words
//! of the applier. Inwards: messages `pedido.*` of other systems become commands on orders.
//! (tests `an_order_that_was_paid_is_told_in_the_words_of_the_applier`, `foreign_messages_become_commands`)

use std::collections::BTreeMap;

use serde_json::{Value, json};
use uuid::Uuid;

use super::event::{Event, Recorded, UNKNOWN_VEHICLE};
use super::order::Command;
use crate::domain::message::header;
use crate::outbox::{Destination, Message};
use crate::pg::orders::Metadata;

/// `tipo` of what the applier consumes.
const PAID: &str = "pedido.pago";
/// `outbox.aggregate_type`.
const AGGREGATE: &str = "order";

/// An old form that is published beside the newest, for consumers that are not ready yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlsoPublished {
    /// `CourierAssigned` without a vehicle.
    CourierAssignedV1,
}

/// The messages that tell of an event.
pub fn messages(
    order_id: Uuid,
    metadata: &Metadata,
    recorded: &Recorded,
    also: &[AlsoPublished],
) -> Vec<Message> {
    let mut messages = Vec::with_capacity(2);
    if let (Event::CourierAssigned(assigned), true) =
        (&recorded.event, also.contains(&AlsoPublished::CourierAssignedV1))
    {
        let old = json!({ "courierId": assigned.courier_id });
        messages.push(told(order_id, metadata, recorded, Uuid::now_v7(), 1, old));
    }
    let (form, payload) = (recorded.event.form(), recorded.event.payload());
    messages.push(told(order_id, metadata, recorded, metadata.event_id, form, payload));
    if let Event::OrderPaid(paid) = &recorded.event {
        let payload = json!({
            "id": format!("{order_id}-{}", recorded.version),
            "tipo": PAID,
            "pedidoId": order_id,
            "versao": recorded.version,
            "payload": { "valorCentavos": paid.amount_cents, "percentual": paid.commission_percent },
            "ocorridoEm": recorded.at,
        });
        messages.push(message(order_id, metadata, Destination::Paid, PAID, Uuid::now_v7(), 1, payload));
    }
    messages
}

/// On the topic of orders: the fact and where it stands.
fn told(
    order_id: Uuid,
    metadata: &Metadata,
    recorded: &Recorded,
    id: Uuid,
    form: u32,
    mut payload: Value,
) -> Message {
    if let Value::Object(fields) = &mut payload {
        fields.insert("orderId".to_owned(), json!(order_id));
        fields.insert("tenantId".to_owned(), json!(metadata.tenant_id));
        fields.insert("version".to_owned(), json!(recorded.version));
        fields.insert("occurredAt".to_owned(), json!(recorded.at));
    }
    message(order_id, metadata, Destination::Events, recorded.event.name(), id, form, payload)
}

fn message(
    order_id: Uuid,
    metadata: &Metadata,
    destination: Destination,
    event_type: &str,
    id: Uuid,
    form: u32,
    payload: Value,
) -> Message {
    let mut headers = BTreeMap::from([
        (header::MESSAGE_ID.to_owned(), id.to_string()),
        (header::EVENT_TYPE.to_owned(), event_type.to_owned()),
        (header::SCHEMA_VERSION.to_owned(), form.to_string()),
        (header::TENANT_ID.to_owned(), metadata.tenant_id.clone()),
    ]);
    if let Some(traceparent) = &metadata.traceparent {
        headers.insert(header::TRACEPARENT.to_owned(), traceparent.clone());
    }
    Message {
        id,
        destination,
        aggregate_type: AGGREGATE,
        aggregate_id: order_id.to_string(),
        event_type: event_type.to_owned(),
        payload,
        headers,
    }
}

/// What a message of another system means for an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    pub order_id: Uuid,
    pub command: Command,
    /// The message's own id: its repetition is recognised.
    pub command_id: String,
}

/// Why a foreign message means nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTranslated {
    /// Not for us: skipped, and counted by whoever reads.
    #[error("tipo {0:?} is none of orders")]
    OtherType(String),
    #[error("{field}: {what}")]
    Field { field: &'static str, what: &'static str },
}

/// A message `pedido.*` of another system as a command.
pub fn from_foreign(message: &Value) -> Result<Foreign, NotTranslated> {
    let tipo = text(message, "/tipo", "tipo")?;
    let command = match tipo.as_str() {
        PAID => Command::Pay {
            amount_cents: message.pointer("/payload/valorCentavos").and_then(Value::as_i64).ok_or(
                NotTranslated::Field { field: "payload.valorCentavos", what: "must be whole cents" },
            )?,
        },
        "pedido.entregador-atribuido" => Command::Assign {
            courier_id: text(message, "/payload/entregadorId", "payload.entregadorId")?,
            vehicle_type: text(message, "/payload/veiculo", "payload.veiculo")
                .unwrap_or_else(|_| UNKNOWN_VEHICLE.to_owned()),
        },
        "pedido.retirado" => Command::MarkPickedUp,
        "pedido.saiu-para-entrega" => Command::MarkOutForDelivery,
        "pedido.entregue" => Command::MarkDelivered,
        "pedido.cancelamento-solicitado" => {
            Command::RequestCancellation { reason: text(message, "/payload/motivo", "payload.motivo")? }
        }
        "pedido.cancelado" => Command::Cancel { reason: text(message, "/payload/motivo", "payload.motivo")? },
        _ => return Err(NotTranslated::OtherType(tipo)),
    };
    let order_id = text(message, "/pedidoId", "pedidoId")?
        .parse()
        .map_err(|_| NotTranslated::Field { field: "pedidoId", what: "must be the UUID of an order" })?;
    Ok(Foreign { order_id, command, command_id: text(message, "/id", "id")? })
}

fn text(message: &Value, pointer: &str, field: &'static str) -> Result<String, NotTranslated> {
    let text = message.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let fit = text.filter(|text| text.len() <= 1_000 && !text.contains(char::is_control));
    fit.map(str::to_owned)
        .ok_or(NotTranslated::Field { field, what: "must be a text without control characters" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::event::{CourierAssigned, OrderPaid};

    const ORDER: Uuid = Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0001);
    const EVENT: Uuid = Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0002);

    fn metadata() -> Metadata {
        Metadata {
            event_id: EVENT,
            command_id: "k".to_owned(),
            command_digest: None,
            command_index: None,
            schema_version: 1,
            tenant_id: "t1".to_owned(),
            actor: "api".to_owned(),
            reason: None,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        }
    }

    fn recorded(version: u32, event: Event) -> Recorded {
        Recorded { version, at: "2026-10-14T12:00:00Z".parse().expect("an instant"), event }
    }

    fn assigned() -> Event {
        Event::CourierAssigned(CourierAssigned {
            courier_id: "k1".to_owned(),
            vehicle_type: "bike".to_owned(),
        })
    }

    #[test]
    fn an_order_that_was_paid_is_told_in_the_words_of_the_applier() {
        let paid = OrderPaid {
            seller_id: "v1".to_owned(),
            amount_cents: 10_000,
            commission_percent: "33.333".to_owned(),
        };
        let told = messages(ORDER, &metadata(), &recorded(2, Event::OrderPaid(paid)), &[]);
        let [event, paid] = told.as_slice() else { panic!("two messages: {told:?}") };
        assert_eq!(
            (event.destination, event.id, event.event_type.as_str()),
            (Destination::Events, EVENT, "OrderPaid")
        );
        assert_eq!(
            event.payload,
            json!({
                "orderId": "01930000-0000-7000-8000-000000000001", "tenantId": "t1", "version": 2,
                "occurredAt": "2026-10-14T12:00:00Z", "sellerId": "v1", "amountCents": 10000,
                "commissionPercent": "33.333",
            })
        );
        assert_eq!(paid.destination, Destination::Paid);
        assert_eq!(
            paid.payload,
            json!({
                "id": "01930000-0000-7000-8000-000000000001-2", "tipo": "pedido.pago",
                "pedidoId": "01930000-0000-7000-8000-000000000001", "versao": 2,
                "payload": {"valorCentavos": 10000, "percentual": "33.333"}, "ocorridoEm": "2026-10-14T12:00:00Z",
            })
        );
        assert_ne!(paid.id, event.id, "every message has an id of its own");
        for message in &told {
            assert_eq!(message.headers[header::MESSAGE_ID], message.id.to_string());
            assert_eq!(message.headers[header::TENANT_ID], "t1");
            assert_eq!(message.headers[header::TRACEPARENT], metadata().traceparent.expect("made above"));
            assert_eq!(message.aggregate_id, "01930000-0000-7000-8000-000000000001");
        }
    }

    #[test]
    fn an_old_form_is_published_beside_the_newest_while_it_is_wanted() {
        let forms = |also: &[AlsoPublished]| -> Vec<(String, Option<Value>)> {
            messages(ORDER, &metadata(), &recorded(3, assigned()), also)
                .iter()
                .map(|message| {
                    let form = message.headers[header::SCHEMA_VERSION].clone();
                    (form, message.payload.get("vehicleType").cloned())
                })
                .collect()
        };
        assert_eq!(forms(&[]), [("2".to_owned(), Some(json!("bike")))]);
        assert_eq!(
            forms(&[AlsoPublished::CourierAssignedV1]),
            [("1".to_owned(), None), ("2".to_owned(), Some(json!("bike")))]
        );
    }

    #[test]
    fn foreign_messages_become_commands() {
        let foreign = |tipo: &str, payload: Value| {
            from_foreign(&json!({"id": "e-1", "tipo": tipo, "pedidoId": ORDER, "payload": payload}))
        };
        let command = |tipo: &str, payload: Value| foreign(tipo, payload).map(|foreign| foreign.command);
        let reason = || "late".to_owned();
        assert_eq!(
            foreign("pedido.pago", json!({"valorCentavos": 10000, "percentual": "5"})),
            Ok(Foreign {
                order_id: ORDER,
                command: Command::Pay { amount_cents: 10_000 },
                command_id: "e-1".to_owned()
            })
        );
        assert_eq!(
            command("pedido.entregador-atribuido", json!({"entregadorId": "k1"})),
            Ok(Command::Assign { courier_id: "k1".to_owned(), vehicle_type: "unknown".to_owned() })
        );
        assert_eq!(command("pedido.retirado", json!({})), Ok(Command::MarkPickedUp));
        assert_eq!(command("pedido.saiu-para-entrega", json!({})), Ok(Command::MarkOutForDelivery));
        assert_eq!(command("pedido.entregue", json!({})), Ok(Command::MarkDelivered));
        assert_eq!(
            command("pedido.cancelamento-solicitado", json!({"motivo": "late"})),
            Ok(Command::RequestCancellation { reason: reason() })
        );
        assert_eq!(
            command("pedido.cancelado", json!({"motivo": "late"})),
            Ok(Command::Cancel { reason: reason() })
        );
        assert_eq!(
            command("pedido.avaliado", json!({})),
            Err(NotTranslated::OtherType("pedido.avaliado".to_owned()))
        );
        let missing = command("pedido.cancelado", json!({})).expect_err("no reason");
        assert_eq!(missing.to_string(), "payload.motivo: must be a text without control characters");
        let cents = command("pedido.pago", json!({"valorCentavos": 1.5})).expect_err("a fraction");
        assert_eq!(cents.to_string(), "payload.valorCentavos: must be whole cents");
    }
}
