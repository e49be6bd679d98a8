//! What crosses between the log and the applier, in plain values: no Kafka type, no SQL.
//!
//! The log side sends [`Control`] on an unbounded channel and [`Delivery`]s on a small bounded one (that bound is
//! the back-pressure). Whoever receives drains control before each delivery; the sender announces a lane before
//! its first record, so no record ever meets an unknown lane that is not gone already. A position travels with
//! the records, so that it cannot overtake one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Instant;

use futures::future::BoxFuture;

use crate::domain::plan::Plan;
use crate::domain::poison::Poison;

pub use crate::domain::record::{DeadLetter, RawRecord};

/// One claim on a partition. `claim` is new at each assignment, so that late news of an earlier one is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    pub partition: i32,
    pub claim: u64,
}

/// Where a record stands in its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordOffset(pub i64);

/// Where reading goes on: the first offset that is not yet settled. Not a record's offset; never mix them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResumeAt(pub i64);

/// Why a record is passed over without being applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    Tombstone,
    OtherType,
    NotSelected,
}

/// What a record turned out to be.
#[derive(Debug)]
pub enum Content {
    Plan(Arc<Plan>),
    Poison { poison: Poison, order_id: Option<String> },
    Skip(Skip),
}

/// One record, decoded and planned, with everything a dead letter would need.
#[derive(Debug)]
pub struct Record {
    pub lane: LaneId,
    pub offset: RecordOffset,
    pub content: Content,
    pub raw: Box<RawRecord>,
    /// W3C `traceparent` header of the record, if it has a valid one.
    pub traceparent: Option<String>,
    pub read_at: Instant,
}

/// What arrives on the bounded channel, in the order in which it was read.
#[derive(Debug)]
pub enum Delivery {
    /// Records of any lanes; those of one lane in offset order.
    Records(Vec<Record>),
    /// Nothing below `next` is still to come on this lane (transaction markers, end of partition, compacted tail).
    /// All its records below were delivered before.
    Position { lane: LaneId, next: ResumeAt },
}

/// News about lanes.
#[derive(Debug)]
pub enum Control {
    /// A partition is ours from here on. `end` (exclusive) bounds a replay; with `start >= end` it is done already
    /// and nothing of it follows, neither record nor position. A finished range ends with a position at `end`.
    Assigned { lane: LaneId, start: ResumeAt, end: Option<ResumeAt> },
    /// These lanes are being taken away. The applier stops beginning work on them, lets calls in flight finish
    /// until `deadline`, and answers with the final positions (sending never blocks; the receiver may be gone).
    /// `lost`: they already are someone else's.
    Revoked { lanes: Vec<LaneId>, lost: bool, deadline: Instant, done: mpsc::Sender<Vec<(LaneId, ResumeAt)>> },
}

/// The positions that may be committed, by lane; written by the applier, read by whoever commits.
#[derive(Debug, Default, Clone)]
pub struct Watermarks(Arc<Mutex<HashMap<LaneId, ResumeAt>>>);

impl Watermarks {
    pub fn set(&self, lane: LaneId, at: ResumeAt) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(lane, at);
    }

    pub fn forget(&self, lane: LaneId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&lane);
    }

    pub fn snapshot(&self) -> Vec<(LaneId, ResumeAt)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(lane, at)| (*lane, *at)).collect()
    }
}

/// Why a dead letter is not stored in the topic yet.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Nothing durable is known; try again.
    #[error("dead-letter topic {topic} cannot be written: {cause}")]
    Away { topic: String, cause: String },
    /// The client itself is dead.
    #[error("dead-letter producer failed for good: {cause}")]
    Fatal { cause: String },
}

/// The dead-letter topic. `publish` resolves when the broker has acknowledged the record (cut to fit if need be).
pub trait DeadLetterTopic: Send + Sync {
    fn publish(&self, letter: Arc<DeadLetter>) -> BoxFuture<'static, Result<(), PublishError>>;
}
