//! Read models in numbers: one series per shard of each generation, shown exactly while the shard is there.

use prometheus::{GaugeVec, IntGaugeVec};

use super::family::Families;
use super::{Metrics, MetricsError, name};
use crate::pg::projections::Lag;

const LABELS: [&str; 4] = ["name", "generation", "shard", "state"];

pub(super) struct ProjectionSeries {
    position: IntGaugeVec,
    lag_events: IntGaugeVec,
    lag_seconds: GaugeVec,
}

impl ProjectionSeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        Ok(Self {
            position: families.gauges(
                name::PROJECTION_POSITION,
                "Sequence number up to which a projection has every event",
                &LABELS,
            )?,
            lag_events: families.gauges(
                name::PROJECTION_LAG_EVENTS,
                "Sequence numbers between a projection and the newest event",
                &LABELS,
            )?,
            lag_seconds: families.seconds_gauges(
                name::PROJECTION_LAG_SECONDS,
                "Age of the first event that a projection has not handled; 0 when there is none",
                &LABELS,
            )?,
        })
    }
}

impl Metrics {
    /// Shows these and no others.
    pub fn projections(&self, lags: &[Lag]) {
        let series = &self.projections;
        series.position.reset();
        series.lag_events.reset();
        series.lag_seconds.reset();
        for lag in lags {
            let (generation, shard) = (lag.generation.to_string(), lag.shard.to_string());
            let labels = [lag.name.as_str(), &generation, &shard, &lag.state];
            series.position.with_label_values(&labels).set(lag.position);
            series.lag_events.with_label_values(&labels).set(lag.lag_events);
            series.lag_seconds.with_label_values(&labels).set(lag.lag_seconds);
        }
    }
}
