//! What windows counted, as it is asked: `None` where there is no such table.

use serde::Serialize;
use sqlx::{AssertSqlSafe, PgConnection};

use super::error::StoreError;

/// Tenants that a choice offers, the busiest first.
const TENANTS: i64 = 50;
/// Couriers of one listing.
const COURIERS: i64 = 200;

/// An instant as the boundary writes it.
macro_rules! instant {
    ($column:literal) => {
        concat!("to_char(", $column, r#" at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
    };
}

/// A window of one or all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    pub window_start: String,
    pub orders: i64,
    pub amount_cents: i64,
}

/// A courier of whom nothing was heard for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct Offline {
    pub courier_id: String,
    pub tenant_id: String,
    pub last_seen_at: String,
    pub detected_at: String,
    pub back_at: Option<String>,
}

/// What the windows say; `None` where they are not set up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kpis {
    /// The last hour there is, by the minute.
    pub per_minute: Option<Vec<Window>>,
    /// The last day there is, hours that begin every five minutes.
    pub per_hour: Option<Vec<Window>>,
    /// Those that are away, then those that came back, newest first.
    pub couriers_offline: Option<Vec<Offline>>,
    /// Who had orders in that hour.
    pub tenants: Vec<String>,
}

async fn is_there(connection: &mut PgConnection, table: &str) -> Result<bool, StoreError> {
    let sql = "select to_regclass($1) is not null";
    Ok(sqlx::query_scalar(sql).bind(table).fetch_one(connection).await?)
}

/// Of one tenant, or of all together.
pub async fn kpis(connection: &mut PgConnection, tenant: Option<&str>) -> Result<Kpis, StoreError> {
    let mut kpis = Kpis::default();
    if is_there(connection, "kpi_orders_per_minute").await? {
        kpis.per_minute = Some(windows(connection, "kpi_orders_per_minute", "59 minutes", tenant).await?);
        kpis.tenants = sqlx::query_scalar(
            "select tenant_id::text from kpi_orders_per_minute
             where window_start >= (select max(window_start) from kpi_orders_per_minute) - interval '59 minutes'
             group by tenant_id order by sum(orders) desc, tenant_id limit $1",
        )
        .bind(TENANTS)
        .fetch_all(&mut *connection)
        .await?;
    }
    if is_there(connection, "kpi_orders_hour").await? {
        kpis.per_hour = Some(windows(connection, "kpi_orders_hour", "24 hours", tenant).await?);
    }
    if is_there(connection, "courier_offline").await? {
        let found = sqlx::query_as(concat!(
            "select courier_id::text as courier_id, tenant_id::text as tenant_id, ",
            instant!("last_seen_at"),
            " as last_seen_at, ",
            instant!("detected_at"),
            " as detected_at, ",
            instant!("back_at"),
            " as back_at from courier_offline where ($1::text is null or tenant_id = $1)
              order by courier_offline.back_at is not null, courier_offline.last_seen_at desc, courier_id limit $2"
        ))
        .bind(tenant)
        .bind(COURIERS)
        .fetch_all(connection)
        .await?;
        kpis.couriers_offline = Some(found);
    }
    Ok(kpis)
}

/// The last windows up to the newest of any tenant.
async fn windows(
    connection: &mut PgConnection,
    table: &'static str,
    back: &'static str,
    tenant: Option<&str>,
) -> Result<Vec<Window>, StoreError> {
    let start = instant!("k.window_start");
    let sql = format!(
        "select {start} as window_start, sum(k.orders)::bigint as orders, sum(k.amount_cents)::bigint as amount_cents
         from {table} k
         where k.window_start >= (select max(window_start) from {table}) - interval '{back}'
           and ($1::text is null or k.tenant_id = $1)
         group by k.window_start order by k.window_start"
    );
    Ok(sqlx::query_as(AssertSqlSafe(sql)).bind(tenant).fetch_all(connection).await?)
}
