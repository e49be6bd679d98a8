//! The books of a replay beside the road: its journal is written in its order, and positions are read from there.
//!
//! An effect's row is written before the checkpoint that covers its record. Partitions are claimed only when
//! everything told of an earlier claim is written: a position read before that would be read, and counted, twice.

use std::collections::HashMap;
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::dry_run::counts_json;
use crate::applier::intake::ResumeAt;
use crate::applier::{Checkpoint, Entry, JournalReader, WaitPoint};
use crate::domain::effect::Outcome;
use crate::domain::plan::Policies;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::replay::{self, Moved};
use crate::pg::wave::Target;
use crate::stream::starts::StoredRanges;

/// The polling thread waits this long for positions; then it asks again.
const CLAIM_WAIT: Duration = Duration::from_secs(3);
/// Journal entries written together.
const JOURNAL_BATCH: usize = 512;
const PAUSE: Duration = Duration::from_millis(500);

/// Who keeps the books: one process's part in one replay.
#[derive(Clone)]
pub(super) struct Books {
    pub database: Database,
    pub policies: Policies,
    pub id: String,
    /// This process's claim on the partitions it reads.
    pub reader: Uuid,
}

impl Books {
    /// Answers the polling thread's question where its partitions stand, claiming them for this process.
    pub fn claims(
        &self,
        journal: WaitPoint,
    ) -> impl FnMut(&[i32]) -> Result<StoredRanges, String> + Send + use<> {
        type Question = (Vec<i32>, std_mpsc::Sender<Result<StoredRanges, String>>);
        let (ask, mut questions) = mpsc::unbounded_channel::<Question>();
        let books = self.clone();
        tokio::spawn(async move {
            while let Some((partitions, answer)) = questions.recv().await {
                journal.written().await;
                let found = books.claim(&partitions).await.map_err(|error| error.to_string());
                if answer.send(found).is_err() {
                    tracing::debug!("the polling thread did not wait for its positions");
                }
            }
        });
        move |partitions| {
            let (answer, answered) = std_mpsc::channel();
            ask.send((partitions.to_vec(), answer)).map_err(|error| error.to_string())?;
            answered.recv_timeout(CLAIM_WAIT).map_err(|error| error.to_string())?
        }
    }

    pub async fn claim(&self, partitions: &[i32]) -> Result<StoredRanges, StoreError> {
        let found = replay::claim(self.database.pool(), &self.id, self.reader, partitions).await?;
        let range = |p: replay::PartitionProgress| (p.partition, (ResumeAt(p.at), Some(ResumeAt(p.end))));
        Ok(found.into_iter().map(range).collect::<HashMap<_, _>>())
    }

    /// Writes what the applier tells until it tells no more. A database that is away is waited for; what it refuses
    /// for good ends the run.
    pub async fn keep(self, mut entries: JournalReader) -> Result<(), StoreError> {
        let mut batch = Vec::with_capacity(JOURNAL_BATCH);
        while entries.take(&mut batch, JOURNAL_BATCH).await > 0 {
            let (mut effects, mut checkpoints, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            for entry in batch.drain(..) {
                match entry {
                    Entry::Effect { target, outcome } => effects.push((target, outcome)),
                    Entry::Checkpoint(lanes) => {
                        checkpoints.extend(lanes.iter().map(|lane| self.moved(lane)));
                    }
                    Entry::Waiting(done) => waiting.push(done),
                }
            }
            // Effects of a later checkpoint may be written early; never the other way round.
            self.effects(&effects).await?;
            self.checkpoint(&checkpoints).await?;
            for done in waiting {
                if done.send(()).is_err() {
                    tracing::debug!("nobody waits for the journal any more");
                }
            }
        }
        Ok(())
    }

    async fn effects(&self, effects: &[(Target, Outcome)]) -> Result<(), StoreError> {
        if effects.is_empty() {
            return Ok(());
        }
        while let Err(error) = replay::effects(self.database.pool(), &self.id, effects).await {
            wait_after(error).await?;
        }
        Ok(())
    }

    fn moved(&self, lane: &Checkpoint) -> Moved {
        let counts = counts_json(&lane.counts, &self.policies);
        Moved { partition: lane.lane.partition, at: lane.at.0, counts }
    }

    async fn checkpoint(&self, moved: &[Moved]) -> Result<(), StoreError> {
        if moved.is_empty() {
            return Ok(());
        }
        while let Err(error) = replay::checkpoint(&self.database, &self.id, self.reader, moved).await {
            wait_after(error).await?;
        }
        Ok(())
    }
}

/// Waits out an outage; any other error is not cured by asking again.
pub(super) async fn wait_after(error: StoreError) -> Result<(), StoreError> {
    if !matches!(error, StoreError::Transient(_)) {
        return Err(error);
    }
    tracing::warn!(%error, "the replay's bookkeeping waits for the database");
    tokio::time::sleep(PAUSE).await;
    Ok(())
}
