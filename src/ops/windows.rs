//! `GET /api/v1/couriers/offline`: who is not heard of. (`/api/v1/kpis` is the console's.)
//!
//! `X-Tenant-Id` keeps to one tenant, whatever the query says.

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::window_rows::{self as rows, Silence};

type Answer = Result<Response, Problem>;

/// The routes, for the listener's protected side.
pub fn router(database: Database) -> Router {
    Router::new().route("/api/v1/couriers/offline", get(offline)).with_state(database)
}

#[derive(Deserialize)]
struct Asked {
    tenant: Option<String>,
}

#[derive(Serialize)]
struct Offline {
    couriers: Vec<Silence>,
}

fn bad(field: &str, remedy: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-request", format!("{field}: {remedy}"))
}

fn failed(error: impl Into<StoreError>) -> Problem {
    match error.into() {
        error @ StoreError::Transient(_) => {
            tracing::warn!(%error, "a question about windows met a database that is away");
            let detail = "the database is away; ask again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
        }
        error => {
            tracing::error!(%error, "windows cannot be read");
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

async fn offline(State(database): State<Database>, headers: HeaderMap, Query(asked): Query<Asked>) -> Answer {
    let tenant = tenant(&headers, asked.tenant)?;
    let mut connection = database.pool().acquire().await.map_err(failed)?;
    let couriers = rows::offline(&mut connection, tenant.as_deref()).await.map_err(failed)?;
    Ok(Json(Offline { couriers }).into_response())
}
