//! What happened to an order: facts in the past tense, self-contained, and how they are stored.
//!
//! A fact is stored as its name, the version of its form and a JSON payload. Reading takes every form there ever was:
//!
//! * fields that were added have a default here;
//! * `CourierAssigned` 1 said nothing of the vehicle and is read as version 2 with vehicle type `unknown`.
//!
//! A form that is newer than this program, or a payload that is not of its form, is [`Unreadable`]: an order is never
//! folded over a hole.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The newest version of any event's form.
pub const NEWEST_FORM: u32 = 2;
/// Vehicle type of an assignment that did not say.
pub const UNKNOWN_VEHICLE: &str = "unknown";

/// One line of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    pub sku: String,
    pub quantity: i64,
    pub unit_price_cents: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderPlaced {
    pub customer_id: String,
    pub seller_id: String,
    pub items: Vec<Item>,
    /// Exact decimal from 0 to 100.
    pub commission_percent: String,
}

/// With what a consumer needs to compute the commission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OrderPaid {
    pub seller_id: String,
    pub amount_cents: i64,
    pub commission_percent: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CourierAssigned {
    pub courier_id: String,
    pub vehicle_type: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    OrderPlaced(OrderPlaced),
    OrderPaid(OrderPaid),
    CourierAssigned(CourierAssigned),
    PickedUp,
    OutForDelivery,
    Delivered,
    CancellationRequested(Reason),
    Cancelled(Reason),
}

/// An event with its place in its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// From 1.
    pub version: u32,
    pub at: Timestamp,
    pub event: Event,
}

/// A stored event that this program cannot read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("event type {name:?} is not known; it needs a newer program")]
    Name { name: String },
    #[error("{name} in form {form} is not known; it needs a newer program")]
    Form { name: String, form: u32 },
    #[error("{name} in form {form}: {cause}")]
    Payload { name: String, form: u32, cause: serde_json::Error },
}

impl Event {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::OrderPlaced(_) => "OrderPlaced",
            Self::OrderPaid(_) => "OrderPaid",
            Self::CourierAssigned(_) => "CourierAssigned",
            Self::PickedUp => "PickedUp",
            Self::OutForDelivery => "OutForDelivery",
            Self::Delivered => "Delivered",
            Self::CancellationRequested(_) => "CancellationRequested",
            Self::Cancelled(_) => "Cancelled",
        }
    }

    /// The version of the form in which [`payload`](Self::payload) writes it.
    pub const fn form(&self) -> u32 {
        match self {
            Self::CourierAssigned(_) => 2,
            _ => 1,
        }
    }

    pub fn payload(&self) -> Value {
        match self {
            Self::OrderPlaced(placed) => json!({
                "customerId": placed.customer_id,
                "sellerId": placed.seller_id,
                "items": placed.items.iter().map(|item| json!({
                    "sku": item.sku, "quantity": item.quantity, "unitPriceCents": item.unit_price_cents,
                })).collect::<Vec<_>>(),
                "commissionPercent": placed.commission_percent,
            }),
            Self::OrderPaid(paid) => json!({
                "sellerId": paid.seller_id,
                "amountCents": paid.amount_cents,
                "commissionPercent": paid.commission_percent,
            }),
            Self::CourierAssigned(assigned) => {
                json!({ "courierId": assigned.courier_id, "vehicleType": assigned.vehicle_type })
            }
            Self::PickedUp | Self::OutForDelivery | Self::Delivered => json!({}),
            Self::CancellationRequested(why) | Self::Cancelled(why) => json!({ "reason": why.reason }),
        }
    }

    /// Reads what is stored, in whatever form.
    pub fn read(name: &str, form: u32, payload: &str) -> Result<Self, Unreadable> {
        fn of<'a, T: Deserialize<'a>>(name: &str, form: u32, payload: &'a str) -> Result<T, Unreadable> {
            serde_json::from_str(payload).map_err(|cause| Unreadable::Payload {
                name: name.to_owned(),
                form,
                cause,
            })
        }
        match (name, form) {
            ("OrderPlaced", 1) => of(name, form, payload).map(Self::OrderPlaced),
            ("OrderPaid", 1) => of(name, form, payload).map(Self::OrderPaid),
            ("CourierAssigned", 1) => {
                of::<CourierAssignedV1>(name, form, payload).map(CourierAssignedV1::upcast)
            }
            ("CourierAssigned", 2) => of(name, form, payload).map(Self::CourierAssigned),
            ("PickedUp", 1) => Ok(Self::PickedUp),
            ("OutForDelivery", 1) => Ok(Self::OutForDelivery),
            ("Delivered", 1) => Ok(Self::Delivered),
            ("CancellationRequested", 1) => of(name, form, payload).map(Self::CancellationRequested),
            ("Cancelled", 1) => of(name, form, payload).map(Self::Cancelled),
            _ if NAMES.contains(&name) => Err(Unreadable::Form { name: name.to_owned(), form }),
            _ => Err(Unreadable::Name { name: name.to_owned() }),
        }
    }
}

const NAMES: [&str; 8] = [
    "OrderPlaced",
    "OrderPaid",
    "CourierAssigned",
    "PickedUp",
    "OutForDelivery",
    "Delivered",
    "CancellationRequested",
    "Cancelled",
];

/// The form before vehicles were told.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CourierAssignedV1 {
    courier_id: String,
}

impl CourierAssignedV1 {
    fn upcast(self) -> Event {
        Event::CourierAssigned(CourierAssigned {
            courier_id: self.courier_id,
            vehicle_type: UNKNOWN_VEHICLE.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assignment_of_version_1_is_read_with_an_unknown_vehicle() {
        let read = Event::read("CourierAssigned", 1, r#"{"courierId":"k1"}"#).expect("readable");
        let upcast = CourierAssigned { courier_id: "k1".to_owned(), vehicle_type: "unknown".to_owned() };
        assert_eq!(read, Event::CourierAssigned(upcast));
        assert_eq!(read.form(), 2);
    }

    #[test]
    fn every_event_is_read_back_from_what_it_writes() {
        let items = vec![Item { sku: "livro".to_owned(), quantity: 2, unit_price_cents: 5000 }];
        let why = Reason { reason: "late".to_owned() };
        let events = [
            Event::OrderPlaced(OrderPlaced {
                customer_id: "c".to_owned(),
                seller_id: "v".to_owned(),
                items,
                commission_percent: "33.333".to_owned(),
            }),
            Event::OrderPaid(OrderPaid {
                seller_id: "v".to_owned(),
                amount_cents: 10_000,
                commission_percent: "33.333".to_owned(),
            }),
            Event::CourierAssigned(CourierAssigned {
                courier_id: "k".to_owned(),
                vehicle_type: "bike".to_owned(),
            }),
            Event::PickedUp,
            Event::OutForDelivery,
            Event::Delivered,
            Event::CancellationRequested(why.clone()),
            Event::Cancelled(why),
        ];
        for event in events {
            let read =
                Event::read(event.name(), event.form(), &event.payload().to_string()).expect("readable");
            assert_eq!(read, event);
        }
    }

    #[test]
    fn added_fields_are_ignored_and_newer_forms_are_not_guessed() {
        let more = r#"{"courierId":"k1","vehicleType":"bike","rating":5}"#;
        assert!(Event::read("CourierAssigned", 2, more).is_ok());
        assert!(matches!(Event::read("CourierAssigned", 3, more), Err(Unreadable::Form { form: 3, .. })));
        assert!(matches!(Event::read("Teleported", 1, "{}"), Err(Unreadable::Name { .. })));
        assert!(matches!(Event::read("OrderPaid", 1, "[]"), Err(Unreadable::Payload { .. })));
    }
}
