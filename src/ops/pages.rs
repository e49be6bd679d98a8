//! The open pages (`/livez`, `/readyz`, `/metrics`, `/status`) and the limits that hold for every request.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http_body_util::Limited;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::access::{Access, guard};
use super::problem::Problem;
use crate::health::{Health, NotReady, Status};
use crate::metrics::{Metrics, TEXT_FORMAT};

/// Largest request body in bytes. Commands are a few hundred; a list of orders is a file of the command line.
const BODY_MAX: usize = 1024 * 1024;

/// Longest a request may take. Above the longest wait any route promises, below what proxies usually cut at.
const REQUEST_MAX: Duration = Duration::from_secs(30);

/// What the open pages show.
#[derive(Clone)]
pub(super) struct Shown {
    pub(super) health: Health,
    pub(super) metrics: Arc<Metrics>,
}

/// Everything behind the listener. `protected` and `console` run on `runtime`, where their pools live.
pub(super) fn app(
    shown: Shown,
    access: Access,
    protected: Router,
    console: Router,
    runtime: Handle,
) -> Router {
    let console = console
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(runtime.clone(), hand_over));
    // Innermost first: the guard answers on the admin thread, and only what it lets through is handed over.
    let protected = protected
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(runtime, hand_over))
        .layer(from_fn_with_state(access, guard));
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(shown)
        .merge(protected)
        .merge(console)
        .fallback(not_found)
        .layer(from_fn(limits))
}

#[derive(Serialize)]
struct Alive {
    vivo: bool,
}

#[derive(Serialize)]
struct Readiness {
    pronto: bool,
    motivos: Vec<NotReady>,
}

/// The process answers; nothing else is meant. What restarting cannot cure must not turn it false.
async fn livez() -> Json<Alive> {
    Json(Alive { vivo: true })
}

async fn readyz(State(shown): State<Shown>) -> Response {
    match shown.health.readiness() {
        Ok(()) => Json(Readiness { pronto: true, motivos: Vec::new() }).into_response(),
        Err(motivos) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(Readiness { pronto: false, motivos })).into_response()
        }
    }
}

async fn status(State(shown): State<Shown>) -> Json<Status> {
    Json(shown.health.status())
}

async fn metrics(State(shown): State<Shown>) -> Response {
    shown.metrics.present(&shown.health.present());
    match shown.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(erro = %error, "metrics cannot be shown");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string()).into_response()
        }
    }
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", "there is no such path")
}

async fn method_not_allowed() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "this path exists, but not with this method",
    )
}

/// Runs the rest of the request on the main runtime. It is aborted there when the request is given up here.
async fn hand_over(State(runtime): State<Handle>, request: Request, next: Next) -> Response {
    match AbortOnDropHandle::new(runtime.spawn(next.run(request))).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(erro = %error, "a request handler did not come to its end");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request was not finished")
                .into_response()
        }
    }
}

/// Size and time of a request, whatever its route.
async fn limits(request: Request, next: Next) -> Response {
    if declared_length(request.headers()).is_some_and(|length| length > BODY_MAX as u64) {
        let detail = format!("a request body may have at most {BODY_MAX} bytes");
        return Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", detail).into_response();
    }
    // A body of undeclared length is cut off while it is read.
    let request = request.map(|body| Body::new(Limited::new(body, BODY_MAX)));
    tokio::time::timeout(REQUEST_MAX, next.run(request)).await.unwrap_or_else(|_| {
        let detail = format!("not finished within {} s; it may have taken effect", REQUEST_MAX.as_secs());
        Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail).into_response()
    })
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
