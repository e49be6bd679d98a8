//! What is true of this process right now, told by those who know it, read by those who ask.
//!
//! Promises:
//! * one place per fact: `/readyz`, `/status` and the gauges of `/metrics` all read it here and cannot disagree;
//! * telling and asking are short and never wait for anything but each other: no I/O, no await under the lock;
//! * silence is not health: a database nobody has heard of for [`DATABASE_NEWS_MAX`] counts as away, so that a
//!   stuck runtime turns readiness false although it cannot say so (test `silence_about_the_database_is_not_health`).
//!
//! Ready = assignment known, database answers, no lane stalled, not draining, not failed. An open circuit and a
//! dead-letter topic that is away are *not* in that list: polling goes on, and a restart would not help.
//! Not here: counters (that is [`metrics`](crate::metrics)), and deciding that a lane is stalled.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::domain::effect::{EffectTypeId, Run};
use crate::metrics::{PartitionReading, Present};

mod status;
#[cfg(test)]
mod tests;

pub use status::{NotReady, Situation, Status};

/// Longest silence about the database before it counts as away. Several times the interval of the probe
/// (`ops::probe`), so that one slow answer is no outage; short, so that an outage shows within seconds.
pub const DATABASE_NEWS_MAX: Duration = Duration::from_secs(10);

/// Longest cause kept, in characters: `/status` is open and read by people.
const CAUSE_MAX: usize = 300;

/// Whether a process of this kind waits for partitions at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partitions {
    /// A consumer: not ready until the group has answered.
    Expected,
    /// An HTTP API, a relay: nothing to wait for.
    NotUsed,
}

/// Facts about this process that everyone may tell and ask. Cheap to clone.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    run: Run,
    effects: Box<[String]>,
    partitions: Partitions,
    started: Instant,
    events_in_flight: AtomicI64,
    reservations: Box<[AtomicI64]>,
    facts: Mutex<Facts>,
}

#[derive(Default)]
struct Facts {
    /// Whether the group has said what is ours. An empty `lanes` is then an answer, not a question.
    assignment_known: bool,
    lanes: BTreeMap<i32, Lane>,
    database: Database,
    dlq: Option<Outage>,
    circuits: BTreeMap<EffectTypeId, OpenCircuit>,
    draining: bool,
    fatal: Option<String>,
}

struct Lane {
    position: i64,
    committed: Option<i64>,
    end: Option<i64>,
    stalled: Option<Outage>,
}

#[derive(Default)]
enum Database {
    #[default]
    NeverHeard,
    Up {
        heard: Instant,
        at: Timestamp,
    },
    Away(Outage),
}

/// Something that does not work: since when, and what was last said about it.
#[derive(Clone)]
struct Outage {
    since: Timestamp,
    cause: String,
}

impl Outage {
    fn now(cause: &impl Display) -> Self {
        Self { since: Timestamp::now(), cause: bounded(cause) }
    }
}

struct OpenCircuit {
    since: Timestamp,
    next_probe: Timestamp,
}

impl Health {
    /// `effects` are the configured effect types in their order: the position is the [`EffectTypeId`].
    pub fn new<'a>(run: Run, effects: impl IntoIterator<Item = &'a str>, partitions: Partitions) -> Self {
        let effects: Box<[String]> = effects.into_iter().map(str::to_owned).collect();
        Self(Arc::new(Inner {
            run,
            reservations: effects.iter().map(|_| AtomicI64::new(0)).collect(),
            effects,
            partitions,
            started: Instant::now(),
            events_in_flight: AtomicI64::new(0),
            facts: Mutex::new(Facts::default()),
        }))
    }

    /// The group has answered: these partitions are ours too, each with the offset it is begun at.
    /// An empty list is an answer as well (more members than partitions).
    pub fn assigned(&self, lanes: impl IntoIterator<Item = (i32, i64)>) {
        let mut facts = self.facts();
        facts.assignment_known = true;
        for (partition, position) in lanes {
            facts.lanes.insert(partition, Lane { position, committed: None, end: None, stalled: None });
        }
    }

    /// These partitions are no longer ours; the group goes on. Late news about them is ignored from here on.
    pub fn revoked(&self, partitions: impl IntoIterator<Item = i32>) {
        let mut facts = self.facts();
        for partition in partitions {
            facts.lanes.remove(&partition);
        }
    }

    /// The group no longer knows this member: nothing is ours until it answers again.
    pub fn assignment_lost(&self) {
        let mut facts = self.facts();
        facts.assignment_known = false;
        facts.lanes.clear();
    }

    /// First offset of the partition that is not settled.
    pub fn position(&self, partition: i32, offset: i64) {
        self.lane(partition, |lane| lane.position = offset);
    }

    /// The broker has acknowledged this commit, or said that it was the last one.
    pub fn committed(&self, partition: i32, offset: i64) {
        self.lane(partition, |lane| lane.committed = Some(offset));
    }

    /// End of the partition as the broker last told it.
    pub fn partition_end(&self, partition: i32, offset: i64) {
        self.lane(partition, |lane| lane.end = Some(offset));
    }

    /// Nothing moves on this partition though something should. The first cause's time is kept.
    pub fn stalled(&self, partition: i32, cause: impl Display) {
        self.lane(partition, |lane| renew(&mut lane.stalled, &cause));
    }

    pub fn moving_again(&self, partition: i32) {
        self.lane(partition, |lane| lane.stalled = None);
    }

    /// What the database did when it was last asked. Whoever asks it may tell; a probe does so every second.
    pub fn database<E: Display>(&self, answer: Result<(), E>) {
        let mut facts = self.facts();
        facts.database = match (answer, std::mem::take(&mut facts.database)) {
            (Ok(()), _) => Database::Up { heard: Instant::now(), at: Timestamp::now() },
            (Err(cause), Database::Away(outage)) => {
                Database::Away(Outage { since: outage.since, cause: bounded(&cause) })
            }
            (Err(cause), _) => Database::Away(Outage::now(&cause)),
        };
    }

    /// The dead-letter topic cannot be written; what it should hold is not settled.
    pub fn dlq_away(&self, cause: impl Display) {
        renew(&mut self.facts().dlq, &cause);
    }

    pub fn dlq_back(&self) {
        self.facts().dlq = None;
    }

    /// The circuit of this effect is open; the next probe goes out after `wait`. Told again when a probe failed.
    pub fn circuit_opened(&self, id: EffectTypeId, wait: Duration) {
        let now = Timestamp::now();
        let next_probe = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let mut facts = self.facts();
        let since = facts.circuits.get(&id).map_or(now, |circuit| circuit.since);
        facts.circuits.insert(id, OpenCircuit { since, next_probe });
    }

    pub fn circuit_closed(&self, id: EffectTypeId) {
        self.facts().circuits.remove(&id);
    }

    /// So many events were taken (positive) or settled (negative).
    pub fn events_in_flight(&self, change: i64) {
        self.0.events_in_flight.fetch_add(change, Ordering::Relaxed);
    }

    /// So many effects of this type were reserved (positive), or settled or given back (negative).
    pub fn reservations(&self, id: EffectTypeId, change: i64) {
        if let Some(count) = self.0.reservations.get(usize::from(id.0)) {
            count.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// No new work is begun. Final.
    pub fn draining(&self) {
        self.facts().draining = true;
    }

    /// This process must end. Final; the first cause is kept, since later ones usually follow from it.
    pub fn fatal(&self, cause: impl Display) {
        self.facts().fatal.get_or_insert_with(|| bounded(&cause));
    }

    /// `Ok` when work may be expected of this process, else every reason why not.
    pub fn readiness(&self) -> Result<(), Vec<NotReady>> {
        self.readiness_at(Instant::now())
    }

    fn readiness_at(&self, now: Instant) -> Result<(), Vec<NotReady>> {
        let reasons = status::reasons(&self.facts(), self.0.partitions, now);
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Everything, for `/status`.
    pub fn status(&self) -> Status {
        status::status(&self.0, &self.facts(), Instant::now())
    }

    /// What the gauges of `/metrics` show.
    pub fn present(&self) -> Present {
        let facts = self.facts();
        Present {
            database_up: facts.database.answers(Instant::now()).is_ok(),
            dlq_away: facts.dlq.is_some(),
            open_circuits: facts.circuits.keys().copied().collect(),
            reservations: self.0.reservations.iter().map(|n| n.load(Ordering::Relaxed)).collect(),
            partitions: facts.lanes.iter().map(|(partition, lane)| lane.reading(*partition)).collect(),
        }
    }

    fn lane(&self, partition: i32, change: impl FnOnce(&mut Lane)) {
        if let Some(lane) = self.facts().lanes.get_mut(&partition) {
            change(lane);
        }
    }

    /// A panic elsewhere while the lock was held leaves single facts, each whole: they are still worth telling.
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn reading(&self, partition: i32) -> PartitionReading {
        let from = self.committed.unwrap_or(self.position);
        PartitionReading {
            partition,
            position: self.position,
            committed: self.committed,
            // The end is older news than the position now and then; nothing is behind by less than nothing.
            lag: self.end.map(|end| end.saturating_sub(from).max(0)),
            stalled: self.stalled.is_some(),
        }
    }
}

impl Database {
    /// `Err` says why it does not count as answering.
    fn answers(&self, now: Instant) -> Result<(), String> {
        match self {
            Self::NeverHeard => Err("has not answered yet".to_owned()),
            Self::Away(outage) => Err(format!("away since {}: {}", outage.since, outage.cause)),
            Self::Up { heard, at } if now.saturating_duration_since(*heard) > DATABASE_NEWS_MAX => Err(
                format!("no news since {at}; the probe must report within {} s", DATABASE_NEWS_MAX.as_secs()),
            ),
            Self::Up { .. } => Ok(()),
        }
    }
}

/// Begins an outage, or renews the cause of the one that runs.
fn renew(outage: &mut Option<Outage>, cause: &impl Display) {
    match outage {
        Some(outage) => outage.cause = bounded(cause),
        None => *outage = Some(Outage::now(cause)),
    }
}

fn bounded(cause: &impl Display) -> String {
    cause.to_string().chars().take(CAUSE_MAX).collect()
}
