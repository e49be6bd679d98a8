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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::decode::{Reader, Schemas};
use super::parts;
use super::selection::{Chosen, LastSide, Outliers, Period};
use super::{RunError, Signals};
use crate::applier::Inlet;
use crate::applier::dry_run::{DryRun, Looked, Position, Published, Settled, Standing};
use crate::applier::intake::{Control, Delivery, LaneId, ResumeAt, Watermarks};
use crate::applier::progress::Counts;
use crate::config::Config;
use crate::domain::effect::{Run, RunKind};
use crate::domain::plan::Policies;
use crate::health::Health;
use crate::metrics::{EventResult, Metrics};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::stream::starts::{StoredRanges, StoredStarts};
use crate::stream::{
    self, Commits, ConsumerHandle, ConsumerSettings, Decoding, Membership, Observer, Outlets, PartitionFacts,
};

/// Events of one batch. More than live's: nobody waits for an answer, and each batch costs the draft a round trip.
const BATCH: usize = 2048;
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
    #[error("interrupted; run the same dry run again and it starts over")]
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

/// Compares the whole range and replaces the diff, unless this process is told to stop.
pub async fn run(
    config: &Config,
    plan: DryRunPlan,
    progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    let ground = Ground::build(config, &plan)?;
    let mut signals = Signals::listen().map_err(RunError::from)?;
    tokio::select! {
        compared = run_on(config, &ground, plan, progress) => compared,
        // Nothing needs to come to rest: a draft that is not published is nobody's.
        () = signals.next() => Err(DryRunError::Interrupted),
    }
}

/// The same on a given ground, for a process that serves its metrics.
pub async fn run_on(
    config: &Config,
    ground: &Ground,
    plan: DryRunPlan,
    progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    let begun = DryRun::begin(
        &plan.id,
        plan.policies.clone(),
        ground.database.clone(),
        ground.health.clone(),
        Arc::clone(&ground.metrics),
    );
    let Some(dry_run) = begun.await? else { return Err(DryRunError::NotPlanned(plan.id)) };
    let outliers = Outliers::default();
    let reading = Reading::new(&plan, outliers.clone());
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            if reading.is_done() {
                return finish(dry_run, reading, progress).await;
            }
            let (consumer, inlet) = read_log(config, ground, &plan, &reading, outliers)?;
            let comparing = Comparing::new(dry_run, reading, plan.per_second);
            let compared = comparing.drive(inlet, &consumer, progress).await;
            let closed = consumer.close(Vec::new(), CLOSE_WITHIN).await;
            tracing::debug!(?closed, "the range is read");
            compared
        })
        .await
}

/// Starts the polling thread on the parts of the range that are not empty.
fn read_log(
    config: &Config,
    ground: &Ground,
    plan: &DryRunPlan,
    reading: &Reading,
    outliers: Outliers,
) -> Result<(ConsumerHandle, Inlet), RunError> {
    let kafka = &config.kafka;
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), kafka.topic.clone(), plan.id.clone());
    settings.properties.clone_from(&kafka.properties);
    settings.membership = Membership::Fixed(reading.unread());
    settings.commits = Commits::Never;
    let rate = plan.per_second.and_then(|rate| usize::try_from(rate.get()).ok()).unwrap_or(usize::MAX);
    settings.max_events = BATCH.max(config.batch.max_events).min(rate);

    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks: Watermarks::default(),
        observer: Arc::new(Watch { health: ground.health.clone() }),
    };
    let last = LastSide::default();
    let chosen = Chosen::new(plan.orders.clone(), plan.period, last.clone());
    let schemas = parts::registry(config)?.map(Schemas::start);
    let mut reader = Reader::new(plan.policies.clone(), chosen, Arc::clone(&ground.metrics), schemas);
    let decode = move |_, raw: Box<crate::applier::intake::RawRecord>| -> Decoding {
        let (partition, offset) = (raw.partition, raw.offset);
        let decoded = reader.read(raw);
        if let Some(side) = last.take() {
            outliers.note(partition, offset, side);
        }
        decoded
    };
    let ranges = Arc::clone(&reading.ranges);
    let lookup = move |_: &[i32]| Ok(ranges.lock().unwrap_or_else(PoisonError::into_inner).clone());
    let consumer = stream::spawn(settings, Box::new(StoredStarts { lookup }), decode, outlets)?;
    Ok((consumer, Inlet { control, deliveries }))
}

/// How far each partition is, and what was counted below.
struct Reading {
    partitions: BTreeMap<i32, Part>,
    positions: BTreeMap<i32, ResumeAt>,
    total: Counts,
    lanes: HashMap<i32, LaneId>,
    /// Where a partition that has to be claimed anew begins: what is compared is not read again.
    ranges: Arc<Mutex<StoredRanges>>,
    outliers: Outliers,
    policies: Policies,
}

struct Part {
    end: ResumeAt,
    counts: Counts,
}

impl Reading {
    fn new(plan: &DryRunPlan, outliers: Outliers) -> Self {
        let ranges =
            plan.ranges.iter().map(|range| (range.partition, (range.start, Some(range.end)))).collect();
        Self {
            partitions: plan
                .ranges
                .iter()
                .map(|range| (range.partition, Part { end: range.end, counts: Counts::default() }))
                .collect(),
            positions: plan.ranges.iter().map(|range| (range.partition, range.start)).collect(),
            total: Counts::default(),
            lanes: HashMap::new(),
            ranges: Arc::new(Mutex::new(ranges)),
            outliers,
            policies: plan.policies.clone(),
        }
    }

    fn unread(&self) -> Vec<i32> {
        let unread = |(partition, part): (&i32, &Part)| {
            self.positions.get(partition).is_some_and(|at| *at < part.end).then_some(*partition)
        };
        self.partitions.iter().filter_map(unread).collect()
    }

    fn is_done(&self) -> bool {
        self.unread().is_empty()
    }

    fn is_open(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane.partition) == Some(&lane)
    }

    /// Counts a whole batch, so that counts and positions belong together.
    fn settled(&mut self, records: Vec<Settled>) {
        for mut record in records {
            let partition = record.lane.partition;
            self.outliers.mark(partition, record.offset.0, &mut record.tally);
            if let Some(part) = self.partitions.get_mut(&partition) {
                part.counts.add(&record.tally);
                self.total.add(&record.tally);
            }
            self.reached(record.lane, ResumeAt(record.offset.0 + 1));
        }
    }

    fn reached(&mut self, lane: LaneId, next: ResumeAt) {
        if !self.is_open(lane) {
            return;
        }
        let Some(at) = self.positions.get_mut(&lane.partition) else { return };
        *at = (*at).max(next);
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((start, _)) = ranges.get_mut(&lane.partition) {
            *start = *at;
        }
    }

    fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, .. } => {
                self.lanes.insert(lane.partition, lane);
            }
            Control::Revoked { lanes, done, .. } => {
                // What is in flight of them is dropped, and read again from where they stand.
                self.lanes.retain(|_, open| !lanes.contains(open));
                let position = |lane: LaneId| Some((lane, *self.positions.get(&lane.partition)?));
                if done.send(lanes.into_iter().filter_map(position).collect()).is_err() {
                    tracing::debug!("nobody waits for the positions of lost lanes any more");
                }
            }
        }
    }

    fn rows(&self) -> Vec<Position> {
        let row = |(partition, part): (&i32, &Part)| {
            let at = self.positions.get(partition)?.0;
            let counts = counts_json(&part.counts, &self.policies).to_string();
            Some(Position { partition: *partition, at, counts })
        };
        self.partitions.iter().filter_map(row).collect()
    }

    fn progress(&self, paused: bool) -> Progress<'_> {
        Progress { positions: &self.positions, counts: &self.total, paused }
    }
}

/// A turn in the order in which it was read.
enum Turn {
    Batch(JoinHandle<Looked>),
    Position { lane: LaneId, next: ResumeAt },
}

/// The loop of a dry run.
struct Comparing {
    dry_run: DryRun,
    reading: Reading,
    turns: VecDeque<Turn>,
    pace: Pace,
    paused: bool,
}

impl Comparing {
    fn new(dry_run: DryRun, reading: Reading, per_second: Option<NonZeroU32>) -> Self {
        let pace = Pace { per_second, free_at: Instant::now() };
        Self { dry_run, reading, turns: VecDeque::new(), pace, paused: false }
    }

    async fn drive(
        mut self,
        inlet: Inlet,
        consumer: &ConsumerHandle,
        mut progress: impl FnMut(Progress<'_>),
    ) -> Result<Counts, DryRunError> {
        let Inlet { mut control, mut deliveries } = inlet;
        let mut tick = tokio::time::interval(CHECKPOINT_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = consumer.ended();
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
                    return Err(end.map_or_else(RunError::from, |()| RunError::TaskLost("consumer")).into());
                }
            }
        }
        finish(self.dry_run, self.reading, progress).await
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
                let reading = &self.reading;
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

async fn finish(
    dry_run: DryRun,
    reading: Reading,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Counts, DryRunError> {
    progress(reading.progress(false));
    match dry_run.publish(&reading.rows()).await? {
        Published::Done => Ok(reading.total),
        Published::Cancelled => Err(DryRunError::Cancelled),
        Published::Lost => Err(DryRunError::DraftLost),
    }
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

/// `contagens`, and the same fields of `replay status`.
pub fn counts_json(counts: &Counts, policies: &Policies) -> Value {
    let result = |result: EventResult| counts.results.get(&result).copied().unwrap_or(0);
    let ignored = [EventResult::Tombstone, EventResult::OtherType, EventResult::NotSelected].map(result);
    let mut effects: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for ((effect_type, outcome), n) in &counts.effects {
        let of_type = effects.entry(&policies.get(*effect_type).name).or_default();
        of_type.insert(outcome.as_str(), *n);
    }
    let states: BTreeMap<&str, u64> = counts.states.iter().map(|(state, n)| (state.as_str(), *n)).collect();
    json!({
        "eventos": {
            "lidos": counts.read,
            "aplicados": result(EventResult::Applied),
            "cartasMortas": result(EventResult::DeadLettered),
            "ignorados": ignored.iter().sum::<u64>(),
            "antesDoPeriodo": counts.before_period,
            "depoisDoPeriodo": counts.after_period,
        },
        "estado": states,
        "efeitos": effects,
    })
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
