//! Read models: rows and cursors of their generations.
//!
//! Table names are made of a [`Name`] and a number, never of input. Changes travel as one JSON document: every
//! projection takes the columns that it knows. A row is updated where the change is newer, and inserted where its
//! order began; the cursor is locked first, which makes its holder the only writer of the shard's rows.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::error::StoreError;
use super::orders::{StoredEvent, stored};
use crate::projections::{Change, Name, Shard};

/// Where a shard of a generation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    pub shard: Shard,
    pub shards: i32,
    pub position: i64,
    pub state: String,
}

const CURSOR: &str =
    "select name, generation, shard, shards, last_processed_seq, state from projection_cursors";

fn cursor(row: &PgRow) -> Result<Option<Cursor>, StoreError> {
    let name: String = row.try_get("name")?;
    // A projection of a newer program is that program's to run.
    let Ok(name) = name.parse() else { return Ok(None) };
    Ok(Some(Cursor {
        shard: Shard { name, generation: row.try_get("generation")?, shard: row.try_get("shard")? },
        shards: row.try_get("shards")?,
        position: row.try_get("last_processed_seq")?,
        state: row.try_get("state")?,
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

/// The shard's next events up to `last`, a floor that was asked before, at most `limit`.
pub async fn events(
    connection: &mut PgConnection,
    cursor: &Cursor,
    last: i64,
    limit: u32,
) -> Result<Vec<StoredEvent>, StoreError> {
    let rows = sqlx::query(
        "select stream_id, version, type, payload::text as payload, metadata::text as metadata, global_seq,
                (extract(epoch from ts) * 1000000)::bigint as at_us
         from order_events
         where global_seq > $1 and global_seq <= $2 and ($4 = 1 or (uuid_hash(stream_id) & 2147483647) % $4 = $5)
         order by global_seq limit $3",
    )
    .bind(cursor.position)
    .bind(last)
    .bind(i64::from(limit))
    .bind(cursor.shards)
    .bind(cursor.shard.shard)
    .fetch_all(connection)
    .await?;
    rows.iter().map(stored).collect()
}

const CHANGES: &str = "change as (
    select * from jsonb_to_recordset($1::jsonb) as change(
        order_id uuid, tenant_id text, version int, at timestamptz, status text, seller_id text, amount_cents bigint,
        courier_id text, vehicle_type text, placed_at timestamptz, paid_at timestamptz, picked_up_at timestamptz,
        expected_at timestamptz, delivered_at timestamptz))";

/// Brings the rows of a generation to where the changes are.
pub async fn apply(
    connection: &mut PgConnection,
    shard: Shard,
    changes: &[Change],
) -> Result<(), StoreError> {
    let g = shard.generation;
    let sql = match shard.name {
        Name::OrdersView => format!(
            "with {CHANGES}, updated as (
                update orders_view_g{g} o set status = c.status, version = c.version, updated_at = c.at,
                       courier_id = coalesce(c.courier_id, o.courier_id),
                       vehicle_type = coalesce(c.vehicle_type, o.vehicle_type),
                       paid_at = coalesce(c.paid_at, o.paid_at)
                from change c where o.order_id = c.order_id and o.version < c.version)
             insert into orders_view_g{g} (order_id, tenant_id, seller_id, status, version, amount_cents, courier_id,
                                           vehicle_type, placed_at, paid_at, updated_at)
             select order_id, tenant_id, seller_id, status, version, amount_cents, courier_id, vehicle_type, placed_at,
                    paid_at, at
             from change where placed_at is not null on conflict do nothing"
        ),
        Name::DashboardAggregate => format!(
            "with {CHANGES}, old as (
                select o.* from dashboard_counted_g{g} o join change c using (order_id) where o.version < c.version),
             updated as (
                update dashboard_counted_g{g} o set status = c.status, version = c.version
                from change c where o.order_id = c.order_id and o.version < c.version
                returning o.tenant_id, o.status, o.amount_cents),
             inserted as (
                insert into dashboard_counted_g{g} (order_id, tenant_id, status, version, amount_cents)
                select order_id, tenant_id, status, version, amount_cents from change where placed_at is not null
                on conflict do nothing returning tenant_id, status, amount_cents),
             moved as (
                select tenant_id, status, 1 as n, amount_cents from updated
                union all select tenant_id, status, 1, amount_cents from inserted
                union all select tenant_id, status, -1, -amount_cents from old)
             insert into dashboard_aggregate_g{g} as d (tenant_id, status, orders, amount_cents)
             select tenant_id, status, sum(n)::bigint, sum(amount_cents)::bigint from moved group by 1, 2
             having sum(n) <> 0 or sum(amount_cents) <> 0 order by 1, 2
             on conflict (tenant_id, status) do update
             set orders = d.orders + excluded.orders, amount_cents = d.amount_cents + excluded.amount_cents"
        ),
        Name::DeliveryEta => format!(
            "with {CHANGES}, updated as (
                update delivery_eta_g{g} o set version = c.version,
                       delivered_at = coalesce(c.delivered_at, o.delivered_at)
                from change c where o.order_id = c.order_id and o.version < c.version)
             insert into delivery_eta_g{g} (order_id, tenant_id, version, picked_up_at, expected_at, delivered_at)
             select order_id, tenant_id, version, picked_up_at, expected_at, delivered_at
             from change where picked_up_at is not null on conflict do nothing"
        ),
    };
    let changes = sqlx::types::Json(changes);
    sqlx::query(AssertSqlSafe(sql)).bind(changes).execute(connection).await?;
    Ok(())
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
    shards: i32,
) -> Result<(), StoreError> {
    for table in tables(name) {
        let sql = format!("create table {table}{generation} (like {table}{model} including all)");
        sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await?;
    }
    sqlx::query(
        "insert into projection_cursors (name, generation, shard, shards, state)
         select $1, $2, shard, $3, 'building' from generate_series(0, $3 - 1) as shard",
    )
    .bind(name.as_str())
    .bind(generation)
    .bind(shards)
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
    sqlx::query("delete from projection_cursors where name = $1 and generation = $2 and state <> 'active'")
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
                greatest((select coalesce(max(global_seq), 0) from order_events) - last_processed_seq, 0) as lag_events,
                coalesce((select greatest(extract(epoch from clock_timestamp() - ts), 0)::float8 from order_events
                          where global_seq > last_processed_seq order by global_seq limit 1), 0) as lag_seconds
         from projection_cursors order by name, generation, shard",
    )
    .fetch_all(connection)
    .await?)
}
