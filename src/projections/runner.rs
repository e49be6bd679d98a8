//! Follows the feed for every shard of every generation, in as many processes as there are.
//!
//! A step takes the cursor's row lock, so a shard has one writer at a time, and whoever is killed leaves it free. Hints
//! wake the runner; behind them it polls.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Shard;
use super::change::merged;
use crate::metrics::Metrics;
use crate::orders::event::Unreadable;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::projections::{self as store, Cursor};
use crate::pg::{order_feed, orders};

/// How often new generations are looked for, and lag is shown.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the event at position {position} cannot be read, and is not passed over: {cause}")]
    Unreadable { position: i64, cause: Unreadable },
}

impl From<sqlx::Error> for ProjectionError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Events per transaction.
    pub batch: u32,
    /// The longest an event waits whose hint was lost.
    pub poll_interval: Duration,
}

/// What a step found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There may be more.
    Moved,
    /// Everything up to the floor is handled.
    AtTip,
    /// Another runner is at it, or the shard is gone.
    NotOurs,
}

/// One batch, in a transaction of its own.
pub async fn step(connection: &mut PgConnection, shard: Shard, batch: u32) -> Result<Step, ProjectionError> {
    // In a statement of its own, before the rows are read.
    let floor = order_feed::floor(connection).await?.0;
    let mut transaction = connection.begin().await?;
    let Some(mut cursor) = store::take(&mut transaction, shard).await? else {
        return Ok(Step::NotOurs);
    };
    let more = move_on(&mut transaction, &mut cursor, floor, batch).await?;
    transaction.commit().await?;
    Ok(if more { Step::Moved } else { Step::AtTip })
}

/// One batch inside the caller's transaction, which holds the cursor; whether there may be more below the floor.
pub(super) async fn move_on(
    connection: &mut PgConnection,
    cursor: &mut Cursor,
    floor: i64,
    batch: u32,
) -> Result<bool, ProjectionError> {
    if cursor.position >= floor {
        return Ok(false);
    }
    let events = store::events(connection, cursor, floor, batch).await?;
    let changes =
        merged(&events).map_err(|(position, cause)| ProjectionError::Unreadable { position, cause })?;
    if !changes.is_empty() {
        store::apply(connection, cursor.shard, &changes).await?;
    }
    let more = events.len() >= batch as usize;
    cursor.position = if more { events.last().map_or(floor, |event| event.global_seq) } else { floor };
    store::advance(connection, cursor.shard, cursor.position).await?;
    Ok(more)
}

/// Runs every shard that there is, until `stop`.
pub async fn run(database: Database, settings: Settings, metrics: Arc<Metrics>, stop: CancellationToken) {
    let (hint, hints) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut running = HashSet::new();
    let listener = tokio::spawn(listen(database.clone(), hint, stop.clone()));
    while !stop.is_cancelled() {
        match look(&database, &metrics).await {
            Ok(shards) => {
                for shard in shards {
                    if running.insert(shard) {
                        tasks.spawn(follow(database.clone(), shard, settings, hints.clone(), stop.clone()));
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "projections cannot be listed; again soon"),
        }
        tokio::select! {
            Some(ended) = tasks.join_next() => match ended {
                Ok(shard) => { running.remove(&shard); }
                Err(error) => {
                    tracing::error!(%error, "a projection's task ended unexpectedly; it is started again");
                    running.clear();
                    tasks.abort_all();
                }
            },
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = stop.cancelled() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
    listener.await.unwrap_or_else(|error| tracing::warn!(%error, "the listener for hints was lost"));
}

async fn look(database: &Database, metrics: &Metrics) -> Result<Vec<Shard>, StoreError> {
    let mut connection = database.pool().acquire().await?;
    metrics.projections(&store::lags(&mut connection).await?);
    Ok(store::cursors(&mut connection).await?.into_iter().map(|cursor| cursor.shard).collect())
}

/// Keeps one shard up to date until it is gone or `stop`.
async fn follow(
    database: Database,
    shard: Shard,
    settings: Settings,
    mut hints: watch::Receiver<()>,
    stop: CancellationToken,
) -> Shard {
    while !stop.is_cancelled() {
        let Err(error) = keep_up(&database, shard, settings, &mut hints, &stop).await else { return shard };
        let name = shard.name.as_str();
        if let ProjectionError::Store(StoreError::Transient(_)) = error {
            tracing::warn!(%error, name, "a projection waits for the database");
        } else {
            tracing::error!(%error, name, generation = shard.generation, "a projection is held");
        }
        stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
    }
    shard
}

async fn keep_up(
    database: &Database,
    shard: Shard,
    settings: Settings,
    hints: &mut watch::Receiver<()>,
    stop: &CancellationToken,
) -> Result<(), ProjectionError> {
    let mut connection = database.plain().await?;
    while !stop.is_cancelled() {
        hints.mark_unchanged();
        match step(&mut connection, shard, settings.batch).await? {
            Step::Moved => continue,
            Step::AtTip => {}
            Step::NotOurs => {
                let there = store::cursors(&mut connection).await?.iter().any(|cursor| cursor.shard == shard);
                if !there {
                    return Ok(());
                }
            }
        }
        tokio::select! {
            changed = hints.changed() => if changed.is_err() {
                stop.run_until_cancelled(tokio::time::sleep(settings.poll_interval)).await;
            },
            () = tokio::time::sleep(settings.poll_interval) => {}
            () = stop.cancelled() => {}
        }
    }
    Ok(())
}

/// Passes hints on. Without a connection there are none, and the poll interval does.
async fn listen(database: Database, hint: watch::Sender<()>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        if let Ok(mut listener) = database.listener(orders::CHANNEL).await {
            while let Some(Ok(_)) = stop.run_until_cancelled(listener.recv()).await {
                hint.send_modify(|()| {});
            }
        }
        stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
    }
}
