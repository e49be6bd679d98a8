//! The relay: workers, the hint that wakes them, and the care of the tables.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::broker::Broker;
use super::worker::Worker;
use crate::codec::outgoing::Encoder;
use crate::domain::message::Destination;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pg::connect::Database;
use crate::pg::days::{self, DayTable};
use crate::pg::error::StoreError;
use crate::pg::gauges::oldest_transaction;
use crate::pg::outbox;

const GAUGES_EVERY: Duration = Duration::from_secs(5);
const HOUSE_EVERY: Duration = Duration::from_mins(10);
/// After a failed round of housekeeping, most often a lock that was not free.
const HOUSE_AGAIN: Duration = Duration::from_secs(15);
const LISTEN_PAUSE: Duration = Duration::from_secs(1);

/// Why a relay ended otherwise than asked.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("the relay's producer has failed for good: {0}")]
    Producer(String),
    #[error("a task of the relay ended unexpectedly: {0}")]
    TaskLost(&'static str),
}

#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The longest a message waits whose hint was lost.
    pub poll_interval: Duration,
    /// Rows read, sent and marked together.
    pub batch: usize,
    /// Refusals by the broker until a message is parked.
    pub max_attempts: u32,
    pub outbox_retention: Duration,
    pub inbox_retention: Duration,
    /// Under CDC nobody marks rows: a day that is over is dropped as it stands.
    pub published_by_cdc: bool,
}

/// The names behind the destinations.
#[derive(Debug, Clone)]
pub struct Topics {
    pub events: Arc<str>,
    pub paid: Arc<str>,
    pub courier_status: Arc<str>,
}

impl Topics {
    pub const fn of(&self, destination: Destination) -> &Arc<str> {
        match destination {
            Destination::Events => &self.events,
            Destination::Paid => &self.paid,
            Destination::CourierStatus => &self.courier_status,
        }
    }
}

/// What every part of the relay needs.
pub struct Relay {
    pub database: Database,
    pub encoder: Encoder,
    pub topics: Topics,
    pub settings: RelaySettings,
    pub metrics: Arc<Metrics>,
    pub health: Health,
}

/// Runs one worker per broker client (none under CDC) and looks after the tables, until `stop`.
pub async fn run(
    relay: Relay,
    brokers: Vec<Arc<dyn Broker>>,
    stop: CancellationToken,
) -> Result<(), RelayError> {
    let relay = Arc::new(relay);
    let (hint, hints) = watch::channel(0);
    let mut tasks = JoinSet::new();
    for broker in brokers {
        let worker = Worker::new(Arc::clone(&relay), broker, hints.clone(), stop.clone());
        tasks.spawn(worker.run());
    }
    tasks.spawn(until_stopped(stop.clone(), listen(relay.database.clone(), hint)));
    tasks.spawn(until_stopped(stop.clone(), gauges(Arc::clone(&relay))));
    tasks.spawn(until_stopped(stop.clone(), keep_house(Arc::clone(&relay))));
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap_or(Err(RelayError::TaskLost("relay")))?;
        if !stop.is_cancelled() {
            return Err(RelayError::TaskLost("relay worker"));
        }
    }
    Ok(())
}

async fn until_stopped(stop: CancellationToken, endless: impl Future<Output = ()>) -> Result<(), RelayError> {
    stop.run_until_cancelled(endless).await;
    Ok(())
}

/// Passes hints on. Without a connection there are none, and the poll interval does.
async fn listen(database: Database, hint: watch::Sender<u64>) {
    loop {
        match database.listener(outbox::CHANNEL).await {
            Ok(mut listener) => loop {
                match listener.recv().await {
                    Ok(_) => hint.send_modify(|n| *n = n.wrapping_add(1)),
                    Err(error) => {
                        tracing::debug!(%error, "no hints for the relay until the database is back");
                        break;
                    }
                }
            },
            Err(error) => tracing::debug!(%error, "no hints for the relay until the database is back"),
        }
        tokio::time::sleep(LISTEN_PAUSE).await;
    }
}

async fn gauges(relay: Arc<Relay>) {
    let mut tick = tokio::time::interval(GAUGES_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        match refresh(&relay).await {
            Ok(()) => {}
            // An outage is told by others; what stays wrong is told here.
            Err(error @ StoreError::Transient(_)) => {
                tracing::debug!(%error, "gauges of the outbox not refreshed");
            }
            Err(error) => tracing::warn!(%error, "gauges of the outbox cannot be read"),
        }
    }
}

async fn refresh(relay: &Relay) -> Result<(), StoreError> {
    let pool = relay.database.pool();
    let mut waiting = outbox::waiting(pool).await?;
    if relay.settings.published_by_cdc {
        // Nobody marks rows: the slot's lag says what waits.
        waiting = outbox::Waiting { slot_lag_bytes: waiting.slot_lag_bytes, ..outbox::Waiting::default() };
    }
    relay.metrics.outbox_waiting(&waiting);
    // What bloats the outbox, whoever keeps it open.
    relay.metrics.oldest_transaction(oldest_transaction(pool).await?);
    Ok(())
}

/// Partitions for the days to come, and an end of those that are over.
async fn keep_house(relay: Arc<Relay>) {
    loop {
        let pause = match house(&relay).await {
            Ok(()) => HOUSE_EVERY,
            Err(error) => {
                tracing::warn!(%error, "partitions of outbox and inbox not looked after; again soon");
                HOUSE_AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn house(relay: &Relay) -> Result<(), StoreError> {
    let mut connection = relay.database.plain().await?;
    let RelaySettings { outbox_retention, inbox_retention, published_by_cdc, .. } = relay.settings;
    let outbox = if published_by_cdc { DayTable::OutboxUnderCdc } else { DayTable::Outbox };
    for (table, retention) in [(outbox, outbox_retention), (DayTable::Inbox, inbox_retention)] {
        days::make_ahead(&mut connection, table).await?;
        for dropped in days::drop_over(&mut connection, table, retention).await? {
            tracing::info!(partition = dropped, "dropped: its day is over");
        }
    }
    Ok(())
}
