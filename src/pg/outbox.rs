//! The outbox table: added to in the transaction of the append, read and marked by the relay.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::seq::SliceRandom as _;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection, PgPool, Row as _};

use super::connect::{Database, within};
use super::error::StoreError;
use crate::domain::message::{Destination, Message, header};

/// Channel of the hint that there is something to publish.
pub const CHANNEL: &str = "reprise_outbox";

/// One statement, so that adding costs one round trip; the advisory key decides who notifies (see [`add`]).
const ADD: &str = "
    with added as (
        insert into outbox (id, destination, aggregate_type, aggregate_id, event_type, payload, headers,
                            schema_version, tenant_id, traceparent)
        select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::jsonb[],
                             $8::text[], $9::text[], $10::text[])
        returning 1
    )
    select case when pg_try_advisory_xact_lock(7453627, 1) then pg_notify('reprise_outbox', '') is null end
    from (select count(*) from added) as counted";

/// Adds messages to the transaction that is open on `connection`, in their order.
///
/// The hint for the relay is sent at the commit and carries nothing. Commits that notify queue on one lock of the
/// whole database, so only one open transaction at a time does: its commit speaks for those that found it there.
/// A hint that is missed (that transaction rolled back) costs the relay's poll interval, nothing else.
pub async fn add(connection: &mut PgConnection, messages: &[Message]) -> Result<(), StoreError> {
    if messages.is_empty() {
        return Ok(());
    }
    let texts = |of: fn(&Message) -> &str| messages.iter().map(of).collect::<Vec<&str>>();
    let optional = |name: &'static str| {
        messages.iter().map(|message| message.headers.get(name).map(String::as_str)).collect::<Vec<_>>()
    };
    sqlx::query(ADD)
        .bind(messages.iter().map(|message| message.id).collect::<Vec<_>>())
        .bind(texts(|message| message.destination.as_str()))
        .bind(texts(|message| message.aggregate_type))
        .bind(texts(|message| &message.aggregate_id))
        .bind(texts(|message| &message.event_type))
        .bind(messages.iter().map(|message| &message.payload).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| Json(&message.headers)).collect::<Vec<_>>())
        .bind(optional(header::SCHEMA_VERSION))
        .bind(optional(header::TENANT_ID))
        .bind(optional(header::TRACEPARENT))
        .fetch_one(connection)
        .await?;
    Ok(())
}

/// A row to publish.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub seq: i64,
    pub destination: Destination,
    pub aggregate_id: String,
    pub event_type: String,
    /// As JSON.
    pub payload: String,
    pub headers: BTreeMap<String, String>,
    pub created_ms: i64,
    /// Refusals so far.
    pub attempts: u32,
}

impl Row {
    /// Whose order it keeps: the aggregate's, per destination.
    pub fn lane(&self) -> String {
        format!("{}:{}", self.destination.as_str(), self.aggregate_id)
    }
}

/// Buckets of aggregates: what a worker owns.
const BUCKETS: i32 = 64;
/// First half of the advisory keys: 0..63 are the buckets, `MEMBER` is held, shared, by every worker.
const LOCKS: i32 = 7_453_628;
const MEMBER: i32 = 1_000;

/// The dead are noticed by the server within seconds, and their buckets are free.
const SESSION: &str =
    "set tcp_keepalives_idle = 5; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3;
    set synchronous_commit = off; set enable_seqscan = off";

const UNPUBLISHED: &str = "
    select seq, destination, aggregate_id, event_type, payload::text as payload, headers::text as headers,
           (extract(epoch from created_at) * 1000)::bigint as created_ms, attempts
    from outbox
    where published_at is null and parked_at is null and seq > $1 and bucket = any($2::smallint[])
      and ($3::text[] is null or destination || ':' || aggregate_id <> all($3::text[]))
    order by seq limit $4";

/// One worker's session: it holds the locks of the buckets that the worker owns, and everything the worker reads
/// and marks goes through it. When it is gone, so is the ownership.
pub struct Session {
    connection: PgConnection,
    owned: Vec<i16>,
}

impl Session {
    pub async fn open(database: &Database) -> Result<Self, StoreError> {
        let mut connection = database.plain().await?;
        sqlx::raw_sql(SESSION).execute(&mut connection).await?;
        sqlx::query("select pg_advisory_lock_shared($1, $2)")
            .bind(LOCKS)
            .bind(MEMBER)
            .execute(&mut connection)
            .await?;
        Ok(Self { connection, owned: Vec::new() })
    }

    /// Takes free buckets up to a fair share, or gives back what is above it. Says whether anything changed. Nothing
    /// may be on its way to the broker meanwhile.
    pub async fn rebalance(&mut self) -> Result<bool, StoreError> {
        within(self.share()).await
    }

    async fn share(&mut self) -> Result<bool, StoreError> {
        let counting = sqlx::query_scalar(
            "select count(*) from pg_locks
             where locktype = 'advisory' and classid = $1::oid and objid = $2::oid and objsubid = 2 and granted
               and database = (select oid from pg_database where datname = current_database())",
        );
        let members: i64 = counting.bind(LOCKS).bind(MEMBER).fetch_one(&mut self.connection).await?;
        let members = usize::try_from(members).unwrap_or(1).max(1);
        let share = (BUCKETS as usize).div_ceil(members);
        if self.owned.len() > share {
            let surplus = self.owned.split_off(share);
            let giving = sqlx::query("select pg_advisory_unlock($1, b) from unnest($2::int[]) as b");
            giving.bind(LOCKS).bind(wide(&surplus)).execute(&mut self.connection).await?;
            return Ok(true);
        }
        if self.owned.len() == share {
            return Ok(false);
        }
        let mut free: Vec<i32> = (0..BUCKETS).filter(|b| !wide(&self.owned).contains(b)).collect();
        // Workers that begin together should not all ask for the same ones first.
        free.shuffle(&mut rand::rng());
        let wanted = i64::try_from(share - self.owned.len()).unwrap_or(0);
        let taking = sqlx::query_scalar(
            "select b::smallint from unnest($2::int[]) as b where pg_try_advisory_lock($1, b) limit $3",
        );
        let taken: Vec<i16> =
            taking.bind(LOCKS).bind(free).bind(wanted).fetch_all(&mut self.connection).await?;
        self.owned.extend(&taken);
        Ok(!taken.is_empty())
    }

    /// Rows of the owned buckets above `after`, in order, without the lanes that wait.
    pub async fn unpublished(
        &mut self,
        after: i64,
        waiting: &[String],
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        if self.owned.is_empty() {
            return Ok(Vec::new());
        }
        let reading = sqlx::query(UNPUBLISHED)
            .bind(after)
            .bind(&self.owned)
            .bind((!waiting.is_empty()).then_some(waiting))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = within(async { Ok(reading.fetch_all(&mut self.connection).await?) }).await?;
        rows.iter().map(row).collect()
    }

    /// The broker has acknowledged these.
    pub async fn mark_published(&mut self, seqs: &[i64]) -> Result<(), StoreError> {
        let marking = sqlx::query(
            "update outbox set published_at = clock_timestamp()
             where seq = any($1) and published_at is null and parked_at is null",
        );
        within(async {
            marking.bind(seqs).execute(&mut self.connection).await?;
            Ok(())
        })
        .await
    }

    /// The broker has said no once more.
    pub async fn mark_refused(&mut self, seq: i64, cause: &str) -> Result<(), StoreError> {
        let marking = sqlx::query(
            "update outbox set attempts = attempts + 1, last_error = left($2, 1000)
             where seq = $1 and published_at is null and parked_at is null",
        );
        within(async {
            marking.bind(seq).bind(cause).execute(&mut self.connection).await?;
            Ok(())
        })
        .await
    }

    /// It stands in the dead-letter topic.
    pub async fn mark_parked(&mut self, seq: i64, cause: &str) -> Result<(), StoreError> {
        let marking = sqlx::query(
            "update outbox set attempts = attempts + 1, last_error = left($2, 1000), parked_at = clock_timestamp()
             where seq = $1 and published_at is null and parked_at is null",
        );
        within(async {
            marking.bind(seq).bind(cause).execute(&mut self.connection).await?;
            Ok(())
        })
        .await
    }

    /// Gives everything back at once.
    pub async fn close(self) -> Result<(), StoreError> {
        Ok(self.connection.close().await?)
    }
}

fn wide(buckets: &[i16]) -> Vec<i32> {
    buckets.iter().map(|bucket| i32::from(*bucket)).collect()
}

fn row(row: &PgRow) -> Result<Row, StoreError> {
    let destination: &str = row.try_get("destination")?;
    let headers: &str = row.try_get("headers")?;
    let unreadable = |what: String| StoreError::Broken(sqlx::Error::Decode(what.into()));
    Ok(Row {
        seq: row.try_get("seq")?,
        destination: Destination::parse(destination)
            .ok_or_else(|| unreadable(format!("outbox.destination: {destination}")))?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        payload: row.try_get("payload")?,
        headers: serde_json::from_str(headers)
            .map_err(|error| unreadable(format!("outbox.headers must hold texts only: {error}")))?,
        created_ms: row.try_get("created_ms")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or(0),
    })
}

/// What stands in the outbox and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Counted up to [`COUNT_MAX`].
    pub unpublished: i64,
    pub oldest: Option<Duration>,
    pub parked: i64,
    /// Log that the database's logical replication slots hold back: the largest.
    pub slot_lag_bytes: i64,
}

/// Beyond it the number says 'very many', and counting further would only cost.
pub const COUNT_MAX: i64 = 100_000;

pub async fn waiting(pool: &PgPool) -> Result<Waiting, StoreError> {
    let row = sqlx::query(
        "select (select count(*) from (select 1 from outbox where published_at is null and parked_at is null
                                       limit $1) as counted) as unpublished,
                (select (extract(epoch from now() - created_at) * 1000)::bigint from outbox
                 where published_at is null and parked_at is null order by seq limit 1) as oldest,
                (select count(*) from (select 1 from outbox where parked_at is not null limit $1) as counted) as parked,
                (select coalesce(max(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
                                                          else pg_current_wal_lsn() end, restart_lsn)), 0)::bigint
                 from pg_replication_slots
                 where slot_type = 'logical' and database = current_database()) as slot_lag",
    )
    .bind(COUNT_MAX)
    .fetch_one(pool)
    .await?;
    let oldest: Option<i64> = row.try_get("oldest")?;
    Ok(Waiting {
        unpublished: row.try_get("unpublished")?,
        oldest: oldest.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
        parked: row.try_get("parked")?,
        slot_lag_bytes: row.try_get("slot_lag")?,
    })
}
