//! `/api/v1/orders`: commands and queries on orders.
//!
//! Every command takes an `Idempotency-Key`: the same key on the same order answers with its first result, with
//! another command it is refused. `X-Tenant-Id` makes orders of other tenants unknown; `X-Actor` says who, for the
//! history. What a command answered can be read at once with `min_version`: it waits for the event store and for the
//! row of `orders_view`. The past (`at`, `version`) is folded from events, never waits, and knows nothing of views.

pub mod body;
mod given;

use std::collections::BTreeMap;

use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use sha2::{Digest as _, Sha256};
use utoipa::{OpenApi, ToSchema};
use uuid::Uuid;

use super::problem::Problem;
use crate::orders::desk::{Desk, DeskError, PAGE_MAX, Request};
use crate::orders::event::OrderPlaced;
use crate::orders::order::{Command, Refusal};
use crate::pg::error::StoreError;
use crate::pg::orders::Until;
use body::Fields;
use given::{Given, Reader};

/// Seconds after which what is not there yet, or away, may be asked for again.
const RETRY_AFTER: &str = "1";
/// Events in a page of a history where nothing is asked.
const PAGE: u32 = 1_000;

/// An error answer; some say when to come back.
pub struct Refused {
    problem: Problem,
    retry: bool,
}

/// Where [`Description`] is served; no order has that id.
const DESCRIBED_AT: &str = "/api/v1/orders/openapi.json";

type Answer = Result<Response, Refused>;

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self { problem, retry: false }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = self.problem.into_response();
        if self.retry {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        response
    }
}

impl From<DeskError> for Refused {
    fn from(error: DeskError) -> Self {
        let detail = error.to_string();
        let (status, code, retry) = match &error {
            DeskError::Refused(refusal @ Refusal::NoSuchOrder) => {
                (StatusCode::NOT_FOUND, refusal.code(), false)
            }
            DeskError::Refused(refusal) => (StatusCode::UNPROCESSABLE_ENTITY, refusal.code(), false),
            DeskError::KeyReused => (StatusCode::UNPROCESSABLE_ENTITY, "idempotency-key-reused", false),
            DeskError::VersionConflict { .. } => (StatusCode::CONFLICT, "version-conflict", false),
            DeskError::Contended => (StatusCode::CONFLICT, "version-conflict", true),
            DeskError::NotYet { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not-yet", true),
            DeskError::Store(StoreError::Transient(_)) => {
                tracing::warn!(%error, "an order request met a database that is away");
                let detail = "the database is away; the command may have taken effect: send it again with the same \
                              Idempotency-Key";
                let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail);
                return Self { problem, retry: true };
            }
            DeskError::Unreadable { .. } => {
                tracing::error!(%error, "a stream of events cannot be folded");
                (StatusCode::INTERNAL_SERVER_ERROR, "unreadable-history", false)
            }
            DeskError::Store(StoreError::Data(_) | StoreError::Broken(_)) => {
                tracing::error!(%error, "an order request failed in the database");
                let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "see the log");
                return problem.into();
            }
        };
        Self { problem: Problem::new(status, code, detail), retry }
    }
}

/// What a command answers.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes the answer for OpenAPI")]
#[schema(rename_all = "camelCase")]
struct CommandAnswer {
    order_id: String,
    version: u32,
    status: String,
}

/// The description of these routes.
#[derive(OpenApi)]
#[openapi(
    info(title = "Reprise orders", version = "1"),
    paths(
        place,
        pay,
        assign,
        picked_up,
        out_for_delivery,
        delivered,
        request_cancellation,
        cancel,
        show,
        events
    ),
    components(schemas(CommandAnswer))
)]
pub struct Description;

/// The description of these routes
async fn description() -> Response {
    Json(Description::openapi()).into_response()
}

/// The routes, for the listener's protected side.
pub fn router(desk: Desk) -> Router {
    Router::new()
        .route("/api/v1/orders", post(place))
        .route(DESCRIBED_AT, get(description))
        .route("/api/v1/orders/{id}", get(show))
        .route("/api/v1/orders/{id}/events", get(events))
        .route("/api/v1/orders/{id}/pay", post(pay))
        .route("/api/v1/orders/{id}/assign", post(assign))
        .route("/api/v1/orders/{id}/picked-up", post(picked_up))
        .route("/api/v1/orders/{id}/out-for-delivery", post(out_for_delivery))
        .route("/api/v1/orders/{id}/delivered", post(delivered))
        .route("/api/v1/orders/{id}/request-cancellation", post(request_cancellation))
        .route("/api/v1/orders/{id}/cancel", post(cancel))
        .with_state(desk)
}

/// Places an order
#[utoipa::path(
    post, path = "/api/v1/orders",
    params(("Idempotency-Key" = String, Header, description = "The same key answers with its first result")),
    responses(
        (status = 201, body = CommandAnswer), (status = 400, description = "Names the field"),
        (status = 409, description = "version-conflict"), (status = 422, description = "already-placed, idempotency-key-reused")
    )
)]
async fn place(State(desk): State<Desk>, given: Given, mut fields: Fields) -> Answer {
    let tenant_id = fields.id("tenantId")?;
    if given.tenant_id.as_ref().is_some_and(|asking| *asking != tenant_id) {
        return Err(body::bad("tenantId", "is not the tenant of X-Tenant-Id").into());
    }
    let order_id = match fields.optional_id("orderId")? {
        Some(text) => text.parse().map_err(|_| body::bad("orderId", "must be a UUID"))?,
        None => id_from_key(&tenant_id, &given.command_id),
    };
    let placed = OrderPlaced {
        customer_id: fields.id("customerId")?,
        seller_id: fields.id("sellerId")?,
        items: fields.items("items")?,
        commission_percent: fields.percent("commissionPercent")?,
    };
    take(&desk, order_id, given, fields, Command::Place { tenant_id, placed }, StatusCode::CREATED).await
}

/// An order without an id of its own has the same one at every repetition of its command.
fn id_from_key(tenant_id: &str, key: &str) -> Uuid {
    let digest = Sha256::new().chain_update(tenant_id).chain_update([0]).chain_update(key).finalize();
    let mut bytes = [0_u8; 16];
    bytes.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Pays an order, exactly
#[utoipa::path(post, path = "/api/v1/orders/{id}/pay", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-payable, amount-differs")))]
async fn pay(State(desk): State<Desk>, Path(id): Path<String>, given: Given, mut fields: Fields) -> Answer {
    let amount_cents = fields.cents("amountCents")?;
    on_order(&desk, &id, given, fields, Command::Pay { amount_cents }).await
}

/// Assigns a courier
#[utoipa::path(post, path = "/api/v1/orders/{id}/assign", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-assignable")))]
async fn assign(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    given: Given,
    mut fields: Fields,
) -> Answer {
    let command =
        Command::Assign { courier_id: fields.id("courierId")?, vehicle_type: fields.id("vehicleType")? };
    on_order(&desk, &id, given, fields, command).await
}

/// The courier has it
#[utoipa::path(post, path = "/api/v1/orders/{id}/picked-up", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-assigned")))]
async fn picked_up(State(desk): State<Desk>, Path(id): Path<String>, given: Given, fields: Fields) -> Answer {
    on_order(&desk, &id, given, fields, Command::MarkPickedUp).await
}

/// It is on its way
#[utoipa::path(post, path = "/api/v1/orders/{id}/out-for-delivery", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-picked-up")))]
async fn out_for_delivery(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    given: Given,
    fields: Fields,
) -> Answer {
    on_order(&desk, &id, given, fields, Command::MarkOutForDelivery).await
}

/// It has arrived
#[utoipa::path(post, path = "/api/v1/orders/{id}/delivered", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-out-for-delivery")))]
async fn delivered(State(desk): State<Desk>, Path(id): Path<String>, given: Given, fields: Fields) -> Answer {
    on_order(&desk, &id, given, fields, Command::MarkDelivered).await
}

/// Asks for a cancellation
#[utoipa::path(post, path = "/api/v1/orders/{id}/request-cancellation", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-cancellable")))]
async fn request_cancellation(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    mut given: Given,
    mut fields: Fields,
) -> Answer {
    let reason = fields.reason("reason")?;
    given.reason = Some(reason.clone());
    on_order(&desk, &id, given, fields, Command::RequestCancellation { reason }).await
}

/// Cancels an order
#[utoipa::path(post, path = "/api/v1/orders/{id}/cancel", params(("id" = String, Path), ("Idempotency-Key" = String, Header)),
    responses((status = 200, body = CommandAnswer), (status = 422, description = "not-cancellable")))]
async fn cancel(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    mut given: Given,
    mut fields: Fields,
) -> Answer {
    let reason = fields.reason("reason")?;
    given.reason = Some(reason.clone());
    on_order(&desk, &id, given, fields, Command::Cancel { reason }).await
}

async fn on_order(desk: &Desk, id: &str, given: Given, fields: Fields, command: Command) -> Answer {
    take(desk, order_id(id)?, given, fields, command, StatusCode::OK).await
}

async fn take(
    desk: &Desk,
    order_id: Uuid,
    given: Given,
    mut fields: Fields,
    command: Command,
    done: StatusCode,
) -> Answer {
    let expected_version = fields.optional_version("expectedVersion")?;
    // Every command may say why; for a cancellation the reason is part of the fact.
    let reason = match given.reason {
        Some(reason) => Some(reason),
        None => fields.optional_reason("reason")?,
    };
    fields.nothing_else()?;
    let request = Request {
        order_id,
        command,
        command_id: given.command_id,
        expected_version,
        tenant_id: given.tenant_id,
        actor: given.actor,
        reason,
        traceparent: given.traceparent,
    };
    Ok((done, Json(desk.take(&request).await?)).into_response())
}

fn order_id(text: &str) -> Result<Uuid, Problem> {
    text.parse().map_err(|_| body::bad("id", "must be the UUID of an order"))
}

type Asked = Query<BTreeMap<String, String>>;

/// An order now, or as it was
#[utoipa::path(get, path = "/api/v1/orders/{id}",
    params(("id" = String, Path), ("at" = Option<String>, Query, description = "As it was at this instant"),
           ("version" = Option<u32>, Query, description = "As it was at this version"),
           ("min_version" = Option<u32>, Query, description = "Waits up to 2 s until the order and the list of orders have this version")),
    responses((status = 200, description = "The order"), (status = 404, description = "order-not-found"),
              (status = 503, description = "not-yet, with Retry-After")))]
async fn show(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    reader: Reader,
    Query(asked): Asked,
) -> Answer {
    let id = order_id(&id)?;
    known(&asked, &["at", "version", "min_version"])?;
    let tenant_id = reader.tenant_id.as_deref();
    if let Some(least) = version_in(&asked, "min_version")? {
        if asked.len() > 1 {
            return Err(body::bad("min_version", "asks for the newest; leave at and version out").into());
        }
        return Ok(Json(desk.show_from(id, least, tenant_id).await?).into_response());
    }
    let until = match (asked.get("at"), version_in(&asked, "version")?) {
        (None, None) => Until::Now,
        (None, Some(version)) => Until::Version(version),
        (Some(at), None) => Until::Instant(at.parse().map_err(|_| {
            body::bad("at", "must be an instant such as 2026-10-14T12:00:00Z (write + as %2B)")
        })?),
        (Some(_), Some(_)) => return Err(body::bad("at", "cannot go with version; use one of them").into()),
    };
    Ok(Json(desk.show(id, until, tenant_id).await?).into_response())
}

/// What happened to an order, who did it and why, and which events today's rules would have refused
#[utoipa::path(get, path = "/api/v1/orders/{id}/events",
    params(("id" = String, Path), ("after" = Option<u32>, Query, description = "Events above this version"),
           ("limit" = Option<u32>, Query, description = "At most so many, up to 10000")),
    responses((status = 200, description = "{orderId, events, findings}"), (status = 404, description = "order-not-found")))]
async fn events(
    State(desk): State<Desk>,
    Path(id): Path<String>,
    reader: Reader,
    Query(asked): Asked,
) -> Answer {
    let id = order_id(&id)?;
    known(&asked, &["after", "limit"])?;
    let after = version_in(&asked, "after")?.unwrap_or(0);
    let limit = version_in(&asked, "limit")?.unwrap_or(PAGE);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(body::bad("limit", "must be from 1 to 10000").into());
    }
    Ok(Json(desk.history(id, after, limit, reader.tenant_id.as_deref()).await?).into_response())
}

fn known(asked: &BTreeMap<String, String>, names: &[&str]) -> Result<(), Problem> {
    match asked.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => Err(body::bad(name, &format!("is not known here; use {}", names.join(", ")))),
    }
}

fn version_in(asked: &BTreeMap<String, String>, name: &'static str) -> Result<Option<u32>, Problem> {
    let parsed = asked.get(name).map(|text| text.parse()).transpose();
    parsed.map_err(|_| body::bad(name, "must be a whole number from 0"))
}
