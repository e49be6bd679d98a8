//! `GET /api/v1/orders` and `GET /api/v1/dashboard`: read models, a little behind the commands.
//!
//! Pages of orders go by order id: `nextCursor` of one page is the `cursor` of the next, absent on the last.
//! `X-Tenant-Id` keeps to the orders of one tenant, whatever the query says.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::projection_rows::{self as rows, DashboardRow, OrderRow, Wanted};

const PAGE: u32 = 100;
const PAGE_MAX: u32 = 1_000;
pub const STATUSES: [&str; 8] = [
    "placed",
    "paid",
    "assigned",
    "picked_up",
    "out_for_delivery",
    "delivered",
    "cancellation_requested",
    "cancelled",
];

type Answer = Result<Response, Problem>;

/// The routes, for the listener's protected side.
pub fn router(database: Database) -> Router {
    Router::new()
        .route("/api/v1/orders", get(orders))
        .route("/api/v1/dashboard", get(dashboard))
        .with_state(database)
}

#[derive(Deserialize)]
struct Asked {
    tenant: Option<String>,
    status: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    orders: Vec<OrderRow>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct Dashboard {
    rows: Vec<DashboardRow>,
}

fn bad(field: &str, remedy: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-request", format!("{field}: {remedy}"))
}

fn failed(error: impl Into<StoreError>) -> Problem {
    match error.into() {
        error @ StoreError::Transient(_) => {
            tracing::warn!(%error, "a question met a database that is away");
            let detail = "the database is away; ask again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
        }
        error => {
            tracing::error!(%error, "a read model cannot be read");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the log")
        }
    }
}

/// The tenant of the caller, which the query cannot leave.
fn tenant(headers: &HeaderMap, asked: Option<String>) -> Result<Option<String>, Problem> {
    let Some(own) = headers.get("x-tenant-id") else { return Ok(asked) };
    let own = own.to_str().map_err(|_| bad("X-Tenant-Id", "must be readable text"))?;
    if asked.is_some_and(|asked| asked != own) {
        return Err(bad("tenant", "is not the tenant of X-Tenant-Id"));
    }
    Ok(Some(own.to_owned()))
}

async fn orders(State(database): State<Database>, headers: HeaderMap, Query(asked): Query<Asked>) -> Answer {
    let limit = asked.limit.map_or(Ok(PAGE), |text| text.parse()).unwrap_or(0);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(bad("limit", "must be a number from 1 to 1000"));
    }
    if asked.status.as_deref().is_some_and(|status| !STATUSES.contains(&status)) {
        return Err(bad("status", &format!("must be one of {}", STATUSES.join(", "))));
    }
    let after = asked.cursor.map(|text| text.parse()).transpose();
    let after = after.map_err(|_| bad("cursor", "must be the nextCursor of a page"))?;
    let tenant = tenant(&headers, asked.tenant)?;
    let wanted = Wanted { tenant, status: asked.status, after, limit: limit + 1, between: None };
    let mut connection = database.pool().acquire().await.map_err(failed)?;
    let mut orders = rows::orders(&mut connection, &wanted).await.map_err(failed)?;
    let more = orders.len() > limit as usize;
    orders.truncate(limit as usize);
    let next_cursor = if more { orders.last().map(|row| row.order_id.to_string()) } else { None };
    Ok(Json(Page { orders, next_cursor }).into_response())
}

async fn dashboard(
    State(database): State<Database>,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Answer {
    let tenant = tenant(&headers, asked.tenant)?;
    let mut connection = database.pool().acquire().await.map_err(failed)?;
    let rows = rows::dashboard(&mut connection, tenant.as_deref()).await.map_err(failed)?;
    Ok(Json(Dashboard { rows }).into_response())
}
