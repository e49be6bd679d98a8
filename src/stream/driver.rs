//! The polling thread's loop.
//!
//! Each turn: serve the client (always), take what the group gave, do what is due (commits, health), deliver what
//! is held, and only when nothing is held pop more. While the channel is full exactly one batch is held and the
//! partitions' small client queues fill up: that is the back-pressure. Nothing here pauses a partition for it
//! (that would throw its prefetched records away).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use tokio::sync::mpsc::error::TrySendError;
use tracing::{error, info, warn};

use super::assignment::{GroupContext, Ownership, Phase};
use super::consumer::{Bench, Closed, Decoding, Outlets, StreamFailure, Wish};
use super::convert;
use super::health::PartitionFacts;
use super::lanes::{Lane, Popped};
use super::settings::{ConsumerSettings, Membership};
use super::starts::{ClientOffsets, Found, News, Start, Starts, StartsError};
use crate::applier::intake::{Control, Delivery, LaneId, RawRecord, Record, RecordOffset, ResumeAt};

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
            lane.came_aside(convert::raw_record(message, &self.consumer.context().topic));
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

    fn find_starts(&mut self, wanted: &[i32]) -> Result<(), StreamFailure> {
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
    fn lost(&mut self, partition: i32) -> Result<(), StreamFailure> {
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

    fn housekeeping(&mut self) -> Result<(), StreamFailure> {
        let now = Instant::now();
        let context = Arc::clone(self.consumer.context());
        if now >= self.commit_at {
            self.commit_at = now + COMMIT_EVERY;
            context.commit(&self.consumer, &self.outlets.watermarks.snapshot());
        }
        let Some(seen) = context.statistics.take() else { return Ok(()) };
        let mut facts = Vec::with_capacity(self.lanes.len());
        for (&partition, lane) in &mut self.lanes {
            let position = lane.position().0;
            let seen = seen.get(&partition).copied();
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
                Err(TrySendError::Closed(_)) => return Err(StreamFailure::ReceiverGone),
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

    /// Commits and leaves on a thread of its own: both can hang, and then that thread is left behind.
    fn close(mut self, settled: Vec<(LaneId, ResumeAt)>, deadline: Instant) -> Closed {
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
