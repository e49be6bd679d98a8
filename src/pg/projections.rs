//! Read models: rows and cursors of their generations.
//!
//! Table names are made of a [`Name`] and a number, never of input. A cursor is locked first, which makes its holder
//! the only writer of the shard's rows ([`apply`]).

use futures::TryStreamExt as _;
use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::error::StoreError;
use super::orders::{instant, unsigned, version};
pub use super::projection_changes::apply;
use crate::domain::read_model::{Fact, Name, Shard};

/// Where a shard of a generation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub shard: Shard,
    pub shards: i32,
    pub position: i64,
    pub state: String,
    pub fed_by: FedBy,
}

/// Who moves a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FedBy {
    /// Every runner that there is.
    Runner,
    /// A rebuild from the store.
    Rebuild,
    /// A rebuild from the topic of orders; then one from the store.
    Kafka,
}

impl FedBy {
    const ALL: [Self; 3] = [Self::Runner, Self::Rebuild, Self::Kafka];

    /// Column `fed_by`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runner => "runner",
            Self::Rebuild => "rebuild",
            Self::Kafka => "kafka",
        }
    }
}

const CURSOR: &str =
    "select name, generation, shard, shards, last_processed_seq, state, fed_by from projection_cursors";

fn cursor(row: &PgRow) -> Result<Option<Cursor>, StoreError> {
    let name: String = row.try_get("name")?;
    // A projection of a newer program is that program's to run.
    let Ok(name) = name.parse() else { return Ok(None) };
    let fed_by: &str = row.try_get("fed_by")?;
    let Some(fed_by) = FedBy::ALL.into_iter().find(|known| known.as_str() == fed_by) else { return Ok(None) };
    Ok(Some(Cursor {
        shard: Shard { name, generation: row.try_get("generation")?, shard: row.try_get("shard")? },
        shards: row.try_get("shards")?,
        position: row.try_get("last_processed_seq")?,
        state: row.try_get("state")?,
        fed_by,
    }))
}

/// Every cursor of a projection that this program knows.
pub async fn cursors(connection: &mut PgConnection) -> Result<Vec<Cursor>, StoreError> {
    let sql = AssertSqlSafe(format!("{CURSOR} order by name, generation, shard"));
    let rows = sqlx::query(sql).fetch_all(connection).await?;
    Ok(rows.iter().map(cursor).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Locks a cursor until the transaction ends; `None` where somebody else has it, or it is gone.
pub async fn take(connection: &mut PgConnection, shard: Shard) -> Result<Option<Cursor>, StoreError> {
    let sql = format!("{CURSOR} where name = $1 and generation = $2 and shard = $3 for update skip locked");
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(shard.name.as_str())
        .bind(shard.generation)
        .bind(shard.shard)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map_or(Ok(None), cursor)
}

/// Locks every cursor of a projection, waiting for whoever works on one: nothing moves until the transaction ends.
pub async fn take_all(connection: &mut PgConnection, name: Name) -> Result<Vec<Cursor>, StoreError> {
    let sql = format!("{CURSOR} where name = $1 order by generation, shard for update");
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(name.as_str()).fetch_all(connection).await?;
    Ok(rows.iter().map(cursor).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Hands the shard's next events up to `last`, a floor that was asked before, one by one to `each`, at most `limit`;
/// how many there were, and the position of the last.
pub async fn events<E: From<StoreError>>(
    connection: &mut PgConnection,
    cursor: &Cursor,
    last: i64,
    limit: u32,
    mut each: impl FnMut(i64, &Fact<'_>) -> Result<(), E>,
) -> Result<(u32, i64), E> {
    let mut rows = sqlx::query(EVENTS)
        .bind(cursor.position)
        .bind(last)
        .bind(i64::from(limit))
        .bind(cursor.shards)
        .bind(cursor.shard.shard)
        .fetch(connection);
    let (mut count, mut position) = (0, cursor.position);
    while let Some(row) = rows.try_next().await.map_err(StoreError::from)? {
        let (at, fact) = fact(&row)?;
        each(at, &fact)?;
        (count, position) = (count + 1, at);
    }
    Ok((count, position))
}

/// Without what handlers do not look at: a rebuild reads millions of these.
const EVENTS: &str = "
    select stream_id, version, type, payload::text as payload, metadata ->> 'tenant_id' as tenant_id,
           (metadata ->> 'schema_version')::int as form, global_seq, (extract(epoch from ts) * 1000000)::bigint as at_us
    from order_events
    where global_seq > $1 and global_seq <= $2 and ($4 = 1 or (uuid_hash(stream_id) & 2147483647) % $4 = $5)
    order by global_seq limit $3";

fn fact(row: &PgRow) -> Result<(i64, Fact<'_>), StoreError> {
    let fact = Fact {
        order_id: row.try_get(0)?,
        version: version(row)?,
        name: row.try_get(2)?,
        payload: row.try_get(3)?,
        tenant_id: row.try_get(4)?,
        form: unsigned(row.try_get(5)?)?,
        at: instant(row.try_get(7)?)?,
    };
    Ok((row.try_get(6)?, fact))
}

/// Moves a cursor, in the transaction of its rows.
pub async fn advance(connection: &mut PgConnection, shard: Shard, to: i64) -> Result<(), StoreError> {
    sqlx::query(
        "update projection_cursors set last_processed_seq = $4, updated_at = now()
         where name = $1 and generation = $2 and shard = $3",
    )
    .bind(shard.name.as_str())
    .bind(shard.generation)
    .bind(shard.shard)
    .bind(to)
    .execute(connection)
    .await?;
    Ok(())
}

/// Tables of a projection's generation, without the number.
const fn tables(name: Name) -> &'static [&'static str] {
    match name {
        Name::OrdersView => &["orders_view_g"],
        Name::DashboardAggregate => &["dashboard_aggregate_g", "dashboard_counted_g"],
        Name::DeliveryEta => &["delivery_eta_g"],
    }
}

/// Empty tables and cursors for a new generation like `model`. The caller holds the projection's cursors.
pub async fn create(
    connection: &mut PgConnection,
    name: Name,
    (model, generation): (i32, i32),
    (shards, fed_by): (i32, FedBy),
) -> Result<(), StoreError> {
    for table in tables(name) {
        let sql = format!("create table {table}{generation} (like {table}{model} including all)");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await?;
    }
    sqlx::query(
        "insert into projection_cursors (name, generation, shard, shards, state, fed_by)
         select $1, $2, shard, $3, 'building', $4 from generate_series(0, $3 - 1) as shard",
    )
    .bind(name.as_str())
    .bind(generation)
    .bind(shards)
    .bind(fed_by.as_str())
    .execute(connection)
    .await?;
    Ok(())
}

/// Hands a generation on to who moves it from now on.
pub async fn feed(
    connection: &mut PgConnection,
    name: Name,
    generation: i32,
    fed_by: FedBy,
) -> Result<(), StoreError> {
    sqlx::query(
        "update projection_cursors set fed_by = $3, updated_at = now() where name = $1 and generation = $2",
    )
    .bind(name.as_str())
    .bind(generation)
    .bind(fed_by.as_str())
    .execute(connection)
    .await?;
    Ok(())
}

/// Notes that runners keep these up to date from now on. Nothing is written where that is known.
pub async fn followed(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query(
        "update projection_cursors set followed_since = now() where followed_since is null and fed_by = 'runner'",
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The columns of the view, and which rows it has.
const fn view(name: Name) -> (&'static str, &'static str) {
    match name {
        Name::OrdersView => (
            "order_id, tenant_id, seller_id, status, version, amount_cents, courier_id, vehicle_type, placed_at, \
             paid_at, updated_at",
            "",
        ),
        Name::DashboardAggregate => ("tenant_id, status, orders, amount_cents", ""),
        Name::DeliveryEta => (
            "order_id, tenant_id, picked_up_at, expected_at, delivered_at",
            " where picked_up_at > now() - interval '24 hours'",
        ),
    }
}

/// Lets the name mean `generation`. The caller holds the projection's cursors.
pub async fn swap(connection: &mut PgConnection, name: Name, generation: i32) -> Result<(), StoreError> {
    sqlx::query(
        "update projection_cursors set updated_at = now(),
                state = case when generation = $2 then 'active' else 'retired' end
         where name = $1 and (generation = $2 or state = 'active')",
    )
    .bind(name.as_str())
    .bind(generation)
    .execute(&mut *connection)
    .await?;
    let (columns, rows) = view(name);
    let view = name.as_str();
    let sql = format!("create or replace view {view} as select {columns} from {view}_g{generation}{rows}");
    sqlx::query(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

/// Ends a generation that is not the active one. The caller holds the projection's cursors.
pub async fn remove(connection: &mut PgConnection, name: Name, generation: i32) -> Result<(), StoreError> {
    for table in tables(name) {
        let sql = format!("drop table {table}{generation}");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await?;
    }
    sqlx::query(
        "with offsets as (delete from projection_offsets where name = $1 and generation = $2)
         delete from projection_cursors where name = $1 and generation = $2 and state <> 'active'",
    )
    .bind(name.as_str())
    .bind(generation)
    .execute(connection)
    .await?;
    Ok(())
}

/// Rows that one generation has and the other has not, counters at nought aside.
pub async fn differences(
    connection: &mut PgConnection,
    name: Name,
    (one, other): (i32, i32),
) -> Result<i64, StoreError> {
    sqlx::query("set local statement_timeout = 0").execute(&mut *connection).await?;
    let (columns, _) = view(name);
    let table = name.as_str();
    let rows = if name == Name::DashboardAggregate { " where orders <> 0" } else { "" };
    let of = |generation: i32| format!("select {columns} from {table}_g{generation}{rows}");
    let (one, other) = (of(one), of(other));
    let sql = format!(
        "select count(*) from (({one} except all {other}) union all ({other} except all {one})) as different"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await?)
}

/// How far a shard of a generation is behind.
#[derive(Debug, Clone, PartialEq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct Lag {
    pub name: String,
    pub generation: i32,
    pub shard: i32,
    pub state: String,
    pub position: i64,
    pub lag_events: i64,
    /// Age of the first event that is not handled yet.
    pub lag_seconds: f64,
}

/// Every cursor with its lag.
pub async fn lags(connection: &mut PgConnection) -> Result<Vec<Lag>, StoreError> {
    Ok(sqlx::query_as(
        "select name, generation, shard, state, last_processed_seq as position,
                greatest((select coalesce(max(global_seq), 0) from order_events) - last_processed_seq, 0)
                    + case when fed_by = 'kafka' then
                          (select coalesce(sum(end_offset - next_offset), 0)::bigint from projection_offsets o
                           where o.name = c.name and o.generation = c.generation and o.shard = c.shard)
                      else 0 end as lag_events,
                coalesce((select greatest(extract(epoch from clock_timestamp() - ts), 0)::float8 from order_events
                          where global_seq > last_processed_seq order by global_seq limit 1), 0) as lag_seconds
         from projection_cursors c order by name, generation, shard",
    )
    .fetch_all(connection)
    .await?)
}
