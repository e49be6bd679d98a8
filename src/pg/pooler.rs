//! Refuses a pooler that shares server sessions among its clients (`PgBouncer` in transaction or statement mode).
//!
//! The ledger rests on its sessions: an advisory lock says that an owner lives, time-outs of the session end a dead
//! peer's locks, and prepared statements belong to one connection. Behind a sharing pooler each of these would seem to
//! work and then fail at a bad moment, so the program does not start (case B64, tests `b64_...`).
//!
//! Known by behaviour, not by name: the session's settings do not arrive, or two connections that are open at once
//! have one server process, or one connection has two.

use sqlx::{Connection as _, Decode, PgConnection, Postgres, Row as _, Type};

use super::connect::Database;
use super::error::StoreError;

/// One round can be misled by other clients, our own among them, that hold the shared session at that moment.
const ROUNDS: u32 = 5;

/// What the probe saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Shared {
    #[error("the server does not take our session settings (lock_timeout and others)")]
    NotTaken,
    #[error("our session settings (lock_timeout and others) do not reach the server")]
    NotArrived,
    #[error("two of our connections share one server process")]
    TwoClients,
}

/// `None` where every connection has a session of its own.
pub(super) async fn shared(database: &Database) -> Result<Option<Shared>, StoreError> {
    let mut first = match database.plain().await {
        Ok(connection) => connection,
        Err(error) => return refused_for_settings(database, error).await.map(Some),
    };
    let lock_timeout: String = asked(&mut first, "select current_setting('lock_timeout')").await?;
    if lock_timeout != super::connect::LOCK_TIMEOUT {
        return Ok(Some(Shared::NotArrived));
    }
    let mut second = database.plain().await?;
    for _ in 0..ROUNDS {
        let before = backend(&mut first).await?;
        let mut transaction = second.begin().await?;
        let other = backend(&mut transaction).await?;
        let after = backend(&mut first).await?;
        transaction.rollback().await?;
        if before == other || before != after {
            return Ok(Some(Shared::TwoClients));
        }
    }
    Ok(None)
}

async fn backend(connection: &mut PgConnection) -> Result<i32, StoreError> {
    asked(connection, "select pg_backend_pid()").await
}

/// By the simple protocol: a prepared statement could meet another client's of the same name.
async fn asked<T>(connection: &mut PgConnection, sql: &'static str) -> Result<T, StoreError>
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    Ok(sqlx::raw_sql(sql).fetch_one(connection).await?.try_get(0)?)
}

/// A connection that is refused, and is not refused without our settings, was refused for them.
async fn refused_for_settings(database: &Database, error: StoreError) -> Result<Shared, StoreError> {
    const PROTOCOL_VIOLATION: &str = "08P01";
    let (StoreError::Transient(cause) | StoreError::Data(cause) | StoreError::Broken(cause)) = &error;
    let code = cause.as_database_error().and_then(|db| db.code().map(std::borrow::Cow::into_owned));
    if code.as_deref() != Some(PROTOCOL_VIOLATION) {
        return Err(error);
    }
    match database.without_settings().await {
        Ok(_) => Ok(Shared::NotTaken),
        Err(_) => Err(error),
    }
}
