//! One partition in our hands: its queue, how far it was handed over, and where it ends.
//!
//! Two counters tell what the applier must still hear: `next` is where the lane stands, `told` is what the applier
//! can know from records and positions it was given. They differ after transaction markers and at the end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::assignment::GroupContext;
use super::convert;
use super::health::Pulse;
use crate::applier::intake::{LaneId, RawRecord, ResumeAt};

/// When a record that could not be decoded yet is offered again.
pub const DECODE_AGAIN: Duration = Duration::from_millis(50);

/// What a lane had to give.
pub enum Popped {
    Nothing,
    Record(Box<RawRecord>),
    /// The client reached the end of the partition.
    EndOfPartition,
    /// The client was told that its position does not exist.
    Lost,
    Trouble(KafkaError),
}

pub struct Lane {
    pub id: LaneId,
    pub end: Option<ResumeAt>,
    pub pulse: Pulse,
    /// First offset not yet handed over.
    next: ResumeAt,
    told: ResumeAt,
    /// Absent where there is nothing to read.
    queue: Option<PartitionQueue<GroupContext>>,
    /// Records that came another way than through the queue, or are offered again.
    backlog: VecDeque<Box<RawRecord>>,
    again_at: Option<Instant>,
}

impl Lane {
    pub fn new(
        id: LaneId,
        start: ResumeAt,
        end: Option<ResumeAt>,
        queue: Option<PartitionQueue<GroupContext>>,
    ) -> Self {
        let pulse = Pulse::new(Instant::now());
        Self { id, end, pulse, next: start, told: start, queue, backlog: VecDeque::new(), again_at: None }
    }

    pub fn position(&self) -> ResumeAt {
        self.next
    }

    pub fn is_finished(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    pub fn waits_for_decoding(&self) -> bool {
        self.again_at.is_some()
    }

    pub fn pop(&mut self, topic: &Arc<str>, now: Instant) -> Popped {
        if self.is_finished() || self.again_at.is_some_and(|at| now < at) {
            return Popped::Nothing;
        }
        self.again_at = None;
        if let Some(raw) = self.backlog.pop_front() {
            return Popped::Record(raw);
        }
        let Some(queue) = &self.queue else { return Popped::Nothing };
        match queue.poll(Duration::ZERO) {
            None => Popped::Nothing,
            Some(Ok(message)) => {
                self.pulse.beat(now);
                Popped::Record(Box::new(convert::raw_record(&message, topic)))
            }
            Some(Err(KafkaError::PartitionEOF(_))) => Popped::EndOfPartition,
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::AutoOffsetReset | RDKafkaErrorCode::OffsetOutOfRange,
            ))) => Popped::Lost,
            Some(Err(error)) => Popped::Trouble(error),
        }
    }

    /// A record that came over the consumer's main queue: after those before it.
    pub fn came_aside(&mut self, raw: Box<RawRecord>) {
        self.backlog.push_back(raw);
    }

    /// Keeps a record that cannot be decoded yet; the partition waits behind it.
    pub fn offer_again(&mut self, raw: Box<RawRecord>, now: Instant) {
        self.backlog.push_front(raw);
        self.again_at = Some(now + DECODE_AGAIN);
    }

    /// Whether this record is the applier's. A record at or past the end finishes the lane; one that was handed
    /// over before is not handed over twice.
    pub fn admits(&mut self, offset: i64) -> bool {
        if let Some(end) = self.end
            && offset >= end.0
        {
            self.next = end;
            return false;
        }
        offset >= self.next.0
    }

    pub fn handed_over(&mut self, offset: i64) {
        self.next = ResumeAt(offset + 1);
        self.told = self.next;
    }

    /// The end of the partition was reached, with everything before it popped; `client_at` is the client's own
    /// position there. A range that was captured before ends here at the latest.
    pub fn reached_end(&mut self, client_at: Option<i64>) {
        self.next = match (self.end, client_at) {
            (Some(end), _) => end,
            (None, Some(at)) => self.next.max(ResumeAt(at)),
            (None, None) => self.next,
        };
    }

    /// What the applier must be told beyond the records it was given.
    pub fn news(&mut self) -> Option<ResumeAt> {
        if self.next <= self.told {
            return None;
        }
        self.told = self.next;
        Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(start: i64, end: Option<i64>) -> Lane {
        Lane::new(LaneId { partition: 0, claim: 1 }, ResumeAt(start), end.map(ResumeAt), None)
    }

    #[test]
    fn records_tell_their_own_position_and_only_what_lies_beyond_is_news() {
        let mut lane = lane(5, None);
        assert!(lane.admits(7));
        lane.handed_over(7);
        assert_eq!(lane.news(), None);
        lane.reached_end(Some(8));
        assert_eq!(lane.news(), None);
        lane.reached_end(Some(9));
        assert_eq!(lane.news(), Some(ResumeAt(9)));
        assert_eq!(lane.news(), None);
    }

    #[test]
    fn b47_a_record_is_never_handed_over_twice() {
        let mut lane = lane(5, None);
        assert!(!lane.admits(4));
        lane.handed_over(5);
        assert!(!lane.admits(5));
        assert!(lane.admits(6));
    }

    #[test]
    fn b33_a_range_ends_by_position_or_at_the_end_of_the_partition() {
        let mut by_record = lane(5, Some(10));
        assert!(!by_record.admits(12));
        assert!(by_record.is_finished());
        assert_eq!(by_record.news(), Some(ResumeAt(10)));
        let mut by_end = lane(5, Some(10));
        by_end.reached_end(Some(9));
        assert!(by_end.is_finished());
        assert_eq!(by_end.news(), Some(ResumeAt(10)));
        assert!(lane(10, Some(10)).is_finished());
    }
}
