//! The road without its end: what a real run would write and call, and nobody is called.
//!
//! ```text
//!   records ──► look (the road's own look-up) ──► judge, in their order ──► draft
//!                  several at once                   ▲        │
//!                                                    └────────┘ what earlier events would have left behind
//! ```
//!
//! I6 A dry run changes nothing but its diff and calls nobody: there is no gateway here, no dead-letter topic, and
//! the only statements that write are those of [`crate::pg::dry_run`]. (test `b72_a_dry_run_changes_nothing_and_calls_nobody`)
//!
//! The rules are those of the road: the same look-up, the same fold over a batch, [`judge_effect`]. What the events
//! of earlier batches would have written is laid over what was found before it is judged; what is kept of them is
//! in the database, so that memory is bounded by the batch and not by the range.
//!
//! Where the road would wait, a dry run answers: `incerto` for what somebody else may be calling right now.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;

use super::batch::{Answers, LookedUp, Planned, StateResult, Store, fold, look};
use super::intake::{Content, LaneId, Record, RecordOffset, Skip};
use super::progress::{Counts, Tally};
use crate::domain::effect::{EffectState, EffectTypeId, Outcome, Run, RunKind};
use crate::domain::plan::{CommissionWrite, Plan, Policies};
use crate::domain::verdict::{
    Claim, EffectVerdict, Looker, StateVerdict, StoredCommission, StoredEffect, judge_effect,
};
use crate::health::Health;
use crate::metrics::{EventResult, Metrics};
use crate::pg::connect::Database;
use crate::pg::dry_run::{self as draft, Draft, DraftEffect, DraftQuestion, DraftState, Drafted};
use crate::pg::error::StoreError;
use crate::pg::lookup::Found;
use crate::pg::owner;

pub use crate::pg::dry_run::{Position, Published, Standing};

/// A dry run in the making. It holds no gateway.
pub struct DryRun {
    store: Store,
    policies: Policies,
    draft: Draft,
    /// Nothing was drafted yet, so there is nothing to be read.
    draft_is_empty: bool,
    /// Owners whose session is gone. As many as processes that died with reservations.
    gone: HashSet<i64>,
}

/// A batch with what the database said about it, not yet judged.
pub struct Looked {
    batch: LookedUp,
    /// Records that are settled without the database: skipped ones and poison.
    aside: Vec<Settled>,
}

/// What became of one record.
#[derive(Debug)]
pub struct Settled {
    pub lane: LaneId,
    pub offset: RecordOffset,
    pub tally: Tally,
}

impl DryRun {
    /// Starts over under this id. `None`: no dry run is planned under it.
    pub async fn begin(
        run_id: &str,
        policies: Policies,
        database: Database,
        health: Health,
        metrics: Arc<Metrics>,
    ) -> Result<Option<Self>, StoreError> {
        let run = Run { kind: RunKind::DryRun, id: run_id.to_owned() };
        let store = Store { database, run, health, metrics };
        let draft = store.persist("dry run", async || draft::begin(&store.database, run_id).await).await?;
        Ok(draft.map(|draft| Self { store, policies, draft, draft_is_empty: true, gone: HashSet::new() }))
    }

    /// Looks a batch up. Several may be looked up at once; they are judged in the order of their records.
    pub fn look(&self, records: Vec<Record>) -> impl Future<Output = Looked> + use<> {
        let store = self.store.clone();
        async move {
            let (planned, aside) = sort_out(records);
            let batch = if planned.is_empty() {
                LookedUp { records: planned, answers: Vec::new() }
            } else {
                look(&store, planned).await
            };
            Looked { batch, aside }
        }
    }

    /// Judges a batch and drafts what it would change. Records whose lane is not `open` any more are dropped: they
    /// come again.
    pub async fn judge(
        &mut self,
        looked: Looked,
        open: impl Fn(LaneId) -> bool,
    ) -> Result<Vec<Settled>, StoreError> {
        let Looked { batch, aside } = looked;
        let (records, mut answers): (Vec<Planned>, Vec<Answers>) =
            batch.records.into_iter().zip(batch.answers).filter(|(record, _)| open(record.lane)).unzip();
        let drafted = self.read_draft(&records).await?;
        lay_over(&records, &mut answers, drafted);
        self.ask_owners(&records, &answers).await?;
        let judged = judge(&records, &answers, &self.policies, &self.gone);
        let states = states(&records, &answers, &judged);
        let effects = effects(&records, &judged, &self.policies);
        if !(states.is_empty() && effects.is_empty()) {
            let write = async |connection: &mut sqlx::PgConnection| {
                draft::write(connection, &self.draft, &states, &effects).await
            };
            self.store.persist("draft", async || self.store.database.hot().run(write).await).await?;
            self.draft_is_empty = false;
        }
        let settled = records.iter().zip(judged.tallies);
        let settled = settled.map(|(r, tally)| Settled { lane: r.lane, offset: r.offset, tally });
        let settled: Vec<Settled> =
            settled.chain(aside.into_iter().filter(|record| open(record.lane))).collect();
        self.count(&settled);
        Ok(settled)
    }

    /// Writes how far the partitions are, and says how the run stands.
    pub async fn checkpoint(&self, positions: &[Position]) -> Result<Standing, StoreError> {
        let step = async || draft::checkpoint(&self.store.database, &self.draft, positions).await;
        self.store.persist("checkpoint", step).await
    }

    /// The diff becomes what was drafted, for all readers at once.
    pub async fn publish(&self, positions: &[Position]) -> Result<Published, StoreError> {
        let step = async || draft::publish(&self.store.database, &self.draft, positions).await;
        self.store.persist("publishing the diff", step).await
    }

    /// Notes why there is no new diff. The failure itself is what counts: this one is only logged.
    pub async fn fail(&self, cause: &str) {
        if let Err(error) = draft::fail(&self.store.database, &self.draft, cause).await {
            tracing::warn!(%error, "the dry run could not be marked as failed");
        }
    }

    async fn read_draft(&self, records: &[Planned]) -> Result<Vec<Drafted>, StoreError> {
        if self.draft_is_empty || records.is_empty() {
            return Ok(Vec::new());
        }
        let questions: Vec<DraftQuestion<'_>> = questions(records).map(|(_, _, question)| question).collect();
        let read = async |connection: &mut sqlx::PgConnection| {
            draft::read(connection, &self.draft, &questions).await
        };
        self.store.persist("draft", async || self.store.database.hot().run(read).await).await
    }

    /// Whether the owners of running reservations live. One look: nothing is called on the strength of it.
    async fn ask_owners(&mut self, records: &[Planned], answers: &[Answers]) -> Result<(), StoreError> {
        let running = records.iter().zip(answers).flat_map(|(_, answer)| answer.found.iter().flatten());
        let mut owners: Vec<i64> = running
            .filter_map(|found| found.effect.as_ref())
            .filter(|row| row.token.is_some() && !row.lease_left.is_zero())
            .filter_map(|row| row.owner)
            .filter(|owner| !self.gone.contains(owner))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        if owners.is_empty() {
            return Ok(());
        }
        let step = async || owner::free(self.store.database.pool(), &owners).await;
        self.gone.extend(self.store.persist("owner look", step).await?);
        Ok(())
    }

    fn count(&self, settled: &[Settled]) {
        let mut counts = Counts::default();
        for record in settled {
            counts.add(&record.tally);
        }
        let metrics = &self.store.metrics;
        for (result, n) in counts.results {
            metrics.event(result, RunKind::DryRun, n);
        }
        for (state, n) in counts.states {
            metrics.state(state, RunKind::DryRun, n);
        }
        for ((effect_type, outcome), n) in counts.effects {
            metrics.effect(effect_type, outcome, RunKind::DryRun, n);
        }
    }
}

/// Records with a plan, and those that are settled as they are.
fn sort_out(records: Vec<Record>) -> (Vec<Planned>, Vec<Settled>) {
    let mut planned = Vec::with_capacity(records.len());
    let mut aside = Vec::new();
    for record in records {
        let result = match record.content {
            Content::Plan(plan) => {
                planned.push(Planned {
                    lane: record.lane,
                    offset: record.offset,
                    plan,
                    raw: record.raw,
                    traceparent: record.traceparent,
                    read_at: record.read_at,
                });
                continue;
            }
            Content::Skip(Skip::Tombstone) => EventResult::Tombstone,
            Content::Skip(Skip::OtherType) => EventResult::OtherType,
            Content::Skip(Skip::NotSelected) => EventResult::NotSelected,
            Content::Poison { .. } => EventResult::DeadLettered,
        };
        let tally = Tally { result: Some(result), ..Tally::default() };
        aside.push(Settled { lane: record.lane, offset: record.offset, tally });
    }
    (planned, aside)
}

/// One per effect of each record, or one with an empty key: record, index of the effect, question.
fn questions(records: &[Planned]) -> impl Iterator<Item = (usize, usize, DraftQuestion<'_>)> {
    records.iter().enumerate().flat_map(|(at, record)| {
        let plan = &record.plan;
        (0..plan.effects.len().max(1)).map(move |index| {
            let key = plan.effects.get(index).map_or("", |request| request.key.as_str());
            (at, index, DraftQuestion { event: &plan.commission, key })
        })
    })
}

/// Lays what earlier events of the range would have written over what was found.
fn lay_over(records: &[Planned], answers: &mut [Answers], drafted: Vec<Drafted>) {
    let slots: Vec<(usize, usize)> = questions(records).map(|(at, index, _)| (at, index)).collect();
    for row in drafted {
        let Some(&(at, index)) = slots.get(row.question) else { continue };
        let Some(slot) = answers[at].found.get_mut(index) else { continue };
        let found = slot.get_or_insert_with(|| Box::new(already_so(row.question, &records[at].plan, index)));
        if let Some(commission) = row.commission {
            // Live may have written a newer version meanwhile; the guard would let that stand.
            let newer = found.commission.as_ref().is_some_and(|row| row.version > commission.version);
            if !newer {
                found.commission = Some(commission);
            }
        }
        // Done is done, whoever did it; anything else would be done by now.
        if row.effect.is_some() && found.effect.as_ref().is_none_or(|row| row.state != EffectState::Done) {
            found.effect = row.effect;
        }
        found.version_taken |= row.version_taken;
    }
}

/// What the look-up's silence says.
fn already_so(question: usize, plan: &Plan, index: usize) -> Found {
    let state = &plan.commission;
    Found {
        question,
        effect: plan.effects.get(index).map(|request| draft::done(request.digest, state.event_digest)),
        commission: Some(StoredCommission {
            event_id: state.event_id.clone(),
            version: state.version,
            amount: state.amount,
            event_digest: state.event_digest,
            by_this_run: false,
        }),
        version_taken: false,
    }
}

/// What a batch would do.
struct Judged {
    tallies: Vec<Tally>,
    /// Index of the last record that would write its order's state.
    writes: Vec<usize>,
    /// Record, index of the effect, and what would become of it: all but `ja-registrado`.
    effects: Vec<(usize, usize, Outcome)>,
}

fn judge(records: &[Planned], answers: &[Answers], policies: &Policies, gone: &HashSet<i64>) -> Judged {
    let fold = fold(records, answers, &HashSet::new());
    let mut batch = WithinBatch::default();
    let mut judged = Judged {
        tallies: Vec::with_capacity(records.len()),
        writes: fold.writes.into_values().collect(),
        effects: Vec::new(),
    };
    for (at, ((record, answer), state)) in records.iter().zip(answers).zip(fold.verdicts).enumerate() {
        let mut tally = Tally::default();
        let outcomes = match state {
            StateResult::Judged(verdict) => {
                tally.state = verdict.outcome();
                let conflict =
                    matches!(verdict, StateVerdict::VersionConflict | StateVerdict::ContentConflict);
                if conflict { None } else { batch.outcomes(&record.plan, answer, policies, gone) }
            }
            // Only a write can be refused, and none was tried.
            StateResult::Refused(_) => None,
        };
        match outcomes {
            None => tally.result = Some(EventResult::DeadLettered),
            Some(outcomes) => {
                tally.result = Some(EventResult::Applied);
                let told = outcomes.iter().enumerate().filter(|(_, (_, o))| *o != Outcome::AlreadyRecorded);
                judged.effects.extend(told.map(|(index, (_, outcome))| (at, index, *outcome)));
                tally.effects.extend(outcomes);
            }
        }
        judged.tallies.push(tally);
    }
    judged
}

/// Effects that the earlier records of this very batch would have applied.
#[derive(Default)]
struct WithinBatch<'a> {
    applied: HashMap<&'a str, StoredEffect>,
    /// By order and version: the event whose effects stand in the ledger then.
    versions: HashMap<(&'a str, i64), &'a str>,
}

impl<'a> WithinBatch<'a> {
    /// By effect of the plan, what would become of it. `None`: the event would be dead-lettered.
    fn outcomes(
        &mut self,
        plan: &'a Plan,
        answer: &Answers,
        policies: &Policies,
        gone: &HashSet<i64>,
    ) -> Option<Vec<(EffectTypeId, Outcome)>> {
        let state = &plan.commission;
        let version = (state.order_id.as_str(), state.version);
        let mut outcomes = Vec::with_capacity(plan.effects.len());
        for (request, found) in plan.effects.iter().zip(&answer.found) {
            let earlier = self.applied.get(request.key.as_str());
            let stored = earlier.or_else(|| found.as_ref().and_then(|found| found.effect.as_ref()));
            let verdict = if found.is_none() && earlier.is_none() {
                EffectVerdict::Settled(Outcome::AlreadyRecorded)
            } else {
                let owner_gone = stored.and_then(|row| row.owner).is_some_and(|owner| gone.contains(&owner));
                let looker = Looker { owner_gone, ..Looker::default() };
                let policy = policies.get(request.effect_type);
                judge_effect(stored, &request.digest, &state.event_digest, request.mode, policy, looker)
            };
            let outcome = match verdict {
                EffectVerdict::ContentConflict => return None,
                EffectVerdict::Reserve { claim: Claim::New, .. }
                    if self.versions.get(&version).is_some_and(|event| *event != state.event_id) =>
                {
                    return None;
                }
                EffectVerdict::Settled(outcome) => outcome,
                EffectVerdict::Reserve { .. } => Outcome::WouldApply,
                EffectVerdict::LookAgain { .. } | EffectVerdict::ToUncertain { .. } => Outcome::Uncertain,
            };
            outcomes.push((request.effect_type, outcome));
        }
        for (request, (_, outcome)) in plan.effects.iter().zip(&outcomes) {
            if *outcome == Outcome::WouldApply {
                self.applied.insert(&request.key, draft::done(request.digest, state.event_digest));
                self.versions.insert(version, &state.event_id);
            }
        }
        Some(outcomes)
    }
}

/// The states of a batch: what stood there before its first event of the order, and what the last would write.
fn states<'a>(records: &'a [Planned], answers: &'a [Answers], judged: &Judged) -> Vec<DraftState<'a>> {
    let mut before: HashMap<&str, Option<&StoredCommission>> = HashMap::new();
    for (record, answer) in records.iter().zip(answers) {
        if let Some(found) = answer.differs() {
            before.entry(&record.plan.commission.order_id).or_insert(found.commission.as_ref());
        }
    }
    let state = |at: &usize| {
        let after: &CommissionWrite = &records[*at].plan.commission;
        DraftState { before: before.get(after.order_id.as_str()).copied().flatten(), after }
    };
    judged.writes.iter().map(state).collect()
}

fn effects<'a>(records: &'a [Planned], judged: &Judged, policies: &'a Policies) -> Vec<DraftEffect<'a>> {
    let effect = |(at, index, outcome): &(usize, usize, Outcome)| {
        let plan = &records[*at].plan;
        let request = &plan.effects[*index];
        let effect_type = policies.get(request.effect_type).name.as_str();
        DraftEffect { event: &plan.commission, request, effect_type, outcome: *outcome }
    };
    judged.effects.iter().map(effect).collect()
}

#[cfg(test)]
mod tests;
