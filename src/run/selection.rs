//! What a bounded run takes of its range: the orders that were asked for, and whether an event's own time lies in
//! the period. The range is by log time, so events that occurred outside of it are taken all the same, and counted.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use super::decode::Selection;
use crate::applier::progress::Tally;
use crate::domain::event::Event;

/// The period a run was asked for; `to` is open where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period {
    pub from: Timestamp,
    pub to: Option<Timestamp>,
}

/// On which side of the period an event occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// `antesDoPeriodo`
    Before,
    /// `depoisDoPeriodo`
    After,
}

impl Period {
    pub fn side_of(&self, occurred_at: Timestamp) -> Option<Side> {
        if occurred_at < self.from {
            Some(Side::Before)
        } else if self.to.is_some_and(|to| occurred_at > to) {
            Some(Side::After)
        } else {
            None
        }
    }
}

/// Selects orders (all, if none are named), and notes the side of each event it is shown.
pub struct Chosen {
    orders: Option<HashSet<String>>,
    period: Period,
    last: LastSide,
}

impl Chosen {
    pub fn new(orders: Option<HashSet<String>>, period: Period, last: LastSide) -> Self {
        Self { orders, period, last }
    }
}

impl Selection for Chosen {
    fn wants(&self, event: &Event) -> bool {
        self.last.note(self.period.side_of(event.occurred_at));
        self.orders.as_ref().is_none_or(|orders| orders.contains(&event.order_id))
    }
}

/// The side of the event that was read last: from the selection to whoever knows the record's place. Both are on
/// the polling thread.
#[derive(Debug, Clone, Default)]
pub struct LastSide(Arc<AtomicU8>);

impl LastSide {
    fn note(&self, side: Option<Side>) {
        let code = match side {
            None => 0,
            Some(Side::Before) => 1,
            Some(Side::After) => 2,
        };
        self.0.store(code, Ordering::Relaxed);
    }

    /// Takes it; nothing is left for the next record.
    pub fn take(&self) -> Option<Side> {
        match self.0.swap(0, Ordering::Relaxed) {
            1 => Some(Side::Before),
            2 => Some(Side::After),
            _ => None,
        }
    }
}

/// Records in flight that occurred outside of the period. Bounded by what is in flight.
#[derive(Debug, Clone, Default)]
pub struct Outliers(Arc<Mutex<HashMap<(i32, i64), Side>>>);

impl Outliers {
    pub fn note(&self, partition: i32, offset: i64, side: Side) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((partition, offset), side);
    }

    /// Marks the tally of a settled record, and forgets it.
    pub fn mark(&self, partition: i32, offset: i64, tally: &mut Tally) {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(partition, offset)) {
            Some(Side::Before) => tally.before_period = true,
            Some(Side::After) => tally.after_period = true,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("an instant")
    }

    #[test]
    fn an_event_at_either_edge_belongs_to_the_period() {
        let period = Period { from: at("2026-10-14T03:00:00Z"), to: Some(at("2026-10-15T03:00:00Z")) };
        let sides = [
            "2026-10-14T02:59:59.999Z",
            "2026-10-14T03:00:00Z",
            "2026-10-15T03:00:00Z",
            "2026-10-15T03:00:00.001Z",
        ]
        .map(|text| period.side_of(at(text)));
        assert_eq!(sides, [Some(Side::Before), None, None, Some(Side::After)]);
        let open = Period { to: None, ..period };
        assert_eq!(open.side_of(at("2200-01-01T00:00:00Z")), None);
    }

    #[test]
    fn a_mark_is_given_once_and_to_its_own_record() {
        let (outliers, mut tally) = (Outliers::default(), Tally::default());
        outliers.note(1, 7, Side::After);
        outliers.mark(0, 7, &mut tally);
        assert_eq!(tally, Tally::default());
        outliers.mark(1, 7, &mut tally);
        assert!(tally.after_period && !tally.before_period);
        let mut again = Tally::default();
        outliers.mark(1, 7, &mut again);
        assert_eq!(again, Tally::default());
    }
}
