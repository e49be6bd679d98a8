//! From a partition that is ours to one that is read: its start is found, the applier hears of it, and only then
//! does the client fetch it.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::Offset;
use rdkafka::consumer::{Consumer, RebalanceProtocol};
use tracing::{error, info, warn};

use super::super::assignment::Ownership;
use super::super::consumer::{Decoding, StreamFailure};
use super::super::lanes::Lane;
use super::super::starts::{ClientOffsets, Found, News, Start, StartsError};
use super::{Driver, LOOKUP_AGAIN, client};
use crate::applier::intake::{Control, LaneId, RawRecord};

impl<D: FnMut(LaneId, Box<RawRecord>) -> Decoding> Driver<D> {
    pub(super) fn find_starts(&mut self, wanted: &[i32]) -> Result<(), StreamFailure> {
        let consumer = Arc::clone(&self.consumer);
        let deadline = Instant::now() + self.settings.lookup_limit();
        let log = ClientOffsets { consumer: &consumer, topic: &self.settings.topic, deadline };
        let found = match self.starts.find(&log, wanted) {
            Ok(found) => found,
            Err(StartsError::Stop(failure)) => return Err(failure),
            Err(StartsError::Later(cause)) => {
                warn!(cause, partitions = ?wanted, "starting offsets cannot be looked up; asking again");
                self.lookup_at = Instant::now() + LOOKUP_AGAIN;
                return Ok(());
            }
        };
        let uncovered = found.news.iter().filter(|news| matches!(news, News::NotCovered { .. })).count();
        let complete = found.starts.len() + uncovered == wanted.len();
        if !complete {
            self.lookup_at = Instant::now() + LOOKUP_AGAIN;
            // An eager assignment is whole or nothing.
            if matches!(consumer.rebalance_protocol(), RebalanceProtocol::Eager) {
                return Ok(());
            }
        }
        self.take(&found)
    }

    /// Announces lanes, gives each its own queue, and only then has the client fetch them from their starts.
    fn take(&mut self, found: &Found) -> Result<(), StreamFailure> {
        let context = Arc::clone(self.consumer.context());
        for news in &found.news {
            self.tell(*news);
            if let News::NotCovered { partition } = news {
                context.ours().wanted.remove(partition);
            }
        }
        let mut fetch = Vec::with_capacity(found.starts.len());
        for start in &found.starts {
            self.open_lane(start)?;
            if self.lanes.get(&start.partition).is_some_and(|lane| !lane.is_finished()) {
                fetch.push((start.partition, Offset::Offset(start.at.0)));
            }
        }
        if fetch.is_empty() {
            return Ok(());
        }
        let list = context.list(fetch.iter().copied()).map_err(|error| client(&error))?;
        let taken = match self.consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => self.consumer.assign(&list),
            _ => self.consumer.incremental_assign(&list),
        };
        taken.map_err(|error| client(&error))?;
        context.ours().fetched.extend(fetch.iter().map(|(partition, _)| *partition));
        Ok(())
    }

    fn open_lane(&mut self, start: &Start) -> Result<(), StreamFailure> {
        self.claims += 1;
        let id = LaneId { partition: start.partition, claim: self.claims };
        let announced = Control::Assigned { lane: id, start: start.at, end: start.end };
        self.outlets.control.send(announced).map_err(|_| StreamFailure::ReceiverGone)?;
        {
            let mut ours = self.consumer.context().ours();
            ours.wanted.remove(&start.partition);
            ours.lanes.insert(start.partition, id);
            ours.commits.open(id, start.at, start.committed, Instant::now());
        }
        // An earlier queue of this partition must be gone before the new one: both are the same in the client.
        self.lanes.remove(&start.partition);
        let nothing_to_read = start.end.is_some_and(|end| start.at >= end);
        let queue = if nothing_to_read {
            None
        } else {
            let queue = self.consumer.split_partition_queue(&self.settings.topic, start.partition);
            let mut queue = queue.ok_or_else(|| StreamFailure::Client {
                cause: format!("no queue for partition {} of {}", start.partition, self.settings.topic),
            })?;
            let waker = Arc::clone(&self.bench.waker);
            queue.set_nonempty_callback(move || waker.ring());
            Some(queue)
        };
        self.lanes.insert(start.partition, Lane::new(id, start.at, start.end, queue));
        info!(partition = start.partition, start = start.at.0, end = ?start.end.map(|end| end.0), "partition begins");
        Ok(())
    }

    fn tell(&self, news: News) {
        let observer = &self.outlets.observer;
        match news {
            News::Earliest { partition } => {
                warn!(partition, group = self.settings.group, "no committed offset, starting at earliest");
                observer.started_at_earliest(partition);
            }
            News::Lost { partition, from, to } => {
                error!(
                    partition,
                    from,
                    to = to - 1,
                    "committed offset is gone with these records; going on behind them"
                );
                observer.offsets_lost(partition, from, to);
            }
            News::Recreated { partition, at, end } => {
                error!(
                    partition,
                    committed = at,
                    end,
                    "the topic was made anew; reading it from its beginning"
                );
                observer.offsets_lost(partition, at, end);
            }
            News::NotCovered { partition } => {
                warn!(partition, "the plan of this run does not cover the partition; it is not read");
            }
        }
    }

    /// The place a lane reads no longer exists: it is given up and claimed anew, where the policy decides.
    pub(super) fn lost(&mut self, partition: i32) -> Result<(), StreamFailure> {
        let position = self.lanes.get(&partition).map(|lane| lane.position().0);
        error!(partition, position, "the broker no longer has this position");
        if matches!(self.consumer.rebalance_protocol(), RebalanceProtocol::Eager) {
            // Cannot be changed by halves; a restart looks its starts up again.
            return Err(StreamFailure::Client {
                cause: format!("position of partition {partition} is gone"),
            });
        }
        let context = Arc::clone(self.consumer.context());
        context.release(&self.consumer, &[partition], Ownership::Held);
        // The look-up of the new start goes the way of the commit just sent, and so finds it.
        let given_back = context.give_back(&self.consumer, &[partition]);
        context.ours().wanted.extend(given_back);
        Ok(())
    }
}
