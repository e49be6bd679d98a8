//! A real replay: its own consumer group, the stored range, the very same applier and ledger.
//!
//! Several processes may share one replay: the group spreads the partitions, each starts where the database says it
//! stands, and whether the whole is done is read there as well. Pausing and cancelling are rows too.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::decode::{Reader, Schemas};
use super::dry_run::counts_json;
use super::parts::{self, Parts, Watch};
use super::selection::{Chosen, LastSide, Outliers, Period};
use super::{CLOSE_WITHIN, DELIVERIES, RunError, Signals, dead_letters};
use crate::applier::intake::{Delivery, RawRecord, ResumeAt, Watermarks};
use crate::applier::{self, Entry, Inlet, JournalReader, LetterRoute, Road};
use crate::config::Config;
use crate::domain::effect::{Run, RunKind};
use crate::domain::plan::Policies;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::replay::{self, StoredRun};
use crate::stream::starts::{StoredRanges, StoredStarts};
use crate::stream::{self, ConsumerSettings, Decoding, Outlets};

/// How often the database is asked how the replay stands.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// The polling thread waits this long for positions; then it asks again.
const CLAIM_WAIT: Duration = Duration::from_secs(3);
/// Calls in flight when it is cancelled, done or stopped.
const LAST_CALLS: Duration = Duration::from_mins(1);
/// Journal entries written together.
const JOURNAL_BATCH: usize = 512;
const JOURNAL_PAUSE: Duration = Duration::from_millis(500);

/// What is to be done.
pub struct ReplayPlan {
    pub id: String,
    pub policies: Policies,
    pub period: Period,
    pub orders: Option<Vec<String>>,
    pub per_second: Option<NonZeroU32>,
}

/// How this process's part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    Done,
    Cancelled,
    Interrupted,
}

/// Takes part in the replay until it is done, cancelled, or this process is told to stop.
pub async fn run(
    config: &Config,
    plan: ReplayPlan,
    mut progress: impl FnMut(&StoredRun),
) -> Result<ReplayEnd, RunError> {
    let run = Run { kind: RunKind::Replay, id: plan.id.clone() };
    let parts = Parts::build_with(config, run, plan.policies.clone(), config.replay.max_connections)?;
    let mut signals = Signals::listen()?;
    let (control_out, control) = mpsc::unbounded_channel();
    let (log_out, log_in) = mpsc::channel(DELIVERIES);
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let pacing = tokio::spawn(pace(log_in, deliveries_out, plan.per_second));
    let watermarks = Watermarks::default();
    let outlets = Outlets {
        control: control_out,
        deliveries: log_out,
        watermarks: watermarks.clone(),
        observer: Arc::new(Watch::new(&parts)),
    };
    let (reader_id, outliers) = (Uuid::new_v4(), Outliers::default());
    let starts = StoredStarts { lookup: claims(&parts.database, &plan.id, reader_id) };
    let decode = decoder(config, &parts, &plan, outliers.clone())?;
    let consumer = stream::spawn(settings(config, &plan), Box::new(starts), decode, outlets)?;
    let (journal, entries) = applier::journal();
    let journal_task = tokio::spawn(keep_journal(
        parts.database.clone(),
        plan.policies.clone(),
        plan.id.clone(),
        reader_id,
        entries,
    ));
    let (stop_out, stop) = watch::channel(None);
    let (pause_out, paused) = watch::channel(false);
    let road = Road {
        run: parts.run.clone(),
        policies: parts.policies.clone(),
        database: parts.database.clone(),
        gateway: Arc::clone(&parts.gateway),
        dead_letters: LetterRoute::Topic(dead_letters(config)?),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        instance: Arc::clone(&parts.instance),
        watermarks,
        journal: Some(journal),
        paused,
        mark: Some(Arc::new(move |partition, offset, tally| outliers.mark(partition, offset, tally))),
    };
    let applier = applier::run(road, Inlet { control, deliveries }, stop);
    tokio::pin!(applier);
    let mut ask = tokio::time::interval(ASK_EVERY);
    ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let end = loop {
        tokio::select! {
            ended = &mut applier => return Err(ended.map_or_else(RunError::from, |_| RunError::TaskLost("applier"))),
            ended = consumer.ended() => return Err(ended.map_or_else(RunError::from, |()| RunError::TaskLost("consumer"))),
            () = signals.next() => break ReplayEnd::Interrupted,
            _ = ask.tick() => match replay::load(parts.database.pool(), &plan.id, false).await {
                Ok(Some(stored)) => {
                    progress(&stored);
                    pause_out.send_replace(stored.situation == "pausado");
                    if stored.situation == "cancelado" {
                        break ReplayEnd::Cancelled;
                    }
                    if stored.situation == "concluido" || stored.is_complete() {
                        break ReplayEnd::Done;
                    }
                }
                Ok(None) => break ReplayEnd::Cancelled,
                Err(error) => tracing::warn!(%error, "the replay's standing cannot be read; going on"),
            },
        }
    };
    consumer.stop();
    stop_out.send_replace(Some(Instant::now() + LAST_CALLS));
    let ended = applier.await?;
    pacing.abort();
    journal_task.await.map_err(|_| RunError::TaskLost("journal"))?;
    let closed = consumer.close(ended.positions, CLOSE_WITHIN).await;
    tracing::debug!(?closed, "left the replay's group");
    if end == ReplayEnd::Done {
        finish(&parts.database, &plan.id).await?;
    }
    Ok(end)
}

/// One of the processes that share the replay marks it done.
async fn finish(database: &Database, id: &str) -> Result<(), RunError> {
    let from = ["planejado", "executando", "pausado"];
    let done = replay::transition(database.pool(), id, false, &from, "concluido").await;
    done.map_err(|error| RunError::Schema(error.into()))?;
    Ok(())
}

fn settings(config: &Config, plan: &ReplayPlan) -> ConsumerSettings {
    let kafka = &config.kafka;
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), kafka.topic.clone(), plan.id.clone());
    settings.properties.clone_from(&kafka.properties);
    let rate = plan.per_second.and_then(|rate| usize::try_from(rate.get()).ok()).unwrap_or(usize::MAX);
    settings.max_events = config.batch.max_events.min(rate);
    settings
}

fn decoder(
    config: &Config,
    parts: &Parts,
    plan: &ReplayPlan,
    outliers: Outliers,
) -> Result<impl FnMut(crate::applier::intake::LaneId, Box<RawRecord>) -> Decoding + Send + use<>, RunError> {
    let last = LastSide::default();
    let orders = plan.orders.as_ref().map(|orders| orders.iter().cloned().collect());
    let chosen = Chosen::new(orders, plan.period, last.clone());
    let schemas = parts::registry(config)?.map(Schemas::start);
    let mut reader = Reader::new(plan.policies.clone(), chosen, Arc::clone(&parts.metrics), schemas);
    Ok(move |_, raw: Box<RawRecord>| {
        let (partition, offset) = (raw.partition, raw.offset);
        let decoded = reader.read(raw);
        if let Some(side) = last.take() {
            outliers.note(partition, offset, side);
        }
        decoded
    })
}

/// Answers the polling thread's question where its partitions stand, claiming them for this process.
fn claims(
    database: &Database,
    id: &str,
    reader: Uuid,
) -> impl FnMut(&[i32]) -> Result<StoredRanges, String> + Send + use<> {
    type Question = (Vec<i32>, std_mpsc::Sender<Result<StoredRanges, String>>);
    let (ask, mut questions) = mpsc::unbounded_channel::<Question>();
    let (database, id) = (database.clone(), id.to_owned());
    tokio::spawn(async move {
        while let Some((partitions, answer)) = questions.recv().await {
            let found = replay::claim(database.pool(), &id, reader, &partitions).await;
            let ranges = found.map_err(|error| error.to_string()).map(|found| {
                let range =
                    |p: replay::PartitionProgress| (p.partition, (ResumeAt(p.at), Some(ResumeAt(p.end))));
                found.into_iter().map(range).collect::<HashMap<_, _>>()
            });
            if answer.send(ranges).is_err() {
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

/// `--rate`: what was handed on is paid for before more is.
async fn pace(
    mut read: mpsc::Receiver<Delivery>,
    onwards: mpsc::Sender<Delivery>,
    per_second: Option<NonZeroU32>,
) {
    while let Some(delivery) = read.recv().await {
        let events = match &delivery {
            Delivery::Records(records) => u32::try_from(records.len()).unwrap_or(u32::MAX),
            Delivery::Position { .. } => 0,
        };
        if onwards.send(delivery).await.is_err() {
            return;
        }
        if let Some(per_second) = per_second {
            tokio::time::sleep(Duration::from_secs(1) * events / per_second.get()).await;
        }
    }
}

/// Writes what the applier tells, in its order: an effect's row before the checkpoint that covers its record.
async fn keep_journal(
    database: Database,
    policies: Policies,
    id: String,
    reader: Uuid,
    mut entries: JournalReader,
) {
    let mut batch = Vec::with_capacity(JOURNAL_BATCH);
    while entries.take(&mut batch, JOURNAL_BATCH).await > 0 {
        let (mut effects, mut checkpoints) = (Vec::new(), Vec::new());
        for entry in batch.drain(..) {
            match entry {
                Entry::Effect { target, outcome } => effects.push((target, outcome)),
                Entry::Checkpoint(lanes) => checkpoints.extend(lanes),
            }
        }
        // Effects of a later checkpoint may be written early; never the other way round.
        while !effects.is_empty() {
            match replay::effects(database.pool(), &id, &effects).await {
                Ok(()) => break,
                Err(error) => wait_after(&error).await,
            }
        }
        for lane in &checkpoints {
            let counts = counts_json(&lane.counts, &policies);
            while let Err(error) =
                replay::checkpoint(&database, &id, reader, lane.lane.partition, lane.at.0, &counts).await
            {
                wait_after(&error).await;
            }
        }
    }
}

async fn wait_after(error: &StoreError) {
    tracing::warn!(%error, "the replay's bookkeeping cannot be written; trying again");
    tokio::time::sleep(JOURNAL_PAUSE).await;
}
