//! Sagas in numbers.

use prometheus::{Gauge, IntCounter, IntGauge};

use super::family::Families;
use super::{Metrics, MetricsError, name};
use crate::pg::saga::Running;

const STATE: &str = "state";
const ENDED: [&str; 2] = ["succeeded", "failed"];

pub(super) struct SagaSeries {
    ended: [IntCounter; ENDED.len()],
    started: IntGauge,
    compensating: IntGauge,
    oldest: Gauge,
    undo_attempts: IntGauge,
}

impl SagaSeries {
    pub(super) fn new(families: &Families) -> Result<Self, MetricsError> {
        let ended =
            families.counters(name::SAGA_ENDED, "Sagas that this process brought to their end", &[STATE])?;
        let running = families.gauges(name::SAGA_RUNNING, "Sagas that have not ended", &[STATE])?;
        Ok(Self {
            ended: ENDED.map(|state| ended.with_label_values(&[state])),
            started: running.with_label_values(&["started"]),
            compensating: running.with_label_values(&["compensating"]),
            oldest: families.seconds_gauge(
                name::SAGA_OLDEST,
                "Age of the oldest saga that has not ended; 0 when none runs",
            )?,
            undo_attempts: families
                .gauge(name::SAGA_UNDO_ATTEMPTS, "Most attempts that an undoing under way has behind it")?,
        })
    }
}

impl Metrics {
    pub fn saga_ended(&self, state: &str) {
        if let Some(at) = ENDED.iter().position(|known| *known == state) {
            self.saga.ended[at].inc();
        }
    }

    pub fn sagas_running(&self, running: &Running) {
        self.saga.started.set(running.started);
        self.saga.compensating.set(running.compensating);
        self.saga.oldest.set(running.oldest.as_secs_f64());
        self.saga.undo_attempts.set(running.undo_attempts);
    }
}
