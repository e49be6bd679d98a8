//! The order side's way out and in, in numbers.

use std::time::Duration;

use prometheus::{Gauge, Histogram, IntCounter, IntGauge};

use super::family::{Families, seconds};
use super::{ForeignResult, Metrics, MetricsError, OutboxFailure, name};
use crate::outbox::Destination;
use crate::pg::outbox::Waiting;

const DESTINATION: &str = "destination";
const CAUSE: &str = "cause";
const RESULT: &str = "result";

pub(super) struct OutboxSeries {
    published: [IntCounter; Destination::ALL.len()],
    failures: [IntCounter; OutboxFailure::ALL.len()],
    parked_total: IntCounter,
    unpublished: IntGauge,
    oldest: Gauge,
    parked: IntGauge,
    publish_seconds: Histogram,
    slot_lag: IntGauge,
    foreign: [IntCounter; ForeignResult::ALL.len()],
}

impl OutboxSeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        let published = families.counters(
            name::OUTBOX_PUBLISHED,
            "Messages of the outbox that the broker acknowledged",
            &[DESTINATION],
        )?;
        let failures = families.counters(
            name::OUTBOX_FAILURES,
            "Attempts to publish that failed: refused by the broker for the message, or nobody there to take it",
            &[CAUSE],
        )?;
        let foreign = families.counters(
            name::ORDERS_FOREIGN,
            "Messages of other systems, by what became of them",
            &[RESULT],
        )?;
        Ok(Self {
            foreign: ForeignResult::ALL.map(|result| foreign.with_label_values(&[result.as_str()])),
            published: Destination::ALL.map(|d| published.with_label_values(&[d.as_str()])),
            failures: OutboxFailure::ALL.map(|f| failures.with_label_values(&[f.as_str()])),
            parked_total: families
                .counter(name::OUTBOX_PARKED_TOTAL, "Messages given up and put into the dead-letter topic")?,
            unpublished: families.gauge(
                name::OUTBOX_UNPUBLISHED,
                "Messages of the outbox that wait to be published (counted up to 100000)",
            )?,
            oldest: families.seconds_gauge(
                name::OUTBOX_OLDEST,
                "Age of the oldest message that waits; 0 when none does",
            )?,
            parked: families.gauge(name::OUTBOX_PARKED, "Parked messages that nobody has dealt with")?,
            publish_seconds: families.histogram(
                name::OUTBOX_SECONDS,
                "Messages, from the begin of the transaction that added them to the broker's acknowledgement",
            )?,
            slot_lag: families.gauge(
                name::OUTBOX_SLOT_LAG,
                "Bytes of the log that the replication slots of this database hold back: the largest",
            )?,
        })
    }
}

impl Metrics {
    /// These were acknowledged: where to, and when they were made (milliseconds since 1970).
    pub fn outbox_published(&self, messages: impl Iterator<Item = (Destination, i64)>) {
        let now = jiff::Timestamp::now().as_millisecond();
        for (destination, created_ms) in messages {
            self.outbox.published[destination as usize].inc();
            let age = Duration::from_millis(u64::try_from(now - created_ms).unwrap_or(0));
            self.outbox.publish_seconds.observe(age.as_secs_f64());
        }
    }

    pub fn foreign(&self, result: ForeignResult) {
        self.outbox.foreign[result as usize].inc();
    }

    pub fn outbox_failed(&self, failure: OutboxFailure) {
        self.outbox.failures[failure as usize].inc();
    }

    pub fn outbox_parked(&self) {
        self.outbox.parked_total.inc();
    }

    pub fn outbox_waiting(&self, waiting: &Waiting) {
        self.outbox.unpublished.set(waiting.unpublished);
        self.outbox.oldest.set(seconds(waiting.oldest));
        self.outbox.parked.set(waiting.parked);
        self.outbox.slot_lag.set(waiting.slot_lag_bytes);
    }
}
