//! Series that come and go: one per partition that is ours, or that a running replay reads.
//!
//! A partition is shown exactly while it is listed. Values are set by replacing the whole list, so late news of a
//! partition that was taken away cannot bring its series back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use prometheus::IntGaugeVec;

use super::family::Families;
use super::{MetricsError, PartitionReading, ReplayReading, label, name};

/// One gauge by partition, which remembers what it shows.
struct ByPartition {
    gauges: IntGaugeVec,
    shown: Mutex<BTreeSet<i32>>,
}

impl ByPartition {
    fn new(families: &Families, name: &str, help: &str) -> Result<Self, MetricsError> {
        Ok(Self {
            gauges: families.gauges(name, help, &[label::PARTITION])?,
            shown: Mutex::new(BTreeSet::new()),
        })
    }

    /// Shows these values and no others.
    fn show(&self, values: impl IntoIterator<Item = (i32, i64)>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let mut listed = BTreeSet::new();
        for (partition, value) in values {
            self.gauges.with_label_values(&[partition.to_string()]).set(value);
            listed.insert(partition);
        }
        for gone in shown.difference(&listed) {
            // The only error says that the series is not there, which is what is wanted.
            if let Err(absent) = self.gauges.remove_label_values(&[gone.to_string()]) {
                tracing::debug!(particao = gone, erro = %absent, "partition series was already gone");
            }
        }
        *shown = listed;
    }
}

pub(super) struct PartitionSeries {
    lag: ByPartition,
    position: ByPartition,
    committed: ByPartition,
    stalled: ByPartition,
}

impl PartitionSeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        Ok(Self {
            lag: ByPartition::new(
                families,
                name::PARTITION_LAG,
                "Records between what is committed and the end of the partition",
            )?,
            position: ByPartition::new(
                families,
                name::PARTITION_POSITION,
                "First offset that is not settled",
            )?,
            committed: ByPartition::new(
                families,
                name::PARTITION_COMMITTED,
                "Offset committed to the group",
            )?,
            stalled: ByPartition::new(
                families,
                name::PARTITION_STALLED,
                "1 while nothing moves on the partition though something should",
            )?,
        })
    }

    pub(super) fn show(&self, readings: &[PartitionReading]) {
        self.position.show(readings.iter().map(|r| (r.partition, r.position)));
        self.committed.show(readings.iter().filter_map(|r| Some((r.partition, r.committed?))));
        self.stalled.show(readings.iter().map(|r| (r.partition, i64::from(r.stalled))));
        self.lag.show(readings.iter().filter_map(|r| Some((r.partition, r.lag?))));
    }
}

pub(super) struct ReplaySeries {
    position: ByPartition,
    remaining: ByPartition,
}

impl ReplaySeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        Ok(Self {
            position: ByPartition::new(
                families,
                name::REPLAY_POSITION,
                "Position of the running replay that is hindmost in the partition",
            )?,
            remaining: ByPartition::new(
                families,
                name::REPLAY_REMAINING,
                "Offsets the running replays still have to read in the partition",
            )?,
        })
    }

    pub(super) fn show(&self, readings: &[ReplayReading]) {
        let mut position: BTreeMap<i32, i64> = BTreeMap::new();
        let mut remaining: BTreeMap<i32, i64> = BTreeMap::new();
        for reading in readings {
            let hindmost = position.entry(reading.partition).or_insert(reading.position);
            *hindmost = reading.position.min(*hindmost);
            let sum = remaining.entry(reading.partition).or_default();
            *sum = sum.saturating_add(reading.remaining);
        }
        self.position.show(position);
        self.remaining.show(remaining);
    }
}
