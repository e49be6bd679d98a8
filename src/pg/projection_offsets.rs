//! How far a rebuild has read the topic of orders, and whether what it read has holes.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::error::StoreError;
use super::orders::int;
use crate::domain::read_model::{Change, Name, Shard};

/// A partition's part: `next` inclusive, `end` exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub struct Place {
    pub partition: i32,
    #[sqlx(rename = "next_offset")]
    pub next: i64,
    #[sqlx(rename = "end_offset")]
    pub end: i64,
}

/// Keeps where a rebuild is to read. Partitions are dealt out to its shards in turn.
pub async fn plan(
    connection: &mut PgConnection,
    (name, generation): (Name, i32),
    shards: i32,
    places: &[Place],
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into projection_offsets (name, generation, partition, shard, next_offset, end_offset)
         select $1, $2, partition, (row_number() over (order by partition) - 1) % $3, next_offset, end_offset
         from unnest($4::int[], $5::bigint[], $6::bigint[]) as place(partition, next_offset, end_offset)",
    )
    .bind(name.as_str())
    .bind(generation)
    .bind(shards)
    .bind(places.iter().map(|place| place.partition).collect::<Vec<_>>())
    .bind(places.iter().map(|place| place.next).collect::<Vec<_>>())
    .bind(places.iter().map(|place| place.end).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// Where a shard stands.
pub async fn places(connection: &mut PgConnection, shard: Shard) -> Result<Vec<Place>, StoreError> {
    Ok(sqlx::query_as(
        "select partition, next_offset, end_offset from projection_offsets
         where name = $1 and generation = $2 and shard = $3 order by partition",
    )
    .bind(shard.name.as_str())
    .bind(shard.generation)
    .bind(shard.shard)
    .fetch_all(connection)
    .await?)
}

/// Moves a shard's places, in the transaction of its rows.
pub async fn reach(connection: &mut PgConnection, shard: Shard, places: &[Place]) -> Result<(), StoreError> {
    sqlx::query(
        "update projection_offsets o set next_offset = place.next_offset
         from unnest($3::int[], $4::bigint[]) as place(partition, next_offset)
         where o.name = $1 and o.generation = $2 and o.partition = place.partition",
    )
    .bind(shard.name.as_str())
    .bind(shard.generation)
    .bind(places.iter().map(|place| place.partition).collect::<Vec<_>>())
    .bind(places.iter().map(|place| place.next).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// How many offsets of a generation are still to be read.
pub async fn left(connection: &mut PgConnection, name: Name, generation: i32) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar(
        "select coalesce(sum(end_offset - next_offset), 0)::bigint from projection_offsets
         where name = $1 and generation = $2",
    )
    .bind(name.as_str())
    .bind(generation)
    .fetch_one(connection)
    .await?)
}

/// An order whose change does not follow on its row, and the version that is missing. `delivery_eta` has no row
/// before the pick-up, and so does not tell.
pub async fn hole(
    connection: &mut PgConnection,
    shard: Shard,
    changes: &[Change],
) -> Result<Option<(Uuid, u32)>, StoreError> {
    let table = match shard.name {
        Name::OrdersView => "orders_view",
        Name::DashboardAggregate => "dashboard_counted",
        Name::DeliveryEta => return Ok(None),
    };
    let sql = format!(
        "select order_id, coalesce(o.version, 0) + 1
         from unnest($1::uuid[], $2::int[]) as change(order_id, first)
         left join {table}_g{} o using (order_id)
         where change.first > coalesce(o.version, 0) + 1 limit 1",
        shard.generation
    );
    let found: Option<(Uuid, i32)> = sqlx::query_as(AssertSqlSafe(sql))
        .bind(changes.iter().map(|change| change.order_id).collect::<Vec<_>>())
        .bind(changes.iter().map(|change| int(change.first)).collect::<Vec<_>>())
        .fetch_optional(connection)
        .await?;
    Ok(found.map(|(order_id, version)| (order_id, version.unsigned_abs())))
}
