//! Pure: what an event says of its order's row. Only what the event tells is set; the rest stays as it is.
//!
//! Changes of one order merge in the order of their versions, and a merged change laid over any earlier state of the
//! row gives the same as its events one by one. So batches can be cut anywhere, and repeated.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::orders::event::{Event, Item, Unreadable};
use crate::orders::order::Status;
use crate::pg::orders::StoredEvent;

/// From pick-up to the door, as promised to the customer.
const EXPECTED_AFTER: SignedDuration = SignedDuration::from_mins(45);

/// What changes in the row of one order, up to `version`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Change {
    pub order_id: Uuid,
    pub tenant_id: String,
    pub version: u32,
    pub at: Timestamp,
    pub status: Status,
    pub seller_id: Option<String>,
    pub amount_cents: Option<i64>,
    pub courier_id: Option<String>,
    pub vehicle_type: Option<String>,
    pub placed_at: Option<Timestamp>,
    pub paid_at: Option<Timestamp>,
    pub picked_up_at: Option<Timestamp>,
    pub expected_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
}

impl Change {
    /// What one stored event changes.
    pub fn of(stored: &StoredEvent) -> Result<Self, Unreadable> {
        let event = Event::read(&stored.name, stored.metadata.schema_version, &stored.payload)?;
        let at = stored.at;
        let mut change = Self::only(stored, status(&event));
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

    fn only(stored: &StoredEvent, status: Status) -> Self {
        Self {
            order_id: stored.stream_id,
            tenant_id: stored.metadata.tenant_id.clone(),
            version: stored.version,
            at: stored.at,
            status,
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

    /// Lays a later change over this one.
    fn then(&mut self, later: Self) {
        let earlier = std::mem::replace(self, later);
        self.seller_id = self.seller_id.take().or(earlier.seller_id);
        self.amount_cents = self.amount_cents.or(earlier.amount_cents);
        self.courier_id = self.courier_id.take().or(earlier.courier_id);
        self.vehicle_type = self.vehicle_type.take().or(earlier.vehicle_type);
        self.placed_at = self.placed_at.or(earlier.placed_at);
        self.paid_at = self.paid_at.or(earlier.paid_at);
        self.picked_up_at = self.picked_up_at.or(earlier.picked_up_at);
        self.expected_at = self.expected_at.or(earlier.expected_at);
        self.delivered_at = self.delivered_at.or(earlier.delivered_at);
    }
}

/// One change per order, sorted by order, of events in the order of the feed.
pub fn merged(events: &[StoredEvent]) -> Result<Vec<Change>, (i64, Unreadable)> {
    let mut orders: BTreeMap<Uuid, Change> = BTreeMap::new();
    for stored in events {
        let change = Change::of(stored).map_err(|cause| (stored.global_seq, cause))?;
        match orders.get_mut(&change.order_id) {
            Some(earlier) => earlier.then(change),
            None => {
                orders.insert(change.order_id, change);
            }
        }
    }
    Ok(orders.into_values().collect())
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
    use crate::pg::orders::Metadata;

    fn stored(version: u32, name: &str, payload: &str) -> StoredEvent {
        let metadata = Metadata {
            event_id: Uuid::nil(),
            command_id: version.to_string(),
            command_digest: None,
            command_index: None,
            schema_version: 1,
            tenant_id: "t1".to_owned(),
            actor: String::new(),
            reason: None,
            traceparent: None,
        };
        let at = Timestamp::from_second(1_000 * i64::from(version)).expect("an instant");
        let (name, payload) = (name.to_owned(), payload.to_owned());
        let global_seq = i64::from(version);
        StoredEvent { stream_id: Uuid::nil(), version, name, payload, metadata, at, global_seq }
    }

    const PLACED: &str = r#"{"customerId":"c","sellerId":"s","commissionPercent":"5","items":[{"sku":"a","quantity":2,"unitPriceCents":5000}]}"#;
    const PAID: &str = r#"{"sellerId":"s","amountCents":10000,"commissionPercent":"5"}"#;

    #[test]
    fn changes_of_one_order_merge_and_keep_what_later_events_do_not_tell() {
        let events = [
            stored(1, "OrderPlaced", PLACED),
            stored(2, "OrderPaid", PAID),
            stored(3, "CourierAssigned", r#"{"courierId":"k"}"#),
            stored(4, "PickedUp", "{}"),
        ];
        let changes = merged(&events).expect("readable");
        let [change] = changes.as_slice() else { panic!("one order") };
        assert_eq!((change.version, change.status, change.amount_cents), (4, Status::PickedUp, Some(10_000)));
        assert_eq!(change.vehicle_type.as_deref(), Some("unknown"));
        let seconds = |at: Option<Timestamp>| at.map(Timestamp::as_second);
        assert_eq!(
            [seconds(change.placed_at), seconds(change.paid_at), seconds(change.expected_at)],
            [Some(1_000), Some(2_000), Some(6_700)]
        );
    }

    #[test]
    fn an_event_that_cannot_be_read_is_named_by_its_position() {
        let events = [stored(1, "OrderPlaced", PLACED), stored(2, "Teleported", "{}")];
        assert_eq!(merged(&events).map_err(|(seq, _)| seq).expect_err("not readable"), 2);
    }
}
