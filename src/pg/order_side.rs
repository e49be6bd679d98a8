//! What the console reads of sagas and windows. It owns neither: where their tables are not there, `None` says so.

use serde::Serialize;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

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

/// A row of `saga`.
#[derive(Debug, Clone, PartialEq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct Saga {
    pub id: String,
    pub name: String,
    pub order_id: String,
    pub state: String,
    pub step: Option<String>,
    pub attempts: i64,
    pub next_at: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// A row of `saga_step`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, sqlx::FromRow)]
#[serde(rename_all = "camelCase")]
pub struct SagaStep {
    pub step: String,
    pub kind: String,
    pub state: String,
    pub chave: Option<String>,
    pub note: Option<String>,
    pub at: String,
}

/// A saga with everything it did.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SagaStory {
    #[serde(flatten)]
    pub saga: Saga,
    pub context: Value,
    pub steps: Vec<SagaStep>,
    /// Couriers that are held for it.
    pub couriers: Vec<String>,
}

/// Which sagas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SagaFilter {
    pub state: Option<String>,
    pub order: Option<Uuid>,
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

const SAGA: &str = concat!(
    "select id::text as id, name::text as name, order_id::text as order_id, state::text as state, step::text as step,
            attempts::bigint as attempts, ",
    instant!("next_at"),
    " as next_at, ",
    instant!("created_at"),
    " as created_at, ",
    instant!("updated_at"),
    " as updated_at from saga"
);

/// The newest first.
pub async fn sagas(
    connection: &mut PgConnection,
    filter: &SagaFilter,
    limit: i64,
) -> Result<Option<Vec<Saga>>, StoreError> {
    if !is_there(connection, "saga").await? {
        return Ok(None);
    }
    let sql = format!(
        "{SAGA} where ($1::text is null or state = $1) and ($2::uuid is null or order_id = $2)
         order by saga.created_at desc, saga.id desc limit $3"
    );
    let found = sqlx::query_as(AssertSqlSafe(sql))
        .bind(filter.state.as_deref())
        .bind(filter.order)
        .bind(limit)
        .fetch_all(connection)
        .await?;
    Ok(Some(found))
}

pub async fn saga(connection: &mut PgConnection, id: Uuid) -> Result<Option<SagaStory>, StoreError> {
    if !is_there(connection, "saga").await? {
        return Ok(None);
    }
    let sql = format!("{SAGA} where id = $1");
    let found = sqlx::query_as(AssertSqlSafe(sql)).bind(id).fetch_optional(&mut *connection).await?;
    let Some(saga) = found else { return Ok(None) };
    let context = sqlx::query_scalar("select coalesce(to_jsonb(context), 'null') from saga where id = $1")
        .bind(id)
        .fetch_one(&mut *connection)
        .await?;
    let steps = sqlx::query_as(concat!(
        "select step, kind, state, chave, to_jsonb(s) ->> 'note' as note, ",
        instant!("at"),
        " as at from saga_step s where saga_id = $1 order by (to_jsonb(s) ->> 'id')::bigint, s.at"
    ))
    .bind(id)
    .fetch_all(&mut *connection)
    .await?;
    let couriers =
        sqlx::query_scalar("select courier_id::text from courier_reservation where saga_id = $1 order by 1")
            .bind(id)
            .fetch_all(connection)
            .await?;
    Ok(Some(SagaStory { saga, context, steps, couriers }))
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
