//! The sweeper's clock: in the service for as long as it runs, or once for a person.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::RunError;
use super::parts::Parts;
use crate::applier::sweep::{Beginning, Pass, Progress, SweepRoad, Sweeper, Swept};
use crate::config::Config;
use crate::domain::effect::Run;
use crate::pg::schema;

/// Passes that follow at once where there is much to do.
const PASSES_MAX: usize = 1_000;
/// How long one asked for by a person waits for another that is at work.
const BUSY_PATIENCE: Duration = Duration::from_secs(30);
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// Between two lines about a sweep that a person asked for.
const TELL_EVERY: Duration = Duration::from_secs(5);

fn road(parts: &Parts) -> SweepRoad {
    SweepRoad {
        policies: parts.policies.clone(),
        database: parts.database.clone(),
        gateway: Arc::clone(&parts.gateway),
        rates: parts.rates.clone(),
        metrics: Arc::clone(&parts.metrics),
        health: parts.health.clone(),
        instance: Arc::clone(&parts.instance),
    }
}

/// Sweeps every `interval` until `stop`; calls in flight are settled before it returns. A pass that fails is told
/// and tried again: the database may be away, or its schema not there yet.
pub async fn run(parts: SweepRoad, interval: Duration, stop: CancellationToken) {
    let mut sweeper = Sweeper::new(parts, Beginning::AfterALease);
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        match sweeper.pass(&stop).await {
            Ok(Pass::Swept(report)) => tell(&report),
            Ok(Pass::Busy) => tracing::debug!("another sweeper is at work"),
            Err(error) => tracing::warn!(%error, "a sweep did not end; the next one goes on"),
        }
    }
}

fn tell(report: &BTreeMap<String, Swept>) {
    for (name, swept) in report.iter().filter(|(_, swept)| swept.moved()) {
        tracing::info!(
            efeito = name,
            done = swept.done,
            uncertain = swept.uncertain,
            waiting = swept.waiting,
            "swept effects whose event did not come back"
        );
    }
}

/// The service's sweeper, with its parts.
pub fn background(
    parts: &Parts,
    config: &Config,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    run(road(parts), config.sweep.interval, stop)
}

/// What one sweep did: by effect type, all that are configured; `None` if another was at work all the time.
pub async fn once(config: &Config) -> Result<Option<Vec<(String, Swept)>>, RunError> {
    let parts = Parts::build(config, Run::live())?;
    schema::check(&parts.database).await?;
    let mut sweeper = Sweeper::new(road(&parts), Beginning::AtOnce);
    let mut totals: Vec<(String, Swept)> =
        parts.policies.iter().map(|(_, policy)| (policy.name.clone(), Swept::default())).collect();
    let stop = CancellationToken::new();
    let begun = Instant::now();
    let mut swept_once = false;
    for _ in 0..PASSES_MAX {
        let pass = telling(sweeper.progress(), sweeper.pass(&stop)).await;
        match pass.map_err(schema::SchemaError::from)? {
            Pass::Busy if swept_once => break,
            Pass::Busy if begun.elapsed() >= BUSY_PATIENCE => return Ok(None),
            Pass::Busy => tokio::time::sleep(BUSY_PAUSE).await,
            Pass::Swept(report) => {
                swept_once = true;
                tell(&report);
                for (name, total) in &mut totals {
                    add(total, report.get(name).copied().unwrap_or_default());
                }
                if !report.values().any(|swept| swept.moved()) {
                    break;
                }
            }
        }
    }
    Ok(Some(totals))
}

/// Says how far a pass is, every few seconds. How much is due shows only as it goes.
async fn telling<T>(progress: Progress, pass: impl Future<Output = T>) -> T {
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TELL_EVERY, TELL_EVERY);
    tokio::pin!(pass);
    loop {
        tokio::select! {
            done = &mut pass => return done,
            _ = tick.tick() => tracing::info!(settled = progress.settled(), "sweeping"),
        }
    }
}

/// What is left is what the last pass left.
fn add(total: &mut Swept, pass: Swept) {
    total.done += pass.done;
    total.uncertain += pass.uncertain;
    total.waiting += pass.waiting;
    total.left = pass.left;
}
