//! Gauges of what is pending and of how far replays are, refreshed from the database.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::effect::EffectState;
use crate::domain::plan::Policies;
use crate::metrics::{Metrics, PendingState, ReplayReading};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::gauges::{oldest_transaction, pending, replays};

const EVERY: Duration = Duration::from_secs(5);

/// Runs until it is told to stop. A database that is away leaves the last values standing.
pub async fn run(
    database: Database,
    metrics: Arc<Metrics>,
    policies: Policies,
    topic: String,
    stop: CancellationToken,
) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = refresh(&database, &metrics, &policies, &topic).await {
            tracing::debug!(%error, "gauges not refreshed");
        }
    }
}

async fn refresh(
    database: &Database,
    metrics: &Metrics,
    policies: &Policies,
    topic: &str,
) -> Result<(), StoreError> {
    let found = pending(database.pool()).await?;
    for (id, policy) in policies.iter() {
        for (state, label) in [
            (EffectState::Reserved, PendingState::Reserved),
            (EffectState::Uncertain, PendingState::Uncertain),
        ] {
            let row = found.iter().find(|row| row.effect_type == policy.name && row.state == state);
            metrics.pending(id, label, row.map_or(0, |row| row.count), row.map(|row| row.oldest));
        }
    }
    let under_way = replays(database.pool(), topic).await?;
    let reading = |at: &crate::pg::gauges::ReplayPosition| ReplayReading {
        partition: at.partition,
        position: at.position,
        remaining: at.remaining,
    };
    metrics.replays(&under_way.iter().map(reading).collect::<Vec<_>>());
    metrics.oldest_transaction(oldest_transaction(database.pool()).await?);
    Ok(())
}
