//! What a Postgres is like, asked once, before anything relies on it. Only reads.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{Connection as _, FromRow};

/// Why there is no answer. The texts of the driver never hold the password.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// The settings of a server and a role that decide whether the ledger is safe there.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Facts {
    /// As `16.3`.
    pub version: String,
    /// As `160003`.
    pub version_number: i32,
    pub database: String,
    pub role: String,
    /// A standby: nothing can be written.
    pub in_recovery: bool,
    pub read_only: bool,
    pub fsync: bool,
    pub full_page_writes: bool,
    pub synchronous_commit: String,
    pub max_connections: i32,
    /// Kept for superusers and privileged roles.
    pub reserved_connections: i32,
    pub used_connections: i64,
    /// The role may create tables, as `migrate` does.
    pub may_create: bool,
}

const FACTS: &str = "
    select current_setting('server_version') as version,
           current_setting('server_version_num')::int as version_number,
           current_database()::text as database,
           current_user::text as role,
           pg_is_in_recovery() as in_recovery,
           current_setting('default_transaction_read_only')::bool as read_only,
           current_setting('fsync')::bool as fsync,
           current_setting('full_page_writes')::bool as full_page_writes,
           current_setting('synchronous_commit') as synchronous_commit,
           current_setting('max_connections')::int as max_connections,
           current_setting('superuser_reserved_connections')::int
               + coalesce(current_setting('reserved_connections', true)::int, 0) as reserved_connections,
           (select coalesce(sum(numbackends), 0)::bigint from pg_stat_database) as used_connections,
           coalesce(has_schema_privilege(current_schema(), 'create'), false) as may_create";

/// Connects, asks and disconnects, all within `limit`.
pub async fn facts(url: &str, limit: Duration) -> Result<Facts, DoctorError> {
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        let facts = sqlx::query_as(FACTS).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(facts)
    };
    tokio::time::timeout(limit, asking).await.unwrap_or(Err(DoctorError::TimedOut(limit)))
}

/// Names of `deploy/debezium`.
pub const OUTBOX_PUBLICATION: &str = "reprise_outbox";
pub const OUTBOX_SLOT: &str = "reprise_outbox";

/// What decides whether the outbox can be published by CDC.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct OutboxFacts {
    pub wal_level: String,
    /// `None` where there is no publication of the name.
    pub publication_fits: Option<bool>,
    /// `None` where there is no slot of the name.
    pub slot_active: Option<bool>,
    pub slot_lag_bytes: Option<i64>,
}

const OUTBOX_FACTS: &str = "
    select current_setting('wal_level') as wal_level,
           (select pubinsert and pubviaroot and not pubupdate and not pubdelete from pg_publication
            where pubname = $1) as publication_fits,
           (select active from pg_replication_slots
            where slot_name = $2 and database = current_database()) as slot_active,
           (select pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint from pg_replication_slots
            where slot_name = $2 and database = current_database()) as slot_lag_bytes";

/// As [`facts`].
pub async fn outbox_facts(url: &str, limit: Duration) -> Result<OutboxFacts, DoctorError> {
    let asking = async {
        let mut connection = PgConnection::connect(url).await?;
        let asked = sqlx::query_as(OUTBOX_FACTS).bind(OUTBOX_PUBLICATION).bind(OUTBOX_SLOT);
        let facts = asked.fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(facts)
    };
    tokio::time::timeout(limit, asking).await.unwrap_or(Err(DoctorError::TimedOut(limit)))
}
