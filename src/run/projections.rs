//! The runner of read models as a room, and alone; and what is asked of them over HTTP.

use std::sync::Arc;

use axum::Router;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::parts::Parts;
use super::rooms::{Beside, Room};
use super::{LiveOptions, RunError, serve};
use crate::config::Config;
use crate::ops;
use crate::projections::runner::{self, Settings};

/// Keeps read models up to date until it is told to stop.
pub async fn projections(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    serve(config, options, Beside { rooms: vec![room()], routes: vec![routes] }).await
}

pub const fn room() -> Room {
    Room::new("projections", begin)
}

/// The routes of read models, for the listener of any process.
pub fn routes(_: &Config, parts: &Parts) -> Result<Router, RunError> {
    Ok(ops::projections::router(parts.database.clone()))
}

#[expect(clippy::unnecessary_wraps, reason = "every room begins in this form")]
fn begin(
    config: &Config,
    parts: &Parts,
    stop: CancellationToken,
) -> Result<BoxFuture<'static, Result<(), RunError>>, RunError> {
    let running = runner::run(parts.database.clone(), settings(config), Arc::clone(&parts.metrics), stop);
    Ok(running.map(Ok).boxed())
}

pub const fn settings(config: &Config) -> Settings {
    Settings { batch: config.projections.batch, poll_interval: config.projections.poll_interval }
}
