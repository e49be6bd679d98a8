//! Waves and calls: what is settled and reserved together, and what becomes of the answers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::task::JoinError;
use uuid::Uuid;

use super::ApplierError;
use super::answers::{Attempt, Consequence, Next, backoff, consequence, is_definite};
use super::batch::Store;
use super::coordinator::{Coordinator, lost};
use super::effects::Stage;
use crate::domain::effect::{EffectTypeId, Outcome};
use crate::domain::plan::Policies;
use crate::domain::poison::{Poison, Reason};
use crate::domain::verdict::{Claim, Token};
use crate::gateway::circuit::{Circuit, Permit};
use crate::gateway::{Answer, Call, Proof};
use crate::pg::error::StoreError;
use crate::pg::wave::{
    Destination, Evidence, Move, Reserve, Settle, Target, Wave, WaveDone, Writer, perform,
};
use crate::pg::{connect, owner};
use crate::telemetry::{CallFacts, Done, Open};

/// With fewer calls than this in flight a wave goes at once: latency counts, not its size.
const FEW_IN_FLIGHT: usize = 16;
/// Otherwise it waits until this part of the slots is free, at most so long.
const WORTH_A_WAVE: usize = 8;
const WAVE_WAIT: Duration = Duration::from_millis(2);
/// The wave session is kept alive this often, so that its lock tells the truth.
const KEEP_ALIVE: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An effect that waits for a wave to write what became of it.
pub(super) struct Finished {
    pub effect: usize,
    pub intent: Intent,
    pub since: Instant,
}

/// What is to be written about a finished effect.
#[derive(Clone)]
pub(super) enum Intent {
    Settle {
        token: Token,
        result: String,
    },
    Move {
        token: Option<Token>,
        to: Destination,
        evidence: Option<Evidence>,
        result: Option<String>,
        after: After,
    },
}

/// What follows once it is written.
#[derive(Clone)]
pub(super) enum After {
    Settled(Outcome),
    DeadLetter {
        poison: Poison,
        outcome: Outcome,
    },
    Retry {
        due_in: Duration,
    },
    /// Given back: its lane is gone.
    Drop,
    /// Given back: it begins anew when work may be begun again.
    Again,
    /// The attempt was fenced: see what the ledger says now.
    LookAgain,
}

/// An answered call.
pub(super) struct Called {
    effect: usize,
    token: Token,
    answer: Answer,
}

/// The connection of the waves, holding this process's session lock.
#[derive(Default)]
pub(super) struct WaveSession {
    connection: Option<PgConnection>,
    used: Option<Instant>,
    not_before: Option<Instant>,
    failures: u32,
}

/// A wave that came back, with its connection if that still lives.
pub(super) struct WaveReport {
    wave: Wave,
    finished: Vec<Finished>,
    reserved: Vec<usize>,
    connection: Option<PgConnection>,
    result: Result<WaveDone, StoreError>,
    begun: Instant,
    took: Duration,
    trace: Open,
}

/// What a wave reserved: the effects, when it asked by our clock (no lease began earlier), and its span.
struct Reserved<'a> {
    at: &'a [usize],
    asked: Instant,
    trace: &'a Open,
}

struct EffectType {
    id: EffectTypeId,
    name: Arc<str>,
    ready: VecDeque<usize>,
    slots: usize,
    used: usize,
    circuit: Circuit,
}

/// Ready queues, slots, circuits and rates, by effect type; and the open waves.
pub(super) struct EffectTypes {
    types: Vec<EffectType>,
    /// Members of each wave that are not settled yet.
    open_waves: HashMap<Token, usize>,
    closed: Vec<Token>,
}

impl EffectTypes {
    pub fn new(policies: &Policies) -> Self {
        let types = policies
            .iter()
            .map(|(id, policy)| EffectType {
                id,
                name: policy.name.as_str().into(),
                ready: VecDeque::new(),
                slots: policy.slots,
                used: 0,
                circuit: Circuit::new(policy.circuit_threshold, policy.circuit_wait, policy.backoff_max),
            })
            .collect();
        Self { types, open_waves: HashMap::new(), closed: Vec::new() }
    }

    fn of(&mut self, id: EffectTypeId) -> &mut EffectType {
        &mut self.types[usize::from(id.0)]
    }

    pub fn name(&self, id: EffectTypeId) -> Arc<str> {
        Arc::clone(&self.types[usize::from(id.0)].name)
    }

    pub fn ready(&mut self, id: EffectTypeId, effect: usize) {
        self.of(id).ready.push_back(effect);
    }

    pub fn forget(&mut self, id: EffectTypeId, effect: usize) {
        self.of(id).ready.retain(|ready| *ready != effect);
    }

    pub fn free_slot(&mut self, id: EffectTypeId) {
        let state = self.of(id);
        state.used = state.used.saturating_sub(1);
    }

    fn in_flight(&self) -> usize {
        self.types.iter().map(|state| state.used).sum()
    }

    fn some_ready(&self) -> bool {
        self.types.iter().any(|state| !state.ready.is_empty())
    }

    /// An eighth of the busy types' slots is free or about to be.
    fn worth_a_wave(&self, finished: usize) -> bool {
        let slots: usize = self.types.iter().filter(|state| state.used > 0).map(|state| state.slots).sum();
        finished * WORTH_A_WAVE >= slots
    }

    fn left_wave(&mut self, token: Option<Token>) {
        let Some(token) = token else { return };
        if let Some(members) = self.open_waves.get_mut(&token) {
            *members -= 1;
            if *members == 0 {
                self.open_waves.remove(&token);
                self.closed.push(token);
            }
        }
    }
}

impl Coordinator {
    /// Sends a wave if there is something for it and the connection is free.
    pub(super) fn start_wave(&mut self) {
        let pausing = self.session.not_before.is_some_and(|at| Instant::now() < at);
        if self.wave.is_some() || pausing || !self.is_wave_due() {
            return;
        }
        let finished = std::mem::take(&mut self.finished);
        let reserved = if self.may_begin() { self.choose_ready(&finished) } else { Vec::new() };
        if finished.is_empty() && reserved.is_empty() && self.types.closed.is_empty() {
            return;
        }
        self.send_wave(finished, reserved);
    }

    fn is_wave_due(&self) -> bool {
        let oldest = self.finished.iter().map(|finished| finished.since).min();
        if self.types.in_flight() < FEW_IN_FLIGHT || self.is_draining() {
            return oldest.is_some() || self.types.some_ready();
        }
        match oldest {
            Some(since) => self.types.worth_a_wave(self.finished.len()) || since.elapsed() >= WAVE_WAIT,
            None => self.types.some_ready(),
        }
    }

    /// When a wave that waits for company must go.
    pub(super) fn wave_deadline(&self) -> Option<Instant> {
        if self.wave.is_some() {
            return None;
        }
        let pause = self.session.not_before.filter(|at| *at > Instant::now());
        let oldest = self.finished.iter().map(|finished| finished.since).min().map(|since| since + WAVE_WAIT);
        pause.or(oldest)
    }

    /// Takes ready effects for which a slot is free, or becomes free in this very wave.
    fn choose_ready(&mut self, finished: &[Finished]) -> Vec<usize> {
        let mut freed = vec![0_usize; self.types.types.len()];
        for done in finished {
            let effect = &self.flight.effects[done.effect];
            freed[usize::from(effect.effect_type.0)] += usize::from(effect.holds_slot);
        }
        let mut chosen = Vec::new();
        let now = Instant::now();
        for (state, freed) in self.types.types.iter_mut().zip(freed) {
            let mut room = (state.slots + freed).saturating_sub(state.used);
            while room > 0
                && let Some(first) = state.ready.front()
            {
                let event = event_hash(&self.flight.effects[*first].plan.commission.event_id);
                let probe = match state.circuit.permit(event, now) {
                    Permit::Free => false,
                    Permit::Probe => true,
                    Permit::Wait(_) => break,
                };
                let limited = !self.road.rates.try_take(state.id);
                let Some(at) = (if limited { None } else { state.ready.pop_front() }) else {
                    if probe {
                        state.circuit.probe_abandoned(event);
                    }
                    break;
                };
                state.used += 1;
                room -= 1;
                let effect = &mut self.flight.effects[at];
                effect.stage = Stage::Reserving;
                effect.holds_slot = true;
                effect.probe = probe;
                self.road.health.reservations(effect.effect_type, 1);
                chosen.push(at);
            }
        }
        chosen
    }

    fn send_wave(&mut self, finished: Vec<Finished>, reserved: Vec<usize>) {
        let token = Uuid::new_v4();
        let mut wave = Wave {
            token,
            settle: Vec::new(),
            reserve: Vec::with_capacity(reserved.len()),
            moves: Vec::new(),
            closed: std::mem::take(&mut self.types.closed),
        };
        for done in &finished {
            let target = self.target(done.effect);
            match &done.intent {
                Intent::Settle { token, result } => {
                    wave.settle.push(Settle { target, token: *token, result: result.clone() });
                }
                Intent::Move { token, to, evidence, result, .. } => wave.moves.push(Move {
                    target,
                    token: *token,
                    to: *to,
                    evidence: evidence.clone(),
                    result: result.clone(),
                }),
            }
        }
        for at in &reserved {
            let effect = &self.flight.effects[*at];
            let lease = self.road.policies.get(effect.effect_type).lease;
            let claim = effect.claim.unwrap_or(Claim::New);
            wave.reserve.push(Reserve { target: self.target(*at), claim, lease });
        }
        let (store, writer) = (self.store.clone(), self.writer.clone());
        let connection = self.session.connection.take();
        let trace = self.trace_wave(&finished, &reserved);
        self.wave = Some(tokio::task::spawn_local(async move {
            let begun = Instant::now();
            let (connection, result) = carry_out(&store, connection, &writer, &wave).await;
            let took = begun.elapsed();
            WaveReport { wave, finished, reserved, connection, result, begun, took, trace }
        }));
    }

    fn trace_wave(&self, finished: &[Finished], reserved: &[usize]) -> Open {
        let members = reserved.iter().copied().chain(finished.iter().map(|done| done.effect));
        let events = members.filter_map(|at| self.flight.events.get(self.flight.effects[at].event));
        let mut trace = self.road.traces.wave(events.map(|event| &event.trace));
        trace.wrote(finished.len(), reserved.len());
        trace
    }

    fn target(&self, at: usize) -> Target {
        let effect = &self.flight.effects[at];
        Target {
            plan: Arc::clone(&effect.plan),
            index: effect.index,
            effect_type: self.types.name(effect.effect_type),
        }
    }

    /// A wave came back: what it wrote is true now, what it did not write is looked at again.
    pub(super) fn on_wave(&mut self, mut report: WaveReport) {
        self.session.connection = report.connection;
        self.session.used = Some(Instant::now());
        match report.result {
            Ok(done) => {
                self.session.failures = 0;
                self.session.not_before = None;
                self.wrote = true;
                self.road.metrics.transaction_seconds(report.took);
                self.road.health.database(Ok::<(), StoreError>(()));
                crate::crash::point("after_wave");
                self.book_finished(report.finished, &done);
                let reserved = Reserved { at: &report.reserved, asked: report.begun, trace: &report.trace };
                self.book_reserved(&report.wave, &reserved, done);
            }
            Err(error) => {
                report.trace.failed(error.class());
                self.store.failed("wave", error);
                self.session.failures += 1;
                let pause = FIRST_PAUSE * 2_u32.saturating_pow(self.session.failures.min(6));
                self.session.not_before = Some(Instant::now() + pause.min(LONGEST_PAUSE));
                self.types.closed.extend(report.wave.closed);
                // Results in hand are written again; reservations may or may not have committed.
                self.finished.extend(report.finished);
                for at in report.reserved {
                    self.give_slot_back(at);
                    self.flight.effects[at].unconfirmed = Some(report.wave.token);
                    self.look_again(at);
                }
            }
        }
    }

    fn give_slot_back(&mut self, at: usize) {
        let effect = &mut self.flight.effects[at];
        if std::mem::take(&mut effect.holds_slot) {
            let id = effect.effect_type;
            effect.probe = false;
            let event = event_hash(&effect.plan.commission.event_id);
            self.types.free_slot(id);
            self.types.of(id).circuit.probe_abandoned(event);
            self.road.health.reservations(id, -1);
        }
    }

    fn book_finished(&mut self, finished: Vec<Finished>, done: &WaveDone) {
        let (mut settles, mut moves) = (0, 0);
        for entry in finished {
            let (counter, refused) = match entry.intent {
                Intent::Settle { .. } => (&mut settles, &done.unsettled),
                Intent::Move { .. } => (&mut moves, &done.unmoved),
            };
            let index = *counter;
            *counter += 1;
            let refused = refused.iter().find(|(at, _)| *at == index).map(|(_, words)| words.clone());
            match refused {
                Some(words) => self.hold(entry, &words),
                None => self.book_one(entry, index, done),
            }
        }
    }

    /// What was written about one effect; `index` among the wave's settles or moves.
    fn book_one(&mut self, entry: Finished, index: usize, done: &WaveDone) {
        self.was_taken(entry.effect);
        match entry.intent {
            Intent::Settle { token, result } => {
                self.types.left_wave(Some(token));
                if done.fenced.contains(&index) {
                    self.was_fenced(entry.effect, token, Some(result));
                } else if done.reviewed.contains(&index) {
                    self.settle_effect(entry.effect, Outcome::Uncertain);
                } else {
                    self.settle_effect(entry.effect, Outcome::Applied);
                }
            }
            Intent::Move { token, to, after, .. } => {
                if !matches!(to, Destination::LateAnswer { .. }) {
                    self.types.left_wave(token);
                }
                self.give_slot_back(entry.effect);
                if done.not_moved.contains(&index) {
                    self.moved_in_vain(entry.effect, &after);
                } else {
                    self.after(entry.effect, after);
                }
            }
        }
    }

    /// Our reservation was taken over while we called: the answer is kept as evidence, a late 'done' as proof.
    fn was_fenced(&mut self, at: usize, token: Token, result: Option<String>) {
        tracing::warn!(
            chave = self.flight.effects[at].request().key,
            "a late answer: its reservation was taken over"
        );
        self.give_slot_back(at);
        let evidence = Evidence {
            answer: "feito-tardio",
            reached: "corpo",
            status: None,
            detail: "the provider said done after the reservation had been taken over".to_owned(),
            elapsed: None,
        };
        let to = Destination::LateAnswer { done: true };
        let intent = Intent::Move {
            token: Some(token),
            to,
            evidence: Some(evidence),
            result,
            after: After::LookAgain,
        };
        self.finished.push(Finished { effect: at, intent, since: Instant::now() });
    }

    fn moved_in_vain(&mut self, at: usize, after: &After) {
        match after {
            After::Drop => self.drop_effect(at),
            _ if self.is_draining() => self.drop_effect(at),
            _ => {
                self.flight.effects[at].retries += 1;
                self.look_again(at);
            }
        }
    }

    fn after(&mut self, at: usize, after: After) {
        let open = self.is_wanted(at);
        match after {
            After::Settled(outcome) => self.settle_effect(at, outcome),
            After::DeadLetter { poison, outcome } => {
                let name = self.type_name(self.flight.effects[at].effect_type);
                self.letter_effect(at, poison, Some(outcome), Some(name));
            }
            After::Drop => self.drop_effect(at),
            After::Retry { .. } | After::Again | After::LookAgain if !open => self.drop_effect(at),
            After::Again => {
                self.flight.effects[at].claim = Some(Claim::New);
                self.make_ready(at);
            }
            After::Retry { due_in } => {
                let effect = &mut self.flight.effects[at];
                effect.claim = Some(Claim::Waiting);
                effect.retries += 1;
                self.set_timer(at, due_in);
            }
            After::LookAgain => self.look_again(at),
        }
    }

    /// Whether work on an effect may still be begun.
    pub(super) fn is_wanted(&self, at: usize) -> bool {
        let event = self.flight.events.get(self.flight.effects[at].event);
        !self.is_draining() && event.is_some_and(|event| self.lanes.is_open(event.lane))
    }

    fn book_reserved(&mut self, wave: &Wave, wanted: &Reserved<'_>, done: WaveDone) {
        let reserved = wanted.at;
        for claimed in done.claimed {
            let effect = &mut self.flight.effects[reserved[claimed.index]];
            effect.attempts = claimed.attempts;
            effect.maybe_sent = claimed.maybe_sent;
            effect.stored_body = claimed.stored_body;
        }
        let mut members = 0;
        for (index, at) in reserved.iter().copied().enumerate() {
            if let Some((_, words)) = done.refused.iter().find(|(refused, _)| *refused == index) {
                self.give_slot_back(at);
                let poison = Poison::new(Reason::RefusedByDatabase, words);
                let name = self.type_name(self.flight.effects[at].effect_type);
                self.letter_effect(at, poison, Some(Outcome::Failed), Some(name));
            } else if done.not_reserved.contains(&index) {
                self.give_slot_back(at);
                self.flight.effects[at].retries += 1;
                self.look_again(at);
            } else {
                members += 1;
                self.begin_call(at, wave.token, &wave.reserve[index], wanted);
            }
        }
        if members > 0 {
            self.types.open_waves.insert(wave.token, members);
        } else if !reserved.is_empty() {
            self.types.closed.push(wave.token);
        }
    }

    /// The reservation is durable: call, unless nothing may be begun any more.
    fn begin_call(&mut self, at: usize, token: Token, reserve: &Reserve, wave: &Reserved<'_>) {
        let wanted = self.is_wanted(at);
        let held = !self.may_begin();
        let effect = &mut self.flight.effects[at];
        effect.unconfirmed = None;
        if reserve.claim == Claim::New {
            effect.attempts = 1;
        }
        let id = effect.effect_type;
        let shut = self.types.types[usize::from(id.0)].circuit.is_open() && !effect.probe;
        if !wanted || held || shut {
            self.give_back(at, token, wanted);
            return;
        }
        effect.stage = Stage::Calling;
        let request = effect.request();
        let event = self.flight.events.get(effect.event);
        let facts = CallFacts {
            effect: &self.road.policies.get(id).name,
            key: &request.key,
            attempt: effect.attempts,
        };
        let mut trace =
            event.map_or_else(Open::default, |event| self.road.traces.call(&event.trace, wave.trace, facts));
        let traceparent = trace.traceparent().or_else(|| event.and_then(|event| event.traceparent.clone()));
        let body = effect
            .stored_body
            .as_deref()
            .and_then(|stored| crate::domain::effect::body_from_stored(stored).ok());
        let body = body.unwrap_or_else(|| request.body.clone());
        let lease_ends = wave.asked + reserve.lease;
        let call = Call { effect_type: id, key: request.key.clone(), body, lease_ends, traceparent };
        let gateway = Arc::clone(&self.road.gateway);
        self.calls.spawn(async move {
            crate::crash::point("before_call");
            let answer = gateway.call(call).await;
            let done = if matches!(answer.proof, Proof::Done { .. }) { Done::Yes } else { Done::No };
            trace.answered(answer.proof.as_str(), answer.evidence.status, done);
            drop(trace);
            crate::crash::point("after_call");
            Called { effect: at, token, answer }
        });
    }

    /// Gives a reservation back that was not begun. Where nothing was ever sent its row goes.
    pub(super) fn give_back(&mut self, at: usize, token: Token, wanted: bool) {
        let effect = &mut self.flight.effects[at];
        effect.stage = Stage::Finished;
        let to = if effect.maybe_sent {
            Destination::Waiting { due_in: Duration::ZERO, maybe_sent: false, counted: false }
        } else {
            Destination::Gone
        };
        let after = match (wanted, effect.maybe_sent) {
            (false, _) => After::Drop,
            (true, true) => After::Retry { due_in: Duration::ZERO },
            (true, false) => After::Again,
        };
        let intent = Intent::Move { token: Some(token), to, evidence: None, result: None, after };
        self.finished.push(Finished { effect: at, intent, since: Instant::now() });
    }

    /// Answers are taken together: the first wakes us, the others are there already.
    pub(super) fn on_calls(&mut self, first: Result<Called, JoinError>) -> Result<(), ApplierError> {
        self.on_answer(first.map_err(lost)?);
        while let Some(called) = self.calls.try_join_next() {
            self.on_answer(called.map_err(lost)?);
        }
        Ok(())
    }

    fn on_answer(&mut self, called: Called) {
        let now = Instant::now();
        let effect = &mut self.flight.effects[called.effect];
        effect.stage = Stage::Finished;
        let id = effect.effect_type;
        let policy = self.road.policies.get(id);
        self.road.metrics.call_seconds(id, called.answer.evidence.elapsed);
        let circuit = &mut self.types.types[usize::from(id.0)].circuit;
        let was_open = circuit.is_open();
        circuit.on_answer(
            event_hash(&effect.plan.commission.event_id),
            is_definite(&called.answer.proof),
            now,
        );
        let is_open = circuit.is_open();
        report_circuit(&self.road.health, id, &policy.name, circuit, was_open, is_open, now);
        let attempt = Attempt {
            policy,
            attempts: effect.attempts,
            maybe_sent: effect.maybe_sent,
            probe: effect.probe,
            backoff: backoff(policy, effect.retries),
        };
        effect.probe = false;
        let intent = match consequence(called.answer, attempt) {
            Consequence::Done { result } => Intent::Settle { token: called.token, result },
            Consequence::Move { to, evidence, next } => {
                let after = match next {
                    Next::Settled(outcome) => After::Settled(outcome),
                    Next::DeadLetter { reason, message, outcome } => {
                        After::DeadLetter { poison: Poison::new(reason, message), outcome }
                    }
                    Next::Retry { due_in } => After::Retry { due_in },
                };
                Intent::Move { token: Some(called.token), to, evidence: Some(evidence), result: None, after }
            }
        };
        self.finished.push(Finished { effect: called.effect, intent, since: now });
    }

    /// The session lock must live as long as we do: an idle wave connection is asked now and then.
    pub(super) fn keep_session(&mut self) {
        let rested = self.session.used.is_none_or(|used| used.elapsed() >= KEEP_ALIVE);
        let pausing = self.session.not_before.is_some_and(|at| Instant::now() < at);
        if self.wave.is_none() && rested && !pausing {
            self.send_wave(Vec::new(), Vec::new());
        }
    }
}

/// The number by which a circuit knows an event.
pub(super) fn event_hash(id: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

fn report_circuit(
    health: &crate::health::Health,
    id: EffectTypeId,
    name: &str,
    circuit: &Circuit,
    was_open: bool,
    is_open: bool,
    now: Instant,
) {
    if is_open {
        if !was_open {
            tracing::error!(
                efeito = name,
                "circuit open: no definite answer from several events in a row; nothing is begun but probes"
            );
        }
        health.circuit_opened(id, circuit.next_probe_in(now));
    } else if was_open {
        tracing::info!(efeito = name, "circuit closed: the provider answers again");
        health.circuit_closed(id);
    }
}

/// Connects and takes the session lock if need be, and carries the wave out. A connection that failed is dropped.
async fn carry_out(
    store: &Store,
    connection: Option<PgConnection>,
    writer: &Writer,
    wave: &Wave,
) -> (Option<PgConnection>, Result<WaveDone, StoreError>) {
    let opened = match connection {
        Some(connection) => Ok(connection),
        None => open(store, writer.owner).await,
    };
    let mut connection = match opened {
        Ok(connection) => connection,
        Err(error) => return (None, Err(error)),
    };
    let empty =
        wave.settle.is_empty() && wave.reserve.is_empty() && wave.moves.is_empty() && wave.closed.is_empty();
    let result = if empty {
        let ping = async {
            sqlx::Connection::ping(&mut connection).await?;
            Ok(WaveDone::default())
        };
        connect::within(ping).await
    } else {
        connect::within(perform(&mut connection, writer, wave)).await
    };
    // After any failure the state of the session is unknown; a new one takes the lock before anything else.
    let kept = result.is_ok().then_some(connection);
    (kept, result)
}

async fn open(store: &Store, number: i64) -> Result<PgConnection, StoreError> {
    let mut connection = store.database.dedicated().await?;
    connect::within(owner::take(&mut connection, number)).await?;
    Ok(connection)
}
