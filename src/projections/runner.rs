//! Follows the feed for every shard of every generation, in as many processes as there are. A generation that a
//! rebuild is at is the rebuild's to move, so that the pace of a rebuild is its own.
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
use super::change::Fold;
use crate::metrics::Metrics;
use crate::orders::event::Unreadable;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::projections::{self as store, Cursor, FedBy};
use crate::pg::{order_feed, orders};

/// How often new generations are looked for, and lag is shown.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Further behind than this a step takes a whole window: the events of one order then mostly become one write.
const FAR: i64 = 50_000;
/// Events of a step that is far behind. Bounds its memory, and how long it holds its cursor.
pub const WINDOW: u32 = 200_000;

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
    /// Events per transaction, near the tip.
    pub batch: u32,
    /// The longest an event waits whose hint was lost.
    pub poll_interval: Duration,
}

/// Events of a step.
#[derive(Debug, Clone, Copy)]
pub struct Batch {
    /// Near the tip.
    pub near: u32,
    pub far: u32,
}

impl Batch {
    pub const fn of(near: u32) -> Self {
        Self { near, far: if near > WINDOW { near } else { WINDOW } }
    }
}

/// What a step found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many events; there may be more.
    Moved(u32),
    /// Everything up to the floor is handled.
    AtTip,
    /// Another is at it, or the shard is gone.
    NotOurs,
}

/// One batch, in a transaction of its own, of a cursor that is ours to move.
pub async fn step(
    connection: &mut PgConnection,
    (shard, fed_by): (Shard, FedBy),
    batch: Batch,
) -> Result<Step, ProjectionError> {
    // In a statement of its own, before the rows are read.
    let floor = order_feed::floor(connection).await?.0;
    let mut transaction = connection.begin().await?;
    let Some(mut cursor) = store::take(&mut transaction, shard).await? else {
        return Ok(Step::NotOurs);
    };
    if cursor.fed_by != fed_by {
        return Ok(Step::NotOurs);
    }
    let more = move_on(&mut transaction, &mut cursor, floor, batch).await?;
    transaction.commit().await?;
    Ok(more.map_or(Step::AtTip, Step::Moved))
}

/// One batch inside the caller's transaction, which holds the cursor; its size, where there may be more below the floor.
pub(super) async fn move_on(
    connection: &mut PgConnection,
    cursor: &mut Cursor,
    floor: i64,
    batch: Batch,
) -> Result<Option<u32>, ProjectionError> {
    if cursor.position >= floor {
        return Ok(None);
    }
    let window = if floor - cursor.position > FAR { batch.far } else { batch.near };
    let mut fold = Fold::default();
    let (count, last) = store::events(connection, cursor, floor, window, |position, fact| {
        fold.add(fact).map_err(|cause| ProjectionError::Unreadable { position, cause })
    })
    .await?;
    let changes = fold.changes();
    if !changes.is_empty() {
        store::apply(connection, cursor.shard, &changes).await?;
    }
    let more = count >= window;
    cursor.position = if more { last } else { floor };
    store::advance(connection, cursor.shard, cursor.position).await?;
    Ok(more.then_some(count))
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
    store::followed(&mut connection).await?;
    let cursors = store::cursors(&mut connection).await?.into_iter();
    Ok(cursors.filter(|cursor| cursor.fed_by == FedBy::Runner).map(|cursor| cursor.shard).collect())
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
        match step(&mut connection, (shard, FedBy::Runner), Batch::of(settings.batch)).await? {
            Step::Moved(_) => continue,
            Step::AtTip => {}
            Step::NotOurs => {
                let there = store::cursors(&mut connection)
                    .await?
                    .iter()
                    .any(|cursor| cursor.shard == shard && cursor.fed_by == FedBy::Runner);
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
