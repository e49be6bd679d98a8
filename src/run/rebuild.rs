//! A rebuild of a read model: begun or gone on with, then brought to the tip, shard by shard.
//!
//! ```text
//!   begin ──store──────────────────────────────► from the store ──at the tip──► handed to the runners
//!     └────kafka──► from the topic ──its end──►──┘
//! ```
//!
//! Rows and the place that was reached are one transaction, so a rebuild that was killed goes on where it was
//! (`--resume`), and what was read twice changes nothing. After the topic the store is read too: what it has beyond
//! the topic's end is new, the rest is known by its version. A database that is away is waited for.

mod topic;

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::Kafka;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::order_feed;
use crate::pg::projection_offsets::{self, Place};
use crate::pg::projections::{self as store, FedBy};
use crate::projections::runner::{self, Batch, ProjectionError, Step, WINDOW};
use crate::projections::steer::{self, SteerError};
use crate::projections::{Name, Shard};
use crate::stream::range::{self, RangeError};
use crate::stream::rewind::RewindError;

/// Where another is at the same shard.
const WAIT: Duration = Duration::from_millis(50);
/// After a failure of the database.
const PAUSE: Duration = Duration::from_secs(1);
/// How often it is looked how far a rebuild is.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Events of a transaction near the tip.
const NEAR: u32 = 5_000;
/// Fewer events than this are not worth a transaction, however slow a rebuild is to be.
const LEAST: u32 = 50;

#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    #[error(transparent)]
    Steer(#[from] SteerError),
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    #[error(transparent)]
    Range(#[from] RangeError),
    #[error(transparent)]
    Rewind(#[from] RewindError),
    #[error(
        "partition {partition}, offset {offset} of the topic of orders cannot be read, and is not passed over: {cause}"
    )]
    Record { partition: i32, offset: i64, cause: String },
    #[error(
        "the topic of orders lacks version {version} of order {order_id}: it no longer holds the beginning, or the \
         message is parked (see `reprise outbox`); send it again and go on with --resume, or rebuild from the store"
    )]
    Hole { order_id: uuid::Uuid, version: u32 },
    #[error("the generation was dropped while it was being built")]
    Dropped,
    #[error("a part of the rebuild ended unexpectedly: {0}")]
    TaskLost(#[from] tokio::task::JoinError),
}

impl From<StoreError> for RebuildError {
    fn from(error: StoreError) -> Self {
        Self::Projection(error.into())
    }
}

impl From<sqlx::Error> for RebuildError {
    fn from(error: sqlx::Error) -> Self {
        Self::Projection(error.into())
    }
}

impl RebuildError {
    const fn is_away(&self) -> bool {
        matches!(
            self,
            Self::Projection(ProjectionError::Store(StoreError::Transient(_)))
                | Self::Steer(SteerError::Projection(ProjectionError::Store(StoreError::Transient(_))))
        )
    }
}

/// The topic of orders, where it is the source.
#[derive(Debug, Clone)]
pub struct Topic {
    pub kafka: Kafka,
    pub name: String,
}

/// A rebuild that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    pub name: Name,
    pub generation: i32,
    pub shards: i32,
    fed_by: FedBy,
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub phase: &'static str,
    /// Offsets of the topic, or sequence numbers of the store.
    pub done: i64,
    /// Moves while events come in.
    pub total: i64,
    /// Age of the first event that is not in it.
    pub behind_seconds: f64,
}

/// Begins a generation, from the topic where there is one.
pub async fn begin(
    database: &Database,
    name: Name,
    shards: i32,
    topic: Option<&Topic>,
) -> Result<Begun, RebuildError> {
    let places = match topic.cloned() {
        None => None,
        Some(Topic { kafka, name }) => {
            let whole = tokio::task::spawn_blocking(move || range::whole(&kafka, &name)).await??;
            let place = |range: range::PartitionRange| Place {
                partition: range.partition,
                next: range.start,
                end: range.end,
            };
            Some(whole.into_iter().map(place).collect::<Vec<_>>())
        }
    };
    let mut connection = database.plain().await?;
    let generation = steer::begin(&mut connection, name, shards, places.as_deref()).await?;
    let fed_by = if places.is_some() { FedBy::Kafka } else { FedBy::Rebuild };
    Ok(Begun { name, generation, shards, fed_by })
}

/// Goes on with the one that was not finished.
pub async fn resume(database: &Database, name: Name) -> Result<Begun, RebuildError> {
    let mut connection = database.plain().await?;
    let cursors = steer::unfinished(&mut connection, name).await?;
    let first = cursors.first().ok_or(SteerError::NoGeneration(name.as_str()))?;
    Ok(Begun { name, generation: first.shard.generation, shards: first.shards, fed_by: first.fed_by })
}

impl Begun {
    /// Whether the topic is still to be read.
    pub fn needs_topic(&self) -> bool {
        self.fed_by == FedBy::Kafka
    }

    /// Brings it to the tip, at most `rate` events a second, and hands it to the runners.
    pub async fn build(
        self,
        database: &Database,
        topic: Option<&Topic>,
        rate: Option<u32>,
        mut show: impl FnMut(Seen),
    ) -> Result<(), RebuildError> {
        let mut connection = database.plain().await?;
        let (name, generation) = (self.name, self.generation);
        let per_shard = rate.map(|rate| rate.div_ceil(self.shards.unsigned_abs().max(1)));
        if let (true, Some(topic)) = (self.needs_topic(), topic) {
            let mut tasks = JoinSet::new();
            for shard in self.shards() {
                tasks.spawn(topic::read(database.clone(), topic.clone(), shard, Pace::of(per_shard)));
            }
            let total = projection_offsets::left(&mut connection, name, generation).await?;
            let mut left = total;
            while until_tick(&mut tasks).await? {
                if let Ok(now) = projection_offsets::left(&mut connection, name, generation).await {
                    left = now;
                }
                show(Seen { phase: "topic", done: total - left, total, behind_seconds: 0.0 });
            }
            steer::feed(&mut connection, name, generation, FedBy::Rebuild).await?;
        }
        let mut tasks = JoinSet::new();
        for shard in self.shards() {
            tasks.spawn(from_store(database.clone(), shard, Pace::of(per_shard)));
        }
        while until_tick(&mut tasks).await? {
            // Shown when it can be; the work is what matters.
            if let Ok(seen) = self.seen(database).await {
                show(seen);
            }
        }
        steer::feed(&mut connection, name, generation, FedBy::Runner).await?;
        Ok(())
    }

    fn shards(&self) -> impl Iterator<Item = Shard> + use<> {
        let Self { name, generation, shards, .. } = *self;
        (0..shards).map(move |shard| Shard { name, generation, shard })
    }

    async fn seen(&self, database: &Database) -> Result<Seen, StoreError> {
        let mut connection = database.pool().acquire().await?;
        let total = order_feed::floor(&mut connection).await?.0;
        let lags = store::lags(&mut connection).await?;
        let ours =
            lags.iter().filter(|lag| lag.name == self.name.as_str() && lag.generation == self.generation);
        let done = ours.clone().map(|lag| lag.position).min().unwrap_or(0);
        let behind_seconds = ours.map(|lag| lag.lag_seconds).fold(0.0, f64::max);
        Ok(Seen { phase: "store", done, total, behind_seconds })
    }
}

/// Waits for the next look; whether anything is still running then. The first failure ends it all.
async fn until_tick(tasks: &mut JoinSet<Result<(), RebuildError>>) -> Result<bool, RebuildError> {
    let tick = Instant::now() + LOOK_EVERY;
    loop {
        match tokio::time::timeout_at(tick, tasks.join_next()).await {
            Ok(Some(ended)) => ended??,
            Ok(None) => return Ok(false),
            Err(_) => return Ok(true),
        }
    }
}

async fn from_store(database: Database, shard: Shard, mut pace: Pace) -> Result<(), RebuildError> {
    loop {
        match to_the_tip(&database, shard, &mut pace).await {
            Err(error) if error.is_away() => waits(&error).await,
            ended => return ended,
        }
    }
}

async fn to_the_tip(database: &Database, shard: Shard, pace: &mut Pace) -> Result<(), RebuildError> {
    let mut connection = database.plain().await?;
    let batch = Batch { near: pace.at_most(NEAR), far: pace.at_most(WINDOW) };
    loop {
        match runner::step(&mut connection, (shard, FedBy::Rebuild), batch).await? {
            Step::Moved(events) => pace.keep(events).await,
            Step::AtTip => return Ok(()),
            Step::NotOurs => {
                let cursors = store::cursors(&mut connection).await?;
                match cursors.iter().find(|cursor| cursor.shard == shard) {
                    None => return Err(RebuildError::Dropped),
                    // Another rebuild finished it.
                    Some(cursor) if cursor.fed_by == FedBy::Runner => return Ok(()),
                    Some(_) => tokio::time::sleep(WAIT).await,
                }
            }
        }
    }
}

async fn waits(error: &RebuildError) {
    tracing::warn!(%error, "a rebuild waits for the database");
    tokio::time::sleep(PAUSE).await;
}

/// Keeps a shard from being faster than it may be.
struct Pace {
    per_second: Option<u32>,
    due: Instant,
}

impl Pace {
    fn of(per_second: Option<u32>) -> Self {
        Self { per_second, due: Instant::now() }
    }

    /// Events of a step: no more than a quarter of a second's.
    fn at_most(&self, events: u32) -> u32 {
        self.per_second.map_or(events, |rate| events.min((rate / 4).max(LEAST)))
    }

    /// Waits until so many were due. What was not used is not made up for.
    async fn keep(&mut self, events: u32) {
        let Some(rate) = self.per_second else { return };
        let now = Instant::now();
        self.due = self.due.max(now) + Duration::from_secs_f64(f64::from(events) / f64::from(rate.max(1)));
        tokio::time::sleep_until(self.due).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_is_kept_and_steps_are_small() {
        let mut pace = Pace::of(Some(1_000));
        assert_eq!((pace.at_most(WINDOW), Pace::of(Some(1)).at_most(WINDOW)), (250, LEAST));
        let begun = Instant::now();
        for _ in 0..12 {
            pace.keep(250).await;
        }
        assert_eq!(begun.elapsed().as_millis(), 3_000);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_rate_nothing_waits() {
        let begun = Instant::now();
        let mut pace = Pace::of(None);
        pace.keep(u32::MAX).await;
        assert_eq!((begun.elapsed(), pace.at_most(WINDOW)), (Duration::ZERO, WINDOW));
    }
}
