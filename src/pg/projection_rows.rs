//! What is asked of read models over HTTP.

use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::StoreError;
use super::orders::int;

/// A row of `orders_view`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct OrderRow {
    pub order_id: Uuid,
    pub tenant_id: String,
    pub seller_id: String,
    pub status: String,
    pub version: i32,
    pub amount_cents: i64,
    pub courier_id: Option<String>,
    pub vehicle_type: Option<String>,
    pub placed_at: String,
    pub paid_at: Option<String>,
    pub updated_at: String,
}

/// A row of `dashboard_aggregate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct DashboardRow {
    pub tenant_id: String,
    pub status: String,
    pub orders: i64,
    pub amount_cents: i64,
}

/// Which orders.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    pub tenant: Option<String>,
    pub status: Option<String>,
    /// Orders behind this one, by id.
    pub after: Option<Uuid>,
    pub limit: u32,
}

pub async fn orders(connection: &mut PgConnection, wanted: &Wanted) -> Result<Vec<OrderRow>, StoreError> {
    Ok(sqlx::query_as(
        r#"select order_id, tenant_id, seller_id, status, version, amount_cents, courier_id, vehicle_type,
                to_char(placed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as placed_at,
                to_char(paid_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as paid_at,
                to_char(updated_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as updated_at
         from orders_view
         where ($1::text is null or tenant_id = $1) and ($2::text is null or status = $2)
           and ($3::uuid is null or order_id > $3)
         order by order_id limit $4"#,
    )
    .bind(wanted.tenant.as_deref())
    .bind(wanted.status.as_deref())
    .bind(wanted.after)
    .bind(i64::from(wanted.limit))
    .fetch_all(connection)
    .await?)
}

pub async fn dashboard(
    connection: &mut PgConnection,
    tenant: Option<&str>,
) -> Result<Vec<DashboardRow>, StoreError> {
    Ok(sqlx::query_as(
        "select tenant_id, status, orders, amount_cents from dashboard_aggregate
         where orders <> 0 and ($1::text is null or tenant_id = $1) order by tenant_id, status",
    )
    .bind(tenant)
    .fetch_all(connection)
    .await?)
}

/// Whether `orders_view` has an order at `version` or later; also where no runner has ever kept it.
pub async fn has_version(
    connection: &mut PgConnection,
    order_id: Uuid,
    version: u32,
) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar(
        "select exists (select from orders_view where order_id = $1 and version >= $2)
                or not exists (select from projection_cursors where name = 'orders_view' and followed_since is not null)",
    )
    .bind(order_id)
    .bind(int(version))
    .fetch_one(connection)
    .await?)
}
