//! The web console and its JSON API, for who operates the service.
//!
//! Promises:
//! * pages are made here, with no build step; the little script only adds comfort (live progress, the time zone);
//! * everything that shows or changes business data needs the token: pages by a [session](session), `/api/v1` by the
//!   bearer; without a configured token the overview of numbers is all there is, and it says so;
//! * nothing inline: the policy of every answer allows our own style and script and nothing else
//!   (test `every_answer_carries_the_strict_policy`);
//! * an operation is the command of the same name, or the same function ([`desk`]); nothing is decided here.
//!
//! [`frame`], [`plot`], [`fields`] and [`words`] are the pieces that further pages are built of.

pub mod api;
pub mod commands;
pub mod desk;
pub mod fields;
pub mod frame;
mod order_side;
mod pages;
pub mod plot;
pub mod samples;
pub mod session;
pub mod words;

use std::ops::Deref;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use tokio::sync::Semaphore;

use crate::config::Kafka;
use crate::domain::effect::Mode;
use crate::domain::plan::Policies;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ops::access::AdminToken;
use crate::orders::desk::Desk;
use crate::pg::connect::Database;
use commands::Commands;
use desk::Launches;
use samples::Ring;
use session::Sessions;

/// Browsers that watch progress at once; each asks the database once a second.
const WATCHERS: usize = 32;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What the console stands on.
pub struct Ground {
    pub kafka: Kafka,
    pub policies: Policies,
    pub database: Database,
    pub orders: Desk,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    pub token: Option<AdminToken>,
    pub commands: Commands,
}

/// The console of one process. Cheap to clone.
#[derive(Clone)]
pub struct Console(Arc<Inner>);

/// What is behind it.
pub struct Inner {
    kafka: Kafka,
    effects: Vec<(String, Mode)>,
    policies: Policies,
    database: Database,
    orders: Desk,
    health: Health,
    metrics: Arc<Metrics>,
    sessions: Option<Sessions>,
    commands: Commands,
    launches: Launches,
    ring: Ring,
    watchers: Arc<Semaphore>,
}

impl Deref for Console {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Console {
    pub fn new(ground: Ground) -> Self {
        let effects = ground.policies.iter().map(|(_, policy)| (policy.name.clone(), policy.mode)).collect();
        Self(Arc::new(Inner {
            kafka: ground.kafka,
            effects,
            policies: ground.policies,
            database: ground.database,
            orders: ground.orders,
            health: ground.health,
            metrics: ground.metrics,
            sessions: ground.token.map(Sessions::new),
            commands: ground.commands,
            launches: Launches::default(),
            ring: Ring::default(),
            watchers: Arc::new(Semaphore::new(WATCHERS)),
        }))
    }

    /// Every route of it.
    pub fn router(&self) -> Router {
        let guarded = pages::guarded().layer(from_fn_with_state(self.clone(), session::pages));
        let api = api::router().layer(from_fn_with_state(self.clone(), session::api));
        Router::new()
            .merge(pages::open())
            .merge(guarded)
            .merge(api)
            .layer(from_fn(headers))
            .with_state(self.clone())
    }
}

/// Headers of every answer.
async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // Not `no-referrer`: browsers would then name the origin of our own forms `null`.
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
