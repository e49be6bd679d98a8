//! A real replay: its own consumer group, the stored range, the very same applier and ledger.
//!
//! Several processes may share one replay: the group spreads the partitions, each starts where the database says it
//! stands, and whether the whole is done is read there as well. Pausing and cancelling are rows too. However it ends,
//! calls in flight are settled and the books are written, within a limit.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::archive_source::{self, ArchiveReading, Claims};
use super::beside;
use super::decode::{Reader, Schemas};
use super::parts::{self, Parts, Watch};
use super::replay_books::{Books, wait_after};
use super::selection::{Chosen, LastSide, Outliers, Period};
use super::source::Source;
use super::{CLOSE_WITHIN, DELIVERIES, RunError, Signals, dead_letters};
use crate::applier::intake::{Delivery, RawRecord, Watermarks};
use crate::applier::{self, ApplierError, Ended, Inlet, LetterRoute, Road};
use crate::config::Config;
use crate::domain::effect::{Run, RunKind};
use crate::domain::plan::Policies;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::replay::{self, Origin, StoredRun};
use crate::stream::starts::StoredStarts;
use crate::stream::{self, ConsumerSettings, Decoding, Outlets, StreamFailure};

/// How often the database is asked how the replay stands.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// Calls in flight when it is done or cancelled.
const LAST_CALLS: Duration = Duration::from_mins(1);
/// From SIGTERM to the end, as in `live`.
const GRACE: Duration = Duration::from_secs(25);

/// What is to be done.
pub struct ReplayPlan {
    pub id: String,
    pub policies: Policies,
    pub period: Period,
    pub origin: Origin,
    pub orders: Option<Vec<String>>,
    pub per_second: Option<NonZeroU32>,
    /// Where this process shows its metrics and health; without it nothing listens.
    pub http: Option<SocketAddr>,
}

/// How this process's part ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayEnd {
    Done,
    Cancelled,
    Interrupted,
    /// In this process or in another one that shares it.
    Failed(String),
}

/// Takes part in the replay until it is done, cancelled, or this process is told to stop.
pub async fn run(
    config: &Config,
    plan: ReplayPlan,
    progress: impl FnMut(&StoredRun),
) -> Result<ReplayEnd, RunError> {
    let run = Run { kind: RunKind::Replay, id: plan.id.clone() };
    let parts = Parts::build_with(config, run, plan.policies.clone(), config.replay.max_connections)?;
    let mut signals = Signals::listen()?;
    let background = CancellationToken::new();
    let _stopped_last = background.clone().drop_guard();
    let mut watched = beside::start(plan.http, config, &parts, &background)?;
    let (mut member, road, inlet, stop) = Member::join(config, &plan, &parts)?;
    let applier = applier::run(road, inlet, stop);
    tokio::pin!(applier);
    let end = tokio::select! {
        ended = &mut applier => {
            // Nothing is left that could settle anything.
            return Err(ended.map_or_else(RunError::from, |_| RunError::TaskLost("applier")));
        }
        ended = member.source.ended() => Err(ended.err().unwrap_or(RunError::TaskLost("source"))),
        error = books_lost(&mut member.books) => Err(error),
        Some(ended) = watched.join_next() => Err(ended.map_or(RunError::TaskLost("admin listener"), |e| e)),
        () = signals.next() => Ok(ReplayEnd::Interrupted),
        end = standing(&parts.database, &plan.id, &member.paused, progress) => end,
    };
    match end {
        Ok(end) => {
            tracing::info!(?end, "no new work; calls in flight finish");
            let limit = if end == ReplayEnd::Interrupted { GRACE } else { LAST_CALLS + CLOSE_WITHIN };
            tokio::select! {
                left = member.leave(applier, limit) => left?,
                () = signals.next() => return Err(RunError::StoppedTwice),
            }
            if end != ReplayEnd::Done {
                return Ok(end);
            }
            tokio::select! {
                finished = finish(&parts.database, &plan.id) => finished,
                () = signals.next() => Ok(ReplayEnd::Interrupted),
            }
        }
        Err(failure) => {
            tracing::error!(error = %failure, "this process's part in the replay must end");
            parts.health.fatal(&failure);
            // What the consumer or the applier said first is what the run ends with.
            if let Err(error) = member.leave(applier, super::LAST_CALLS + CLOSE_WITHIN).await {
                tracing::error!(%error, "not everything in flight could be settled");
            }
            let Some(reason) = incurable(&failure) else { return Err(failure) };
            replay::fail(parts.database.pool(), &plan.id, &reason).await.map_err(RunError::Bookkeeping)?;
            Ok(ReplayEnd::Failed(reason))
        }
    }
}

/// Asks the database how the replay stands until that ends it. While the database is away it stands as it stood.
async fn standing(
    database: &Database,
    id: &str,
    paused: &watch::Sender<bool>,
    mut progress: impl FnMut(&StoredRun),
) -> Result<ReplayEnd, RunError> {
    let mut ask = tokio::time::interval(ASK_EVERY);
    ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ask.tick().await;
        let stored = match replay::load(database.pool(), id, false).await {
            Ok(Some(stored)) => stored,
            Ok(None) => return Ok(ReplayEnd::Cancelled),
            Err(error) => {
                wait_after(error).await.map_err(RunError::Bookkeeping)?;
                continue;
            }
        };
        progress(&stored);
        match stored.situation.as_str() {
            "cancelado" => return Ok(ReplayEnd::Cancelled),
            "concluido" => return Ok(ReplayEnd::Done),
            _ if stored.is_complete() => return Ok(ReplayEnd::Done),
            "falhou" => return Ok(ReplayEnd::Failed(stored.failure.unwrap_or_default())),
            situation => paused.send_replace(situation == "pausado"),
        };
    }
}

/// One of the processes that share the replay marks it done; someone may have cancelled it a moment before.
async fn finish(database: &Database, id: &str) -> Result<ReplayEnd, RunError> {
    const OPEN: [&str; 4] = ["planejado", "executando", "pausado", "falhou"];
    let marked = async || -> Result<ReplayEnd, StoreError> {
        if replay::transition(database.pool(), id, false, &OPEN, "concluido").await? {
            return Ok(ReplayEnd::Done);
        }
        let stored = replay::load(database.pool(), id, false).await?;
        let done = stored.is_some_and(|stored| stored.situation == "concluido");
        Ok(if done { ReplayEnd::Done } else { ReplayEnd::Cancelled })
    };
    loop {
        match marked().await {
            Ok(end) => return Ok(end),
            Err(error) => wait_after(error).await.map_err(RunError::Bookkeeping)?,
        }
    }
}

/// The reason, with its remedy, where running the same id again would fail again.
fn incurable(failure: &RunError) -> Option<String> {
    match failure {
        RunError::Stream(StreamFailure::LostOffsets { partition, from, to }) => Some(format!(
            "partition {partition}: records from offset {from} to {} were deleted before they were read; cancel it and replay what is left under a new id with --accept-gap",
            to - 1
        )),
        RunError::Stream(StreamFailure::TopicRecreated { partition, at, end }) => Some(format!(
            "partition {partition}: position {at} lies beyond the end of the log ({end}), the topic was made anew; cancel it and plan again under a new id"
        )),
        _ => None,
    }
}

async fn books_lost(books: &mut Option<JoinHandle<Result<(), StoreError>>>) -> RunError {
    let Some(task) = books else { return std::future::pending().await };
    let ended = task.await;
    *books = None;
    books_ended(ended)
}

fn books_ended(ended: Result<Result<(), StoreError>, JoinError>) -> RunError {
    match ended {
        Ok(Err(error)) => RunError::Bookkeeping(error),
        Ok(Ok(())) | Err(_) => RunError::TaskLost("journal"),
    }
}

/// This process as a member of the replay's group.
struct Member {
    source: Source,
    stop: watch::Sender<Option<Instant>>,
    paused: watch::Sender<bool>,
    /// None once it has ended.
    books: Option<JoinHandle<Result<(), StoreError>>>,
    pacing: JoinHandle<()>,
}

impl Member {
    /// Joins the group, and gives what the applier runs on.
    fn join(
        config: &Config,
        plan: &ReplayPlan,
        parts: &Parts,
    ) -> Result<(Self, Road, Inlet, applier::Stop), RunError> {
        let letters = LetterRoute::Topic(dead_letters(config)?);
        let (control_out, control) = mpsc::unbounded_channel();
        let (log_out, log_in) = mpsc::channel(DELIVERIES);
        let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
        let watermarks = Watermarks::default();
        let (journal, entries) = applier::journal();
        let books = Books {
            database: parts.database.clone(),
            policies: plan.policies.clone(),
            id: plan.id.clone(),
            reader: Uuid::new_v4(),
        };
        let outliers = Outliers::default();
        let decode = decoder(config, parts, plan, outliers.clone())?;
        let source = match plan.origin {
            Origin::Log => {
                let starts = StoredStarts { lookup: books.claims(journal.wait_point()) };
                let outlets = Outlets {
                    control: control_out,
                    deliveries: log_out,
                    watermarks: watermarks.clone(),
                    observer: Arc::new(Watch::new(parts)),
                };
                Source::Log(stream::spawn(settings(config, plan), Box::new(starts), decode, outlets)?)
            }
            Origin::Archive => {
                // Nobody else says that there may be nothing to read for this process.
                parts.health.assigned([]);
                let reading = ArchiveReading {
                    database: parts.database.clone(),
                    topic: config.kafka.topic.clone(),
                    period: plan.period,
                    page: settings(config, plan).max_events,
                    claims: Claims::Shared { books: Box::new(books.clone()), journal: journal.wait_point() },
                };
                Source::Archive(archive_source::spawn(reading, decode, control_out, log_out))
            }
        };
        let (stop, stop_in) = watch::channel(None);
        // Nothing is begun before the database said that it is not paused.
        let (paused, paused_in) = watch::channel(true);
        let road = Road {
            run: parts.run.clone(),
            policies: parts.policies.clone(),
            database: parts.database.clone(),
            gateway: Arc::clone(&parts.gateway),
            rates: parts.rates.clone(),
            dead_letters: letters,
            health: parts.health.clone(),
            metrics: Arc::clone(&parts.metrics),
            traces: parts.traces.clone(),
            instance: Arc::clone(&parts.instance),
            watermarks,
            journal: Some(journal),
            paused: paused_in,
            mark: Some(Arc::new(move |partition, offset, tally| outliers.mark(partition, offset, tally))),
        };
        let (books, pacing) = (
            Some(tokio::spawn(books.keep(entries))),
            tokio::spawn(pace(log_in, deliveries_out, plan.per_second)),
        );
        Ok((Self { source, stop, paused, books, pacing }, road, Inlet { control, deliveries }, stop_in))
    }

    /// No new work; calls in flight finish, the books are written, the group is left.
    async fn leave(
        mut self,
        applier: impl Future<Output = Result<Ended, ApplierError>>,
        limit: Duration,
    ) -> Result<(), RunError> {
        self.source.stop();
        self.stop.send_replace(Some(Instant::now() + limit.saturating_sub(CLOSE_WITHIN)));
        let orderly = async {
            let ended = applier.await?;
            self.source.close(ended.positions, CLOSE_WITHIN).await;
            tracing::debug!(drained = ended.drained, "left the replay");
            if let Some(books) = &mut self.books {
                match books.await {
                    Ok(Ok(())) => {}
                    lost => return Err(books_ended(lost)),
                }
            }
            if ended.drained { Ok(()) } else { Err(RunError::GraceOver) }
        };
        let left = tokio::time::timeout(limit, orderly).await.unwrap_or(Err(RunError::GraceOver));
        self.pacing.abort();
        if let Some(books) = &self.books {
            books.abort();
        }
        left
    }
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
