//! Which events of a history today's rules would have refused.
//!
//! A row shows where an order ended. Its events also show how it came there: a delivered order that was handed to a
//! courier before it was paid looks like any other in a table, and not here.
//! (test `a_fault_of_the_past_is_found_where_the_state_looks_sound`)

use serde::Serialize;
use uuid::Uuid;

use super::event::{Event, Recorded};
use super::order::{BrokenHistory, Command, Order, decide};

/// An event that should not have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub version: u32,
    #[serde(rename = "type")]
    pub name: &'static str,
    /// Code of the refusal.
    pub code: &'static str,
    pub detail: String,
}

/// Holds every event against the state before it.
pub fn audit(order_id: Uuid, tenant_id: &str, events: &[Recorded]) -> Result<Vec<Finding>, BrokenHistory> {
    let mut findings = Vec::new();
    let mut order: Option<Order> = None;
    for recorded in events {
        if let Err(refusal) = decide(order.as_ref(), &wanted(tenant_id, &recorded.event)) {
            findings.push(Finding {
                version: recorded.version,
                name: recorded.event.name(),
                code: refusal.code(),
                detail: refusal.to_string(),
            });
        }
        order = Some(Order::after(order, order_id, tenant_id, recorded)?);
    }
    Ok(findings)
}

/// The command that leads to the event.
fn wanted(tenant_id: &str, event: &Event) -> Command {
    match event {
        Event::OrderPlaced(placed) => {
            Command::Place { tenant_id: tenant_id.to_owned(), placed: placed.clone() }
        }
        Event::OrderPaid(paid) => Command::Pay { amount_cents: paid.amount_cents },
        Event::CourierAssigned(assigned) => Command::Assign {
            courier_id: assigned.courier_id.clone(),
            vehicle_type: assigned.vehicle_type.clone(),
        },
        Event::PickedUp => Command::MarkPickedUp,
        Event::OutForDelivery => Command::MarkOutForDelivery,
        Event::Delivered => Command::MarkDelivered,
        Event::CancellationRequested(why) => Command::RequestCancellation { reason: why.reason.clone() },
        Event::Cancelled(why) => Command::Cancel { reason: why.reason.clone() },
    }
}
