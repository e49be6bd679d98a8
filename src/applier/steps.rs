//! Booking: from what was looked up to effects in flight, and out of flight again.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Entry;
use super::batch::{LookedUp, Planned, StateResult, fold, write_states};
use super::coordinator::Coordinator;
use super::effects::{Effect, Pending, Stage};
use super::intake::LaneId;
use super::progress::Tally;
use super::waves::{After, Finished, Intent};
use crate::domain::effect::{EffectRequest, EffectTypeId, Outcome, RunKind, StateOutcome};
use crate::domain::event::Digest;
use crate::domain::money::Cents;
use crate::domain::plan::Plan;
use crate::domain::poison::{Poison, Reason};
use crate::domain::verdict::{Claim, EffectVerdict, Looker, StateVerdict, StoredEffect, judge_effect};
use crate::pg::error::StoreError;
use crate::pg::lookup::{Found, Question, look_up};
use crate::pg::owner;
use crate::pg::wave::{Destination, Target};

/// Effects that are looked at again in one statement.
const LOOK_TOGETHER: usize = 512;
/// Pause before a reservation that was tried in vain is tried again.
const VAIN_PAUSE: Duration = Duration::from_millis(25);

/// By effect of a plan.
type Verdicts = SmallVec<[EffectVerdict; 2]>;

/// What the ledger says about effects that were looked at again.
pub(super) struct Looked {
    effects: Vec<(usize, u64)>,
    found: Result<Vec<Found>, StoreError>,
    owners: Vec<i64>,
    free: Vec<i64>,
}

impl Coordinator {
    /// Judges the states of a looked-up batch; writes them if there is anything to write.
    pub(super) fn begin_states(&mut self, batch: LookedUp) {
        let judged = fold(&batch.records, &batch.answers, &HashSet::new());
        if judged.writes.is_empty() {
            self.on_states(batch, judged.verdicts);
            return;
        }
        let store = self.store.clone();
        self.set_state_step(tokio::task::spawn_local(async move {
            let mut batch = batch;
            let results = write_states(&store, &mut batch, judged).await;
            crate::crash::point("after_state");
            (batch, results)
        }));
    }

    /// The states of a batch are as they should be: its effects may start.
    pub(super) fn on_states(&mut self, batch: LookedUp, results: Vec<StateResult>) {
        let records = batch.records.into_iter().zip(batch.answers).zip(results);
        for ((record, answers), result) in records {
            if self.lanes.is_open(record.lane) && !self.is_draining() {
                self.book(record, &answers.found, &result);
            }
        }
    }

    fn book(&mut self, record: Planned, found: &[Option<Box<Found>>], result: &StateResult) {
        let counted_before = *result == StateResult::Judged(StateVerdict::Unchanged { by_this_run: true })
            && self.met_before(&record.plan, found);
        let result = if counted_before {
            &StateResult::Judged(StateVerdict::Unchanged { by_this_run: false })
        } else {
            result
        };
        let poison = match result {
            StateResult::Refused(words) => Some(Poison::new(Reason::RefusedByDatabase, words)),
            StateResult::Judged(verdict) => {
                if let Some(outcome) = verdict.outcome() {
                    self.wrote |= outcome == StateOutcome::Written;
                    self.road.metrics.state(outcome, self.road.run.kind, 1);
                }
                conflict(*verdict, &record.plan)
            }
        };
        let verdicts = if poison.is_none() { self.judge_effects(&record, found) } else { Verdicts::new() };
        let poison = poison.or_else(|| {
            let conflicting = verdicts.contains(&EffectVerdict::ContentConflict);
            conflicting.then(|| content_conflict(&record.plan))
        });
        let state = match result {
            StateResult::Judged(verdict) => verdict.outcome(),
            StateResult::Refused(_) => None,
        };
        if let Some(poison) = poison {
            let event = self.admit(record, state);
            self.dead_letter(event, poison, None, None, 0);
            return;
        }
        self.begin_effects(record, state, &verdicts, found);
    }

    /// Whether this process has met the event in another record of the run: its state is counted there. What an
    /// earlier process of the run wrote and did not come to count is counted here.
    fn met_before(&self, plan: &Plan, found: &[Option<Box<Found>>]) -> bool {
        let own = Some(self.writer.owner);
        let settled_here = |found: &Found| found.effect.as_ref().is_some_and(|row| row.owner == own);
        let order = plan.commission.order_id.as_str();
        found.iter().flatten().any(|found| settled_here(found))
            || plan.effects.iter().any(|request| self.flight.has(order, request))
    }

    fn judge_effects(&self, record: &Planned, found: &[Option<Box<Found>>]) -> Verdicts {
        let content = &record.plan.commission.event_digest;
        let judge = |(request, found): (&EffectRequest, &Option<Box<Found>>)| {
            let Some(found) = found else { return EffectVerdict::Settled(Outcome::AlreadyRecorded) };
            let policy = self.road.policies.get(request.effect_type);
            let looker = self.looker(found.effect.as_ref(), None);
            judge_effect(found.effect.as_ref(), &request.digest, content, request.mode, policy, looker)
        };
        record.plan.effects.iter().zip(found).map(judge).collect()
    }

    fn looker(&self, stored: Option<&StoredEffect>, own_token: Option<uuid::Uuid>) -> Looker {
        Looker {
            redrive: self.road.run.kind == RunKind::Redrive,
            owner_gone: self.owners.is_gone(stored.and_then(|row| row.owner)),
            own_token,
            own_number: Some(self.writer.owner),
        }
    }

    fn begin_effects(
        &mut self,
        record: Planned,
        state: Option<StateOutcome>,
        verdicts: &[EffectVerdict],
        found: &[Option<Box<Found>>],
    ) {
        let mut tally = Tally { state, ..Tally::default() };
        for (request, verdict) in record.plan.effects.iter().zip(verdicts) {
            if let EffectVerdict::Settled(outcome) = verdict {
                self.road.metrics.effect(request.effect_type, *outcome, self.road.run.kind, 1);
                tally.effects.push((request.effect_type, *outcome));
            }
        }
        if self.road.journal.is_some() {
            for (index, verdict) in verdicts.iter().enumerate() {
                if let EffectVerdict::Settled(outcome) = verdict {
                    self.tell(&record.plan, index, *outcome);
                }
            }
        }
        if verdicts.iter().all(|verdict| matches!(verdict, EffectVerdict::Settled(_))) {
            self.settle_record(record.lane, record.offset, tally, record.read_at);
            return;
        }
        let plan = Arc::clone(&record.plan);
        let event = self.admit(record, state);
        if let Some(pending) = self.flight.events.get_mut(event) {
            pending.tally = tally;
        }
        for (index, verdict) in verdicts.iter().enumerate() {
            if !matches!(verdict, EffectVerdict::Settled(_)) {
                let stored = found.get(index).and_then(Option::as_ref).and_then(|f| f.effect.as_ref());
                self.admit_effect(event, &plan, index, *verdict, stored);
            }
        }
    }

    /// Tells a reporting run what became of an effect.
    pub(super) fn tell(&self, plan: &Arc<Plan>, index: usize, outcome: Outcome) {
        if let Some(journal) = &self.road.journal
            && outcome != Outcome::AlreadyRecorded
        {
            let effect_type = self.types.name(plan.effects[index].effect_type);
            let target = Target { plan: Arc::clone(plan), index, effect_type };
            journal.tell(Entry::Effect { target, outcome });
        }
    }

    fn admit(&mut self, record: Planned, state: Option<StateOutcome>) -> usize {
        self.road.health.events_in_flight(1);
        let (event_id, context) = (&record.plan.commission.event_id, record.traceparent.as_deref());
        let trace = self.road.traces.process(&record.raw, Some(event_id), context, record.read_at);
        self.flight.events.insert(Pending {
            lane: record.lane,
            offset: record.offset,
            raw: record.raw,
            plan: Some(record.plan),
            traceparent: record.traceparent,
            trace,
            read_at: record.read_at,
            open: 0,
            letters: 0,
            tally: Tally { state, ..Tally::default() },
            abandoned: false,
        })
    }

    fn admit_effect(
        &mut self,
        event: usize,
        plan: &Arc<Plan>,
        index: usize,
        verdict: EffectVerdict,
        stored: Option<&StoredEffect>,
    ) {
        if let Some(pending) = self.flight.events.get_mut(event) {
            pending.open += 1;
        }
        let (at, first) = self.flight.add(Effect {
            event,
            index,
            effect_type: plan.effects[index].effect_type,
            plan: Arc::clone(plan),
            stage: Stage::Behind,
            claim: None,
            holds_slot: false,
            unconfirmed: None,
            attempts: stored.map_or(0, |row| row.attempts),
            maybe_sent: stored.is_some_and(|row| row.maybe_sent),
            stored_body: None,
            retries: 0,
            probe: false,
            owner: stored.and_then(|row| row.owner),
            timer: None,
            serial: 0,
        });
        if first {
            self.follow(at, verdict);
        } else if let EffectVerdict::Reserve { claim: claim @ Claim::New, .. } = verdict {
            // Still true when its turn comes, unless it is the same effect twice: the reservation then finds out.
            self.flight.effects[at].claim = Some(claim);
        }
    }

    /// Does what the ledger's table says about an effect whose turn it is.
    pub(super) fn follow(&mut self, at: usize, verdict: EffectVerdict) {
        match verdict {
            EffectVerdict::Settled(outcome) => self.settle_effect(at, outcome),
            EffectVerdict::ContentConflict => {
                let poison = content_conflict(&self.flight.effects[at].plan);
                self.letter_effect(at, poison, None, None);
            }
            EffectVerdict::Reserve { claim, due_in } => {
                self.flight.effects[at].claim = Some(claim);
                if due_in.is_zero() { self.make_ready(at) } else { self.set_timer(at, due_in) }
            }
            EffectVerdict::LookAgain { within, owner } => {
                let effect = &mut self.flight.effects[at];
                effect.claim = None;
                effect.owner = owner;
                let pause = self.owners.look_again_in(owner, within, Instant::now());
                self.set_timer(at, pause);
            }
            EffectVerdict::ToUncertain { token, exhausted } => self.give_up(at, token, exhausted),
        }
    }

    fn give_up(&mut self, at: usize, token: Option<uuid::Uuid>, exhausted: bool) {
        let effect = &mut self.flight.effects[at];
        effect.stage = Stage::Finished;
        let name = &self.road.policies.get(effect.effect_type).name;
        let after = if exhausted {
            let message = format!("{name}: no definite answer in {} attempts", effect.attempts);
            let poison = Poison::new(Reason::EffectExhausted, message);
            After::DeadLetter { poison, outcome: Outcome::Failed }
        } else {
            After::Settled(Outcome::Uncertain)
        };
        let evidence = token.map(|_| crate::pg::wave::Evidence {
            answer: "abandonado",
            reached: "desconhecido",
            status: None,
            detail: "the process that reserved it is gone, or its lease is over; the call may have happened"
                .to_owned(),
            elapsed: None,
        });
        let intent = Intent::Move { token, to: Destination::Uncertain, evidence, result: None, after };
        self.finished.push(Finished { effect: at, intent, since: Instant::now() });
    }

    pub(super) fn make_ready(&mut self, at: usize) {
        let effect = &mut self.flight.effects[at];
        effect.stage = Stage::Ready;
        self.types.ready(effect.effect_type, at);
    }

    pub(super) fn set_timer(&mut self, at: usize, after: Duration) {
        let key = self.timers.insert(at, after);
        let effect = &mut self.flight.effects[at];
        effect.stage = Stage::Timed;
        effect.timer = Some(key);
    }

    pub(super) fn on_timer(&mut self, at: usize) {
        let Some(effect) = self.flight.effects.get_mut(at) else { return };
        effect.timer = None;
        if effect.claim.is_some() { self.make_ready(at) } else { self.look_again(at) }
    }

    /// Asks the ledger about an effect once more.
    pub(super) fn look_again(&mut self, at: usize) {
        let effect = &mut self.flight.effects[at];
        effect.stage = Stage::Looking;
        effect.claim = None;
        self.to_look.push(at);
    }

    pub(super) fn start_looking(&mut self) {
        if self.looking.is_some() || self.to_look.is_empty() {
            return;
        }
        let rest = self.to_look.split_off(self.to_look.len().min(LOOK_TOGETHER));
        let looking = std::mem::replace(&mut self.to_look, rest);
        let flight = &self.flight;
        let effects: Vec<(usize, u64)> =
            looking.into_iter().map(|at| (at, flight.effects[at].serial)).collect();
        let mut owners: Vec<i64> = effects.iter().filter_map(|(at, _)| flight.effects[*at].owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|owner| *owner != self.writer.owner);
        let asked: Vec<(Arc<Plan>, usize)> = effects
            .iter()
            .map(|(at, _)| (Arc::clone(&flight.effects[*at].plan), flight.effects[*at].index))
            .collect();
        let store = self.store.clone();
        self.looking = Some(tokio::task::spawn_local(async move {
            let questions: Vec<Question<'_>> =
                asked.iter().map(|(plan, index)| question(plan, *index)).collect();
            let run = &store.run;
            let step = async || {
                store.database.hot().run(async |connection| look_up(connection, &questions, run).await).await
            };
            let found = store.persist("second look", step).await;
            let free = if owners.is_empty() {
                Vec::new()
            } else {
                owner::free(store.database.pool(), &owners).await.unwrap_or_else(|error| {
                    store.failed("owner look", error);
                    Vec::new()
                })
            };
            Looked { effects, found, owners, free }
        }));
    }

    pub(super) fn on_looked(&mut self, looked: Looked) {
        self.owners.observed(&looked.owners, &looked.free, Instant::now());
        let found = match looked.found {
            Ok(found) => found,
            Err(error) => {
                self.store.failed("second look", error);
                let flight = &self.flight;
                let still = looked.effects.into_iter().filter(|(at, serial)| flight.is_looking(*at, *serial));
                self.to_look.extend(still.map(|(at, _)| at));
                return;
            }
        };
        let mut answers: Vec<Option<Found>> = looked.effects.iter().map(|_| None).collect();
        for row in found {
            if let Some(slot) = answers.get_mut(row.question) {
                *slot = Some(row);
            }
        }
        for ((at, serial), answer) in looked.effects.into_iter().zip(answers) {
            if self.flight.is_looking(at, serial) {
                self.judge_again(at, answer);
            }
        }
    }

    fn judge_again(&mut self, at: usize, found: Option<Found>) {
        let Some(found) = found else {
            return self.follow(at, EffectVerdict::Settled(Outcome::AlreadyRecorded));
        };
        let effect = &self.flight.effects[at];
        let request = effect.request();
        let content = &effect.plan.commission.event_digest;
        let policy = self.road.policies.get(effect.effect_type);
        let looker = self.looker(found.effect.as_ref(), effect.unconfirmed);
        let stored = found.effect.as_ref();
        if !self.is_wanted(at) {
            // Its lane is gone, but a reservation whose commit was not confirmed may stand in our name.
            let token = self.flight.effects[at].unconfirmed.take();
            match token.filter(|token| stored.and_then(|row| row.token) == Some(*token)) {
                Some(token) => self.give_back(at, token, false),
                None => self.drop_effect(at),
            }
            return;
        }
        let verdict = judge_effect(stored, &request.digest, content, request.mode, policy, looker);
        let fresh = matches!(verdict, EffectVerdict::Reserve { claim: Claim::New, .. });
        let state = &effect.plan.commission;
        let taken = found.version_taken
            || found
                .commission
                .as_ref()
                .is_some_and(|row| row.version == state.version && row.event_id != state.event_id);
        if fresh && taken {
            // The key is free, but another event of this order has taken its version since.
            let poison = version_conflict(&effect.plan);
            self.letter_effect(at, poison, None, None);
            return;
        }
        let effect = &mut self.flight.effects[at];
        if let Some(row) = stored {
            effect.attempts = row.attempts;
            effect.maybe_sent = row.maybe_sent;
            effect.owner = row.owner;
        }
        match verdict {
            // It was tried in vain before: somebody else holds or held the row; do not spin on it.
            EffectVerdict::Reserve { claim, due_in } if effect.retries > 0 => {
                let due_in = due_in.max(VAIN_PAUSE);
                self.follow(at, EffectVerdict::Reserve { claim, due_in });
            }
            verdict => self.follow(at, verdict),
        }
    }

    /// An effect is settled: counted, told, its chain goes on.
    pub(super) fn settle_effect(&mut self, at: usize, outcome: Outcome) {
        let (effect, next) = self.take_out(at);
        self.road.metrics.effect(effect.effect_type, outcome, self.road.run.kind, 1);
        self.tell(&effect.plan, effect.index, outcome);
        if let Some(pending) = self.flight.events.get_mut(effect.event) {
            pending.tally.effects.push((effect.effect_type, outcome));
        }
        self.one_less(effect.event);
        self.turn_of(next);
    }

    /// An effect ends in a dead letter; its event is settled when the letter is stored.
    pub(super) fn letter_effect(
        &mut self,
        at: usize,
        poison: Poison,
        outcome: Option<Outcome>,
        effect_type: Option<String>,
    ) {
        let (effect, next) = self.take_out(at);
        if let Some(outcome) = outcome {
            self.road.metrics.effect(effect.effect_type, outcome, self.road.run.kind, 1);
            self.tell(&effect.plan, effect.index, outcome);
            if let Some(pending) = self.flight.events.get_mut(effect.event) {
                pending.tally.effects.push((effect.effect_type, outcome));
            }
        }
        self.dead_letter(effect.event, poison, None, effect_type, effect.attempts);
        self.one_less(effect.event);
        self.turn_of(next);
    }

    fn take_out(&mut self, at: usize) -> (Effect, Option<usize>) {
        let (effect, next) = self.flight.remove(at);
        if let Some(timer) = &effect.timer {
            self.timers.remove(timer);
        }
        if effect.holds_slot {
            self.types.free_slot(effect.effect_type);
            self.road.health.reservations(effect.effect_type, -1);
        }
        (effect, next)
    }

    fn turn_of(&mut self, next: Option<usize>) {
        let Some(at) = next else { return };
        if self.flight.effects[at].claim.is_some() { self.make_ready(at) } else { self.look_again(at) }
    }

    /// Drops, without a trace, what was not begun on these lanes.
    pub(super) fn drop_not_begun(&mut self, concerns: impl Fn(LaneId) -> bool) {
        let events = &self.flight.events;
        let idle: Vec<usize> = self
            .flight
            .effects
            .iter()
            .filter(|(_, e)| e.not_begun() && events.get(e.event).is_some_and(|p| concerns(p.lane)))
            .map(|(at, _)| at)
            .collect();
        for at in idle {
            self.drop_effect(at);
        }
    }

    /// Takes an effect out of flight; its record stays unsettled.
    pub(super) fn drop_effect(&mut self, at: usize) {
        let (effect, next) = self.take_out(at);
        self.types.forget(effect.effect_type, at);
        self.to_look.retain(|looking| *looking != at);
        if let Some(pending) = self.flight.events.get_mut(effect.event) {
            pending.abandoned = true;
        }
        self.one_less(effect.event);
        self.turn_of(next);
    }

    /// Lanes with work that was begun.
    pub(super) fn busy_lanes(&self) -> HashSet<LaneId> {
        self.flight.events.iter().filter(|(_, event)| event.open > 0).map(|(_, event)| event.lane).collect()
    }

    /// These lanes are no longer ours: what still runs for them settles effects, not records.
    pub(super) fn abandon(&mut self, lanes: &[LaneId]) {
        for (_, event) in &mut self.flight.events {
            event.abandoned |= lanes.contains(&event.lane);
        }
    }

    /// The name of an effect type, for dead letters.
    pub(super) fn type_name(&self, id: EffectTypeId) -> String {
        self.road.policies.get(id).name.clone()
    }
}

fn question(plan: &Plan, index: usize) -> Question<'_> {
    const NO_DIGEST: &Digest = &[0; 32];
    let state = &plan.commission;
    let request = plan.effects.get(index);
    Question {
        key: request.map_or("", |request| &request.key),
        order_id: &state.order_id,
        request_digest: request.map_or(NO_DIGEST, |request| &request.digest),
        event_digest: &state.event_digest,
        amount: Cents(state.amount.0),
        version: state.version,
        event_id: &state.event_id,
    }
}

fn conflict(verdict: StateVerdict, plan: &Plan) -> Option<Poison> {
    match verdict {
        StateVerdict::VersionConflict => Some(version_conflict(plan)),
        StateVerdict::ContentConflict => Some(content_conflict(plan)),
        StateVerdict::Write | StateVerdict::Unchanged { .. } | StateVerdict::IgnoredNewer => None,
    }
}

fn version_conflict(plan: &Plan) -> Poison {
    let state = &plan.commission;
    let message = format!(
        "versao: version {} of order {} belongs to another event; the first one wins and event {} is not applied",
        state.version, state.order_id, state.event_id
    );
    Poison::new(Reason::VersionConflict, message)
}

fn content_conflict(plan: &Plan) -> Poison {
    let message = format!(
        "id: event {} was seen before with other content; a changed fact needs an id and a version of its own",
        plan.commission.event_id
    );
    Poison::new(Reason::ContentConflict, message)
}
