//! The sweeper: settles effects whose event never comes back.
//!
//! ```text
//!   small tables ── due for one more lease ──► judge (the ledger's table) ──┬─► call ──► settle, by the table of answers
//!                                                                           └─► review, with its evidence
//! ```
//!
//! * The event's own consumer goes first: a row is swept once it has been due for one more lease. After this sweeper
//!   regained the database, and after the start of a service, it waits a lease as well.
//! * One sweeper works at a time, by an advisory lock. Safety does not rest on it: every write is a compare-and-set.
//! * What is called and what is not is decided by `judge_effect`, as for everybody else.
//! * A pass is bounded, its calls are few at once, and a provider that answers nobody is left alone: by the circuit of
//!   this process, and by the sweeper's own.
//! * Effect types that are not configured are left alone, and told about.

mod step;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use tokio_util::sync::CancellationToken;

use super::recall::{Ended, InHand, Recalled, Session, call_all, empty_wave, settle};
use super::waves::event_hash;
use crate::domain::effect::{EffectPolicy, EffectTypeId, Outcome, RunKind};
use crate::domain::plan::Policies;
use crate::domain::verdict::{Claim, Token};
use crate::gateway::EffectGateway;
use crate::gateway::circuit::{Circuit, Permit};
use crate::gateway::rate::Rates;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pg::connect::{self, Database};
use crate::pg::error::StoreError;
use crate::pg::stored::StoredRow;
use crate::pg::sweep::{self, SweepType};
use crate::pg::wave::{Destination, Move, Reserve, Wave};
pub(super) use step::abandoned;
use step::{Step, by_run, step};

/// Rows of one type in one pass.
const ROWS_PER_PASS: i64 = 256;
/// Calls of one type at once: sweeping is beside the work, not before it.
const CALLS_AT_ONCE: usize = 8;
/// Rows that go to review in one transaction.
const MOVES_AT_ONCE: usize = 64;

/// What the sweeper works with.
pub struct SweepRoad {
    pub policies: Policies,
    pub database: Database,
    pub gateway: Arc<dyn EffectGateway>,
    pub rates: Rates,
    pub metrics: Arc<Metrics>,
    /// Circuits and calls in flight of this process.
    pub health: Health,
    pub instance: Arc<str>,
}

/// What a pass did with the effects of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Called and done.
    pub done: u64,
    /// To review.
    pub uncertain: u64,
    /// Called, and waiting for the next attempt.
    pub waiting: u64,
    /// Left as they were: suppressed, an open circuit, or somebody else was faster.
    pub left: u64,
}

impl Swept {
    /// Whether a further pass may find other rows than this one.
    pub const fn moved(self) -> bool {
        self.done + self.uncertain + self.waiting > 0
    }
}

/// How a pass ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pass {
    /// By effect type, those with something due.
    Swept(BTreeMap<String, Swept>),
    /// Another sweeper is at work.
    Busy,
}

/// How many effects a sweeper has settled or put back to waiting so far; read while it works.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn settled(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, effects: u64) {
        self.0.fetch_add(effects, Ordering::Relaxed);
    }
}

/// One sweeper; it remembers circuits from pass to pass.
pub struct Sweeper {
    road: SweepRoad,
    session: Session,
    circuits: Vec<Circuit>,
    /// Since when the database is there for us without a break; `None`: nothing needs to be waited for.
    regained: Option<Instant>,
    lost_database: bool,
    told: HashSet<String>,
    progress: Progress,
}

/// When a sweeper may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A person asked for it: at once.
    AtOnce,
    /// A service: the consumers that start with it go first, for a lease.
    AfterALease,
}

impl Sweeper {
    pub fn new(road: SweepRoad, beginning: Beginning) -> Self {
        let circuit = |policy: &EffectPolicy| {
            Circuit::new(policy.circuit_threshold, policy.circuit_wait, policy.backoff_max)
        };
        Self {
            session: Session::new(road.database.clone(), Arc::clone(&road.instance)),
            circuits: road.policies.iter().map(|(_, policy)| circuit(policy)).collect(),
            regained: (beginning == Beginning::AfterALease).then(Instant::now),
            lost_database: false,
            told: HashSet::new(),
            progress: Progress::default(),
            road,
        }
    }

    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Settles what is due, until `stop`. After an error nothing is known of the rest; the next pass finds it.
    pub async fn pass(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let result = self.locked_pass(stop).await;
        match &result {
            Ok(Pass::Swept(_)) => self.road.metrics.swept(SystemTime::now()),
            Ok(Pass::Busy) => {}
            Err(_) => self.lost_database = true,
        }
        result
    }

    async fn locked_pass(&mut self, stop: &CancellationToken) -> Result<Pass, StoreError> {
        let mut connection = self.session.take().await?;
        let locked = connect::within(sweep::try_lock(&mut connection)).await?;
        if std::mem::take(&mut self.lost_database) {
            self.regained = Some(Instant::now());
        }
        self.session.keep(connection);
        if !locked {
            return Ok(Pass::Busy);
        }
        let mut report = BTreeMap::new();
        for (id, rows) in self.due().await? {
            let swept = self.sweep_type(id, rows, stop).await?;
            report.insert(self.road.policies.get(id).name.clone(), swept);
        }
        self.tidy_up().await?;
        Ok(Pass::Swept(report))
    }

    /// Rows that are due, by type.
    async fn due(&mut self) -> Result<BTreeMap<EffectTypeId, Vec<StoredRow>>, StoreError> {
        let waited =
            |policy: &EffectPolicy| self.regained.is_none_or(|since| since.elapsed() >= policy.lease);
        let types: Vec<SweepType<'_>> = self
            .road
            .policies
            .iter()
            .filter(|(_, policy)| waited(policy))
            .map(|(_, policy)| SweepType { name: &policy.name, lease: policy.lease })
            .collect();
        if types.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut connection = self.session.take().await?;
        let rows = connect::within(sweep::due(&mut connection, &types, ROWS_PER_PASS)).await?;
        self.session.keep(connection);
        let mut by_type: BTreeMap<EffectTypeId, Vec<StoredRow>> = BTreeMap::new();
        for row in rows {
            if let Some(id) = self.road.policies.id_of(&row.effect_type) {
                by_type.entry(id).or_default().push(row);
            }
        }
        Ok(by_type)
    }

    /// Removes waves that are settled, warns of types nobody is configured for, gives the lock back.
    async fn tidy_up(&mut self) -> Result<(), StoreError> {
        let configured: Vec<&str> =
            self.road.policies.iter().map(|(_, policy)| policy.name.as_str()).collect();
        let mut connection = self.session.take().await?;
        let unknown = connect::within(sweep::unconfigured(&mut connection, &configured)).await?;
        connect::within(sweep::close_settled_waves(&mut connection)).await?;
        connect::within(sweep::unlock(&mut connection)).await?;
        self.session.keep(connection);
        for (name, count) in unknown {
            if self.told.insert(name.clone()) {
                tracing::warn!(
                    efeito = name,
                    count,
                    "effects of a type that is not configured are left alone; configure it again to settle them"
                );
            }
        }
        Ok(())
    }

    async fn sweep_type(
        &mut self,
        id: EffectTypeId,
        rows: Vec<StoredRow>,
        stop: &CancellationToken,
    ) -> Result<Swept, StoreError> {
        let policy = self.road.policies.get(id).clone();
        let (mut swept, mut to_review, mut to_call) = (Swept::default(), Vec::new(), Vec::new());
        for row in rows {
            let effect = Recalled::of(row, id, &policy);
            match step(&effect, &policy) {
                Step::Leave => swept.left += 1,
                Step::Review { token, why } => to_review.push((effect, token, why)),
                Step::Call(claim) => to_call.push((effect, claim)),
            }
        }
        for (run_id, part) in by_run(to_review, |(effect, ..)| &effect.run_id, MOVES_AT_ONCE) {
            self.review(id, &run_id, part, &mut swept).await?;
        }
        let mut waiting = by_run(to_call, |(effect, _)| &effect.run_id, self.width(id, &policy)).into_iter();
        for (run_id, part) in waiting.by_ref() {
            let planned = part.len();
            if stop.is_cancelled() || self.call(id, &policy, &run_id, part, &mut swept).await? < planned {
                break;
            }
        }
        swept.left += waiting.map(|(_, part)| part.len() as u64).sum::<u64>();
        Ok(swept)
    }

    /// Calls at once: what the consumer of this process leaves free of the type's slots, and never none.
    fn width(&self, id: EffectTypeId, policy: &EffectPolicy) -> usize {
        let busy = self.road.health.present().reservations.get(usize::from(id.0)).copied().unwrap_or(0);
        policy.slots.saturating_sub(usize::try_from(busy).unwrap_or(0)).clamp(1, CALLS_AT_ONCE)
    }

    async fn review(
        &mut self,
        id: EffectTypeId,
        run_id: &str,
        part: Vec<(Recalled, Option<Token>, &'static str)>,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let moves: Vec<Move> = part
            .into_iter()
            .map(|(effect, token, why)| Move {
                target: effect.target,
                token,
                to: Destination::Uncertain,
                evidence: Some(abandoned(why)),
                result: None,
            })
            .collect();
        let asked = moves.len();
        let done = self.session.write(run_id, &Wave { moves, ..empty_wave() }).await?;
        let missed = done.not_moved.len();
        let reviewed = asked.saturating_sub(missed) as u64;
        swept.uncertain += reviewed;
        self.progress.add(reviewed);
        swept.left += missed as u64;
        self.road.metrics.effect(id, Outcome::Uncertain, RunKind::Live, reviewed);
        Ok(())
    }

    /// Reserves, calls and settles what the circuits permit; says for how many they did.
    async fn call(
        &mut self,
        id: EffectTypeId,
        policy: &EffectPolicy,
        run_id: &str,
        part: Vec<(Recalled, Claim)>,
        swept: &mut Swept,
    ) -> Result<usize, StoreError> {
        let all = part.len();
        let permitted = self.permitted(id, part);
        for _ in &permitted {
            self.road.rates.take(id).await;
        }
        let asked = permitted.len();
        swept.left += all.saturating_sub(asked) as u64;
        if asked == 0 {
            return Ok(0);
        }
        let reserve = permitted
            .iter()
            .map(|(effect, claim, _)| Reserve {
                target: effect.target.clone(),
                claim: *claim,
                lease: policy.lease,
            })
            .collect();
        let wave = Wave { reserve, ..empty_wave() };
        let lease_ends = Instant::now() + policy.lease;
        let reserved = self.session.write(run_id, &wave).await;
        let Ok(done) = &reserved else {
            self.give_probe_back(id, &permitted);
            return reserved.map(|_| 0);
        };
        let mut in_hand = Vec::with_capacity(asked);
        for (index, (effect, claim, probe)) in permitted.into_iter().enumerate() {
            let Some(claimed) = done.claimed.iter().find(|claimed| claimed.index == index) else {
                tracing::debug!(
                    chave = effect.target.key(),
                    ?claim,
                    "not reserved: somebody else was faster"
                );
                self.circuits[usize::from(id.0)].probe_abandoned(event_hash(effect.event_id()));
                swept.left += 1;
                continue;
            };
            let (attempts, maybe_sent) = (claimed.attempts, claimed.maybe_sent);
            in_hand.push(InHand { effect, attempts, maybe_sent, probe });
        }
        crate::crash::point("sweep_reserved");
        let answered = call_all(&*self.road.gateway, in_hand, lease_ends).await;
        for one in &answered {
            self.road.metrics.call_seconds(id, one.answer.evidence.elapsed);
            let event = event_hash(one.in_hand.effect.event_id());
            self.circuits[usize::from(id.0)].on_answer(event, one.answer.proof.is_definite(), Instant::now());
        }
        let ends = settle(&mut self.session, &self.road.policies, wave.token, answered).await?;
        self.progress.add(ends.len() as u64);
        for end in &ends {
            self.count(id, end, swept);
        }
        Ok(asked)
    }

    fn count(&self, id: EffectTypeId, end: &Ended, swept: &mut Swept) {
        let outcome = match end {
            Ended::Done => {
                swept.done += 1;
                Outcome::Applied
            }
            Ended::Uncertain(_) => {
                swept.uncertain += 1;
                Outcome::Uncertain
            }
            Ended::Waiting { .. } => {
                swept.waiting += 1;
                return;
            }
            Ended::TakenOver => {
                swept.left += 1;
                return;
            }
        };
        self.road.metrics.effect(id, outcome, RunKind::Live, 1);
    }

    /// Those that may be called now, and whether they probe. An open circuit of the consumer beside us lets none
    /// through: its probes are enough.
    fn permitted(&mut self, id: EffectTypeId, part: Vec<(Recalled, Claim)>) -> Vec<(Recalled, Claim, bool)> {
        if self.road.health.present().open_circuits.contains(&id) {
            return Vec::new();
        }
        let circuit = &mut self.circuits[usize::from(id.0)];
        let mut permitted = Vec::with_capacity(part.len());
        for (effect, claim) in part {
            match circuit.permit(event_hash(effect.event_id()), Instant::now()) {
                Permit::Free => permitted.push((effect, claim, false)),
                Permit::Probe => permitted.push((effect, claim, true)),
                Permit::Wait(_) => break,
            }
        }
        permitted
    }

    fn give_probe_back(&mut self, id: EffectTypeId, permitted: &[(Recalled, Claim, bool)]) {
        for (effect, ..) in permitted {
            self.circuits[usize::from(id.0)].probe_abandoned(event_hash(effect.event_id()));
        }
    }
}
