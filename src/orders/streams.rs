//! Lazy migration of streams with old events into parallel ones.
//!
//! ```text
//!   old stream ──copy (upcast)──► parallel ──verify (same fold at every version)──► cut over: read instead
//!        └── stays as it is, takes new events ──────────────────────────────────────────┘
//! ```
//!
//! Nothing has to be migrated: every form is read. Migrating makes reading the old ones free, and lets the code that
//! upcasts them go one day. It can be interrupted and repeated at any time; each stream moves on alone.

use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::desk::{DeskError, broken, unreadable};
use super::event::{Event, Recorded};
use super::order::Order;
use crate::pg::order_streams::{self, Parallel, State};
use crate::pg::orders::{self as store, Line, Until};

/// Streams asked for at once: enough that asking does not count, few enough that progress is seen.
const PAGE: u32 = 500;

/// How many streams moved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    pub streams: u64,
    pub events: u64,
    /// Streams whose parallel is not what they are; they stay as they were.
    pub different: u64,
}

/// Copies every stream with older events into a parallel one of form `to`.
pub async fn copy(connection: &mut PgConnection, to: u32) -> Result<Moved, DeskError> {
    let (mut moved, mut after) = (Moved::default(), Uuid::nil());
    loop {
        let page = order_streams::unmigrated(connection, after, to, PAGE).await?;
        let Some(last) = page.last() else { return Ok(moved) };
        after = *last;
        for stream_id in page {
            let events = upcast(connection, stream_id).await?;
            order_streams::copy(connection, stream_id, to, &events).await?;
            moved.streams += 1;
            moved.events += events.len() as u64;
        }
        tracing::info!(streams = moved.streams, events = moved.events, "streams copied");
    }
}

/// Holds every copy against its stream: the same order at every version.
pub async fn verify(connection: &mut PgConnection) -> Result<Moved, DeskError> {
    let (mut moved, mut after) = (Moved::default(), Uuid::nil());
    loop {
        let page = order_streams::migrated(connection, after, &[State::Copied], PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(moved) };
        after = *last;
        for (stream_id, up_to) in page {
            if same(connection, stream_id, up_to).await? {
                order_streams::advance(connection, stream_id, State::Copied, State::Verified).await?;
                moved.streams += 1;
                moved.events += u64::from(up_to);
            } else {
                moved.different += 1;
                tracing::error!(order.id = %stream_id, "the parallel stream differs; it is not cut over");
            }
        }
    }
}

/// Lets verified parallels be read instead of their streams.
pub async fn cut_over(connection: &mut PgConnection) -> Result<Moved, DeskError> {
    let (mut moved, mut after) = (Moved::default(), Uuid::nil());
    loop {
        let page = order_streams::migrated(connection, after, &[State::Verified], PAGE).await?;
        let Some((last, _)) = page.last() else { return Ok(moved) };
        after = *last;
        for (stream_id, up_to) in page {
            if order_streams::advance(connection, stream_id, State::Verified, State::CutOver).await? {
                moved.streams += 1;
                moved.events += u64::from(up_to);
            }
        }
    }
}

async fn upcast(connection: &mut PgConnection, stream_id: Uuid) -> Result<Vec<Parallel>, DeskError> {
    let stored = store::history(connection, stream_id, 1, u32::MAX).await?;
    let newest = |row: &store::StoredEvent| {
        let event = Event::read(&row.name, row.metadata.schema_version, &row.payload)
            .map_err(|cause| unreadable(stream_id, row.version, &cause))?;
        let (name, schema_version, payload) = (event.name(), event.form(), event.payload());
        Ok(Parallel { version: row.version, name, schema_version, payload })
    };
    stored.iter().map(newest).collect()
}

async fn same(connection: &mut PgConnection, stream_id: Uuid, up_to: u32) -> Result<bool, DeskError> {
    let lines = store::read(connection, stream_id, 1, Until::Version(up_to)).await?;
    let originals = store::history(connection, stream_id, 1, up_to).await?;
    let parallel = order_streams::parallel(connection, stream_id).await?;
    if parallel.len() != originals.len() || lines.len() != originals.len() {
        return Ok(false);
    }
    let (mut old, mut new) = (None, None);
    for ((line, original), (version, name, form, payload)) in lines.iter().zip(&originals).zip(parallel) {
        let Ok(copied) = Event::read(&name, form, &payload) else { return Ok(false) };
        let original = Event::read(&original.name, original.metadata.schema_version, &original.payload)
            .map_err(|cause| unreadable(stream_id, version, &cause))?;
        if version != line.version {
            return Ok(false);
        }
        old = Some(step(old, stream_id, line, original)?);
        new = Some(step(new, stream_id, line, copied)?);
        if old != new {
            return Ok(false);
        }
    }
    Ok(true)
}

fn step(order: Option<Order>, stream_id: Uuid, line: &Line, event: Event) -> Result<Order, DeskError> {
    let recorded = Recorded { version: line.version, at: line.at, event };
    Order::after(order, stream_id, &line.tenant_id, &recorded).map_err(|cause| broken(stream_id, &cause))
}
