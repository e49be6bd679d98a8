//! Windows in numbers.

use jiff::Timestamp;
use prometheus::{Gauge, IntCounter};

use super::family::Families;
use super::{Metrics, MetricsError, name};

const CONSUMER: &str = "consumer";
const CONSUMERS: [&str; 2] = ["kpi", "couriers"];

/// What a batch came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowEvents {
    pub read: u64,
    pub late: u64,
    pub rejected: u64,
}

struct Series {
    read: IntCounter,
    late: IntCounter,
    rejected: IntCounter,
    age: Gauge,
}

pub(super) struct WindowSeries([Series; CONSUMERS.len()]);

impl WindowSeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        let read =
            families.counters(name::WINDOW_EVENTS, "Records that windows have counted", &[CONSUMER])?;
        let late = families.counters(
            name::WINDOW_LATE,
            "Events that came later than allowed: in no window, listed",
            &[CONSUMER],
        )?;
        let rejected =
            families.counters(name::WINDOW_REJECTED, "Records that cannot be read: listed", &[CONSUMER])?;
        let age = families.seconds_gauges(
            name::WINDOW_WATERMARK_AGE,
            "Time since the newest event that windows have seen; 0 before the first",
            &[CONSUMER],
        )?;
        Ok(Self(CONSUMERS.map(|consumer| Series {
            read: read.with_label_values(&[consumer]),
            late: late.with_label_values(&[consumer]),
            rejected: rejected.with_label_values(&[consumer]),
            age: age.with_label_values(&[consumer]),
        })))
    }

    fn of(&self, consumer: &str) -> Option<&Series> {
        CONSUMERS.iter().position(|known| *known == consumer).map(|at| &self.0[at])
    }
}

impl Metrics {
    pub fn window_events(&self, consumer: &str, counted: &WindowEvents) {
        if let Some(series) = self.windows.of(consumer) {
            series.read.inc_by(counted.read);
            series.late.inc_by(counted.late);
            series.rejected.inc_by(counted.rejected);
        }
    }

    pub fn window_watermark(&self, consumer: &str, newest: Option<Timestamp>) {
        if let (Some(series), Some(newest)) = (self.windows.of(consumer), newest) {
            series.age.set(Timestamp::now().duration_since(newest).as_secs_f64().max(0.0));
        }
    }
}
