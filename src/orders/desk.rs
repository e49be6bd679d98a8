//! Commands and queries on the store: load, decide, append.
//!
//! ```text
//!   load (snapshot + later events) ─► decided before? ─yes─► first result, or 'another body'
//!        ▲                                 │no
//!        │                              decide ─refused─► typed refusal
//!        └──── somebody was first ◄── append ──► accepted
//! ```
//!
//! A lost append is decided again on what is there now, a bounded number of times; then it is a conflict. With an
//! expected version the first lost append is one.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use sqlx::PgConnection;
use uuid::Uuid;

use super::audit::{Finding, audit};
use super::event::{Event, Recorded, Unreadable};
use super::order::{BrokenHistory, Command, Order, Refusal, Status, decide};
use super::snapshot;
use super::translate::{self, AlsoPublished};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::order_snapshots::{self, Damaged};
use crate::pg::orders::{self as store, Line, Metadata, NewEvent, StoredEvent, Until};
use crate::pg::projection_rows;

/// Lost appends until a command gives up. Each loss means that somebody else got on, so this is only met where many
/// hands are at one order.
const ATTEMPTS_MAX: u32 = 8;
/// Longest pause before a lost append is tried again; the first ones are shorter.
const PAUSE_MAX_MS: u64 = 40;
/// How long a reader waits for a version that it was promised.
pub const WAIT_MAX: Duration = Duration::from_secs(2);
const WAIT_STEP: Duration = Duration::from_millis(25);
/// Events in one page of a history.
pub const PAGE_MAX: u32 = 10_000;

/// What a desk does beside its work.
#[derive(Debug, Clone)]
pub struct DeskSettings {
    /// A snapshot after so many events.
    pub snapshot_every: u32,
    /// Old forms that are published beside the newest for a while.
    pub also_publish: Vec<AlsoPublished>,
}

/// Where commands are taken.
#[derive(Debug, Clone)]
pub struct Desk {
    database: Database,
    settings: DeskSettings,
}

/// A command and everything that is to be known about its giving.
#[derive(Debug, Clone)]
pub struct Request {
    pub order_id: Uuid,
    pub command: Command,
    /// `Idempotency-Key`: unique per order.
    pub command_id: String,
    pub expected_version: Option<u32>,
    /// An order of another tenant does not exist for whoever asks as a tenant.
    pub tenant_id: Option<String>,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    pub traceparent: Option<String>,
}

/// What a command led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    pub order_id: Uuid,
    pub version: u32,
    pub status: Status,
}

/// Why a command or query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DeskError {
    /// The rules say no. Nothing was written, and the same again will be refused until the order changes.
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "this Idempotency-Key was used for another command on this order; use a new key for a new command"
    )]
    KeyReused,
    #[error(
        "expectedVersion is {expected}, the order is at version {current}; read it again and decide anew"
    )]
    VersionConflict { expected: u32, current: u32 },
    #[error(
        "other commands were first {ATTEMPTS_MAX} times in a row; send it again with the same Idempotency-Key"
    )]
    Contended,
    #[error("the order, or its row in the list of orders, is not yet at version {wanted}; ask again")]
    NotYet { wanted: u32 },
    /// A person must act: the stream holds something that this program cannot fold.
    #[error("order {order_id} cannot be read: {cause}")]
    Unreadable { order_id: Uuid, cause: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for DeskError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// An event as its readers see it: what, when, who and why.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub version: u32,
    #[serde(rename = "type")]
    pub name: String,
    pub at: Timestamp,
    pub actor: String,
    pub reason: Option<String>,
    pub payload: serde_json::Value,
    pub schema_version: u32,
    pub event_id: Uuid,
    pub command_id: String,
    pub tenant_id: String,
    pub traceparent: Option<String>,
    pub global_seq: i64,
}

/// What happened to an order, and what should not have.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    pub order_id: Uuid,
    pub events: Vec<Told>,
    /// Events of the whole stream that today's rules would have refused.
    pub findings: Vec<Finding>,
}

/// An order as loaded, with the snapshot that helped.
struct Loaded {
    order: Option<Order>,
    snapshot_version: u32,
    damaged: Damaged,
}

impl Desk {
    pub const fn new(database: Database, settings: DeskSettings) -> Self {
        Self { database, settings }
    }

    /// Takes a command: at most once per order and `command_id`, however often it is sent.
    pub async fn take(&self, request: &Request) -> Result<Accepted, DeskError> {
        let digest = digest(&request.command);
        let mut connection = self.database.pool().acquire().await?;
        for attempt in 0..ATTEMPTS_MAX {
            if attempt > 0 {
                tokio::time::sleep(pause(attempt)).await;
            }
            let loaded = load(&mut connection, request.order_id).await?;
            if loaded.order.is_some()
                && let Some(first) = first_result(&mut connection, request, &digest).await?
            {
                return Ok(first);
            }
            let event = judge(loaded.order.as_ref(), request)?;
            if let Some(order) = self.append(&mut connection, request, &digest, &loaded, event).await? {
                let accepted =
                    Accepted { order_id: order.order_id, version: order.version, status: order.status };
                self.refresh_snapshot(&mut connection, &order, &loaded).await;
                return Ok(accepted);
            }
        }
        Err(DeskError::Contended)
    }

    /// `None`: somebody was first.
    async fn append(
        &self,
        connection: &mut PgConnection,
        request: &Request,
        digest: &str,
        loaded: &Loaded,
        event: Event,
    ) -> Result<Option<Order>, DeskError> {
        let tenant_id = tenant_of(request, loaded.order.as_ref());
        let expected = loaded.order.as_ref().map_or(0, |order| order.version);
        let metadata = Metadata {
            event_id: Uuid::now_v7(),
            command_id: request.command_id.clone(),
            command_digest: Some(digest.to_owned()),
            command_index: None,
            schema_version: event.form(),
            tenant_id: tenant_id.clone(),
            actor: request.actor.clone(),
            reason: request.reason.clone(),
            traceparent: Some(request.traceparent.clone().unwrap_or_else(new_trace)),
        };
        let row = NewEvent { name: event.name(), payload: event.payload(), metadata: metadata.clone() };
        let place = store::append(connection, request.order_id, expected, &[row], |places| {
            places
                .iter()
                .flat_map(|place| {
                    let recorded = Recorded { version: place.version, at: place.at, event: event.clone() };
                    translate::messages(request.order_id, &metadata, &recorded, &self.settings.also_publish)
                })
                .collect()
        })
        .await?;
        let Some(place) = place.and_then(|places| places.first().copied()) else {
            return Ok(None);
        };
        let recorded = Recorded { version: place.version, at: place.at, event };
        let order = Order::after(loaded.order.clone(), request.order_id, &tenant_id, &recorded)
            .map_err(|cause| broken(request.order_id, &cause))?;
        Ok(Some(order))
    }

    /// A cache: where it cannot be written, the next load is slower, and that is all.
    async fn refresh_snapshot(&self, connection: &mut PgConnection, order: &Order, loaded: &Loaded) {
        if order.version - loaded.snapshot_version.min(order.version) < self.settings.snapshot_every {
            return;
        }
        let kept = match snapshot::write(order) {
            Ok(payload) => order_snapshots::keep(
                connection,
                order.order_id,
                order.version,
                snapshot::FORM,
                &payload,
                loaded.damaged,
            )
            .await
            .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = kept {
            tracing::warn!(order.id = %order.order_id, %error, "no snapshot was written; loading goes on from events");
        }
    }

    /// The order now, or as it was.
    pub async fn show(
        &self,
        order_id: Uuid,
        until: Until,
        tenant_id: Option<&str>,
    ) -> Result<Order, DeskError> {
        let mut connection = self.database.pool().acquire().await?;
        let order = match until {
            Until::Now => load(&mut connection, order_id).await?.order,
            Until::Version(_) | Until::Instant(_) => {
                let lines = store::read(&mut connection, order_id, 1, until).await?;
                fold(order_id, None, &lines)?
            }
        };
        let order = order.ok_or(Refusal::NoSuchOrder)?;
        // A version that is not there yet is no earlier one under another name.
        let missing = matches!(until, Until::Version(version) if version != order.version);
        if missing || tenant_id.is_some_and(|tenant_id| tenant_id != order.tenant_id) {
            return Err(Refusal::NoSuchOrder.into());
        }
        Ok(order)
    }

    /// The order once it, and its row in `orders_view` where runners keep that, has reached `version`: waits for it,
    /// at most [`WAIT_MAX`]. Whoever reads the list next finds there what was read here.
    pub async fn show_from(
        &self,
        order_id: Uuid,
        version: u32,
        tenant_id: Option<&str>,
    ) -> Result<Order, DeskError> {
        let end = tokio::time::Instant::now() + WAIT_MAX;
        loop {
            match self.show(order_id, Until::Now, tenant_id).await {
                Ok(order) if order.version >= version && self.is_listed(order_id, version).await? => {
                    return Ok(order);
                }
                Ok(_) | Err(DeskError::Refused(Refusal::NoSuchOrder)) => {}
                Err(error) => return Err(error),
            }
            if tokio::time::Instant::now() >= end {
                return Err(DeskError::NotYet { wanted: version });
            }
            tokio::time::sleep(WAIT_STEP).await;
        }
    }

    async fn is_listed(&self, order_id: Uuid, version: u32) -> Result<bool, DeskError> {
        let mut connection = self.database.pool().acquire().await?;
        Ok(projection_rows::has_version(&mut connection, order_id, version).await?)
    }

    /// The events above version `after`, with who and why, and the findings of the whole stream.
    pub async fn history(
        &self,
        order_id: Uuid,
        after: u32,
        limit: u32,
        tenant_id: Option<&str>,
    ) -> Result<History, DeskError> {
        let mut connection = self.database.pool().acquire().await?;
        let lines = store::read(&mut connection, order_id, 1, Until::Now).await?;
        let first = lines.first().ok_or(Refusal::NoSuchOrder)?;
        if tenant_id.is_some_and(|tenant_id| tenant_id != first.tenant_id) {
            return Err(Refusal::NoSuchOrder.into());
        }
        let recorded =
            lines.iter().map(|line| recorded(order_id, line)).collect::<Result<Vec<_>, DeskError>>()?;
        let findings =
            audit(order_id, &first.tenant_id, &recorded).map_err(|cause| broken(order_id, &cause))?;
        let from = after.saturating_add(1);
        let stored = store::history(&mut connection, order_id, from, limit.min(PAGE_MAX)).await?;
        let events = stored.into_iter().map(told).collect::<Result<Vec<_>, DeskError>>()?;
        Ok(History { order_id, events, findings })
    }
}

/// The order now: from its snapshot, if that is sound, and the events after it.
async fn load(connection: &mut PgConnection, order_id: Uuid) -> Result<Loaded, DeskError> {
    let mut damaged = Damaged::No;
    if let Some((version, payload)) = order_snapshots::find(connection, order_id, snapshot::FORM).await? {
        if let Some(order) = snapshot::read(order_id, version, &payload) {
            // With the event it stands on: a snapshot of what the stream does not have is none.
            let lines = store::read(connection, order_id, version, Until::Now).await?;
            if let Some((stands_on, later)) = lines.split_first()
                && stands_on.version == version
            {
                let order = fold(order_id, Some(order), later)?;
                return Ok(Loaded { order, snapshot_version: version, damaged });
            }
        }
        damaged = Damaged::Yes;
        tracing::warn!(order.id = %order_id, version, "the snapshot is damaged; the order is loaded from its events");
    }
    let lines = store::read(connection, order_id, 1, Until::Now).await?;
    Ok(Loaded { order: fold(order_id, None, &lines)?, snapshot_version: 0, damaged })
}

/// What a command with this key led to the first time.
async fn first_result(
    connection: &mut PgConnection,
    request: &Request,
    digest: &str,
) -> Result<Option<Accepted>, DeskError> {
    let Some((version, first)) = store::decided(connection, request.order_id, &request.command_id).await?
    else {
        return Ok(None);
    };
    if first.as_deref() != Some(digest) {
        return Err(DeskError::KeyReused);
    }
    let lines = store::read(connection, request.order_id, 1, Until::Version(version)).await?;
    let order = fold(request.order_id, None, &lines)?.ok_or(Refusal::NoSuchOrder)?;
    Ok(Some(Accepted { order_id: order.order_id, version, status: order.status }))
}

/// The event that the command leads to on the order as it is.
fn judge(order: Option<&Order>, request: &Request) -> Result<Event, DeskError> {
    let foreign = |order: &&Order| {
        let places = matches!(request.command, Command::Place { .. });
        !places && request.tenant_id.as_ref().is_some_and(|tenant_id| *tenant_id != order.tenant_id)
    };
    if order.as_ref().is_some_and(foreign) {
        return Err(Refusal::NoSuchOrder.into());
    }
    let current = order.map_or(0, |order| order.version);
    if let Some(expected) = request.expected_version
        && expected != current
        && (current > 0 || matches!(request.command, Command::Place { .. }))
    {
        return Err(DeskError::VersionConflict { expected, current });
    }
    Ok(decide(order, &request.command)?)
}

fn tenant_of(request: &Request, order: Option<&Order>) -> String {
    match (&request.command, order) {
        (Command::Place { tenant_id, .. }, None) => tenant_id.clone(),
        (_, Some(order)) => order.tenant_id.clone(),
        (_, None) => String::new(),
    }
}

/// Folds lines onto what there is.
pub(super) fn fold(order_id: Uuid, order: Option<Order>, lines: &[Line]) -> Result<Option<Order>, DeskError> {
    lines.iter().try_fold(order, |order, line| {
        let after = Order::after(order, order_id, &line.tenant_id, &recorded(order_id, line)?);
        after.map(Some).map_err(|cause| broken(order_id, &cause))
    })
}

fn recorded(order_id: Uuid, line: &Line) -> Result<Recorded, DeskError> {
    let event = Event::read(&line.name, line.schema_version, &line.payload)
        .map_err(|cause| unreadable(order_id, line.version, &cause))?;
    Ok(Recorded { version: line.version, at: line.at, event })
}

fn told(stored: StoredEvent) -> Result<Told, DeskError> {
    let payload = serde_json::from_str(&stored.payload).map_err(|error| DeskError::Unreadable {
        order_id: stored.stream_id,
        cause: format!("version {}: {error}", stored.version),
    })?;
    let metadata = stored.metadata;
    Ok(Told {
        version: stored.version,
        name: stored.name,
        at: stored.at,
        actor: metadata.actor,
        reason: metadata.reason,
        payload,
        schema_version: metadata.schema_version,
        event_id: metadata.event_id,
        command_id: metadata.command_id,
        tenant_id: metadata.tenant_id,
        traceparent: metadata.traceparent,
        global_seq: stored.global_seq,
    })
}

pub(super) fn broken(order_id: Uuid, cause: &BrokenHistory) -> DeskError {
    DeskError::Unreadable { order_id, cause: cause.to_string() }
}

pub(super) fn unreadable(order_id: Uuid, version: u32, cause: &Unreadable) -> DeskError {
    DeskError::Unreadable { order_id, cause: format!("version {version}: {cause}") }
}

/// What a repetition must equal.
fn digest(command: &Command) -> String {
    // A command is texts and numbers: it always serializes.
    let text = serde_json::to_vec(command).unwrap_or_default();
    snapshot::hex(&Sha256::digest(&text))
}

/// Longer with every loss, and different for everyone who lost.
fn pause(attempt: u32) -> Duration {
    let most = (5_u64 << attempt.min(4)).min(PAUSE_MAX_MS);
    Duration::from_millis(rand::random_range(0..=most))
}

/// A trace that begins here.
fn new_trace() -> String {
    let span = Uuid::new_v4().simple().to_string();
    format!("00-{}-{}-01", Uuid::new_v4().simple(), &span[..16])
}
