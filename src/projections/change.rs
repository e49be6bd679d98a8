//! Pure: what an event says of its order's row. Only what the event tells is set; the rest stays as it is.
//!
//! Changes of one order merge in the order of their versions, and a merged change laid over any earlier state of the
//! row gives the same as its events one by one. So batches can be cut anywhere, and repeated.

use std::collections::HashMap;

use jiff::SignedDuration;
use uuid::Uuid;

use super::{Change, Fact};
use crate::orders::event::{Event, Item, Unreadable};
use crate::orders::order::Status;

/// From pick-up to the door, as promised to the customer.
const EXPECTED_AFTER: SignedDuration = SignedDuration::from_mins(45);

/// What one event changes.
pub fn change(fact: &Fact<'_>) -> Result<Change, Unreadable> {
    let event = Event::read(fact.name, fact.form, fact.payload)?;
    let at = fact.at;
    let mut change = unchanged(fact, status(&event));
    match event {
        Event::OrderPlaced(placed) => {
            change.amount_cents = Some(total(&placed.items));
            change.seller_id = Some(placed.seller_id);
            change.placed_at = Some(at);
        }
        Event::OrderPaid(_) => change.paid_at = Some(at),
        Event::CourierAssigned(assigned) => {
            change.courier_id = Some(assigned.courier_id);
            change.vehicle_type = Some(assigned.vehicle_type);
        }
        Event::PickedUp => {
            change.picked_up_at = Some(at);
            // Beyond the calendar there is nothing to expect.
            change.expected_at = Some(at.checked_add(EXPECTED_AFTER).unwrap_or(at));
        }
        Event::Delivered => change.delivered_at = Some(at),
        Event::OutForDelivery | Event::CancellationRequested(_) | Event::Cancelled(_) => {}
    }
    Ok(change)
}

fn unchanged(fact: &Fact<'_>, status: Status) -> Change {
    Change {
        order_id: fact.order_id,
        tenant_id: fact.tenant_id.to_owned(),
        first: fact.version,
        version: fact.version,
        at: fact.at,
        status: status.as_str(),
        seller_id: None,
        amount_cents: None,
        courier_id: None,
        vehicle_type: None,
        placed_at: None,
        paid_at: None,
        picked_up_at: None,
        expected_at: None,
        delivered_at: None,
    }
}

/// Merges events, in the order of their streams, into one change per order.
#[derive(Debug, Default)]
pub struct Fold {
    orders: HashMap<Uuid, Change>,
    hole: Option<(Uuid, u32)>,
}

impl Fold {
    pub fn add(&mut self, fact: &Fact<'_>) -> Result<(), Unreadable> {
        let change = change(fact)?;
        match self.orders.get_mut(&fact.order_id) {
            Some(earlier) => {
                if change.version > earlier.version + 1 {
                    self.hole.get_or_insert((fact.order_id, earlier.version + 1));
                }
                earlier.then(change);
            }
            None => {
                self.orders.insert(fact.order_id, change);
            }
        }
        Ok(())
    }

    /// An order that came without one of its versions, and which one.
    pub const fn hole(&self) -> Option<(Uuid, u32)> {
        self.hole
    }

    /// One change per order, sorted by order.
    pub fn changes(self) -> Vec<Change> {
        let mut changes: Vec<Change> = self.orders.into_values().collect();
        changes.sort_unstable_by_key(|change| change.order_id);
        changes
    }
}

const fn status(event: &Event) -> Status {
    match event {
        Event::OrderPlaced(_) => Status::Placed,
        Event::OrderPaid(_) => Status::Paid,
        Event::CourierAssigned(_) => Status::Assigned,
        Event::PickedUp => Status::PickedUp,
        Event::OutForDelivery => Status::OutForDelivery,
        Event::Delivered => Status::Delivered,
        Event::CancellationRequested(_) => Status::CancellationRequested,
        Event::Cancelled(_) => Status::Cancelled,
    }
}

/// What the items cost; a history beyond 64 bits must not stop the rest.
fn total(items: &[Item]) -> i64 {
    items
        .iter()
        .fold(0_i64, |sum, item| sum.saturating_add(item.quantity.saturating_mul(item.unit_price_cents)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn fact<'a>(version: u32, name: &'a str, form: u32, payload: &'a str) -> Fact<'a> {
        let at = Timestamp::from_second(1_000 * i64::from(version)).expect("an instant");
        Fact { order_id: Uuid::nil(), version, tenant_id: "t1", at, name, form, payload }
    }

    fn folded(facts: &[Fact<'_>]) -> Change {
        let mut fold = Fold::default();
        for fact in facts {
            fold.add(fact).expect("readable");
        }
        let [change] = fold.changes().try_into().expect("one order");
        change
    }

    const PLACED: &str = r#"{"customerId":"c","sellerId":"s","commissionPercent":"5","items":[{"sku":"a","quantity":2,"unitPriceCents":5000}]}"#;
    const PAID: &str = r#"{"sellerId":"s","amountCents":10000,"commissionPercent":"5"}"#;
    const K1: &str = r#"{"courierId":"k"}"#;
    const K2: &str = r#"{"courierId":"k","vehicleType":"bike"}"#;

    #[test]
    fn changes_of_one_order_merge_and_keep_what_later_events_do_not_tell() {
        let change = folded(&[
            fact(1, "OrderPlaced", 1, PLACED),
            fact(2, "OrderPaid", 1, PAID),
            fact(3, "CourierAssigned", 1, K1),
            fact(4, "PickedUp", 1, "{}"),
        ]);
        assert_eq!((change.first, change.version, change.status), (1, 4, "picked_up"));
        assert_eq!((change.amount_cents, change.vehicle_type.as_deref()), (Some(10_000), Some("unknown")));
        let seconds = |at: Option<Timestamp>| at.map(Timestamp::as_second);
        assert_eq!(
            [seconds(change.placed_at), seconds(change.paid_at), seconds(change.expected_at)],
            [Some(1_000), Some(2_000), Some(6_700)]
        );
    }

    #[test]
    fn repeats_change_nothing_and_the_newest_form_of_a_fact_stays() {
        let (old, new) = (fact(2, "CourierAssigned", 1, K1), fact(2, "CourierAssigned", 2, K2));
        let once = [fact(1, "OrderPlaced", 1, PLACED), new, fact(3, "PickedUp", 1, "{}")];
        let repeated = [once[0], old, new, once[2], once[0], old, new, once[2]];
        assert_eq!(folded(&repeated), folded(&once));
        assert_eq!(folded(&once[..2]).vehicle_type.as_deref(), Some("bike"));
    }

    #[test]
    fn a_hole_in_a_stream_is_named() {
        let mut fold = Fold::default();
        fold.add(&fact(1, "OrderPlaced", 1, PLACED)).expect("readable");
        assert_eq!(fold.hole(), None);
        fold.add(&fact(3, "PickedUp", 1, "{}")).expect("readable");
        assert_eq!(fold.hole(), Some((Uuid::nil(), 2)));
    }

    #[test]
    fn an_event_that_cannot_be_read_is_refused() {
        assert!(Fold::default().add(&fact(2, "Teleported", 1, "{}")).is_err());
    }
}
