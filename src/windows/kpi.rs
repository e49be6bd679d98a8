//! Orders per minute and per hour: what a message of the topic of orders adds.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use uuid::Uuid;

use super::{Clock, Rejected, plausible, storable};
use crate::codec::order_events::OrderEvents;

/// More than any order costs; sums of such stay countable.
const CENTS_MAX: i64 = 100_000_000_000_000;

/// An order that was placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub order_id: Uuid,
    pub tenant_id: String,
    pub at: Timestamp,
    pub amount_cents: i64,
    /// The clock that it was late for.
    pub late_for: Option<Timestamp>,
}

/// What a batch adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub placed: Vec<Placed>,
    pub rejected: Vec<Rejected>,
}

/// A message as it lies in the log.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub partition: i32,
    pub offset: i64,
    pub event_type: &'a str,
    /// Header `schema_version`.
    pub form: u32,
    pub value: &'a [u8],
    /// The record's time.
    pub logged: Option<Timestamp>,
}

#[derive(Deserialize)]
struct Items {
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Item {
    quantity: i64,
    unit_price_cents: i64,
}

impl Items {
    fn cost(&self) -> Option<i64> {
        self.items
            .iter()
            .try_fold(0_i64, |sum, item| sum.checked_add(item.quantity.checked_mul(item.unit_price_cents)?))
    }
}

impl Batch {
    /// Takes the next message of a partition.
    pub fn add(
        &mut self,
        events: &mut OrderEvents,
        clock: &mut Clock,
        allowed: SignedDuration,
        message: Message<'_>,
    ) {
        let placed = events.read(message.event_type, message.form, message.value, |fact| {
            storable("tenantId", fact.tenant_id)?;
            // An order of a wrong clock is counted where that clock says; but no calendar begins before 2000 here.
            plausible(fact.at, None)?;
            let before = clock.watermark;
            let late = clock.passes(fact.at, message.logged, allowed);
            if fact.name != "OrderPlaced" {
                return Ok(None);
            }
            let items: Items = serde_json::from_str(fact.payload).map_err(|error| error.to_string())?;
            let amount_cents = items.cost().filter(|cents| (0..=CENTS_MAX).contains(cents));
            let amount_cents =
                amount_cents.ok_or_else(|| "items: cost more than can be counted".to_owned())?;
            Ok(Some(Placed {
                order_id: fact.order_id,
                tenant_id: fact.tenant_id.to_owned(),
                at: fact.at,
                amount_cents,
                late_for: before.filter(|_| late),
            }))
        });
        match placed.map_err(|error| error.to_string()).and_then(|placed| placed) {
            Ok(placed) => self.placed.extend(placed),
            Err(reason) => {
                let Message { partition, offset, .. } = message;
                self.rejected.push(Rejected { partition, offset, reason });
            }
        }
    }
}
