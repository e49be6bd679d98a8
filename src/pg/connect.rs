//! Connections: a pool for slow work, and a few pinned ones for the hot path.
//!
//! Hot connections run with `plan_cache_mode=force_generic_plan` and without sequential scans, hash and merge
//! joins: a plan made while a table was empty would otherwise stay for the life of the connection and turn every
//! batch into a scan of the grown ledger. Every session has time-outs, so that a dead peer's locks cannot hang us.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::{Mutex, Semaphore};

use super::error::StoreError;

/// How long a statement may run before the server ends it.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection attempt, or an answer of a peer that may be dead, is waited for.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(35);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// `lock_timeout` of every session, as the server shows it.
pub(super) const LOCK_TIMEOUT: &str = "5s";

const SESSION: [(&str, &str); 5] = [
    ("lock_timeout", LOCK_TIMEOUT),
    ("statement_timeout", "30s"),
    ("idle_in_transaction_session_timeout", "15s"),
    ("tcp_user_timeout", "15s"),
    ("timezone", "UTC"),
];

const PINNED: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
];

/// Where Postgres is, and how many connections this process may hold.
#[derive(Clone)]
pub struct Database {
    options: PgConnectOptions,
    /// Without our session settings, to find out who refuses them.
    bare: PgConnectOptions,
    pool: PgPool,
    hot: Arc<HotConnections>,
}

impl Database {
    /// Connects lazily: a database that is away is waited for by whoever asks first.
    ///
    /// `max_connections` (at least 3) is divided into one for the waves, one for the sweeper, up to three hot ones
    /// for batch statements, and the rest for everything else. With 3 the third serves both batches and the rest:
    /// enough to work, not to be fast.
    pub fn new(url: &str, max_connections: u32) -> Result<Self, StoreError> {
        let bare = PgConnectOptions::from_str(url)
            .map_err(StoreError::from)?
            .application_name("reprise")
            .disable_statement_logging();
        let options = bare.clone().options(SESSION);
        let left = max_connections.saturating_sub(2).max(1);
        let hot = left.saturating_sub(1).clamp(1, 3);
        let shared = left == 1;
        let rest = if shared { 1 } else { left - hot };
        let pool = PgPoolOptions::new()
            .max_connections(rest)
            .min_connections(0)
            .acquire_timeout(CONNECT_TIMEOUT)
            .idle_timeout(Duration::from_mins(1))
            .connect_lazy_with(options.clone());
        let hot = Arc::new(HotConnections {
            options: options.clone().options(PINNED),
            idle: Mutex::new(Vec::new()),
            permits: Semaphore::new(hot as usize),
            shared: shared.then(|| pool.clone()),
        });
        Ok(Self { options, bare, pool, hot })
    }

    /// For slow work: review, gauges, dead letters, replay bookkeeping.
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// For batch statements.
    pub fn hot(&self) -> &HotConnections {
        &self.hot
    }

    /// A pinned connection of one's own, for the waves.
    pub async fn dedicated(&self) -> Result<PgConnection, StoreError> {
        connect(&self.hot.options).await
    }

    /// A plain connection of one's own.
    pub async fn plain(&self) -> Result<PgConnection, StoreError> {
        connect(&self.options).await
    }

    /// Listens on a channel, on a connection of its own.
    pub async fn listener(&self, channel: &str) -> Result<PgListener, StoreError> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_TIMEOUT)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(self.options.clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(channel).await?;
        Ok(listener)
    }

    /// A connection that no work may be done on: it has none of the time-outs.
    pub(super) async fn without_settings(&self) -> Result<PgConnection, StoreError> {
        connect(&self.bare).await
    }

    /// One round trip: does the database answer?
    pub async fn ping(&self) -> Result<(), StoreError> {
        within(async {
            sqlx::query("select 1").execute(&self.pool).await?;
            Ok(())
        })
        .await
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Database({}:{})", self.options.get_host(), self.options.get_port())
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
        Ok(connected) => Ok(connected?),
        Err(_) => Err(timed_out()),
    }
}

fn timed_out() -> StoreError {
    let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not answer in time");
    StoreError::Transient(sqlx::Error::Io(error))
}

/// A statement whose answer does not come within [`ANSWER_TIMEOUT`] met a dead peer.
pub async fn within<T>(work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    tokio::time::timeout(ANSWER_TIMEOUT, work).await.unwrap_or_else(|_| Err(timed_out()))
}

/// A fixed number of pinned connections, used one statement at a time.
pub struct HotConnections {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    permits: Semaphore,
    /// Where there are too few: the pool's connection, with plans that are not pinned.
    shared: Option<PgPool>,
}

impl HotConnections {
    /// How many statements may run at once.
    pub fn width(&self) -> usize {
        self.permits.available_permits()
    }

    /// Runs `work` on one of the connections. A connection that failed transiently is thrown away.
    pub async fn run<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        W: AsyncFnOnce(&mut PgConnection) -> Result<T, StoreError>,
    {
        let permit = self.permits.acquire().await;
        if let Some(pool) = &self.shared {
            let mut connection = pool.acquire().await?;
            let result = within(work(&mut connection)).await;
            if matches!(result, Err(StoreError::Transient(_))) {
                connection.close_on_drop();
            }
            return result;
        }
        let kept = self.idle.lock().await.pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => connect(&self.options).await?,
        };
        let result = within(work(&mut connection)).await;
        if matches!(result, Err(StoreError::Transient(_))) {
            // Other idle ones have most likely died with it; each finds out by itself.
            connection
                .close_hard()
                .await
                .unwrap_or_else(|error| tracing::debug!(%error, "closing a dead connection"));
        } else {
            self.idle.lock().await.push(connection);
        }
        drop(permit);
        result
    }
}

// The server must give up before we do: otherwise an answer could come after its statement was repeated.
const _: () = assert!(STATEMENT_TIMEOUT.as_secs() < ANSWER_TIMEOUT.as_secs());
