//! The saga workers as a room, and alone; and what is asked of sagas over HTTP.

use std::sync::Arc;

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::parts::Parts;
use super::rooms::{Beside, Room};
use super::{LiveOptions, RunError, orders, serve};
use crate::applier::errand::Postbag;
use crate::config::Config;
use crate::ops;
use crate::saga::runner::{self, Office, Settings};

/// Works on sagas until it is told to stop. A process that runs `live` or `sweep` must be somewhere, as for every effect.
pub async fn saga(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    serve(config, options, Beside { rooms: vec![room()], routes: vec![routes] }).await
}

pub const fn room() -> Room {
    Room::new("saga", begin)
}

/// The routes of sagas, for the listener of any process.
pub fn routes(config: &Config, parts: &Parts) -> Result<Router, RunError> {
    let desk = orders::desk(config, parts.database.clone());
    Ok(ops::saga::router(desk, parts.database.clone(), config.saga.fee_cents))
}

#[expect(clippy::unnecessary_wraps, reason = "every room begins in this form")]
fn begin(
    config: &Config,
    parts: &Parts,
    stop: CancellationToken,
) -> Result<BoxFuture<'static, Result<(), RunError>>, RunError> {
    let bag = Postbag {
        database: parts.database.clone(),
        policies: parts.policies.clone(),
        gateway: Arc::clone(&parts.gateway),
        rates: parts.rates.clone(),
        metrics: Arc::clone(&parts.metrics),
        instance: Arc::clone(&parts.instance),
    };
    let saga = &config.saga;
    let settings = Settings {
        workers: saga.workers,
        poll_interval: saga.poll_interval,
        step_deadline: saga.step_deadline,
        backoff_initial: saga.backoff_initial,
        backoff_max: saga.backoff_max,
    };
    let office = Office {
        bag,
        desk: orders::desk(config, parts.database.clone()),
        settings,
        metrics: Arc::clone(&parts.metrics),
        health: parts.health.clone(),
    };
    Ok(runner::run(office, stop).map(Ok).boxed())
}
