//! What runs beside a replay or an archiver that is given `--http`: its metrics and health. Without it nothing
//! listens.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::parts::Parts;
use super::{RunError, gauges, start_admin};
use crate::config::Config;
use crate::ops::probe::watch_database;

/// `--http`: the listener, whose end is a failure, and what it shows.
pub(super) fn start(
    address: Option<SocketAddr>,
    config: &Config,
    parts: &Parts,
    stop: &CancellationToken,
) -> Result<JoinSet<RunError>, RunError> {
    let mut tasks = JoinSet::new();
    let Some(address) = address else { return Ok(tasks) };
    let admin = start_admin(address, config, parts, stop.clone())?;
    tracing::info!(address = %admin.address(), "metrics and health of this process");
    tasks.spawn(async move {
        admin.ended().await.map_or_else(RunError::from, |()| RunError::TaskLost("admin listener"))
    });
    let (health, database) = (parts.health.clone(), parts.database.clone());
    let ping = move || {
        let database = database.clone();
        async move { database.ping().await }
    };
    let probe = watch_database(health, stop.clone(), ping);
    tasks.spawn(async move {
        probe.await;
        RunError::TaskLost("database probe")
    });
    let shown = gauges::run(
        parts.database.clone(),
        Arc::clone(&parts.metrics),
        parts.policies.clone(),
        config.kafka.topic.clone(),
        stop.clone(),
    );
    tasks.spawn(async move {
        shown.await;
        RunError::TaskLost("gauges")
    });
    Ok(tasks)
}
