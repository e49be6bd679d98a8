//! Messages that the broker refused for good, and what a person decides about them.
//!
//!   parked ──requeue──► unpublished (behind later messages of its aggregate)
//!      └────discard───► gone from the outbox; kept with its decision
//!
//! A decision and its record are one statement: of two people the second finds nothing parked.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::connect::within;
use super::error::StoreError;
use super::outbox::CHANNEL;

/// A message in the dead-letter topic, with what its aggregate did without it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Parked {
    pub id: Uuid,
    pub destination: String,
    pub aggregate_id: String,
    pub event_type: String,
    pub attempts: i32,
    pub last_error: Option<String>,
    pub parked_at: String,
    /// Later messages of its aggregate that are still in the outbox: a requeued one comes behind those.
    pub later: i64,
}

/// What a person decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Publish it after all.
    Requeue,
    /// Leave it out for good.
    Discard,
}

impl Decision {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "requeued",
            Self::Discard => "discarded",
        }
    }
}

const LIST: &str = r#"
    select p.id, p.destination, p.aggregate_id, p.event_type, p.attempts, p.last_error,
           to_char(p.parked_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as parked_at,
           (select count(*) from outbox l where l.aggregate_id = p.aggregate_id and l.bucket = p.bucket
                and l.destination = p.destination and l.seq > p.seq) as later
    from outbox p where p.parked_at is not null order by p.seq limit $1"#;

/// Parked messages, oldest first, at most `limit`.
pub async fn list(connection: &mut PgConnection, limit: i64) -> Result<Vec<Parked>, StoreError> {
    let rows = within(async { Ok(sqlx::query(LIST).bind(limit).fetch_all(&mut *connection).await?) }).await?;
    rows.iter().map(parked).collect()
}

fn parked(row: &PgRow) -> Result<Parked, StoreError> {
    Ok(Parked {
        id: row.try_get("id")?,
        destination: row.try_get("destination")?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        attempts: row.try_get("attempts")?,
        last_error: row.try_get("last_error")?,
        parked_at: row.try_get("parked_at")?,
        later: row.try_get("later")?,
    })
}

const REQUEUE: &str = "
    with d as (
        update outbox o set parked_at = null, attempts = 0
        where o.parked_at is not null and ($1::uuid[] is null or o.id = any($1))
        returning o.id, o.destination, o.aggregate_id, o.event_type, o.last_error
    ), r as (
        insert into outbox_decision (message_id, decision, decided_by, reason, destination, aggregate_id, event_type,
                                     last_error)
        select id, 'requeued', $2, $3, destination, aggregate_id, event_type, last_error from d
        returning message_id
    )
    select message_id from r order by message_id";

const DISCARD: &str = "
    with d as (
        delete from outbox o
        where o.parked_at is not null and ($1::uuid[] is null or o.id = any($1))
        returning o.id, o.destination, o.aggregate_id, o.event_type, o.last_error, o.payload
    ), r as (
        insert into outbox_decision (message_id, decision, decided_by, reason, destination, aggregate_id, event_type,
                                     last_error, payload)
        select id, 'discarded', $2, $3, destination, aggregate_id, event_type, last_error, payload from d
        returning message_id
    )
    select message_id from r order by message_id";

/// Decides about these messages, or about every parked one, and says about which: those that were still parked.
pub async fn decide(
    connection: &mut PgConnection,
    ids: Option<&[Uuid]>,
    decision: Decision,
    by: &str,
    reason: &str,
) -> Result<Vec<Uuid>, StoreError> {
    let statement = match decision {
        Decision::Requeue => REQUEUE,
        Decision::Discard => DISCARD,
    };
    let rows = within(async {
        let rows = sqlx::query(statement).bind(ids).bind(by).bind(reason).fetch_all(&mut *connection).await?;
        // A hint: whoever misses it looks by itself.
        sqlx::query("select pg_notify($1, '')").bind(CHANNEL).execute(&mut *connection).await?;
        Ok(rows)
    })
    .await?;
    rows.iter().map(|row| Ok(row.try_get("message_id")?)).collect()
}
