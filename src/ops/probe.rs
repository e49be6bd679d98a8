//! Asks the database every second whether it answers, and tells [`Health`].
//!
//! Work alone would not tell: an idle consumer asks nothing, and one that waits for an outage to pass may wait long.
//! A probe that stops reporting is seen too, since `Health` takes silence for an outage.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::health::Health;

/// Between two questions. An outage is to show within a few seconds, and `select 1` costs nothing.
const INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait for an answer, a free connection included.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// Asks until `stop`. `ping` should use the pool that the work uses, so that an exhausted pool shows.
pub async fn watch_database<F, A, E>(health: Health, stop: CancellationToken, mut ping: F)
where
    F: FnMut() -> A,
    A: Future<Output = Result<(), E>>,
    E: Display,
{
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match stop.run_until_cancelled(timeout(ANSWER_MAX, ping())).await {
            Some(Ok(answer)) => health.database(answer),
            Some(Err(_)) => {
                health.database(Err(format!("no answer within {} s", ANSWER_MAX.as_secs())));
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::domain::effect::Run;
    use crate::health::Partitions;

    fn health() -> Health {
        Health::new(Run::live(), [], Partitions::NotUsed)
    }

    /// Lets the probe run for so long on the paused clock.
    async fn pass(health: &Health, wait: Duration, ping: impl FnMut() -> PingAnswer) {
        let stop = CancellationToken::new();
        let probe = watch_database(health.clone(), stop.clone(), ping);
        assert!(timeout(wait, probe).await.is_err(), "the probe goes on until it is stopped");
    }

    type PingAnswer = futures::future::BoxFuture<'static, Result<(), String>>;

    #[tokio::test(start_paused = true)]
    async fn an_answer_makes_ready_and_an_error_shows_within_seconds() {
        let health = health();
        pass(&health, Duration::from_millis(10), || Box::pin(ready(Ok(())))).await;
        assert_eq!(health.readiness(), Ok(()));
        pass(&health, Duration::from_millis(10), || Box::pin(ready(Err("connection refused".to_owned()))))
            .await;
        assert_eq!(health.status().banco.causa.as_deref(), Some("connection refused"));
        assert!(health.readiness().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_that_never_answers_is_away_after_three_seconds_and_is_asked_again() {
        let health = health();
        let asked = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&asked);
        pass(&health, Duration::from_millis(7_500), move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Box::pin(pending())
        })
        .await;
        assert_eq!(health.status().banco.causa.as_deref(), Some("no answer within 3 s"));
        assert_eq!(asked.load(Ordering::Relaxed), 3, "at 0, 3 and 6 s");
    }

    #[tokio::test]
    async fn a_stop_ends_the_probe_in_mid_question() {
        let stop = CancellationToken::new();
        let inner = stop.clone();
        watch_database(health(), stop, move || {
            inner.cancel();
            pending::<Result<(), String>>()
        })
        .await;
    }
}
