//! The end: the last commit and leaving the group, with a deadline over both.

use std::sync::mpsc;
use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer};
use tracing::warn;

use super::super::assignment::{GroupContext, Phase};
use super::super::consumer::{Closed, Decoding};
use super::{COMMIT_EVERY, Driver};
use crate::applier::intake::{LaneId, RawRecord, ResumeAt};

impl<D: FnMut(LaneId, Box<RawRecord>) -> Decoding> Driver<D> {
    /// Commits and leaves on a thread of its own: both can hang, and then that thread is left behind.
    pub(super) fn close(mut self, settled: Vec<(LaneId, ResumeAt)>, deadline: Instant) -> Closed {
        self.consumer.context().ours().phase = Phase::Closing;
        // The queues hold the consumer alive.
        self.lanes.clear();
        let Self { consumer, .. } = self;
        let (say, done) = mpsc::channel();
        let closing = std::thread::Builder::new().name("kafka-close".into()).spawn(move || {
            let committed = commit_last(&consumer, &settled, deadline);
            // Nobody listens after the deadline.
            say.send(committed).unwrap_or_default();
            drop(consumer);
            say.send(true).unwrap_or_default();
        });
        let remaining = || deadline.saturating_duration_since(Instant::now());
        let started = closing.is_ok();
        let committed = started && done.recv_timeout(remaining()).unwrap_or(false);
        let left_group = started && done.recv_timeout(remaining()).is_ok();
        if !left_group {
            warn!("the Kafka client did not close in time; it is left behind");
        }
        Closed { committed, left_group }
    }
}

/// Repeats a refused commit while there is time: a group in the middle of a rebalance refuses for a moment.
fn commit_last(
    consumer: &BaseConsumer<GroupContext>,
    settled: &[(LaneId, ResumeAt)],
    deadline: Instant,
) -> bool {
    loop {
        let Err(cause) = consumer.context().commit_last(consumer, settled) else { return true };
        let over = consumer.client().fatal_error().is_some() || Instant::now() + COMMIT_EVERY >= deadline;
        warn!(%cause, "the last commit failed");
        if over {
            return false;
        }
        // Serves the rebalance; its records are nobody's any more.
        if let Some(Err(cause)) = consumer.poll(COMMIT_EVERY) {
            warn!(%cause, "while closing");
        }
    }
}
