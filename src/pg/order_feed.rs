//! All events in the order of `global_seq`, for whoever keeps up with them: nothing is ever passed over.
//!
//! A row's number is given at its insert, the row appears at its commit: a later number can appear first, and some
//! never appear. Every writer holds an advisory lock that says above which number its rows will be (a trigger of the
//! table sees to it, whoever writes), so the *floor* is known: at or below it nothing can appear any more. Readers
//! stop at the floor, and step over gaps below it. (tests `the_feed_waits_for_a_transaction_that_commits_late`,
//! `the_feed_steps_over_what_was_rolled_back`)
//!
//! Only writers of orders hold the floor down; other long transactions on the server do not. Ask the primary: on a
//! standby the locks are not seen. To be woken, listen on [`CHANNEL`](super::orders::CHANNEL), and poll behind it:
//! hints can be lost.

use sqlx::PgConnection;

use super::error::StoreError;
use super::orders::{StoredEvent, stored};

/// The `global_seq` of the last event that was handled; 0 before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub i64);

/// The position below and at which nothing can appear any more. A reader that has everything up to here may keep it
/// as its cursor, although no event may stand exactly there.
pub async fn floor(connection: &mut PgConnection) -> Result<Position, StoreError> {
    Ok(Position(sqlx::query_scalar("select order_events_floor()").fetch_one(connection).await?))
}

/// The next events after `after`, at most `limit`, in order; none where there is nothing that is safe to read.
///
/// Two statements on purpose, and not inside a `repeatable read` transaction: rows must be read with a snapshot that
/// is younger than the floor.
pub async fn next(
    connection: &mut PgConnection,
    after: Position,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    let floor = floor(connection).await?;
    between(connection, after, floor, limit).await
}

/// Events above `after` up to and with `last`, which must not be above a [`floor`] that was asked before.
pub async fn between(
    connection: &mut PgConnection,
    after: Position,
    last: Position,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    if last <= after {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(
        "select stream_id, version, type, payload::text as payload, metadata::text as metadata, global_seq,
                (extract(epoch from ts) * 1000000)::bigint as at_us
         from order_events where global_seq > $1 and global_seq <= $2 order by global_seq limit $3",
    )
    .bind(after.0)
    .bind(last.0)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(stored).collect()
}
