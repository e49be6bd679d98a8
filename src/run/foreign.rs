//! Messages `pedido.*` of other systems, as commands on orders: the one place where they come in.
//!
//! ```text
//!   record ──translated──► command ──the order's rules──► accepted, or known by its id ──► next
//!     │ none of ours: passed over         │ no
//!     └ not readable ─────────────────────┴──► dead-letter topic of orders ──acknowledged──► next
//! ```
//!
//! * An offset is committed only after its command is written or its dead letter acknowledged; a repetition is known by
//!   the message's own id (the `command_id`) and changes nothing.
//!   (test `foreign_messages_become_commands_once_and_what_cannot_is_a_dead_letter`)
//! * A database or broker that is away is waited for; polling goes on meanwhile.
//!
//! Not here: what a foreign word means ([`translate`](crate::orders::translate)) and what an order allows.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::parts::{self, Parts};
use super::rooms::Room;
use super::{CLOSE_WITHIN, RunError, orders};
use crate::applier::intake::{
    Control, DeadLetterTopic, Delivery, LaneId, PublishError, RawRecord, Record, ResumeAt, Watermarks,
};
use crate::codec::traceparent;
use crate::config::Config;
use crate::domain::message::header;
use crate::domain::poison::{Poison, Reason};
use crate::domain::record::DeadLetter;
use crate::metrics::{ForeignResult, Metrics};
use crate::orders::desk::{Desk, DeskError, Request};
use crate::orders::translate::{Foreign, NotTranslated, from_foreign};
use crate::pg::error::StoreError;
use crate::stream::starts::CommittedStarts;
use crate::stream::{self, ConsumerSettings, KafkaDeadLetters, Observer, Outlets, PartitionFacts};

/// Batches between the polling thread and the desk.
const DELIVERIES: usize = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Takes foreign messages where `orders.foreign_topic` is set; else does nothing.
pub const fn room() -> Room {
    Room::new("foreign messages", begin)
}

fn begin(
    config: &Config,
    parts: &Parts,
    stop: CancellationToken,
) -> Result<BoxFuture<'static, Result<(), RunError>>, RunError> {
    let Some(topic) = &config.orders.foreign_topic else {
        return Ok(async move {
            stop.cancelled().await;
            Ok(())
        }
        .boxed());
    };
    let kafka = &config.kafka;
    let group = &config.orders.foreign_group;
    let letters = KafkaDeadLetters::new(&kafka.brokers, &config.orders.dlq_topic, group, &kafka.properties)?;
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), topic.clone(), group.clone());
    settings.properties.clone_from(&kafka.properties);
    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let watermarks = Watermarks::default();
    let intake = Intake {
        desk: orders::desk(config, parts.database.clone()),
        letters: Arc::new(letters),
        metrics: Arc::clone(&parts.metrics),
        actor: format!("foreign:{topic}"),
        run: parts.run.clone(),
        watermarks: watermarks.clone(),
        lanes: HashMap::new(),
        queue: VecDeque::new(),
        pause: FIRST_PAUSE,
        not_before: Instant::now(),
    };
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks,
        observer: Arc::new(Unwatched),
    };
    let starts = Box::new(CommittedStarts { on_lost: parts::lost_offset(config) });
    tracing::info!(topic, group, "foreign messages become commands on orders");
    let consumer = stream::spawn(settings, starts, super::archive::as_it_is, outlets)?;
    Ok(intake.live(consumer, control, deliveries, stop).boxed())
}

/// The health of a process speaks of the applier's partitions; these are not among them.
struct Unwatched;

impl Observer for Unwatched {
    fn assigned(&self, _: &[i32]) {}
    fn facts(&self, _: &[PartitionFacts]) {}
    fn started_at_earliest(&self, _: i32) {}
    fn offsets_lost(&self, partition: i32, wanted: i64, start: i64) {
        tracing::error!(partition, wanted, start, "foreign messages were deleted before they were read");
    }
    fn commit_failed(&self) {}
}

struct Intake {
    desk: Desk,
    letters: Arc<dyn DeadLetterTopic>,
    metrics: Arc<Metrics>,
    actor: String,
    run: crate::domain::effect::Run,
    watermarks: Watermarks,
    /// Where each lane may be resumed.
    lanes: HashMap<LaneId, ResumeAt>,
    queue: VecDeque<Item>,
    pause: Duration,
    not_before: Instant,
}

/// What is to be done, in the order of its lane.
enum Item {
    Take(Box<Record>),
    Reach(LaneId, ResumeAt),
}

impl Item {
    fn lane(&self) -> LaneId {
        match self {
            Self::Take(record) => record.lane,
            Self::Reach(lane, _) => *lane,
        }
    }
}

/// What became of one record.
enum Outcome {
    Settled(ForeignResult),
    /// Nothing durable happened: again, later.
    Wait(String),
}

impl Intake {
    async fn live(
        mut self,
        consumer: stream::ConsumerHandle,
        control: mpsc::UnboundedReceiver<Control>,
        deliveries: mpsc::Receiver<Delivery>,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        let end = tokio::select! {
            ended = self.work(control, deliveries) => Err(ended),
            ended = consumer.ended() => Err(ended.map_or_else(RunError::from, |()| RunError::TaskLost("consumer"))),
            () = stop.cancelled() => Ok(()),
        };
        consumer.stop();
        let positions = self.lanes.iter().map(|(lane, at)| (*lane, *at)).collect();
        let closed = consumer.close(positions, CLOSE_WITHIN).await;
        tracing::debug!(?closed, "foreign messages are taken no more");
        end
    }

    /// Works until something ends it that no repetition cures.
    async fn work(
        &mut self,
        mut control: mpsc::UnboundedReceiver<Control>,
        mut deliveries: mpsc::Receiver<Delivery>,
    ) -> RunError {
        loop {
            tokio::select! {
                biased;
                news = control.recv() => match news {
                    Some(news) => self.on_control(news),
                    None => return RunError::TaskLost("consumer"),
                },
                () = tokio::time::sleep_until(self.not_before.into()), if !self.queue.is_empty() => {
                    if let Err(error) = self.advance().await {
                        return error;
                    }
                }
                delivery = deliveries.recv(), if self.queue.is_empty() => match delivery {
                    Some(Delivery::Records(records)) => {
                        self.queue.extend(records.into_iter().map(|record| Item::Take(Box::new(record))));
                    }
                    Some(Delivery::Position { lane, next }) => self.queue.push_back(Item::Reach(lane, next)),
                    None => return RunError::TaskLost("consumer"),
                },
            }
        }
    }

    fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, start, .. } => {
                self.lanes.insert(lane, start);
            }
            Control::Revoked { lanes, done, .. } => {
                // What was not taken of them is read again by whoever has them next.
                self.queue.retain(|item| !lanes.contains(&item.lane()));
                let positions =
                    lanes.iter().filter_map(|lane| Some((*lane, self.lanes.remove(lane)?))).collect();
                for lane in &lanes {
                    self.watermarks.forget(*lane);
                }
                if done.send(positions).is_err() {
                    tracing::debug!("nobody waits for the positions of lost lanes any more");
                }
            }
        }
    }

    /// One step: the oldest of the queue, settled or left where it is.
    async fn advance(&mut self) -> Result<(), RunError> {
        let Some(first) = self.queue.pop_front() else { return Ok(()) };
        let (lane, next) = match &first {
            Item::Reach(lane, next) => (*lane, *next),
            Item::Take(record) => match self.take(&record.raw).await? {
                Outcome::Settled(result) => {
                    self.metrics.foreign(result);
                    (record.lane, ResumeAt(record.offset.0 + 1))
                }
                Outcome::Wait(cause) => {
                    let offset = record.offset.0;
                    tracing::warn!(
                        offset,
                        cause,
                        "a foreign message cannot be taken now; its partition waits"
                    );
                    self.queue.push_front(first);
                    self.not_before = Instant::now() + self.pause;
                    self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    return Ok(());
                }
            },
        };
        self.pause = FIRST_PAUSE;
        if let Some(at) = self.lanes.get_mut(&lane) {
            *at = next;
            self.watermarks.set(lane, next);
        }
        Ok(())
    }

    async fn take(&self, raw: &RawRecord) -> Result<Outcome, RunError> {
        let Some(bytes) = &raw.value else { return Ok(Outcome::Settled(ForeignResult::PassedOver)) };
        let foreign = match translated(bytes) {
            Ok(foreign) => foreign,
            Err(None) => return Ok(Outcome::Settled(ForeignResult::PassedOver)),
            Err(Some(poison)) => return self.dead_letter(raw, poison, None).await,
        };
        let context = raw.headers.iter().find(|(name, _)| name == header::TRACEPARENT);
        let request = Request {
            order_id: foreign.order_id,
            command: foreign.command,
            command_id: foreign.command_id,
            expected_version: None,
            tenant_id: None,
            actor: self.actor.clone(),
            reason: None,
            traceparent: context.and_then(|(_, value)| traceparent(value.as_deref())),
        };
        let Err(error) = self.desk.take(&request).await else {
            return Ok(Outcome::Settled(ForeignResult::Taken));
        };
        let reason = match &error {
            DeskError::Refused(_)
            | DeskError::KeyReused
            | DeskError::VersionConflict { .. }
            | DeskError::Unreadable { .. } => Reason::CommandRefused,
            DeskError::Store(StoreError::Data(_)) => Reason::RefusedByDatabase,
            DeskError::Contended | DeskError::NotYet { .. } | DeskError::Store(_) => {
                return Ok(Outcome::Wait(error.to_string()));
            }
        };
        self.dead_letter(raw, Poison::new(reason, error.to_string()), Some(request)).await
    }

    async fn dead_letter(
        &self,
        raw: &RawRecord,
        poison: Poison,
        request: Option<Request>,
    ) -> Result<Outcome, RunError> {
        tracing::warn!(
            partition = raw.partition,
            offset = raw.offset,
            reason = poison.reason.code(),
            message = poison.message,
            "a foreign message becomes a dead letter"
        );
        let letter = DeadLetter {
            raw: raw.clone(),
            reason: poison.reason,
            message: poison.message,
            event_id: request.as_ref().map(|request| request.command_id.clone()),
            order_id: request.map(|request| request.order_id.to_string()),
            effect_type: None,
            attempts: 1,
            run: self.run.clone(),
            first_failed_at: jiff::Timestamp::now(),
        };
        match self.letters.publish(Arc::new(letter)).await {
            Ok(()) => Ok(Outcome::Settled(ForeignResult::DeadLettered)),
            Err(error @ PublishError::Away { .. }) => Ok(Outcome::Wait(error.to_string())),
            Err(error) => Err(crate::applier::ApplierError::from(error).into()),
        }
    }
}

/// What it asks for; `None` if it is none of ours.
fn translated(bytes: &[u8]) -> Result<Foreign, Option<Poison>> {
    let message: Value = serde_json::from_slice(bytes)
        .map_err(|error| Some(Poison::new(Reason::InvalidJson, format!("is no JSON: {error}"))))?;
    from_foreign(&message).map_err(|error| match error {
        NotTranslated::OtherType(_) => None,
        NotTranslated::Field { .. } => Some(Poison::new(Reason::InvalidField, error.to_string())),
    })
}
