//! The last hour in a ring: what the group has committed, what lies before it, what waits for people.
//!
//! Taken every ten seconds from Kafka and the database, so that it tells of the whole group, whichever process is
//! asked. Kept in this process only: it begins empty, and Prometheus is the memory for longer times.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Console;
use crate::config::Kafka;
use crate::domain::effect::EffectState;
use crate::pg::gauges::{PendingEffects, pending};
use crate::pg::letters::{self, Selection};
use crate::stream::admin::{Admin, Position};

const EVERY: Duration = Duration::from_secs(10);
/// An hour of them.
const KEPT: usize = 360;
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// One look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub at: Timestamp,
    /// Sum over the partitions.
    pub committed: i64,
    pub lag: i64,
    pub uncertain: i64,
}

/// What was seen last, and the hour before it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub samples: VecDeque<Sample>,
    pub positions: Vec<Position>,
    pub pending: Vec<PendingEffects>,
    pub open_letters: i64,
    /// Why Kafka or the database could not be asked, when they last could not.
    pub trouble: Option<String>,
}

/// Shared between who looks and who shows.
#[derive(Clone, Default)]
pub struct Ring(Arc<Mutex<Seen>>);

impl Ring {
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events a second between neighbouring samples; a group that was set back counts as none.
pub fn per_second(samples: &VecDeque<Sample>) -> Vec<f64> {
    let pairs = samples.iter().zip(samples.iter().skip(1));
    pairs
        .map(|(before, after)| {
            let seconds = after.at.duration_since(before.at).as_secs_f64().max(0.001);
            #[expect(clippy::cast_precision_loss, reason = "events of ten seconds are far below 2^52")]
            let events = (after.committed - before.committed).max(0) as f64;
            events / seconds
        })
        .collect()
}

/// Looks until it is told to stop.
pub async fn look(console: Console, stop: CancellationToken) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut client = None;
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        let Some(()) = stop.run_until_cancelled(once(&console, &mut client)).await else { return };
    }
}

async fn once(console: &Console, client: &mut Option<Admin>) {
    let kafka = console.kafka.clone();
    let kept = client.take();
    let asked = tokio::task::spawn_blocking(move || positions(&kafka, kept)).await;
    let mut trouble = None;
    let positions = match asked {
        Ok(Ok((positions, kept))) => {
            *client = Some(kept);
            Some(positions)
        }
        Ok(Err(error)) => {
            trouble = Some(error);
            None
        }
        Err(error) => {
            trouble = Some(error.to_string());
            None
        }
    };
    let pool = console.database.pool();
    let open = Selection { open_only: true, ..Selection::default() };
    let counted = tokio::time::timeout(ANSWER_MAX, async {
        Ok::<_, crate::pg::error::StoreError>((pending(pool).await?, letters::count(pool, &open).await?))
    });
    let counted = match counted.await {
        Ok(Ok(counted)) => Some(counted),
        Ok(Err(error)) => {
            trouble = Some(error.to_string());
            None
        }
        Err(_) => {
            trouble = Some("the database did not answer in time".to_owned());
            None
        }
    };
    let mut seen = console.ring.lock();
    seen.trouble = trouble;
    if let Some((pending, letters)) = counted {
        (seen.pending, seen.open_letters) = (pending, letters);
    }
    let Some(positions) = positions else { return };
    let uncertain =
        seen.pending.iter().filter(|row| row.state == EffectState::Uncertain).map(|row| row.count);
    let sample = Sample {
        at: Timestamp::now(),
        committed: positions.iter().map(Position::resumes_at).sum(),
        lag: positions.iter().map(Position::lag).sum(),
        uncertain: uncertain.sum(),
    };
    if seen.samples.len() == KEPT {
        seen.samples.pop_front();
    }
    seen.samples.push_back(sample);
    seen.positions = positions;
}

/// Blocks. The client is kept for the next look, unless it failed.
fn positions(kafka: &Kafka, kept: Option<Admin>) -> Result<(Vec<Position>, Admin), String> {
    let client = match kept {
        Some(client) => client,
        None => Admin::connect(kafka, ANSWER_MAX).map_err(|error| error.to_string())?,
    };
    let ask = || {
        let Some(partitions) = client.partitions(&kafka.topic)? else { return Ok(Vec::new()) };
        client.positions(&kafka.topic, &partitions)
    };
    let mut found: Vec<Position> =
        ask().map_err(|error: crate::stream::admin::AdminError| error.to_string())?;
    found.sort_by_key(|position| position.partition);
    Ok((found, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_what_was_committed_between_two_looks() {
        let sample = |second, committed| Sample {
            at: Timestamp::from_second(second).expect("an instant"),
            committed,
            lag: 0,
            uncertain: 0,
        };
        let samples = VecDeque::from([sample(0, 100), sample(10, 350), sample(20, 350), sample(30, 10)]);
        assert_eq!(per_second(&samples), [25.0, 0.0, 0.0]);
        assert_eq!(per_second(&VecDeque::new()), Vec::<f64>::new());
    }
}
