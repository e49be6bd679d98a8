//! `POST /api/v1/orders/{id}/assign-courier` and `/api/v1/sagas`: beginning a saga, and its story.
//!
//! Needs no `Idempotency-Key`: an order has one saga that runs or has succeeded, and the same question finds it.
//! `X-Tenant-Id` makes orders and sagas of other tenants unknown.

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::problem::Problem;
use crate::orders::desk::{Desk, DeskError};
use crate::orders::order::{Refusal, Status};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::orders::Until;
use crate::pg::saga::{self as store, Context, Shown, ShownStep};
use crate::saga::machine::{NAME, Step};

const PAGE: i64 = 100;
const PAGE_MAX: i64 = 1_000;
const STATES: [&str; 4] = ["started", "compensating", "succeeded", "failed"];

type Answer = Result<Response, Problem>;

#[derive(Clone)]
struct Sagas {
    desk: Desk,
    database: Database,
    fee_cents: i64,
}

/// The routes, for the listener's protected side.
pub fn router(desk: Desk, database: Database, fee_cents: i64) -> Router {
    Router::new()
        .route("/api/v1/orders/{id}/assign-courier", post(assign_courier))
        .route("/api/v1/sagas", get(list))
        .route("/api/v1/sagas/{id}", get(show))
        .with_state(Sagas { desk, database, fee_cents })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Begun {
    saga_id: Uuid,
}

/// A saga and its story.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    saga: Shown,
    steps: Vec<ShownStep>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    sagas: Vec<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Asked {
    state: Option<String>,
    order: Option<String>,
    cursor: Option<String>,
    limit: Option<String>,
}

fn bad(field: &str, remedy: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-request", format!("{field}: {remedy}"))
}

fn failed(error: impl Into<StoreError>) -> Problem {
    match error.into() {
        error @ StoreError::Transient(_) => {
            tracing::warn!(%error, "a question about sagas met a database that is away");
            let detail = "the database is away; ask again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
        }
        error => {
            tracing::error!(%error, "sagas cannot be read");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the log")
        }
    }
}

fn tenant(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let own = headers.get("x-tenant-id").map(HeaderValue::to_str);
    own.transpose().map_err(|_| bad("X-Tenant-Id", "must be readable text"))
}

async fn assign_courier(State(sagas): State<Sagas>, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    let order_id: Uuid = id.parse().map_err(|_| bad("id", "must be the UUID of an order"))?;
    let unknown = || Problem::new(StatusCode::NOT_FOUND, "order-not-found", "there is no such order");
    let order = match sagas.desk.show(order_id, Until::Now, tenant(&headers)?).await {
        Ok(order) => order,
        Err(DeskError::Refused(Refusal::NoSuchOrder)) => return Err(unknown()),
        Err(DeskError::Store(error)) => return Err(failed(error)),
        Err(error) => {
            tracing::error!(%error, "an order cannot be read");
            return Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "unreadable-history",
                error.to_string(),
            ));
        }
    };
    let mut connection = sagas.database.pool().acquire().await.map_err(failed)?;
    let standing = store::standing(&mut connection, NAME, order_id).await.map_err(failed)?;
    let saga_id = match standing {
        Some(saga_id) => saga_id,
        None if order.status != Status::Paid => {
            let detail =
                format!("the order is {}; a courier is assigned once it is paid", order.status.as_str());
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "not-assignable", detail));
        }
        None => {
            let context = Context { fee_cents: sagas.fee_cents, ..Context::default() };
            let first = Step::ReserveCourier.as_str();
            store::begin(&mut connection, NAME, order_id, &order.tenant_id, first, &context)
                .await
                .map_err(failed)?
        }
    };
    let place = HeaderValue::from_str(&format!("/api/v1/sagas/{saga_id}"));
    let mut response = (StatusCode::ACCEPTED, Json(Begun { saga_id })).into_response();
    if let Ok(place) = place {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

async fn show(State(sagas): State<Sagas>, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    let id: Uuid = id.parse().map_err(|_| bad("id", "must be the UUID of a saga"))?;
    let tenant = tenant(&headers)?;
    let mut connection = sagas.database.pool().acquire().await.map_err(failed)?;
    let found = store::find(&mut connection, id).await.map_err(failed)?;
    let found = found.filter(|(saga, _)| tenant.is_none_or(|tenant| saga.tenant_id == tenant));
    match found {
        Some((saga, steps)) => Ok(Json(Told { saga, steps }).into_response()),
        None => Err(Problem::new(StatusCode::NOT_FOUND, "saga-not-found", "there is no such saga")),
    }
}

async fn list(State(sagas): State<Sagas>, headers: HeaderMap, Query(asked): Query<Asked>) -> Answer {
    let limit = asked.limit.map_or(Ok(PAGE), |text| text.parse()).unwrap_or(0);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(bad("limit", "must be a number from 1 to 1000"));
    }
    if asked.state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
        return Err(bad("state", &format!("must be one of {}", STATES.join(", "))));
    }
    let uuid = |text: Option<String>, field, remedy| {
        text.map(|text| text.parse::<Uuid>()).transpose().map_err(|_| bad(field, remedy))
    };
    let order = uuid(asked.order, "order", "must be the UUID of an order")?;
    let before = uuid(asked.cursor, "cursor", "must be the nextCursor of a page")?;
    let tenant = tenant(&headers)?;
    let mut connection = sagas.database.pool().acquire().await.map_err(failed)?;
    let wanted = store::Wanted { state: asked.state.as_deref(), order_id: order, tenant_id: tenant, before };
    let mut page = store::list(&mut connection, wanted, limit + 1).await.map_err(failed)?;
    let more = i64::try_from(page.len()).unwrap_or(i64::MAX) > limit;
    page.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next_cursor = if more { page.last().map(|saga| saga.id.to_string()) } else { None };
    Ok(Json(Page { sagas: page, next_cursor }).into_response())
}
