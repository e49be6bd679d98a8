//! The consumers of windows as rooms, and alone; and what is asked of windows over HTTP.
//!
//! ```text
//!   batch of a partition ──fold──► counts + late + rejected + place, in one transaction ──► offset told to the group
//!                                      └─ somebody else may write there now: thrown away
//! ```
//!
//! The place in Postgres is what counts; the group's offset is for the usual tools. So a batch is counted exactly once,
//! whatever is killed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::parts::Parts;
use super::rooms::{Beside, Room};
use super::{CLOSE_WITHIN, LiveOptions, RunError, serve};
use crate::applier::intake::{Control, Delivery, LaneId, Record, ResumeAt, Watermarks};
use crate::codec::order_events::OrderEvents;
use crate::config::Config;
use crate::domain::message::header;
use crate::metrics::{Metrics, WindowEvents};
use crate::ops;
use crate::pg::connect::{Database, within};
use crate::pg::error::StoreError;
use crate::pg::windows::{self as store, Place, Step};
use crate::stream::starts::UnboundedStarts;
use crate::stream::{self, ConsumerSettings, Observer, Outlets, PartitionFacts};
use crate::windows::{Clock, kpi, presence};

/// Records of one transaction.
const BATCH: usize = 5_000;
/// Batches between the polling thread and the database.
const DELIVERIES: usize = 2;
/// Silence is looked for, and state expired, so often.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const EXPIRE_EVERY: Duration = Duration::from_mins(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Keeps windows until it is told to stop.
pub async fn windows(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    serve(config, options, Beside { rooms: vec![kpi(), presence()], routes: vec![routes] }).await
}

pub const fn kpi() -> Room {
    Room::new("orders per minute and hour", |config, parts, stop| {
        begin(config, parts, stop, "kpi", &config.orders.topic)
    })
}

pub const fn presence() -> Room {
    Room::new("couriers that fell silent", |config, parts, stop| {
        begin(config, parts, stop, "couriers", &config.windows.heartbeats_topic)
    })
}

/// The routes of windows, for the listener of any process.
pub fn routes(_: &Config, parts: &Parts) -> Result<Router, RunError> {
    Ok(ops::windows::router(parts.database.clone()))
}

fn begin(
    config: &Config,
    parts: &Parts,
    stop: CancellationToken,
    consumer: &'static str,
    topic: &str,
) -> Result<BoxFuture<'static, Result<(), RunError>>, RunError> {
    let kafka = &config.kafka;
    let group = format!("{}-{consumer}", config.windows.group);
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), topic.to_owned(), group);
    settings.properties.clone_from(&kafka.properties);
    settings.max_events = BATCH;
    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let watermarks = Watermarks::default();
    let ends = Arc::new(Ends::default());
    let signed = |duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
    let reader = Reader {
        consumer,
        topic: topic.to_owned(),
        epoch: Uuid::new_v4(),
        database: parts.database.clone(),
        metrics: Arc::clone(&parts.metrics),
        lateness: signed(config.windows.allowed_lateness),
        offline_after: signed(config.windows.courier_offline_after),
        retention: signed(config.windows.retention),
        watermarks: watermarks.clone(),
        ends: Arc::clone(&ends),
        lanes: HashMap::new(),
        batch: Vec::new(),
        reached: HashMap::new(),
        events: OrderEvents::default(),
        pause: FIRST_PAUSE,
        not_before: Instant::now(),
    };
    let claiming = (parts.database.clone(), topic.to_owned(), reader.epoch);
    let runtime = tokio::runtime::Handle::current();
    // Called on the polling thread, which may wait for a moment.
    let lookup = move |partitions: &[i32]| {
        let (database, topic, epoch) = &claiming;
        let places = runtime.block_on(claim(database, consumer, topic, partitions, *epoch));
        let places = places.map_err(|error| error.to_string())?;
        Ok(places.into_iter().filter(|p| p.next >= 0).map(|p| (p.partition, ResumeAt(p.next))).collect())
    };
    let outlets = Outlets { control: control_out, deliveries: deliveries_out, watermarks, observer: ends };
    let consumer =
        stream::spawn(settings, Box::new(UnboundedStarts { lookup }), super::archive::as_it_is, outlets)?;
    Ok(reader.live(consumer, control, deliveries, stop).boxed())
}

async fn claim(
    database: &Database,
    consumer: &str,
    topic: &str,
    partitions: &[i32],
    epoch: Uuid,
) -> Result<Vec<Place>, StoreError> {
    within(async {
        let mut connection = database.pool().acquire().await?;
        store::claim(&mut connection, consumer, topic, partitions, epoch).await
    })
    .await
}

/// Where the logs end, as far as is known: a partition that was read to there has the database's time.
#[derive(Default)]
struct Ends(Mutex<HashMap<i32, i64>>);

impl Ends {
    fn of(&self, partition: i32) -> Option<i64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&partition).copied()
    }
}

impl Observer for Ends {
    fn assigned(&self, _: &[i32]) {}
    fn facts(&self, facts: &[PartitionFacts]) {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.extend(facts.iter().filter_map(|fact| Some((fact.partition, fact.high_watermark?))));
    }
    fn started_at_earliest(&self, _: i32) {}
    fn offsets_lost(&self, partition: i32, from: i64, to: i64) {
        tracing::error!(partition, from, to, "records were deleted before windows could count them");
    }
    fn commit_failed(&self) {}
}

#[derive(Debug, Clone, Copy)]
struct Lane {
    next: ResumeAt,
    /// The place in the database; below 0 while there is none.
    stored: i64,
    clock: Clock,
}

struct Reader {
    consumer: &'static str,
    topic: String,
    epoch: Uuid,
    database: Database,
    metrics: Arc<Metrics>,
    lateness: SignedDuration,
    offline_after: SignedDuration,
    retention: SignedDuration,
    watermarks: Watermarks,
    ends: Arc<Ends>,
    lanes: HashMap<LaneId, Lane>,
    batch: Vec<Record>,
    /// Where each lane may be resumed once `batch` is written.
    reached: HashMap<LaneId, ResumeAt>,
    events: OrderEvents,
    pause: Duration,
    not_before: Instant,
}

impl Reader {
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
        let positions = self.lanes.iter().map(|(lane, at)| (*lane, at.next)).collect();
        let closed = consumer.close(positions, CLOSE_WITHIN).await;
        tracing::debug!(?closed, consumer = self.consumer, "windows are kept no more");
        end
    }

    async fn work(
        &mut self,
        mut control: mpsc::UnboundedReceiver<Control>,
        mut deliveries: mpsc::Receiver<Delivery>,
    ) -> RunError {
        let (mut look_at, mut expire_at) = (Instant::now(), Instant::now() + EXPIRE_EVERY);
        loop {
            let waiting = !self.reached.is_empty();
            tokio::select! {
                biased;
                news = control.recv() => match news {
                    Some(news) => self.on_control(news).await,
                    None => return RunError::TaskLost("consumer"),
                },
                () = tokio::time::sleep_until(self.not_before.into()), if waiting => self.attempt().await,
                () = tokio::time::sleep_until(look_at.into()) => {
                    look_at = Instant::now() + LOOK_EVERY;
                    let expiring = Instant::now() >= expire_at;
                    if expiring {
                        expire_at = Instant::now() + EXPIRE_EVERY;
                    }
                    if let Err(error) = self.look(expiring).await {
                        tracing::warn!(%error, consumer = self.consumer, "windows cannot be looked after now");
                    }
                }
                delivery = deliveries.recv(), if !waiting => match delivery {
                    Some(Delivery::Records(records)) => {
                        for record in records {
                            if self.lanes.contains_key(&record.lane) {
                                self.reached.insert(record.lane, ResumeAt(record.offset.0 + 1));
                                self.batch.push(record);
                            }
                        }
                    }
                    Some(Delivery::Position { lane, next }) => {
                        if self.lanes.contains_key(&lane) {
                            self.reached.insert(lane, next);
                        }
                    }
                    None => return RunError::TaskLost("consumer"),
                },
            }
        }
    }

    async fn claimed(&self, partition: i32) -> Result<Option<Place>, StoreError> {
        within(async {
            let mut connection = self.database.pool().acquire().await?;
            store::claimed(&mut connection, self.consumer, &self.topic, partition, self.epoch).await
        })
        .await
    }

    async fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, start, .. } => {
                // Claimed by the polling thread a moment ago; asked for its clock.
                let place = loop {
                    match self.claimed(lane.partition).await {
                        Ok(place) => break place,
                        Err(error) => {
                            tracing::warn!(%error, partition = lane.partition, "the clock of a partition cannot be read");
                            tokio::time::sleep(FIRST_PAUSE).await;
                        }
                    }
                };
                // Claimed by somebody else since: its records are not ours to count.
                if let Some(Place { next: stored, clock, .. }) = place {
                    self.lanes.insert(lane, Lane { next: start, stored, clock });
                }
            }
            Control::Revoked { lanes, done, .. } => {
                // What was not counted of them is read again by whoever has them next.
                self.batch.retain(|record| !lanes.contains(&record.lane));
                self.reached.retain(|lane, _| !lanes.contains(lane));
                let positions =
                    lanes.iter().filter_map(|lane| Some((*lane, self.lanes.remove(lane)?.next))).collect();
                for lane in &lanes {
                    self.watermarks.forget(*lane);
                }
                if done.send(positions).is_err() {
                    tracing::debug!("nobody waits for the positions of lost lanes any more");
                }
            }
        }
    }

    /// Writes the batch; what could not be written is tried again.
    async fn attempt(&mut self) {
        match self.write().await {
            Ok(()) => self.pause = FIRST_PAUSE,
            Err(error) => {
                tracing::warn!(%error, consumer = self.consumer, "windows cannot be written; their partitions wait");
                self.not_before = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let mut after: HashMap<LaneId, Lane> = self
            .reached
            .iter()
            .filter_map(|(lane, next)| Some((*lane, Lane { next: *next, ..*self.lanes.get(lane)? })))
            .collect();
        let batch = self.fold(&mut after);
        let mut steps: Vec<Step> = after.iter().map(|(lane, at)| step(*lane, *at)).collect();
        steps.sort_unstable_by_key(|step| step.to.partition);
        let mut connection = self.database.pool().acquire().await?;
        let written = within(self.commit(&mut connection, &batch, &steps)).await?;
        drop(connection);
        match written {
            Ok(counted) => {
                self.batch.clear();
                self.reached.clear();
                self.metrics.window_events(self.consumer, &counted);
                for (lane, at) in after {
                    self.watermarks.set(lane, at.next);
                    self.lanes.insert(lane, Lane { stored: at.next.0, ..at });
                }
            }
            Err(ours) => self.give_up(|lane| !ours.contains(&lane.partition)),
        }
        Ok(())
    }

    /// Lanes that somebody else counts now. Those that are still ours keep their records, and are written without them.
    fn give_up(&mut self, lost: impl Fn(&LaneId) -> bool) {
        let lanes: Vec<LaneId> =
            self.lanes.keys().copied().filter(|lane| lost(lane) && self.reached.contains_key(lane)).collect();
        tracing::info!(
            consumer = self.consumer,
            ?lanes,
            "partitions were taken over; what was read of them is thrown away"
        );
        self.batch.retain(|record| !lanes.contains(&record.lane));
        self.reached.retain(|lane, _| !lanes.contains(lane));
        self.lanes.retain(|lane, _| !lanes.contains(lane));
        for lane in lanes {
            self.watermarks.forget(lane);
        }
    }

    fn fold(&mut self, after: &mut HashMap<LaneId, Lane>) -> Batch {
        let mut folded = Batch::default();
        for record in &self.batch {
            let Some(lane) = after.get_mut(&record.lane) else { continue };
            let Some(value) = record.raw.value.as_deref() else { continue };
            let logged = record.raw.timestamp_ms.and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let (partition, offset) = (record.raw.partition, record.raw.offset);
            folded.read += 1;
            if self.consumer == "kpi" {
                let text = |name: &str| {
                    let found = record.raw.headers.iter().find(|(header, _)| header == name);
                    found.and_then(|(_, value)| std::str::from_utf8(value.as_deref()?).ok())
                };
                let message = kpi::Message {
                    partition,
                    offset,
                    event_type: text(header::EVENT_TYPE).unwrap_or_default(),
                    form: text(header::SCHEMA_VERSION).and_then(|text| text.parse().ok()).unwrap_or(1),
                    value,
                    logged,
                };
                folded.kpi.add(&mut self.events, &mut lane.clock, self.lateness, message);
            } else {
                folded.presence.add(&mut lane.clock, partition, offset, logged, value);
            }
        }
        folded
    }

    /// An error says which partitions could have been moved: the others are somebody else's now, and nothing was written.
    async fn commit(
        &self,
        connection: &mut PgConnection,
        batch: &Batch,
        steps: &[Step],
    ) -> Result<Result<WindowEvents, Vec<i32>>, StoreError> {
        let mut transaction = connection.begin().await?;
        let moved = store::reach(&mut transaction, self.consumer, &self.topic, self.epoch, steps).await?;
        if moved.len() != steps.len() {
            transaction.rollback().await?;
            return Ok(Err(moved));
        }
        let counted = store::count(&mut transaction, &batch.kpi.placed).await?;
        store::hear(&mut transaction, batch.presence.heard.iter(), self.offline_after).await?;
        for rejected in [&batch.kpi.rejected, &batch.presence.rejected] {
            store::reject(&mut transaction, self.consumer, &self.topic, rejected).await?;
        }
        crate::crash::point("windows_before_commit");
        transaction.commit().await?;
        crate::crash::point("windows_after_commit");
        let rejected = batch.kpi.rejected.len() + batch.presence.rejected.len();
        Ok(Ok(WindowEvents {
            read: batch.read,
            late: counted.late,
            rejected: u64::try_from(rejected).unwrap_or(u64::MAX),
        }))
    }

    /// Silence, which no record announces; lag; expiry.
    async fn look(&self, expiring: bool) -> Result<(), StoreError> {
        let newest = self.lanes.values().filter_map(|lane| lane.clock.watermark).max();
        self.metrics.window_watermark(self.consumer, newest);
        let mut connection = self.database.pool().acquire().await?;
        if expiring && self.consumer == "kpi" && !self.lanes.is_empty() {
            let gone = within(store::expire(&mut connection, self.retention)).await?;
            tracing::debug!(gone, "old windows are gone");
        }
        if self.consumer == "kpi" || self.lanes.is_empty() {
            return Ok(());
        }
        let clocks: Vec<(i32, Option<Timestamp>)> = self
            .lanes
            .iter()
            .filter_map(|(lane, at)| {
                let caught_up = at.next.0 >= self.ends.of(lane.partition)?;
                let clock = if caught_up { None } else { Some(at.clock.watermark?) };
                Some((lane.partition, clock))
            })
            .collect();
        let steps: Vec<Step> = self.lanes.iter().map(|(lane, at)| step(*lane, stored(*at))).collect();
        within(async {
            let mut transaction = connection.begin().await?;
            let silent = store::look_for_silence(&mut transaction, &clocks, self.offline_after).await?;
            // Nothing to tell: nothing to write. Else only as the one who may.
            let may = silent > 0
                && store::reach(&mut transaction, self.consumer, &self.topic, self.epoch, &steps)
                    .await?
                    .len()
                    == steps.len();
            if may {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(())
        })
        .await
    }
}

/// From what stands in the database to where the lane is.
const fn step(lane: LaneId, at: Lane) -> Step {
    let to = Place { partition: lane.partition, next: at.next.0, clock: at.clock };
    Step { from: at.stored, to }
}

/// Where it is in the database.
const fn stored(at: Lane) -> Lane {
    Lane { next: ResumeAt(at.stored), ..at }
}

/// What the records of a batch come to.
#[derive(Default)]
struct Batch {
    read: u64,
    kpi: kpi::Batch,
    presence: presence::Batch,
}
