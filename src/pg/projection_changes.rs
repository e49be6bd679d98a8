//! Read models: bringing the rows of a generation to where changes are.
//!
//! A row is updated where the change is as new or newer, and inserted where its order began. The caller holds the
//! cursor of the shard, which makes it the only writer of the shard's rows.

use jiff::Timestamp;
use sqlx::{AssertSqlSafe, PgConnection};

use super::error::StoreError;
use super::orders::int;
use crate::domain::read_model::{Change, Name, Shard};

/// Columns as arrays: one statement, whatever the number of orders. Instants travel in microseconds.
const CHANGES: &str = "change as materialized (
    select order_id, tenant_id, version, first, status, seller_id, amount_cents, courier_id, vehicle_type,
           'epoch'::timestamptz + at * interval '1 microsecond' as at,
           'epoch'::timestamptz + placed_at * interval '1 microsecond' as placed_at,
           'epoch'::timestamptz + paid_at * interval '1 microsecond' as paid_at,
           'epoch'::timestamptz + picked_up_at * interval '1 microsecond' as picked_up_at,
           'epoch'::timestamptz + expected_at * interval '1 microsecond' as expected_at,
           'epoch'::timestamptz + delivered_at * interval '1 microsecond' as delivered_at
    from unnest($1::uuid[], $2::text[], $3::int[], $4::int[], $5::text[], $6::text[], $7::bigint[], $8::text[],
                $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[])
         as change(order_id, tenant_id, version, first, status, seller_id, amount_cents, courier_id, vehicle_type,
                   at, placed_at, paid_at, picked_up_at, expected_at, delivered_at))";

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
                from change c where o.order_id = c.order_id and o.version <= c.version)
             insert into orders_view_g{g} (order_id, tenant_id, seller_id, status, version, amount_cents, courier_id,
                                           vehicle_type, placed_at, paid_at, updated_at)
             select order_id, tenant_id, seller_id, status, version, amount_cents, courier_id, vehicle_type, placed_at,
                    paid_at, at
             from change where placed_at is not null on conflict do nothing"
        ),
        Name::DashboardAggregate => format!(
            "with {CHANGES}, old as (
                select o.* from dashboard_counted_g{g} o join change c using (order_id) where o.version <= c.version),
             updated as (
                update dashboard_counted_g{g} o set status = c.status, version = c.version
                from change c where o.order_id = c.order_id and o.version <= c.version
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
                from change c where o.order_id = c.order_id and o.version <= c.version)
             insert into delivery_eta_g{g} (order_id, tenant_id, version, picked_up_at, expected_at, delivered_at)
             select order_id, tenant_id, version, picked_up_at, expected_at, delivered_at
             from change where picked_up_at is not null on conflict do nothing"
        ),
    };
    bound(sql, changes).execute(connection).await?;
    Ok(())
}

type Bound<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

/// The statement with the changes as its arguments.
fn bound(sql: String, changes: &[Change]) -> Bound<'_> {
    fn column<'a, T>(changes: &'a [Change], of: impl Fn(&'a Change) -> T) -> Vec<T> {
        changes.iter().map(of).collect()
    }
    let instants = |of: fn(&Change) -> Option<Timestamp>| {
        column(changes, move |change| of(change).map(Timestamp::as_microsecond))
    };
    sqlx::query(AssertSqlSafe(sql))
        .bind(column(changes, |change| change.order_id))
        .bind(column(changes, |change| change.tenant_id.as_str()))
        .bind(column(changes, |change| int(change.version)))
        .bind(column(changes, |change| int(change.first)))
        .bind(column(changes, |change| change.status))
        .bind(column(changes, |change| change.seller_id.as_deref()))
        .bind(column(changes, |change| change.amount_cents))
        .bind(column(changes, |change| change.courier_id.as_deref()))
        .bind(column(changes, |change| change.vehicle_type.as_deref()))
        .bind(instants(|change| Some(change.at)))
        .bind(instants(|change| change.placed_at))
        .bind(instants(|change| change.paid_at))
        .bind(instants(|change| change.picked_up_at))
        .bind(instants(|change| change.expected_at))
        .bind(instants(|change| change.delivered_at))
}
