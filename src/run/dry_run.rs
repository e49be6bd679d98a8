//! A dry run: the captured range is read and judged, the diff is written, nobody is called.
//!
//! ```text
//!   kafka thread (fixed partitions, commits nothing) ──► look-ups, several at once ──► judged in order ──► draft
//!                                                       every second: positions, and how the run stands ◄──┘
//!   range done ──► the diff is replaced in one transaction; `concluido`
//! ```
//!
//! It joins no group, commits no offset, holds no gateway and no dead-letter topic (I6). It may be repeated under
//! its id: it starts over, and readers see the earlier diff until the new one is whole. Whether it may run at all
//! (a real run has begun, other parameters) is for the caller to check before.

mod reading;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::archive_source::{self, ArchiveReading, Claims};
use super::decode::{Reader, Schemas};
use super::parts;
use super::selection::{Chosen, LastSide, Outliers, Period};
use super::source::Source;
use super::{RunError, Signals};
use crate::applier::Inlet;
use crate::applier::dry_run::{DryRun, Looked, Published, Standing};
use crate::applier::intake::{Delivery, LaneId, RawRecord, ResumeAt, Watermarks};
use crate::applier::progress::Counts;
use crate::config::Config;
use crate::domain::effect::{Run, RunKind};
use crate::domain::plan::Policies;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::replay::Origin;
use crate::stream::starts::StoredStarts;
use crate::stream::{
    self, Commits, ConsumerSettings, Decoding, Membership, Observer, Outlets, PartitionFacts,
};

pub use reading::counts_json;

use reading::Reading;

/// Events of one batch. More than live's: nobody waits for an answer, and each batch costs the draft a round trip.
const BATCH: usize = 1024;
/// Batches being looked up at once.
const LOOK_UPS: usize = 3;
/// Batches between the polling thread and the look-ups.
const DELIVERIES: usize = 2;
/// Positions are written, and the run's standing is read, in this rhythm.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(1);
const CLOSE_WITHIN: Duration = Duration::from_secs(4);

/// What is to be compared. The range was captured when the plan was made.
#[derive(Debug, Clone)]
pub struct DryRunPlan {
    /// `execucao_id`; its rows in `reprocessamento` and `reprocessamento_checkpoint` are there already.
    pub id: String,
    pub ranges: Vec<Range>,
    /// Effective ones, `--effect` included.
    pub policies: Policies,
    /// `--order`, `--orders-file`; `None`: all.
    pub orders: Option<HashSet<String>>,
    pub period: Period,
    pub origin: Origin,
    /// `--rate`
    pub per_second: Option<NonZeroU32>,
}

/// One partition's part of the range: `start` inclusive, `end` exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub partition: i32,
    pub start: ResumeAt,
    pub end: ResumeAt,
}

/// Told once a second and at the end.
#[derive(Debug)]
pub struct Progress<'a> {
    /// By partition, the first offset that was not compared yet.
    pub positions: &'a BTreeMap<i32, ResumeAt>,
    pub counts: &'a Counts,
    pub paused: bool,
}

/// Why a dry run has no new diff. The earlier one stands.
#[derive(Debug, thiserror::Error)]
pub enum DryRunError {
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no dry run is planned under the id {0}")]
    NotPlanned(String),
    #[error("the dry run was cancelled")]
    Cancelled,
    #[error("interrupted; run it again, it starts over")]
    Interrupted,
    #[error(
        "the draft is gone: the same dry run was begun elsewhere, or the database server restarted; run it again"
    )]
    DraftLost,
}

/// What the dry run stands on. It has no gateway.
pub struct Ground {
    pub database: Database,
    pub health: Health,
    pub metrics: Arc<Metrics>,
}

impl Ground {
    /// With the connection budget of replays.
    pub fn build(config: &Config, plan: &DryRunPlan) -> Result<Self, RunError> {
        let refused = |error: String| RunError::Configuration(error);
        let names: Vec<String> = plan.policies.iter().map(|(_, policy)| policy.name.clone()).collect();
        let run = Run { kind: RunKind::DryRun, id: plan.id.clone() };
        Ok(Self {
            database: Database::new(config.postgres.url.expose(), config.replay.max_connections)
                .map_err(|error| refused(format!("postgres.url: {error}")))?,
            health: super::health(&run, &names),
            metrics: Arc::new(
                Metrics::new(names.iter().map(String::as_str)).map_err(|error| refused(error.to_string()))?,
            ),
        })
    }
}

/// Compares the whole range and replaces the diff.
pub async fn run(
    config: &Config,
    plan: DryRunPlan,
    progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    let ground = Ground::build(config, &plan)?;
    run_on(config, &ground, plan, progress).await
}

/// The same on a given ground, for a process that serves its metrics.
pub async fn run_on(
    config: &Config,
    ground: &Ground,
    plan: DryRunPlan,
    progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    let mut signals = Signals::listen().map_err(RunError::from)?;
    let begun = DryRun::begin(
        &plan.id,
        plan.policies.clone(),
        ground.database.clone(),
        ground.health.clone(),
        Arc::clone(&ground.metrics),
    );
    let Some(mut dry_run) = begun.await? else { return Err(DryRunError::NotPlanned(plan.id)) };
    let tasks = tokio::task::LocalSet::new();
    let compared = tokio::select! {
        compared = tasks.run_until(compare(config, ground, &plan, &mut dry_run, progress)) => compared,
        // Nothing is in flight that would have to be settled: the earlier diff stands.
        () = signals.next() => Err(DryRunError::Interrupted),
    };
    if let Err(error @ (DryRunError::Run(_) | DryRunError::Store(_) | DryRunError::Interrupted)) = &compared {
        dry_run.fail(&error.to_string()).await;
    }
    compared
}

async fn compare(
    config: &Config,
    ground: &Ground,
    plan: &DryRunPlan,
    dry_run: &mut DryRun,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    let outliers = Outliers::default();
    let mut reading = Reading::new(plan, outliers.clone());
    if !reading.is_done() {
        let (source, inlet) = begin_reading(config, ground, plan, &reading, outliers)?;
        let comparing = Comparing::new(dry_run, &mut reading, plan.per_second);
        let compared = comparing.drive(inlet, &source, &mut progress).await;
        source.close(Vec::new(), CLOSE_WITHIN).await;
        compared?;
    }
    progress(reading.progress(false));
    match dry_run.publish(&reading.rows()).await? {
        Published::Done => Ok(reading.total),
        Published::Cancelled => Err(DryRunError::Cancelled),
        Published::Lost => Err(DryRunError::DraftLost),
    }
}

/// Begins to read the parts of the range that are not empty.
fn begin_reading(
    config: &Config,
    ground: &Ground,
    plan: &DryRunPlan,
    reading: &Reading,
    outliers: Outliers,
) -> Result<(Source, Inlet), RunError> {
    let kafka = &config.kafka;
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), kafka.topic.clone(), plan.id.clone());
    settings.properties.clone_from(&kafka.properties);
    settings.membership = Membership::Fixed(reading.unread());
    settings.commits = Commits::Never;
    let rate = plan.per_second.and_then(|rate| usize::try_from(rate.get()).ok()).unwrap_or(usize::MAX);
    settings.max_events = BATCH.max(config.batch.max_events).min(rate);

    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let last = LastSide::default();
    let chosen = Chosen::new(plan.orders.clone(), plan.period, last.clone());
    let schemas = parts::registry(config)?.map(Schemas::start);
    let mut reader = Reader::new(plan.policies.clone(), chosen, Arc::clone(&ground.metrics), schemas);
    let decode = move |_, raw: Box<RawRecord>| -> Decoding {
        let (partition, offset) = (raw.partition, raw.offset);
        let decoded = reader.read(raw);
        if let Some(side) = last.take() {
            outliers.note(partition, offset, side);
        }
        decoded
    };
    let ranges = Arc::clone(&reading.ranges);
    if plan.origin == Origin::Archive {
        let archived = ArchiveReading {
            database: ground.database.clone(),
            topic: kafka.topic.clone(),
            period: plan.period,
            page: settings.max_events,
            claims: Claims::Fixed(ranges),
        };
        let source = archive_source::spawn(archived, decode, control_out, deliveries_out);
        return Ok((Source::Archive(source), Inlet { control, deliveries }));
    }
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks: Watermarks::default(),
        observer: Arc::new(Watch { health: ground.health.clone() }),
    };
    let lookup = move |_: &[i32]| Ok(ranges.lock().unwrap_or_else(PoisonError::into_inner).clone());
    let consumer = stream::spawn(settings, Box::new(StoredStarts { lookup }), decode, outlets)?;
    Ok((Source::Log(consumer), Inlet { control, deliveries }))
}

/// A turn in the order in which it was read.
enum Turn {
    Batch(JoinHandle<Looked>),
    Position { lane: LaneId, next: ResumeAt },
}

/// The loop of a dry run.
struct Comparing<'a> {
    dry_run: &'a mut DryRun,
    reading: &'a mut Reading,
    turns: VecDeque<Turn>,
    pace: Pace,
    paused: bool,
}

impl<'a> Comparing<'a> {
    fn new(dry_run: &'a mut DryRun, reading: &'a mut Reading, per_second: Option<NonZeroU32>) -> Self {
        let pace = Pace { per_second, free_at: Instant::now() };
        Self { dry_run, reading, turns: VecDeque::new(), pace, paused: false }
    }

    async fn drive(
        mut self,
        inlet: Inlet,
        source: &Source,
        progress: &mut impl FnMut(Progress<'_>),
    ) -> Result<(), DryRunError> {
        let Inlet { mut control, mut deliveries } = inlet;
        let mut tick = tokio::time::interval(CHECKPOINT_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = source.ended();
        tokio::pin!(ended);
        while !self.reading.is_done() {
            let free_at = self.pace.free_at;
            tokio::select! {
                biased;
                Some(news) = control.recv() => self.reading.on_control(news),
                _ = tick.tick() => {
                    self.checkpoint().await?;
                    progress(self.reading.progress(self.paused));
                }
                turn = next_turn(&mut self.turns), if !self.turns.is_empty() => self.on_turn(turn?).await?,
                Some(delivery) = deliveries.recv(), if self.accepts() => {
                    // A lane is announced before its first record.
                    while let Ok(news) = control.try_recv() {
                        self.reading.on_control(news);
                    }
                    self.on_delivery(delivery);
                }
                () = tokio::time::sleep_until(free_at.into()), if self.pace.is_busy() => {}
                end = &mut ended => {
                    return Err(end.err().unwrap_or(RunError::TaskLost("source")).into());
                }
            }
        }
        Ok(())
    }

    fn accepts(&self) -> bool {
        !self.paused && self.turns.len() < LOOK_UPS && !self.pace.is_busy()
    }

    fn on_delivery(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Records(records) => {
                self.pace.took(records.len());
                let look = self.dry_run.look(records);
                self.turns.push_back(Turn::Batch(tokio::task::spawn_local(look)));
            }
            Delivery::Position { lane, next } => self.turns.push_back(Turn::Position { lane, next }),
        }
    }

    async fn on_turn(&mut self, turn: Taken) -> Result<(), DryRunError> {
        match turn {
            Taken::Batch(looked) => {
                let reading = &*self.reading;
                let settled = self.dry_run.judge(looked, |lane| reading.is_open(lane)).await?;
                self.reading.settled(settled);
            }
            Taken::Position { lane, next } => self.reading.reached(lane, next),
        }
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), DryRunError> {
        let standing = self.dry_run.checkpoint(&self.reading.rows()).await?;
        self.paused = standing == Standing::Paused;
        match standing {
            Standing::Executing | Standing::Paused => Ok(()),
            Standing::Cancelled => Err(DryRunError::Cancelled),
            Standing::Lost => Err(DryRunError::DraftLost),
        }
    }
}

/// A turn whose look-up is answered.
enum Taken {
    Batch(Looked),
    Position { lane: LaneId, next: ResumeAt },
}

/// The first turn, once it is ready. Cancelling it loses nothing: the turn stays in its place until then.
async fn next_turn(turns: &mut VecDeque<Turn>) -> Result<Taken, DryRunError> {
    let taken = match turns.front_mut() {
        Some(Turn::Batch(looked)) => Taken::Batch(looked.await.map_err(|_| RunError::TaskLost("look-up"))?),
        Some(Turn::Position { lane, next }) => Taken::Position { lane: *lane, next: *next },
        None => std::future::pending().await,
    };
    turns.pop_front();
    Ok(taken)
}

/// `--rate`: what was taken is paid for before more is taken.
struct Pace {
    per_second: Option<NonZeroU32>,
    free_at: Instant,
}

impl Pace {
    fn took(&mut self, events: usize) {
        let Some(per_second) = self.per_second else { return };
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        let cost = Duration::from_secs(1) * events / per_second.get();
        self.free_at = self.free_at.max(Instant::now()) + cost;
    }

    fn is_busy(&self) -> bool {
        self.free_at > Instant::now()
    }
}

/// Tells health what happens on the log side. Nothing is committed, and no place is chosen here.
struct Watch {
    health: Health,
}

impl Observer for Watch {
    fn assigned(&self, partitions: &[i32]) {
        if partitions.is_empty() {
            self.health.assigned([]);
        }
    }

    fn facts(&self, facts: &[PartitionFacts]) {
        for fact in facts {
            self.health.position(fact.partition, fact.position);
            if let Some(end) = fact.high_watermark {
                self.health.partition_end(fact.partition, end);
            }
        }
    }

    fn started_at_earliest(&self, _: i32) {}

    fn offsets_lost(&self, _: i32, _: i64, _: i64) {}

    fn commit_failed(&self) {}
}
