//! The polling thread's loop.
//!
//! Each turn: serve the client (always), take what the group gave, do what is due (commits, health), deliver what
//! is held, and only when nothing is held pop more. While the channel is full exactly one batch is held and the
//! partitions' small client queues fill up: that is the back-pressure. Nothing here pauses a partition for it
//! (that would throw its prefetched records away).

mod claims;
mod closing;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, warn};

use super::assignment::GroupContext;
use super::consumer::{Bench, Closed, Decoding, Outlets, StreamFailure, Wish};
use super::convert;
use super::health::PartitionFacts;
use super::lanes::{Lane, Popped};
use super::settings::{ConsumerSettings, Membership};
use super::starts::Starts;
use crate::applier::intake::{Delivery, LaneId, RawRecord, Record, RecordOffset, ResumeAt};

/// Client events served in one turn; more come in the next.
const SERVED_PER_TURN: usize = 8;
/// Records popped from one lane before the next has its turn.
const POPPED_PER_LANE: usize = 32;
/// Bytes of one delivery, the last record excepted.
const BATCH_BYTES: usize = 1 << 20;
/// How long an idle turn sleeps at most: the client must be polled, and a missed wake must not matter.
const IDLE: Duration = Duration::from_millis(50);
/// How soon a full channel is tried again.
const CHANNEL_FULL: Duration = Duration::from_millis(2);
/// `reprise` commits in this rhythm.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// After a look-up that failed.
const LOOKUP_AGAIN: Duration = Duration::from_millis(500);
/// For leaving the group after a failure.
const LEAVE_AFTER_FAILURE: Duration = Duration::from_secs(3);

pub struct Driver<D> {
    settings: ConsumerSettings,
    starts: Box<dyn Starts>,
    decode: D,
    outlets: Outlets,
    consumer: Arc<BaseConsumer<GroupContext>>,
    bench: Arc<Bench>,
    lanes: BTreeMap<i32, Lane>,
    held: VecDeque<Delivery>,
    claims: u64,
    /// Which lane is popped first: goes round, so that all get their turn.
    first: usize,
    commit_at: Instant,
    lookup_at: Instant,
}

/// What a turn leaves for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// There may be more at once.
    Busy,
    /// Nothing to do for so long, unless woken.
    Rest(Duration),
}

impl<D: FnMut(LaneId, Box<RawRecord>) -> Decoding> Driver<D> {
    pub fn new(
        settings: ConsumerSettings,
        starts: Box<dyn Starts>,
        decode: D,
        outlets: Outlets,
        consumer: Arc<BaseConsumer<GroupContext>>,
        bench: Arc<Bench>,
    ) -> Self {
        let now = Instant::now();
        let (lanes, held) = (BTreeMap::new(), VecDeque::new());
        Self {
            settings,
            starts,
            decode,
            outlets,
            consumer,
            bench,
            lanes,
            held,
            claims: 0,
            first: 0,
            commit_at: now,
            lookup_at: now,
        }
    }

    /// Runs to the end; `say` is told as soon as consuming is over.
    pub fn run(mut self, say: impl FnOnce(Result<(), StreamFailure>)) -> Closed {
        match self.consume() {
            Ok((settled, deadline)) => {
                say(Ok(()));
                self.close(settled, deadline)
            }
            Err(failure) => {
                error!(%failure, "consuming ends");
                say(Err(failure));
                let settled = self.outlets.watermarks.snapshot();
                self.close(settled, Instant::now() + LEAVE_AFTER_FAILURE)
            }
        }
    }

    fn consume(&mut self) -> Result<(Vec<(LaneId, ResumeAt)>, Instant), StreamFailure> {
        self.join()?;
        loop {
            self.serve_client()?;
            self.follow_group()?;
            self.housekeeping()?;
            let wish = {
                let mut wish = self.bench.wish.lock().unwrap_or_else(PoisonError::into_inner);
                match &mut *wish {
                    Wish::Consume => Wish::Consume,
                    Wish::Drain => Wish::Drain,
                    Wish::Close { settled, deadline } => {
                        return Ok((std::mem::take(settled), *deadline));
                    }
                }
            };
            if let Turn::Rest(limit) = self.deliver(&wish)? {
                self.bench.waker.wait(limit);
            }
        }
    }

    fn join(&self) -> Result<(), StreamFailure> {
        match &self.settings.membership {
            Membership::Group => {
                self.consumer.subscribe(&[&self.settings.topic]).map_err(|error| client(&error))
            }
            Membership::Fixed(partitions) => {
                let mut ours = self.consumer.context().ours();
                ours.wanted.extend(partitions);
                ours.changed = true;
                Ok(())
            }
        }
    }

    /// Callbacks run in here: rebalances, commit answers, statistics, errors.
    fn serve_client(&mut self) -> Result<(), StreamFailure> {
        let consumer = Arc::clone(&self.consumer);
        for _ in 0..SERVED_PER_TURN {
            match consumer.poll(Duration::ZERO) {
                None => {}
                Some(Ok(message)) => self.came_aside(&message),
                Some(Err(error)) => self.check_fatal(&error)?,
            }
        }
        Ok(())
    }

    /// A record on the main queue although its partition has a queue of its own: handled in its order.
    fn came_aside(&mut self, message: &BorrowedMessage<'_>) {
        use rdkafka::Message;
        if let Some(lane) = self.lanes.get_mut(&message.partition()) {
            lane.came_aside(Box::new(convert::raw_record(message, &self.consumer.context().topic)));
        }
    }

    /// Errors are logged by the context; only what ends the client matters here.
    fn check_fatal(&self, error: &KafkaError) -> Result<(), StreamFailure> {
        if let Some((code, reason)) = self.consumer.client().fatal_error() {
            return Err(StreamFailure::Client { cause: format!("{code}: {reason}") });
        }
        match error {
            KafkaError::MessageConsumptionFatal(_) => Err(client(error)),
            _ => Ok(()),
        }
    }

    fn follow_group(&mut self) -> Result<(), StreamFailure> {
        let context = Arc::clone(self.consumer.context());
        let (changed, gone, wanted) = {
            let mut ours = context.ours();
            let wanted: Vec<i32> = ours.wanted.iter().copied().collect();
            (std::mem::take(&mut ours.changed), std::mem::take(&mut ours.gone), wanted)
        };
        for lane in gone {
            // Dropping the queue of a later claim would silence it: compare the claim.
            if self.lanes.get(&lane.partition).is_some_and(|held| held.id == lane) {
                self.lanes.remove(&lane.partition);
            }
            self.forget_held(lane);
        }
        if !wanted.is_empty() && Instant::now() >= self.lookup_at {
            self.find_starts(&wanted)?;
        }
        if changed {
            let partitions: Vec<i32> = context.ours().lanes.keys().copied().collect();
            // While starts are being looked up the assignment is not complete: said when it is.
            if context.ours().wanted.is_empty() {
                self.outlets.observer.assigned(&partitions);
            } else {
                context.ours().changed = true;
            }
        }
        Ok(())
    }

    fn forget_held(&mut self, lane: LaneId) {
        for delivery in &mut self.held {
            if let Delivery::Records(records) = delivery {
                records.retain(|record| record.lane != lane);
            }
        }
        self.held.retain(|delivery| match delivery {
            Delivery::Records(records) => !records.is_empty(),
            Delivery::Position { lane: told, .. } => *told != lane,
        });
    }

    fn housekeeping(&mut self) -> Result<(), StreamFailure> {
        let now = Instant::now();
        let context = Arc::clone(self.consumer.context());
        if now >= self.commit_at {
            self.commit_at = now + COMMIT_EVERY;
            context.commit(&self.consumer, &self.outlets.watermarks.snapshot());
        }
        let Some(report) = context.statistics.take() else { return Ok(()) };
        if report.nothing_came && self.settings.uses_new_protocol() && self.lanes.is_empty() {
            self.outlets.observer.assigned(&[]);
        }
        let mut facts = Vec::with_capacity(self.lanes.len());
        for (&partition, lane) in &mut self.lanes {
            let position = lane.position().0;
            let seen = report.partitions.get(&partition).copied();
            if let Some(committed) = seen.and_then(|seen| seen.committed) {
                context.ours().commits.confirmed(lane.id, ResumeAt(committed));
            }
            let committed = context.ours().commits.known(lane.id).map(|at| at.0);
            let high_watermark = seen.and_then(|seen| seen.end);
            let lag = high_watermark.map(|end| (end - committed.unwrap_or(position)).max(0));
            facts.push(PartitionFacts { partition, position, committed, high_watermark, lag });
            let waits_for_us = !self.held.is_empty() || lane.is_finished() || lane.waits_for_decoding();
            let Some(seen) = seen else { continue };
            if waits_for_us {
                lane.pulse.beat(now);
            } else if lane.pulse.silent(seen, position, now) >= self.settings.stalled_after {
                return Err(StreamFailure::Stalled {
                    partition,
                    position,
                    end: high_watermark.unwrap_or(position),
                });
            }
        }
        self.outlets.observer.facts(&facts);
        Ok(())
    }

    /// Hands over what is held; pops more only when nothing is.
    fn deliver(&mut self, wish: &Wish) -> Result<Turn, StreamFailure> {
        while let Some(delivery) = self.held.pop_front() {
            match self.outlets.deliveries.try_send(delivery) {
                Ok(()) => {}
                Err(TrySendError::Full(delivery)) => {
                    self.held.push_front(delivery);
                    return Ok(Turn::Rest(CHANNEL_FULL));
                }
                Err(TrySendError::Closed(_)) => return self.receiver_gone(),
            }
        }
        if matches!(wish, Wish::Consume) {
            self.pop_batch()?;
        } else {
            for lane in self.lanes.values_mut() {
                lane.pulse.beat(Instant::now());
            }
        }
        Ok(if self.held.is_empty() { Turn::Rest(IDLE) } else { Turn::Busy })
    }

    /// In an orderly end the applier goes first, and its final positions are still to come: what is held was never
    /// its business.
    fn receiver_gone(&mut self) -> Result<Turn, StreamFailure> {
        let wish = self.bench.wish.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*wish, Wish::Consume) {
            return Err(StreamFailure::ReceiverGone);
        }
        self.held.clear();
        Ok(Turn::Rest(IDLE))
    }

    /// What is there, in turns round the lanes, up to the limits of one delivery.
    fn pop_batch(&mut self) -> Result<(), StreamFailure> {
        let now = Instant::now();
        let partitions: Vec<i32> = self.lanes.keys().copied().collect();
        if partitions.is_empty() {
            return Ok(());
        }
        self.first = (self.first + 1) % partitions.len();
        let mut batch = Batch { records: Vec::new(), bytes: 0, limit: self.settings.max_events.max(1) };
        let mut lost = Vec::new();
        loop {
            let before = batch.records.len();
            for turn in 0..partitions.len() {
                let partition = partitions[(self.first + turn) % partitions.len()];
                self.pop_lane(partition, &mut batch, &mut lost, now)?;
            }
            if batch.is_full() || batch.records.len() == before {
                break;
            }
        }
        if !batch.records.is_empty() {
            self.held.push_back(Delivery::Records(batch.records));
        }
        for lane in self.lanes.values_mut() {
            if let Some(next) = lane.news() {
                self.held.push_back(Delivery::Position { lane: lane.id, next });
            }
        }
        lost.into_iter().try_for_each(|partition| self.lost(partition))
    }

    fn pop_lane(
        &mut self,
        partition: i32,
        batch: &mut Batch,
        lost: &mut Vec<i32>,
        now: Instant,
    ) -> Result<(), StreamFailure> {
        for _ in 0..POPPED_PER_LANE {
            let topic = &self.consumer.context().topic;
            let Some(lane) = self.lanes.get_mut(&partition) else { return Ok(()) };
            if batch.is_full() {
                return Ok(());
            }
            match lane.pop(topic, now) {
                Popped::Nothing => return Ok(()),
                Popped::Record(raw) => {
                    if !lane.admits(raw.offset) {
                        continue;
                    }
                    match (self.decode)(lane.id, raw) {
                        Decoding::Wait(raw) => {
                            lane.offer_again(raw, now);
                            return Ok(());
                        }
                        Decoding::Ready { content, raw, traceparent } => {
                            lane.handed_over(raw.offset);
                            batch.bytes += convert::weight(&raw);
                            let offset = RecordOffset(raw.offset);
                            let record =
                                Record { lane: lane.id, offset, content, raw, traceparent, read_at: now };
                            batch.records.push(record);
                        }
                    }
                }
                Popped::EndOfPartition => {
                    let at = client_position(&self.consumer, partition);
                    lane.reached_end(at.unwrap_or_else(|cause| {
                        warn!(%cause, partition, "the client's position at the end of the partition is not known");
                        None
                    }));
                }
                Popped::Lost => {
                    lost.push(partition);
                    return Ok(());
                }
                Popped::Trouble(error) => self.check_fatal(&error)?,
            }
        }
        Ok(())
    }
}

struct Batch {
    records: Vec<Record>,
    bytes: usize,
    limit: usize,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.records.len() >= self.limit || self.bytes >= BATCH_BYTES
    }
}

fn client(error: &KafkaError) -> StreamFailure {
    StreamFailure::Client { cause: error.to_string() }
}

/// Where the client stands: past transaction markers too, which no record tells of.
fn client_position(consumer: &BaseConsumer<GroupContext>, partition: i32) -> KafkaResult<Option<i64>> {
    let topic = &consumer.context().topic;
    let positions = consumer.position()?;
    Ok(positions.find_partition(topic, partition).and_then(|element| match element.offset() {
        Offset::Offset(at) => Some(at),
        _ => None,
    }))
}
