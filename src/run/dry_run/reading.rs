//! How far each partition of a dry run is compared, and what was counted on the way.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{DryRunPlan, Progress};
use crate::applier::dry_run::{Position, Settled};
use crate::applier::intake::{Control, LaneId, ResumeAt};
use crate::applier::progress::Counts;
use crate::domain::plan::Policies;
use crate::metrics::EventResult;
use crate::run::selection::Outliers;
use crate::stream::starts::StoredRanges;

/// How far each partition is, and what was counted below.
pub(super) struct Reading {
    partitions: BTreeMap<i32, Part>,
    positions: BTreeMap<i32, ResumeAt>,
    pub(super) total: Counts,
    lanes: HashMap<i32, LaneId>,
    /// Where a partition that has to be claimed anew begins: what is compared is not read again.
    pub(super) ranges: Arc<Mutex<StoredRanges>>,
    outliers: Outliers,
    policies: Policies,
}

struct Part {
    end: ResumeAt,
    counts: Counts,
}

impl Reading {
    pub(super) fn new(plan: &DryRunPlan, outliers: Outliers) -> Self {
        let ranges =
            plan.ranges.iter().map(|range| (range.partition, (range.start, Some(range.end)))).collect();
        Self {
            partitions: plan
                .ranges
                .iter()
                .map(|range| (range.partition, Part { end: range.end, counts: Counts::default() }))
                .collect(),
            positions: plan.ranges.iter().map(|range| (range.partition, range.start)).collect(),
            total: Counts::default(),
            lanes: HashMap::new(),
            ranges: Arc::new(Mutex::new(ranges)),
            outliers,
            policies: plan.policies.clone(),
        }
    }

    pub(super) fn unread(&self) -> Vec<i32> {
        let unread = |(partition, part): (&i32, &Part)| {
            self.positions.get(partition).is_some_and(|at| *at < part.end).then_some(*partition)
        };
        self.partitions.iter().filter_map(unread).collect()
    }

    pub(super) fn is_done(&self) -> bool {
        self.unread().is_empty()
    }

    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane.partition) == Some(&lane)
    }

    /// Counts a whole batch, so that counts and positions belong together.
    pub(super) fn settled(&mut self, records: Vec<Settled>) {
        for mut record in records {
            let partition = record.lane.partition;
            self.outliers.mark(partition, record.offset.0, &mut record.tally);
            if let Some(part) = self.partitions.get_mut(&partition) {
                part.counts.add(&record.tally);
                self.total.add(&record.tally);
            }
            self.reached(record.lane, ResumeAt(record.offset.0 + 1));
        }
    }

    pub(super) fn reached(&mut self, lane: LaneId, next: ResumeAt) {
        if !self.is_open(lane) {
            return;
        }
        let Some(at) = self.positions.get_mut(&lane.partition) else { return };
        *at = (*at).max(next);
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((start, _)) = ranges.get_mut(&lane.partition) {
            *start = *at;
        }
    }

    pub(super) fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, .. } => {
                self.lanes.insert(lane.partition, lane);
            }
            Control::Revoked { lanes, done, .. } => {
                // What is in flight of them is dropped, and read again from where they stand.
                self.lanes.retain(|_, open| !lanes.contains(open));
                let position = |lane: LaneId| Some((lane, *self.positions.get(&lane.partition)?));
                if done.send(lanes.into_iter().filter_map(position).collect()).is_err() {
                    tracing::debug!("nobody waits for the positions of lost lanes any more");
                }
            }
        }
    }

    pub(super) fn rows(&self) -> Vec<Position> {
        let row = |(partition, part): (&i32, &Part)| {
            let at = self.positions.get(partition)?.0;
            let counts = counts_json(&part.counts, &self.policies).to_string();
            Some(Position { partition: *partition, at, counts })
        };
        self.partitions.iter().filter_map(row).collect()
    }

    pub(super) fn progress(&self, paused: bool) -> Progress<'_> {
        Progress { positions: &self.positions, counts: &self.total, paused }
    }
}

/// `contagens`, and the same fields of `replay status`.
pub fn counts_json(counts: &Counts, policies: &Policies) -> Value {
    let result = |result: EventResult| counts.results.get(&result).copied().unwrap_or(0);
    let ignored = [EventResult::Tombstone, EventResult::OtherType, EventResult::NotSelected].map(result);
    let mut effects: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for ((effect_type, outcome), n) in &counts.effects {
        let of_type = effects.entry(&policies.get(*effect_type).name).or_default();
        of_type.insert(outcome.as_str(), *n);
    }
    let states: BTreeMap<&str, u64> = counts.states.iter().map(|(state, n)| (state.as_str(), *n)).collect();
    json!({
        "eventos": {
            "lidos": counts.read,
            "aplicados": result(EventResult::Applied),
            "cartasMortas": result(EventResult::DeadLettered),
            "ignorados": ignored.iter().sum::<u64>(),
            "antesDoPeriodo": counts.before_period,
            "depoisDoPeriodo": counts.after_period,
        },
        "estado": states,
        "efeitos": effects,
    })
}
