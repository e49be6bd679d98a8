//! The event store: append with an expected version, and read one stream.
//!
//! A conflict is no error: an append that lost says so, and its transaction is rolled back. Whether the version was
//! taken or the command was decided already, the caller finds out by loading again.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::error::StoreError;
use super::outbox;
use crate::domain::message::Message;

/// Channel of the hint that there are new events; its payload is the stream's id.
pub const CHANNEL: &str = "reprise_orders";

/// `order_events.metadata`: what is to be known of an event beside the fact itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The `message_id` under which it is published, too.
    pub event_id: Uuid,
    /// Unique in its stream.
    pub command_id: String,
    /// Of the command; absent where an event was not made by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_digest: Option<String>,
    /// Place among the events of its command, absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_index: Option<u32>,
    pub schema_version: u32,
    pub tenant_id: String,
    /// Who.
    #[serde(default)]
    pub actor: String,
    /// Why, where it was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// A row to be. Its version follows the expected one.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    pub name: &'static str,
    pub payload: serde_json::Value,
    pub metadata: Metadata,
}

/// A row of `order_events`, its payload as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    pub stream_id: Uuid,
    /// From 1.
    pub version: u32,
    pub name: String,
    /// JSON.
    pub payload: String,
    pub metadata: Metadata,
    pub at: Timestamp,
    pub global_seq: i64,
}

/// What a fold needs of a row: read by the thousand, so without what it does not need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub version: u32,
    pub name: String,
    pub schema_version: u32,
    /// JSON.
    pub payload: String,
    pub tenant_id: String,
    pub at: Timestamp,
}

/// How far a stream is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    Now,
    Version(u32),
    /// Inclusive.
    Instant(Timestamp),
}

const APPEND: &str = "
    with added as (
        insert into order_events (stream_id, version, type, payload, metadata, ts)
        select $1, $2 + position::int, type, payload, metadata,
               greatest(clock_timestamp(), (select ts from order_events where stream_id = $1 and version = $2))
        from unnest($3::text[], $4::jsonb[], $5::jsonb[]) with ordinality as new (type, payload, metadata, position)
        where $2 = 0 or exists (select from order_events where stream_id = $1 and version = $2)
        on conflict do nothing
        returning version, (extract(epoch from ts) * 1000000)::bigint as at_us, global_seq
    )
    select version, at_us, global_seq,
           case when pg_try_advisory_xact_lock(7453630, 1) then pg_notify('reprise_orders', $1::text) is null end
    from added order by version";

/// Where an appended event came to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub version: u32,
    pub at: Timestamp,
    pub global_seq: i64,
}

/// Appends `events` behind `expected` (0: a new stream), with the messages that tell of them, in one transaction.
/// `None`: somebody was there first, nothing was written.
pub async fn append(
    connection: &mut PgConnection,
    stream_id: Uuid,
    expected: u32,
    events: &[NewEvent],
    messages: impl FnOnce(&[Place]) -> Vec<Message>,
) -> Result<Option<Vec<Place>>, StoreError> {
    let mut transaction = connection.begin().await?;
    let rows = sqlx::query(APPEND)
        .bind(stream_id)
        .bind(int(expected))
        .bind(events.iter().map(|event| event.name).collect::<Vec<_>>())
        .bind(events.iter().map(|event| &event.payload).collect::<Vec<_>>())
        .bind(events.iter().map(|event| Json(&event.metadata)).collect::<Vec<_>>())
        .fetch_all(&mut *transaction)
        .await?;
    if rows.len() != events.len() {
        transaction.rollback().await?;
        return Ok(None);
    }
    let places = rows.iter().map(place).collect::<Result<Vec<_>, StoreError>>()?;
    crate::crash::point("orders_after_append");
    outbox::add(&mut transaction, &messages(&places)).await?;
    transaction.commit().await?;
    crate::crash::point("orders_after_commit");
    Ok(Some(places))
}

fn place(row: &PgRow) -> Result<Place, StoreError> {
    Ok(Place {
        version: version(row)?,
        at: instant(row.try_get("at_us")?)?,
        global_seq: row.try_get("global_seq")?,
    })
}

/// A stream that was cut over is read from its parallel, as far as that goes.
const READ: &str = "
    select e.version, e.type, e.metadata ->> 'tenant_id' as tenant_id,
           coalesce(p.schema_version, (e.metadata ->> 'schema_version')::int) as schema_version,
           coalesce(p.payload, e.payload)::text as payload,
           (extract(epoch from e.ts) * 1000000)::bigint as at_us
    from order_events e
    left join order_events_parallel p on p.stream_id = e.stream_id and p.version = e.version
         and exists (select from order_stream_migrations m where m.stream_id = $1 and m.state = 'cut-over')
    where e.stream_id = $1 and e.version >= $2 and e.version <= $3
      and e.ts <= coalesce('epoch'::timestamptz + $4 * interval '1 microsecond', 'infinity')
    order by e.version";

/// The stream from version `from`, in order.
pub async fn read(
    connection: &mut PgConnection,
    stream_id: Uuid,
    from: u32,
    until: Until,
) -> Result<Vec<Line>, StoreError> {
    let (last, instant_us) = match until {
        Until::Now => (i32::MAX, None),
        Until::Version(version) => (int(version), None),
        Until::Instant(at) => (i32::MAX, Some(at.as_microsecond())),
    };
    let rows = sqlx::query(READ)
        .bind(stream_id)
        .bind(int(from))
        .bind(last)
        .bind(instant_us)
        .fetch_all(connection)
        .await?;
    rows.iter().map(line).collect()
}

fn line(row: &PgRow) -> Result<Line, StoreError> {
    Ok(Line {
        version: version(row)?,
        name: row.try_get("type")?,
        schema_version: unsigned(row.try_get("schema_version")?)?,
        payload: row.try_get("payload")?,
        tenant_id: row.try_get("tenant_id")?,
        at: instant(row.try_get("at_us")?)?,
    })
}

/// Rows as they were written, from version `from`, at most `limit`.
pub async fn history(
    connection: &mut PgConnection,
    stream_id: Uuid,
    from: u32,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    let rows = sqlx::query(
        "select stream_id, version, type, payload::text as payload, metadata::text as metadata, global_seq,
                (extract(epoch from ts) * 1000000)::bigint as at_us
         from order_events where stream_id = $1 and version >= $2 order by version limit $3",
    )
    .bind(stream_id)
    .bind(int(from))
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(stored).collect()
}

/// The first result of a command: the version it led to, and the digest of what it said.
pub async fn decided(
    connection: &mut PgConnection,
    stream_id: Uuid,
    command_id: &str,
) -> Result<Option<(u32, Option<String>)>, StoreError> {
    let row = sqlx::query(
        "select version, metadata ->> 'command_digest' as digest from order_events
         where stream_id = $1 and metadata ->> 'command_id' = $2
         order by version desc limit 1",
    )
    .bind(stream_id)
    .bind(command_id)
    .fetch_optional(connection)
    .await?;
    row.map(|row| Ok((version(&row)?, row.try_get("digest")?))).transpose()
}

pub(super) fn stored(row: &PgRow) -> Result<StoredEvent, StoreError> {
    let metadata: &str = row.try_get("metadata")?;
    Ok(StoredEvent {
        stream_id: row.try_get("stream_id")?,
        version: version(row)?,
        name: row.try_get("type")?,
        payload: row.try_get("payload")?,
        metadata: serde_json::from_str(metadata)
            .map_err(|error| unreadable(format!("order_events.metadata: {error}")))?,
        at: instant(row.try_get("at_us")?)?,
        global_seq: row.try_get("global_seq")?,
    })
}

pub(super) fn version(row: &PgRow) -> Result<u32, StoreError> {
    unsigned(row.try_get("version")?)
}

pub(super) fn unsigned(number: i32) -> Result<u32, StoreError> {
    u32::try_from(number).map_err(|_| unreadable(format!("{number} is negative")))
}

/// Versions beyond what the column holds are beyond every stream.
pub(super) fn int(version: u32) -> i32 {
    i32::try_from(version).unwrap_or(i32::MAX)
}

pub(super) fn instant(micros: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros).map_err(|error| unreadable(format!("order_events.ts: {error}")))
}

fn unreadable(what: String) -> StoreError {
    StoreError::Broken(sqlx::Error::Decode(what.into()))
}
