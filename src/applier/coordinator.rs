//! The coordinator: one task that owns everything in flight.
//!
//! It takes news one at a time (records, look-ups, written states, answers, waves, timers), books each in plain
//! structs, and starts what can start. Nothing here waits for the database or a provider; those run as tasks of
//! their own and come back as news. Every task is in a list that is watched: one that is lost ends the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::time::DelayQueue;

use super::batch::{LookedUp, Planned, StateResult, Store, look};
use super::dead_letters::{self, Posted};
use super::effects::{InFlight, Pending};
use super::held::Held;
use super::intake::{Content, Control, Delivery, LaneId, Record, ResumeAt, Skip};
use super::lanes::{Lanes, Leaving};
use super::owners::Owners;
use super::progress::Tally;
use super::steps::Looked;
use super::waves::{Called, EffectTypes, Finished, WaveReport, WaveSession};
use super::{ApplierError, Checkpoint, Ended, Entry, Road, Stop};
use crate::domain::poison::Poison;
use crate::domain::record::DeadLetter;
use crate::metrics::EventResult;
use crate::pg::owner;
use crate::pg::wave::Writer;
use crate::telemetry::Open;

/// Unsettled events in memory; above it no batch is taken in. At least four times the call slots, so that full
/// slots never starve for ready effects.
const UNSETTLED_MIN: usize = 4096;
/// Batches being looked up at once.
const LOOK_UPS: usize = 3;
/// Housekeeping: positions published, leaving lanes checked, the wave session kept alive.
const TICK: Duration = Duration::from_millis(100);
/// Checkpoints of a run that reports totals, where nothing else is written.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
/// And where ledger or state rows were: a kill forgets no more than this.
const CHECKPOINT_AFTER_WRITES: Duration = Duration::from_millis(200);

pub(super) struct Coordinator {
    pub(super) road: Road,
    pub(super) store: Store,
    pub(super) writer: Writer,
    control: mpsc::UnboundedReceiver<Control>,
    pub(super) lanes: Lanes,
    pub(super) flight: InFlight,
    pub(super) types: EffectTypes,
    pub(super) owners: Owners,
    /// Batches being looked up, in the order they came.
    look_ups: FuturesOrdered<JoinHandle<LookedUp>>,
    /// Looked up, waiting for the state step.
    looked_up: VecDeque<LookedUp>,
    state_step: Option<JoinHandle<(LookedUp, Vec<StateResult>)>>,
    /// Effects about which the ledger is to be asked again.
    pub(super) to_look: Vec<usize>,
    pub(super) looking: Option<JoinHandle<Looked>>,
    pub(super) timers: DelayQueue<usize>,
    pub(super) finished: Vec<Finished>,
    pub(super) held: Held,
    pub(super) wave: Option<JoinHandle<WaveReport>>,
    pub(super) session: WaveSession,
    pub(super) calls: JoinSet<Called>,
    letters: mpsc::UnboundedSender<Posted>,
    letters_stored: mpsc::UnboundedReceiver<usize>,
    letter_task: JoinHandle<Result<(), crate::applier::intake::PublishError>>,
    /// Set once the end has begun: nothing new, and when to give up.
    draining: Option<Instant>,
    last_checkpoint: Instant,
    /// Rows were written since the last checkpoint.
    pub(super) wrote: bool,
    unsettled_max: usize,
}

impl Coordinator {
    pub(super) fn new(road: Road, control: mpsc::UnboundedReceiver<Control>) -> Self {
        let store = Store {
            database: road.database.clone(),
            run: road.run.clone(),
            health: road.health.clone(),
            metrics: Arc::clone(&road.metrics),
        };
        let (letters, letters_in) = mpsc::unbounded_channel();
        let (stored, letters_stored) = mpsc::unbounded_channel();
        let route = road.dead_letters.clone();
        let letter_task =
            tokio::task::spawn_local(dead_letters::run(store.clone(), route, letters_in, stored));
        let writer = Writer {
            run: road.run.clone(),
            owner: owner::new_number(),
            instance: Arc::clone(&road.instance),
        };
        let slots: usize = road.policies.iter().map(|(_, policy)| policy.slots).sum();
        Self {
            lanes: Lanes::new(road.watermarks.clone(), road.health.clone(), road.journal.is_some()),
            types: EffectTypes::new(&road.policies),
            unsettled_max: UNSETTLED_MIN.max(4 * slots),
            store,
            writer,
            control,
            flight: InFlight::default(),
            owners: Owners::default(),
            look_ups: FuturesOrdered::new(),
            looked_up: VecDeque::new(),
            state_step: None,
            to_look: Vec::new(),
            looking: None,
            timers: DelayQueue::new(),
            finished: Vec::new(),
            held: Held::default(),
            wave: None,
            session: WaveSession::default(),
            calls: JoinSet::new(),
            letters,
            letters_stored,
            letter_task,
            draining: None,
            last_checkpoint: Instant::now(),
            wrote: false,
            road,
        }
    }

    pub(super) async fn run(
        mut self,
        mut deliveries: mpsc::Receiver<Delivery>,
        mut stop: Stop,
    ) -> Result<Ended, ApplierError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deliveries_open = true;
        loop {
            self.start_what_can_start();
            if let Some(deadline) = self.draining
                && (self.is_drained() || Instant::now() >= deadline)
            {
                return Ok(self.finish());
            }
            let wave_deadline = self.wave_deadline();
            tokio::select! {
                biased;
                changed = stop.changed(), if self.draining.is_none() => {
                    let deadline = *stop.borrow_and_update();
                    self.drain(if changed.is_ok() { deadline } else { Some(Instant::now()) });
                }
                Some(news) = self.control.recv() => self.on_control(news),
                Some(called) = self.calls.join_next(), if !self.calls.is_empty() => self.on_calls(called)?,
                report = join(&mut self.wave), if self.wave.is_some() => {
                    self.wave = None;
                    self.on_wave(report?);
                }
                done = join(&mut self.state_step), if self.state_step.is_some() => {
                    self.state_step = None;
                    let (batch, results) = done?;
                    self.on_states(batch, results);
                }
                Some(batch) = self.look_ups.next(), if !self.look_ups.is_empty() => {
                    self.looked_up.push_back(batch.map_err(lost)?);
                }
                looked = join(&mut self.looking), if self.looking.is_some() => {
                    self.looking = None;
                    self.on_looked(looked?);
                }
                Some(expired) = self.timers.next(), if !self.timers.is_empty() => {
                    self.on_timer(expired.into_inner());
                }
                Some(event) = self.letters_stored.recv() => self.on_letter_stored(event),
                ended = &mut self.letter_task => return Err(letters_ended(ended)),
                delivery = deliveries.recv(), if deliveries_open && self.accepts() => match delivery {
                    Some(delivery) => self.on_delivery(delivery),
                    None => deliveries_open = false,
                },
                _ = tick.tick() => self.on_tick(),
                // A wave that waited for company goes without it.
                () = sleep_until(wave_deadline), if wave_deadline.is_some() => {}
            }
        }
    }

    /// Room for another batch: back-pressure towards the log is simply not taking one.
    fn accepts(&self) -> bool {
        self.draining.is_none()
            && !*self.road.paused.borrow()
            && self.look_ups.len() + self.looked_up.len() < LOOK_UPS
            && self.flight.events.len() < self.unsettled_max
            && !self.road.journal.as_ref().is_some_and(super::Journal::is_full)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    pub(super) fn may_begin(&self) -> bool {
        self.draining.is_none() && !*self.road.paused.borrow()
    }

    fn start_what_can_start(&mut self) {
        while self.state_step.is_none()
            && let Some(batch) = self.looked_up.pop_front()
        {
            self.begin_states(batch);
        }
        self.start_looking();
        self.start_wave();
    }

    pub(super) fn set_state_step(&mut self, step: JoinHandle<(LookedUp, Vec<StateResult>)>) {
        self.state_step = Some(step);
    }

    fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, start, end } => {
                self.lanes.assigned(lane, start, end);
                self.road.health.assigned([(lane.partition, start.0)]);
            }
            Control::Revoked { lanes, lost, deadline, done } => {
                self.lanes.close(&lanes);
                self.road.health.revoked(lanes.iter().map(|lane| lane.partition));
                self.drop_not_begun(|lane| lanes.contains(&lane));
                let deadline = if lost { Instant::now() } else { deadline };
                self.lanes.leaving.push(Leaving { lanes, deadline, done });
                self.check_leaving();
            }
        }
    }

    fn on_delivery(&mut self, delivery: Delivery) {
        while let Ok(news) = self.control.try_recv() {
            self.on_control(news);
        }
        match delivery {
            Delivery::Records(records) => self.on_records(records),
            Delivery::Position { lane, next } => self.lanes.position(lane, next),
        }
    }

    fn on_records(&mut self, records: Vec<Record>) {
        self.road.metrics.batch(records.len());
        let mut planned = Vec::with_capacity(records.len());
        for record in records {
            if !self.lanes.received(record.lane, record.offset) {
                continue;
            }
            match record.content {
                Content::Plan(plan) => planned.push(Planned {
                    lane: record.lane,
                    offset: record.offset,
                    plan,
                    raw: record.raw,
                    traceparent: record.traceparent,
                    read_at: record.read_at,
                }),
                Content::Skip(skip) => {
                    let result = match skip {
                        Skip::Tombstone => EventResult::Tombstone,
                        Skip::OtherType => EventResult::OtherType,
                        Skip::NotSelected => EventResult::NotSelected,
                    };
                    self.count_event(result);
                    let mut tally = Tally { result: Some(result), ..Tally::default() };
                    self.mark(record.lane, record.offset, &mut tally);
                    self.lanes.settled(record.lane, record.offset, tally);
                }
                Content::Poison { poison, order_id } => {
                    let context = record.traceparent.as_deref();
                    let trace = self.road.traces.process(&record.raw, None, context, record.read_at);
                    let event = self.flight.events.insert(Pending {
                        lane: record.lane,
                        offset: record.offset,
                        raw: record.raw,
                        plan: None,
                        trace,
                        traceparent: record.traceparent,
                        read_at: record.read_at,
                        open: 0,
                        letters: 0,
                        tally: Tally::default(),
                        abandoned: false,
                    });
                    self.dead_letter(event, poison, order_id, None, 0);
                }
            }
        }
        if !planned.is_empty() {
            let store = self.store.clone();
            let trace = self.trace_batch(&planned);
            self.look_ups.push_back(tokio::task::spawn_local(async move {
                let looked_up = look(&store, planned).await;
                drop(trace);
                looked_up
            }));
        }
    }

    fn trace_batch(&self, records: &[Planned]) -> Open {
        let topic = records.first().map_or("", |record| &record.raw.topic);
        let contexts = records.iter().map(|record| record.traceparent.as_deref());
        self.road.traces.receive(topic, records.len(), contexts)
    }

    /// Posts a dead letter for an event (or for one effect of it); the event stays unsettled until it is stored.
    pub(super) fn dead_letter(
        &mut self,
        event: usize,
        poison: Poison,
        order_id: Option<String>,
        effect_type: Option<String>,
        attempts: u32,
    ) {
        let Some(pending) = self.flight.events.get_mut(event) else { return };
        pending.open += 1;
        pending.letters += 1;
        pending.trace.failed(poison.reason.code());
        let trace = self.road.traces.send(&pending.trace);
        pending.tally.result = Some(EventResult::DeadLettered);
        let order_id =
            order_id.or_else(|| pending.plan.as_ref().map(|plan| plan.commission.order_id.clone()));
        let event_id = pending.plan.as_ref().map(|plan| plan.commission.event_id.clone());
        let letter = DeadLetter {
            raw: (*pending.raw).clone(),
            reason: poison.reason,
            message: poison.message,
            event_id,
            order_id,
            effect_type,
            attempts,
            run: self.road.run.clone(),
            first_failed_at: jiff::Timestamp::now(),
        };
        // If the task is gone its end is news of its own, and ends the run.
        if self.letters.send(Posted { event, letter: Arc::new(letter), trace }).is_err() {
            tracing::error!("the dead-letter task is gone");
        }
    }

    fn on_letter_stored(&mut self, event: usize) {
        if let Some(pending) = self.flight.events.get_mut(event) {
            pending.letters -= 1;
        }
        self.one_less(event);
    }

    /// One effect or letter of an event is settled; the last one settles its record.
    pub(super) fn one_less(&mut self, event: usize) {
        let Some(pending) = self.flight.events.get_mut(event) else { return };
        pending.open = pending.open.saturating_sub(1);
        if pending.open == 0 {
            let pending = self.flight.events.remove(event);
            self.road.health.events_in_flight(-1);
            if !pending.abandoned {
                self.settle_record(pending.lane, pending.offset, pending.tally, pending.read_at);
            }
        }
    }

    pub(super) fn settle_record(
        &mut self,
        lane: LaneId,
        offset: super::intake::RecordOffset,
        mut tally: Tally,
        read_at: Instant,
    ) {
        let result = *tally.result.get_or_insert(EventResult::Applied);
        self.count_event(result);
        self.road.metrics.event_seconds(read_at.elapsed());
        self.mark(lane, offset, &mut tally);
        self.lanes.settled(lane, offset, tally);
    }

    fn mark(&self, lane: LaneId, offset: super::intake::RecordOffset, tally: &mut Tally) {
        if let Some(mark) = &self.road.mark {
            mark(lane.partition, offset.0, tally);
        }
    }

    fn count_event(&self, result: EventResult) {
        self.road.metrics.event(result, self.road.run.kind, 1);
    }

    fn on_tick(&mut self) {
        self.check_leaving();
        self.lanes.publish();
        self.keep_session();
        self.try_held_again();
        let every = if self.wrote { CHECKPOINT_AFTER_WRITES } else { CHECKPOINT_EVERY };
        if self.last_checkpoint.elapsed() >= every {
            self.last_checkpoint = Instant::now();
            self.wrote = false;
            self.checkpoint();
        }
    }

    fn checkpoint(&mut self) {
        if let Some(journal) = &self.road.journal {
            let checkpoints: Vec<Checkpoint> = self.lanes.checkpoints();
            if !checkpoints.is_empty() {
                journal.tell(Entry::Checkpoint(checkpoints));
            }
        }
    }

    /// Answers those who wait for lanes to come to rest, or whose time is up.
    pub(super) fn check_leaving(&mut self) {
        if self.lanes.leaving.is_empty() {
            return;
        }
        let busy = self.busy_lanes();
        let now = Instant::now();
        let leaving = std::mem::take(&mut self.lanes.leaving);
        for entry in leaving {
            let resting = !entry.lanes.iter().any(|lane| busy.contains(lane));
            if !resting && now < entry.deadline {
                self.lanes.leaving.push(entry);
                continue;
            }
            self.abandon(&entry.lanes);
            self.checkpoint();
            let positions = self.lanes.take(&entry.lanes);
            if entry.done.send(positions).is_err() {
                tracing::debug!("nobody waits for the positions of lost lanes any more");
            }
        }
    }

    fn drain(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        self.draining = Some(deadline);
        self.road.health.draining();
        self.drop_not_begun(|_| true);
        self.look_ups = FuturesOrdered::new();
        self.looked_up.clear();
    }

    fn is_drained(&self) -> bool {
        self.calls.is_empty()
            && self.wave.is_none()
            && self.finished.is_empty()
            && self.flight.effects.is_empty()
            && self.flight.events.iter().all(|(_, event)| event.letters == 0)
    }

    fn finish(mut self) -> Ended {
        let drained = self.is_drained();
        self.checkpoint();
        self.letter_task.abort();
        let lanes = self.lanes.ids();
        let positions: Vec<(LaneId, ResumeAt)> = self.lanes.take(&lanes);
        Ended { positions, drained }
    }
}

async fn join<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, ApplierError> {
    match task {
        Some(handle) => handle.await.map_err(lost),
        None => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a map_err function")]
pub(super) fn lost(error: JoinError) -> ApplierError {
    ApplierError::TaskLost(error.to_string())
}

fn letters_ended(ended: Result<Result<(), crate::applier::intake::PublishError>, JoinError>) -> ApplierError {
    match ended {
        Ok(Ok(())) => ApplierError::TaskLost("the dead-letter task ended".to_owned()),
        Ok(Err(error)) => error.into(),
        Err(error) => lost(error),
    }
}
