//! Tables partitioned by day: partitions are made ahead, and dropped when everything in them is over.
//!
//! Dropping a partition frees its space at once; deleting its rows would leave dead ones that every scan walks over
//! for as long as any old transaction is open. A default partition takes what has no day of its own, so an insert
//! never fails for want of one; there rows are deleted, for they are few.
//!
//! Each change takes short locks, with a short wait for them: an insert must not queue behind a drop that queues
//! behind a long read. What was not free is tried again in the next round.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::error::StoreError;

/// Today and so many days to come have their partition.
const DAYS_AHEAD: i32 = 3;
/// Rows of the default partition that go in one statement.
const DELETE_MAX: i64 = 10_000;

const LOCK_LIMIT: &str = "set local lock_timeout = '500ms'";

/// A table with a partition for each day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DayTable {
    /// Kept while anything in it is unpublished or parked.
    Outbox,
    /// Nobody marks its rows: the log has them, and a replication slot keeps the log.
    OutboxUnderCdc,
    Inbox,
}

impl DayTable {
    const fn name(self) -> &'static str {
        match self {
            Self::Outbox | Self::OutboxUnderCdc => "outbox",
            Self::Inbox => "inbox",
        }
    }

    /// Bounds of a partition are instants in UTC, or dates.
    const fn bound(self, day: &'static str) -> &'static str {
        match (self, day.as_bytes()[0]) {
            (Self::Inbox, b'f') => "to_char(day, 'YYYY-MM-DD')",
            (Self::Inbox, _) => "to_char(day + 1, 'YYYY-MM-DD')",
            (_, b'f') => "to_char(day, 'YYYY-MM-DD') || ' 00:00:00+00'",
            _ => "to_char(day + 1, 'YYYY-MM-DD') || ' 00:00:00+00'",
        }
    }

    /// Whether a row still has to stay, `$1` being the oldest instant that is kept.
    const fn stays(self) -> &'static str {
        match self {
            Self::Outbox => "published_at is null or published_at >= $1::timestamptz",
            Self::OutboxUnderCdc => "created_at >= $1::timestamptz",
            Self::Inbox => "processed_at >= $1::timestamptz",
        }
    }
}

/// Makes the partitions of today and the days to come.
pub async fn make_ahead(connection: &mut PgConnection, table: DayTable) -> Result<(), StoreError> {
    let name = table.name();
    let missing: Vec<(String, String, String)> = sqlx::query_as(AssertSqlSafe(format!(
        "select '{name}_' || to_char(day, 'YYYYMMDD'), {from}, {to}
         from (select (now() at time zone 'UTC')::date + n as day from generate_series(0, $1) as n) as days
         where to_regclass('{name}_' || to_char(day, 'YYYYMMDD')) is null order by day",
        from = table.bound("from"),
        to = table.bound("to"),
    )))
    .bind(DAYS_AHEAD)
    .fetch_all(&mut *connection)
    .await?;
    for (partition, from, to) in missing {
        let mut transaction = connection.begin().await?;
        // The parent's lock keeps inserts out for the moment: one that had chosen the default partition already
        // would fail there, because the row has become another partition's.
        let statements = format!(
            "{LOCK_LIMIT};
             create table if not exists {partition} (like {name} including all);
             lock table {name} in share row exclusive mode;
             alter table {name} attach partition {partition} for values from ('{from}') to ('{to}')"
        );
        match sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *transaction).await {
            Ok(_) => transaction.commit().await?,
            Err(error) => {
                transaction.rollback().await?;
                let error = StoreError::from(error);
                // 23514: the default partition holds rows of that day already; they are found and leave there.
                if !matches!(error, StoreError::Data(_)) {
                    return Err(error);
                }
                tracing::warn!(partition, %error, "rows of that day stay in the default partition");
            }
        }
    }
    Ok(())
}

/// Drops the partitions of days that are over and hold nothing younger than `retention`; says which. Rows of the
/// default partition that are as old are deleted.
pub async fn drop_over(
    connection: &mut PgConnection,
    table: DayTable,
    retention: Duration,
) -> Result<Vec<String>, StoreError> {
    let name = table.name();
    let (candidates, oldest): (Vec<String>, String) = sqlx::query_as(AssertSqlSafe(format!(
        "select coalesce(array_agg(c.relname::text order by c.relname)
                           filter (where c.relname ~ '^{name}_[0-9]{{8}}$'
                                   and right(c.relname, 8) < to_char((now() at time zone 'UTC')
                                                                     - make_interval(secs => $1), 'YYYYMMDD')),
                         array[]::text[]),
                (now() - make_interval(secs => $1))::text
         from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = '{name}'::regclass"
    )))
    .bind(retention.as_secs_f64())
    .fetch_one(&mut *connection)
    .await?;
    let mut dropped = Vec::new();
    for partition in candidates {
        if drop_one(connection, table, &partition, &oldest).await? {
            dropped.push(partition);
        }
    }
    sqlx::query(AssertSqlSafe(format!(
        "delete from {name}_default where ctid = any(array(
             select ctid from {name}_default where not ({stays}) limit {DELETE_MAX}))",
        stays = table.stays()
    )))
    .bind(&oldest)
    .execute(connection)
    .await?;
    Ok(dropped)
}

async fn drop_one(
    connection: &mut PgConnection,
    table: DayTable,
    partition: &str,
    oldest: &str,
) -> Result<bool, StoreError> {
    // A look that holds nothing up first: most often something stays.
    let name = table.name();
    let look = format!("select exists (select 1 from {partition} where {})", table.stays());
    let first_look = sqlx::query_scalar(AssertSqlSafe(look.clone())).bind(oldest);
    if first_look.fetch_one(&mut *connection).await? {
        return Ok(false);
    }
    let mut transaction = connection.begin().await?;
    sqlx::query(LOCK_LIMIT).execute(&mut *transaction).await?;
    // Nobody writes to the day between the second look and the drop; writers of other days go on.
    let locking = format!("lock table {partition} in share row exclusive mode");
    sqlx::raw_sql(AssertSqlSafe(locking)).execute(&mut *transaction).await?;
    let stays: bool =
        sqlx::query_scalar(AssertSqlSafe(look)).bind(oldest).fetch_one(&mut *transaction).await?;
    if stays {
        transaction.rollback().await?;
        return Ok(false);
    }
    let statements = format!("alter table {name} detach partition {partition}; drop table {partition}");
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(true)
}
