//! Snapshots of orders: a cache. A row may be missing, old, damaged or of another form; readers check what they get.

use serde_json::Value;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::StoreError;
use super::orders::{int, version};

/// The snapshot of a stream in this form, as JSON, with the version it stands for.
pub async fn find(
    connection: &mut PgConnection,
    stream_id: Uuid,
    schema_version: u32,
) -> Result<Option<(u32, String)>, StoreError> {
    let row = sqlx::query(
        "select version, payload::text as payload from snapshots
         where stream_id = $1 and schema_version = $2 and version >= 1",
    )
    .bind(stream_id)
    .bind(int(schema_version))
    .fetch_optional(connection)
    .await?;
    row.map(|row| Ok((version(&row)?, row.try_get("payload")?))).transpose()
}

/// Keeps a snapshot. One of another form, or one that turned out `damaged`, is replaced whatever its version.
pub async fn keep(
    connection: &mut PgConnection,
    stream_id: Uuid,
    at_version: u32,
    schema_version: u32,
    payload: &Value,
    damaged: Damaged,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into snapshots (stream_id, version, schema_version, payload) values ($1, $2, $3, $4)
         on conflict (stream_id) do update
         set version = excluded.version, schema_version = excluded.schema_version, payload = excluded.payload, ts = now()
         where snapshots.version < excluded.version or snapshots.schema_version <> excluded.schema_version or $5",
    )
    .bind(stream_id)
    .bind(int(at_version))
    .bind(int(schema_version))
    .bind(payload)
    .bind(damaged == Damaged::Yes)
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether the snapshot that is there was found to be unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damaged {
    No,
    Yes,
}
