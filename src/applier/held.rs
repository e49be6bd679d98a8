//! Outcomes that the ledger takes in no form: held, written again now and then, and said aloud.
//!
//! Promises: nothing that a provider said is forgotten while this process lives; others go on; the partition's
//! offset stands still, its lane counts as stalled (`/readyz` 503 with the words of the database, and
//! `reprise_particao_parada`), until the ledger takes it or the process ends. Whoever comes after finds the row
//! `reservado` and judges it by its lease and owner, as after a crash.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::coordinator::Coordinator;
use super::waves::Finished;

/// Between two tries of what was refused for its data: a person must act first, so there is no hurry.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Held {
    waiting: Vec<Finished>,
    again_at: Option<Instant>,
    /// Partition by effect, also of those that are being written again.
    refused: BTreeMap<usize, i32>,
}

impl Coordinator {
    /// The ledger refuses this outcome for its data.
    pub(super) fn hold(&mut self, finished: Finished, words: &str) {
        let effect = &self.flight.effects[finished.effect];
        let key = effect.request().key.clone();
        tracing::error!(
            chave = key,
            cause = words,
            "the ledger refuses an outcome in every form; its partition is held"
        );
        if let Some(event) = self.flight.events.get(effect.event) {
            let partition = event.lane.partition;
            self.held.refused.insert(finished.effect, partition);
            self.road.health.stalled(partition, format!("the ledger refuses the outcome of {key}: {words}"));
        }
        self.held.waiting.push(finished);
        self.held.again_at.get_or_insert_with(|| Instant::now() + AGAIN_AFTER);
    }

    /// Part of the tick: what has waited long enough goes into the next wave.
    pub(super) fn try_held_again(&mut self) {
        if self.held.again_at.is_some_and(|at| at <= Instant::now()) {
            self.held.again_at = None;
            self.finished.append(&mut self.held.waiting);
        }
    }

    /// The ledger has taken the outcome of an effect.
    pub(super) fn was_taken(&mut self, effect: usize) {
        let Some(partition) = self.held.refused.remove(&effect) else { return };
        if !self.held.refused.values().any(|other| *other == partition) {
            self.road.health.moving_again(partition);
        }
    }
}
