//! Recall: effects that are called from their ledger row alone, without their event at hand.
//!
//! The sweeper and a person's `--resend` come along here. They hold the same pieces as the coordinator: the judge of
//! `domain::verdict`, the table of answers, and the wave writes; only the in-memory chains of Kafka's road are missing.
//!
//! * The stored request is rebuilt byte for byte: the same key never carries another body.
//! * A result in hand is written again on a new connection until it stands there, or until nobody waits for it.
//! * No record is at hand, so nothing is dead-lettered: what a provider refuses here goes to review with its evidence.
//! * The session holds this caller's own owner lock before it writes a reservation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use smallvec::smallvec;
use sqlx::PgConnection;
use uuid::Uuid;

use super::answers::{Attempt, Consequence, Next, backoff, consequence};
use crate::domain::effect::{
    EffectPolicy, EffectRequest, EffectTypeId, Mode, RequestBody, Run, RunKind, body_from_stored,
};
use crate::domain::money::Cents;
use crate::domain::plan::{CommissionWrite, Plan, Policies};
use crate::domain::verdict::{StoredEffect, Token};
use crate::gateway::{Answer, Call, EffectGateway, Proof};
use crate::pg::connect::{self, Database};
use crate::pg::error::StoreError;
use crate::pg::owner;
use crate::pg::stored::StoredRow;
use crate::pg::wave::{Destination, Evidence, Move, Settle, Target, Wave, WaveDone, Writer, perform};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An effect as its row tells it, in the shape that waves and judges take.
#[derive(Debug)]
pub(super) struct Recalled {
    pub target: Target,
    pub run_id: String,
    pub stored: StoredEffect,
    /// The stored request is one of ours; what is not cannot be sent.
    pub sendable: bool,
}

impl Recalled {
    /// What `row` says, under the policy of today.
    pub fn of(row: StoredRow, id: EffectTypeId, policy: &EffectPolicy) -> Self {
        let body = body_from_stored(&row.request);
        let request = EffectRequest {
            effect_type: id,
            key: row.key,
            mode: mode_of(&row.request, policy),
            digest: row.effect.request_digest,
            body: body.as_ref().map_or_else(|_| row.request.clone(), Clone::clone),
        };
        let commission = CommissionWrite {
            order_id: row.order_id,
            amount: Cents(0),
            version: row.version,
            event_id: row.event_id,
            event_digest: row.effect.event_digest,
        };
        let plan = Arc::new(Plan { commission, effects: smallvec![request] });
        let target = Target { plan, index: 0, effect_type: policy.name.as_str().into() };
        Self { target, run_id: row.run_id, stored: row.effect, sendable: body.is_ok() }
    }

    pub fn event_id(&self) -> &str {
        &self.target.plan.commission.event_id
    }
}

/// The mode an event is planned with: `modo`, or suppressed because it occurred before `vigente_desde`.
fn mode_of(request: &str, policy: &EffectPolicy) -> Mode {
    let body: Option<RequestBody<'_>> = serde_json::from_str(request).ok();
    let occurred: Option<jiff::Timestamp> = body.and_then(|body| body.ocorrido_em.parse().ok());
    let early = policy.effective_from.zip(occurred).is_some_and(|(from, occurred)| occurred < from);
    if early { Mode::Suppress } else { policy.mode }
}

/// A reservation of ours that is about to be called.
#[derive(Debug)]
pub(super) struct InHand {
    pub effect: Recalled,
    /// This attempt included.
    pub attempts: u32,
    /// An earlier attempt may have reached the provider.
    pub maybe_sent: bool,
    /// It probes an open circuit.
    pub probe: bool,
}

/// An answered call.
pub(super) struct Answered {
    pub in_hand: InHand,
    pub answer: Answer,
}

/// How a recalled effect stands after its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Done,
    /// To review; what was seen.
    Uncertain(String),
    /// It waits for its next attempt; what was seen.
    Waiting {
        due_in: Duration,
        seen: String,
    },
    /// Somebody took the reservation over meanwhile; the answer is kept as evidence.
    TakenOver,
}

/// A connection with this caller's owner lock on it, renewed when it fails.
pub struct Session {
    database: Database,
    owner: i64,
    instance: Arc<str>,
    connection: Option<PgConnection>,
}

impl Session {
    /// Connects when it is first used.
    pub fn new(database: Database, instance: Arc<str>) -> Self {
        Self { database, owner: owner::new_number(), instance, connection: None }
    }

    pub const fn owner(&self) -> i64 {
        self.owner
    }

    /// The connection. Whoever takes it out gives it back with [`Self::keep`], unless it failed.
    pub async fn take(&mut self) -> Result<PgConnection, StoreError> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let mut connection = self.database.dedicated().await?;
        connect::within(owner::take(&mut connection, self.owner)).await?;
        Ok(connection)
    }

    pub fn keep(&mut self, connection: PgConnection) {
        self.connection = Some(connection);
    }

    pub(super) fn writer(&self, run_id: &str) -> Writer {
        let run = Run { kind: RunKind::Live, id: run_id.to_owned() };
        Writer { run, owner: self.owner, instance: Arc::clone(&self.instance) }
    }

    /// Carries a wave out in the name of the run that the effects belong to.
    pub(super) async fn write(&mut self, run_id: &str, wave: &Wave) -> Result<WaveDone, StoreError> {
        let writer = self.writer(run_id);
        let mut connection = self.take().await?;
        let done = connect::within(perform(&mut connection, &writer, wave)).await?;
        self.keep(connection);
        Ok(done)
    }

    /// [`Self::write`] for results in hand: again and again until `until`.
    async fn write_by(&mut self, run_id: &str, wave: &Wave, until: Instant) -> Result<WaveDone, StoreError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.write(run_id, wave).await {
                Err(error @ StoreError::Transient(_)) if Instant::now() < until => {
                    tracing::warn!(%error, "an answer in hand is not written yet; trying again");
                }
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Nothing to write yet, under a token of its own.
pub(super) fn empty_wave() -> Wave {
    Wave::empty(Uuid::new_v4())
}

/// Calls what is reserved, all at once. `lease_ends`: see [`Call::lease_ends`].
pub(super) async fn call_all(
    gateway: &dyn EffectGateway,
    reserved: Vec<InHand>,
    lease_ends: Instant,
) -> Vec<Answered> {
    let calls = reserved.into_iter().map(|in_hand| {
        let request = in_hand.effect.target.request();
        let call = Call {
            effect_type: request.effect_type,
            key: request.key.clone(),
            body: request.body.clone(),
            lease_ends,
            traceparent: None,
        };
        crate::crash::point("before_call");
        let calling = gateway.call(call);
        async move {
            let answer = calling.await;
            crate::crash::point("after_call");
            Answered { in_hand, answer }
        }
    });
    join_all(calls).await
}

/// Writes what became of the calls reserved under `token`, which belong to one run; in the order of `answered`.
/// Database trouble is waited out for one lease: after it others may go on with the effects, and the ledger tells.
pub(super) async fn settle(
    session: &mut Session,
    policies: &Policies,
    token: Token,
    answered: Vec<Answered>,
) -> Result<Vec<Ended>, StoreError> {
    let Some(first) = answered.first() else { return Ok(Vec::new()) };
    let run_id = first.in_hand.effect.run_id.clone();
    let mut wave = Wave { closed: vec![token], ..empty_wave() };
    let (mut ends, mut settles, mut moves) = (Vec::new(), Vec::new(), Vec::new());
    let mut patience = Duration::ZERO;
    for (at, Answered { in_hand, answer }) in answered.into_iter().enumerate() {
        let policy = policies.get(in_hand.effect.target.request().effect_type);
        patience = patience.max(policy.lease);
        let target = in_hand.effect.target.clone();
        match verdict_of(answer, &in_hand, policy) {
            Written::Settle(result) => {
                settles.push(at);
                wave.settle.push(Settle { target, token, result });
                ends.push(Ended::Done);
            }
            Written::Move { to, evidence, ended } => {
                moves.push(at);
                wave.moves.push(Move {
                    target,
                    token: Some(token),
                    to,
                    evidence: Some(evidence),
                    result: None,
                });
                ends.push(ended);
            }
        }
    }
    let until = Instant::now() + patience;
    let done = session.write_by(&run_id, &wave, until).await?;
    for missed in &done.not_moved {
        ends[moves[*missed]] = Ended::TakenOver;
    }
    for reviewed in &done.reviewed {
        let seen = "the provider said done; the database refuses to store that".to_owned();
        ends[settles[*reviewed]] = Ended::Uncertain(seen);
    }
    // The row stays reserved under this owner's lock: the next sweep judges it, as after a crash.
    for (refused, words) in &done.unsettled {
        ends[settles[*refused]] =
            Ended::Uncertain(format!("done, and the database refuses every word: {words}"));
    }
    for (refused, words) in &done.unmoved {
        ends[moves[*refused]] = Ended::Uncertain(format!("the database refuses what became of it: {words}"));
    }
    if !done.fenced.is_empty() {
        let late = done.fenced.iter().map(|fenced| late_answer(&wave.settle[*fenced])).collect();
        session.write_by(&run_id, &Wave { moves: late, ..empty_wave() }, until).await?;
        for fenced in &done.fenced {
            ends[settles[*fenced]] = Ended::TakenOver;
        }
    }
    Ok(ends)
}

enum Written {
    Settle(String),
    Move { to: Destination, evidence: Evidence, ended: Ended },
}

/// The table of answers, for an effect without its record: what would be a dead letter goes to review.
fn verdict_of(answer: Answer, in_hand: &InHand, policy: &EffectPolicy) -> Written {
    let refused = matches!(answer.proof, Proof::Refused);
    let attempt = Attempt {
        policy,
        attempts: in_hand.attempts,
        maybe_sent: in_hand.maybe_sent,
        probe: in_hand.probe,
        backoff: backoff(policy, in_hand.attempts.saturating_sub(1)),
    };
    match consequence(answer, attempt) {
        Consequence::Done { result } => Written::Settle(result),
        Consequence::Move { evidence, next: Next::Retry { due_in }, to } => {
            let seen = evidence.detail.clone();
            Written::Move { to, evidence, ended: Ended::Waiting { due_in, seen } }
        }
        Consequence::Move { evidence, .. } => {
            let seen =
                if refused { format!("refused: {}", evidence.detail) } else { evidence.detail.clone() };
            Written::Move { to: Destination::Uncertain, evidence, ended: Ended::Uncertain(seen) }
        }
    }
}

fn late_answer(settle: &Settle) -> Move {
    let evidence = Evidence {
        answer: "feito-tardio",
        reached: "corpo",
        status: None,
        detail: "the provider said done after the reservation had been taken over".to_owned(),
        elapsed: None,
    };
    Move {
        target: settle.target.clone(),
        token: Some(settle.token),
        to: Destination::LateAnswer { done: true },
        evidence: Some(evidence),
        result: Some(settle.result.clone()),
    }
}

/// Calls one effect that was reserved for this session under `token`, not before `asked`, and writes what became of it.
pub async fn call_reserved(
    session: &mut Session,
    gateway: &dyn EffectGateway,
    policies: &Policies,
    row: StoredRow,
    token: Token,
    asked: Instant,
) -> Result<Ended, StoreError> {
    let Some(id) = policies.id_of(&row.effect_type) else { return Ok(Ended::TakenOver) };
    let (attempts, maybe_sent) = (row.effect.attempts, row.effect.maybe_sent);
    let effect = Recalled::of(row, id, policies.get(id));
    let in_hand = InHand { effect, attempts, maybe_sent, probe: false };
    let lease_ends = asked + policies.get(id).lease;
    let answered = call_all(gateway, vec![in_hand], lease_ends).await;
    let ends = settle(session, policies, token, answered).await?;
    Ok(ends.into_iter().next().unwrap_or(Ended::TakenOver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::effect::{EffectState, OnFailure};
    use crate::domain::plan::tests::policy;
    use crate::gateway::{Evidence as Seen, Reached};

    const STORED: &str = r#"{"chave": "e:notificar-vendedor", "eventoId": "e", "pedidoId": "p", "ocorridoEm": "2026-10-14T12:00:00Z", "tipoEfeito": "notificar-vendedor", "valorCentavos": 500}"#;

    fn row(request: &str) -> StoredRow {
        StoredRow {
            key: "e:notificar-vendedor".into(),
            effect_type: "notificar-vendedor".into(),
            event_id: "e".into(),
            order_id: "p".into(),
            version: 1,
            run_id: "ao-vivo".into(),
            request: request.into(),
            effect: StoredEffect {
                state: EffectState::Reserved,
                request_digest: [3; 32],
                event_digest: [1; 32],
                by_this_run: false,
                token: None,
                owner: None,
                lease_left: Duration::ZERO,
                due_in: Duration::ZERO,
                maybe_sent: false,
                attempts: 1,
                age: Duration::ZERO,
            },
        }
    }

    fn written(proof: Proof, on_failure: OnFailure, maybe_sent: bool) -> Written {
        let mut p = policy("notificar-vendedor");
        p.on_failure = on_failure;
        let effect = Recalled::of(row(STORED), EffectTypeId(0), &p);
        let evidence = Seen {
            reached: Reached::Body,
            status: Some(422),
            detail: "no such seller".into(),
            elapsed: Duration::ZERO,
        };
        let in_hand = InHand { effect, attempts: 1, maybe_sent, probe: false };
        verdict_of(Answer { proof, evidence }, &in_hand, &p)
    }

    #[test]
    fn the_body_is_the_one_that_was_sent_before() {
        let recalled = Recalled::of(row(STORED), EffectTypeId(0), &policy("notificar-vendedor"));
        assert_eq!(
            recalled.target.request().body,
            r#"{"chave":"e:notificar-vendedor","eventoId":"e","tipoEfeito":"notificar-vendedor","pedidoId":"p","valorCentavos":500,"ocorridoEm":"2026-10-14T12:00:00Z"}"#
        );
        assert!(recalled.sendable);
        assert!(!Recalled::of(row(r#"{"x": 1}"#), EffectTypeId(0), &policy("notificar-vendedor")).sendable);
    }

    #[test]
    fn b25_an_event_before_the_effective_date_stays_suppressed_without_its_event() {
        let mut late = policy("notificar-vendedor");
        late.effective_from = Some("2026-11-01T00:00:00Z".parse().expect("an instant"));
        let recalled = Recalled::of(row(STORED), EffectTypeId(0), &late);
        assert_eq!(recalled.target.request().mode, Mode::Suppress);
    }

    #[test]
    fn a_refusal_goes_to_review_because_no_record_can_be_dead_lettered() {
        for maybe_sent in [false, true] {
            let Written::Move { to, evidence, ended } =
                written(Proof::Refused, OnFailure::Release, maybe_sent)
            else {
                panic!("a refusal is not done")
            };
            assert_eq!((to, evidence.answer), (Destination::Uncertain, "recusado"));
            assert_eq!(ended, Ended::Uncertain("refused: no such seller".into()));
        }
    }

    #[test]
    fn an_unknown_answer_waits_under_release_and_is_for_review_under_hold() {
        let Written::Move { to, .. } = written(Proof::Unknown, OnFailure::Release, true) else {
            panic!("a move")
        };
        assert!(matches!(to, Destination::Waiting { maybe_sent: true, counted: true, .. }));
        let Written::Move { to, .. } = written(Proof::Unknown, OnFailure::Hold, false) else {
            panic!("a move")
        };
        assert_eq!(to, Destination::Uncertain);
    }
}
