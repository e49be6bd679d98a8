//! Lazy migration of streams: which ones have old events, their parallels, and the cut-over.

use serde_json::Value;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::StoreError;
use super::orders::{int, unsigned, version};

/// How far the migration of a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Copied,
    Verified,
    CutOver,
}

impl State {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Copied => "copied",
            Self::Verified => "verified",
            Self::CutOver => "cut-over",
        }
    }
}

/// An event of a parallel stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Parallel {
    pub version: u32,
    pub name: &'static str,
    pub schema_version: u32,
    pub payload: Value,
}

/// Streams above `after` that hold assignments in a form before `to` which no parallel has yet; in their order.
pub async fn unmigrated(
    connection: &mut PgConnection,
    after: Uuid,
    to: u32,
    limit: u32,
) -> Result<Vec<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select distinct e.stream_id from order_events e
         where e.stream_id > $1 and e.type = 'CourierAssigned' and (e.metadata ->> 'schema_version')::int < $2
           and not exists (select from order_events_parallel p
                           where p.stream_id = e.stream_id and p.version = e.version and p.schema_version >= $2)
         order by e.stream_id limit $3",
    )
    .bind(after)
    .bind(int(to))
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?)
}

/// Streams above `after` in one of `states`, in their order, with the version that their parallel reaches.
pub async fn migrated(
    connection: &mut PgConnection,
    after: Uuid,
    states: &[State],
    limit: u32,
) -> Result<Vec<(Uuid, u32)>, StoreError> {
    let rows = sqlx::query(
        "select stream_id, up_to from order_stream_migrations
         where stream_id > $1 and state = any($2) order by stream_id limit $3",
    )
    .bind(after)
    .bind(states.iter().map(|state| state.as_str()).collect::<Vec<_>>())
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get("stream_id")?, unsigned(row.try_get("up_to")?)?))).collect()
}

/// Writes the parallel of a stream anew; it has to be verified again. Events of the stream itself are not touched.
pub async fn copy(
    connection: &mut PgConnection,
    stream_id: Uuid,
    to: u32,
    events: &[Parallel],
) -> Result<(), StoreError> {
    let up_to = events.last().map_or(0, |event| event.version);
    sqlx::query(
        "with cleared as (
             delete from order_events_parallel where stream_id = $1 and version > $3
         ), copied as (
             insert into order_events_parallel (stream_id, version, type, schema_version, payload)
             select $1, version, type, schema_version, payload
             from unnest($4::int[], $5::text[], $6::int[], $7::jsonb[]) as e (version, type, schema_version, payload)
             on conflict (stream_id, version) do update
             set type = excluded.type, schema_version = excluded.schema_version, payload = excluded.payload
         )
         insert into order_stream_migrations (stream_id, schema_version, up_to, state) values ($1, $2, $3, 'copied')
         on conflict (stream_id) do update
         set schema_version = excluded.schema_version, up_to = excluded.up_to, state = 'copied', updated_at = now()",
    )
    .bind(stream_id)
    .bind(int(to))
    .bind(int(up_to))
    .bind(events.iter().map(|event| int(event.version)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| event.name).collect::<Vec<_>>())
    .bind(events.iter().map(|event| int(event.schema_version)).collect::<Vec<_>>())
    .bind(events.iter().map(|event| &event.payload).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// The parallel of a stream, with payloads as JSON: version, name, form, payload.
pub async fn parallel(
    connection: &mut PgConnection,
    stream_id: Uuid,
) -> Result<Vec<(u32, String, u32, String)>, StoreError> {
    let rows = sqlx::query(
        "select version, type, schema_version, payload::text as payload from order_events_parallel
         where stream_id = $1 order by version",
    )
    .bind(stream_id)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let form = unsigned(row.try_get("schema_version")?)?;
            Ok((version(row)?, row.try_get("type")?, form, row.try_get("payload")?))
        })
        .collect()
}

/// Moves a stream's migration on; says whether it stood where it had to.
pub async fn advance(
    connection: &mut PgConnection,
    stream_id: Uuid,
    from: State,
    to: State,
) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "update order_stream_migrations set state = $3, updated_at = now() where stream_id = $1 and state = $2",
    )
    .bind(stream_id)
    .bind(from.as_str())
    .bind(to.as_str())
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}
