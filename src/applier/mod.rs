//! The one road: plan -> ledger -> gateway -> settle. Live, replay and redrive all go along it.
//!
//! ```text
//!  records ──► batch step: look up, judge and write states ──► coordinator ──► calls ──► answers ─┐
//!                 (one statement per micro-batch)                 ▲   │                           │
//!                                                                 │   └── wave: settle + reserve ◄┘
//!                                                                 └──────── (one durable transaction at a time)
//! ```
//!
//! One task, the [`coordinator`], owns everything that is in flight: plain structs, no locks. It starts effects when
//! a call slot is free, and never before their reservation has committed; it keeps the order within one order and
//! effect type; it holds a slot from the wave that reserves to the wave that settles, so that a crash leaves no more
//! effects uncertain than calls were in flight.
//!
//! * I1 No call without a durably committed reservation.
//! * I4 The position of a lane never passes an unsettled record ([`progress`]).
//! * I7 An outage is waited out here; only what can never succeed becomes a dead letter.
//! * I10 Memory is bounded: a small channel, a cap of unsettled events, slots.
//! * I11 At most `concorrencia` effects per type are reserved by one process.
//!
//! Not here: what an answer proves (`gateway`), SQL (`pg`), anything of Kafka (`stream`).

mod answers;
mod batch;
mod coordinator;
mod dead_letters;
pub mod dry_run;
mod effects;
pub mod errand;
mod held;
pub mod intake;
mod lanes;
#[cfg(test)]
mod model;
mod owners;
pub mod progress;
pub mod recall;
mod steps;
pub mod sweep;
mod waves;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, oneshot, watch};

use crate::domain::effect::{Outcome, Run};
use crate::domain::plan::Policies;
use crate::gateway::EffectGateway;
use crate::gateway::rate::Rates;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pg::connect::Database;
use crate::pg::wave::Target;
use crate::telemetry::Traces;
use intake::{Control, DeadLetter, DeadLetterTopic, Delivery, LaneId, PublishError, ResumeAt, Watermarks};

/// Everything the road needs; what differs between live, replay and redrive is only what stands here.
pub struct Road {
    pub run: Run,
    pub policies: Policies,
    pub database: Database,
    pub gateway: Arc<dyn EffectGateway>,
    pub rates: Rates,
    pub dead_letters: LetterRoute,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    /// Readable name of this process, for evidence.
    pub instance: Arc<str>,
    /// Where lanes may be resumed.
    pub watermarks: Watermarks,
    /// For runs that report: totals and what became of each effect that was not simply known.
    pub journal: Option<Journal>,
    /// Set while a run is paused: nothing is begun, calls in flight finish.
    pub paused: watch::Receiver<bool>,
    /// Completes the tally of a settled record: partition, offset, tally. For runs that report.
    pub mark: Option<Mark>,
}

/// Completes the tally of a settled record.
pub type Mark = Arc<dyn Fn(i32, i64, &mut progress::Tally) + Send + Sync>;

/// Where dead letters go.
#[derive(Clone)]
pub enum LetterRoute {
    /// To the dead-letter topic and its index.
    Topic(Arc<dyn DeadLetterTopic>),
    /// Back to whoever redrives: its letters have their rows and copies already.
    Collected(mpsc::UnboundedSender<Arc<DeadLetter>>),
}

/// What comes in.
pub struct Inlet {
    pub control: mpsc::UnboundedReceiver<Control>,
    pub deliveries: mpsc::Receiver<Delivery>,
}

/// What a reporting run tells, in order: an effect's entry comes before the checkpoint that covers its record.
#[derive(Debug)]
pub enum Entry {
    Effect {
        target: Target,
        outcome: Outcome,
    },
    Checkpoint(Vec<Checkpoint>),
    /// Somebody waits until everything told before this is written.
    Waiting(oneshot::Sender<()>),
}

/// Where a reporting run tells it. The backlog is bounded by not taking batches in while it is long.
#[derive(Debug, Clone)]
pub struct Journal {
    entries: mpsc::UnboundedSender<Entry>,
    backlog: Arc<AtomicUsize>,
}

/// The other end of a [`Journal`].
#[derive(Debug)]
pub struct JournalReader {
    entries: mpsc::UnboundedReceiver<Entry>,
    backlog: Arc<AtomicUsize>,
}

/// Entries that may wait to be written before no more batches are taken in.
const JOURNAL_BACKLOG_MAX: usize = 8192;

/// Makes both ends.
pub fn journal() -> (Journal, JournalReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let backlog = Arc::new(AtomicUsize::new(0));
    (Journal { entries: sender, backlog: Arc::clone(&backlog) }, JournalReader { entries: receiver, backlog })
}

impl Journal {
    fn tell(&self, entry: Entry) {
        self.backlog.fetch_add(1, Ordering::Relaxed);
        if self.entries.send(entry).is_err() {
            tracing::error!("nobody keeps this run's journal any more");
        }
    }

    fn is_full(&self) -> bool {
        self.backlog.load(Ordering::Relaxed) > JOURNAL_BACKLOG_MAX
    }

    /// For those who must not read what is still to be written.
    pub fn wait_point(&self) -> WaitPoint {
        WaitPoint { entries: self.entries.downgrade(), backlog: Arc::clone(&self.backlog) }
    }
}

/// Where others wait for a journal; it does not hold the journal open.
#[derive(Debug, Clone)]
pub struct WaitPoint {
    entries: mpsc::WeakUnboundedSender<Entry>,
    backlog: Arc<AtomicUsize>,
}

impl WaitPoint {
    /// Resolves when everything told before this is written, or will never be.
    pub async fn written(&self) {
        let (done, written) = oneshot::channel();
        {
            let Some(entries) = self.entries.upgrade() else { return };
            self.backlog.fetch_add(1, Ordering::Relaxed);
            if entries.send(Entry::Waiting(done)).is_err() {
                return;
            }
        }
        if written.await.is_err() {
            tracing::debug!("the journal ended before it was written");
        }
    }
}

impl JournalReader {
    /// Takes up to `limit` entries; none when the run is over and everything was taken.
    pub async fn take(&mut self, entries: &mut Vec<Entry>, limit: usize) -> usize {
        let taken = self.entries.recv_many(entries, limit).await;
        self.backlog.fetch_sub(taken, Ordering::Relaxed);
        taken
    }
}

/// How far a lane is settled, and what was counted on the way since the last checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    pub lane: LaneId,
    pub at: ResumeAt,
    pub counts: progress::Counts,
}

/// Asks the applier to come to an end: no new work, calls in flight may finish until the deadline.
pub type Stop = watch::Receiver<Option<Instant>>;

/// How a run of the applier ended.
#[derive(Debug)]
pub struct Ended {
    /// Final positions of the lanes that were still ours.
    pub positions: Vec<(LaneId, ResumeAt)>,
    /// Nothing was in flight any more; false if the deadline came first.
    pub drained: bool,
}

/// Why the applier cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ApplierError {
    #[error(transparent)]
    DeadLetters(#[from] PublishError),
    #[error("a task of the applier ended unexpectedly: {0}")]
    TaskLost(String),
}

/// Runs the road until it is asked to stop or cannot go on.
pub async fn run(road: Road, inlet: Inlet, stop: Stop) -> Result<Ended, ApplierError> {
    // One thread owns everything in flight; provider calls and their connections share it.
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async move {
            coordinator::Coordinator::new(road, inlet.control).run(inlet.deliveries, stop).await
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_point_waits_for_what_was_told_before_and_holds_nothing_open() {
        let (journal, mut reader) = journal();
        let point = journal.wait_point();
        journal.tell(Entry::Checkpoint(Vec::new()));
        let waiting = point.written();
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        let mut taken = Vec::new();
        assert_eq!(reader.take(&mut taken, 8).await, 2);
        assert!(futures::poll!(&mut waiting).is_pending(), "taken is not written");
        let Some(Entry::Waiting(done)) = taken.pop() else { panic!("what was told last comes last") };
        assert!(matches!(taken[..], [Entry::Checkpoint(_)]));
        done.send(()).expect("it waits");
        waiting.await;
        drop(journal);
        assert_eq!(reader.take(&mut taken, 8).await, 0, "the point does not hold it open");
        point.written().await;
    }
}
