//! Errands: single effects that no event asks for, through the same ledger, for a caller with a state of its own.
//!
//! ```text
//!   look ──settled, uncertain, in flight──────────────► standing
//!     └─ nothing, due ─► reserve (committed) ─► call ─► standing, with what is still to be written
//! ```
//!
//! * [`Messenger::run`] judges by the ledger's table and calls only what it has durably reserved, under its own owner lock.
//! * [`Messenger::write`] writes the answer and the caller's own state in one transaction. An answer in hand is not lost
//!   with the caller's claim: where the caller's part cannot be written, the ledger's is.
//! * A provider's no leaves no row, like everywhere: the caller must write down that it was said, in that transaction.
//!
//! Not here: what a step of a saga is, and what follows from a standing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sqlx::{Connection as _, PgConnection};

use super::answers::{Attempt, Consequence, Next, backoff, consequence};
use super::recall::{Session, empty_wave};
use super::sweep::abandoned;
use crate::domain::effect::{EffectPolicy, EffectRequest, Outcome, Run, RunKind};
use crate::domain::plan::{Errand, Plan, Policies};
use crate::domain::verdict::{Claim, EffectVerdict, Looker, judge_effect};
use crate::gateway::rate::Rates;
use crate::gateway::{Call, EffectGateway};
use crate::metrics::Metrics;
use crate::pg::connect::{Database, within};
use crate::pg::error::StoreError;
use crate::pg::owner;
use crate::pg::review;
use crate::pg::stored::{self, StoredRow};
use crate::pg::wave::{Claimed, Destination, Move, Reserve, Settle, Target, Wave, WaveDone, Writer, perform};

/// Somebody may be calling: looked at again so soon.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// The budget of calls is used up.
const NO_BUDGET: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is known of an errand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The provider did it, or a person says so.
    Done,
    /// Its type is suppressed: nobody is called.
    Suppressed,
    /// Certainly not done, and not to be: refused, or discarded by a person. In words.
    No(String),
    /// Nobody knows: it waits for a person.
    Uncertain(String),
    /// It may have been sent, or is being sent: look again.
    Open { within: Duration },
    /// Certainly not done so far: it is tried again.
    Waiting {
        due_in: Duration,
        seen: String,
        /// It has a row in the ledger, which must go if it is not wanted any more.
        written: bool,
    },
}

/// A standing, with what is still to be written about it.
#[derive(Debug)]
pub struct Report {
    pub standing: Standing,
    wave: Option<Wave>,
    /// An answer in hand is written again until then.
    until: Instant,
    counted: Option<(crate::domain::effect::EffectTypeId, Outcome)>,
}

impl Report {
    fn seen(standing: Standing) -> Self {
        Self { standing, wave: None, until: Instant::now(), counted: None }
    }
}

/// What messengers of one process share.
#[derive(Clone)]
pub struct Postbag {
    pub database: Database,
    pub policies: Policies,
    pub gateway: Arc<dyn EffectGateway>,
    pub rates: Rates,
    pub metrics: Arc<Metrics>,
    pub instance: Arc<str>,
}

/// What a caller writes in the transaction of a report.
pub trait Alongside: Send + Sync {
    /// Gets what the report came to: an answer whose reservation was taken over meanwhile is [`Standing::Open`].
    fn write<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        standing: &'a Standing,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// Carries errands out, one at a time.
pub struct Messenger {
    bag: Postbag,
    session: Session,
    /// Owners whose session was seen to be gone, and since when: it takes two looks.
    gone: HashMap<i64, Instant>,
}

impl Messenger {
    pub fn new(bag: Postbag) -> Self {
        let session = Session::new(bag.database.clone(), Arc::clone(&bag.instance));
        Self { bag, session, gone: HashMap::new() }
    }

    pub const fn policies(&self) -> &Policies {
        &self.bag.policies
    }

    /// Looks, and if it is to be done now, reserves and calls. Without `begin` nothing is begun that was never sent; what
    /// may have been sent, and may be sent again, is: only so its outcome becomes known.
    pub async fn run(&mut self, errand: Errand<'_>, begin: bool) -> Result<Report, StoreError> {
        let plan = Arc::new(errand.plan(&self.bag.policies));
        let policy = self.bag.policies.get(errand.effect_type).clone();
        let request = plan.effects[0].clone();
        let mut connection = self.session.take().await?;
        let stored = within(stored::find(&mut connection, &request.key)).await?;
        let verdict = self.judge(&request, stored.as_ref(), &policy).await?;
        let decided = match (&verdict, &stored) {
            (EffectVerdict::Settled(_), Some(_)) => {
                within(review::last_decision(&mut connection, &request.key)).await?
            }
            _ => None,
        };
        self.session.keep(connection);
        match verdict {
            EffectVerdict::Settled(Outcome::Suppressed) => Ok(Report::seen(Standing::Suppressed)),
            EffectVerdict::Settled(Outcome::Uncertain) => {
                Ok(Report::seen(Standing::Uncertain("nobody knows whether it was done".to_owned())))
            }
            EffectVerdict::Settled(_) => Ok(Report::seen(match decided {
                Some(ruling) if ruling.discarded => {
                    Standing::No(format!("discarded by {}: {}", ruling.by, ruling.reason))
                }
                _ => Standing::Done,
            })),
            EffectVerdict::ContentConflict => {
                tracing::error!(chave = request.key, "the ledger holds another errand under this key");
                Ok(Report::seen(Standing::Uncertain(
                    "the ledger holds another errand under its key".to_owned(),
                )))
            }
            EffectVerdict::LookAgain { within, .. } => {
                Ok(Report::seen(Standing::Open { within: within.min(LOOK_AGAIN) }))
            }
            EffectVerdict::ToUncertain { token, .. } => {
                let why =
                    "the process that called is gone, or its attempts are over; the call may have happened";
                let wave = Wave {
                    moves: vec![Move {
                        target: target(&plan, &policy),
                        token,
                        to: Destination::Uncertain,
                        evidence: Some(abandoned(why)),
                        result: None,
                    }],
                    ..empty_wave()
                };
                Ok(Report {
                    standing: Standing::Uncertain(why.to_owned()),
                    wave: Some(wave),
                    until: Instant::now(),
                    counted: Some((errand.effect_type, Outcome::Uncertain)),
                })
            }
            EffectVerdict::Reserve { due_in, .. } if !due_in.is_zero() => {
                let open = stored.is_some_and(|row| row.effect.maybe_sent);
                let seen = "it waits for its next attempt".to_owned();
                let waiting = Standing::Waiting { due_in, seen, written: true };
                Ok(Report::seen(if open { Standing::Open { within: due_in } } else { waiting }))
            }
            EffectVerdict::Reserve { .. }
                if !begin && !stored.as_ref().is_some_and(|row| row.effect.maybe_sent) =>
            {
                let seen = "it was not begun".to_owned();
                let written = stored.is_some();
                Ok(Report::seen(Standing::Waiting { due_in: Duration::ZERO, seen, written }))
            }
            EffectVerdict::Reserve { claim, .. } => self.call(&plan, &policy, claim).await,
        }
    }

    /// The ledger's table; an owner that is gone is known after two looks.
    async fn judge(
        &mut self,
        request: &EffectRequest,
        stored: Option<&StoredRow>,
        policy: &EffectPolicy,
    ) -> Result<EffectVerdict, StoreError> {
        let found = stored.map(|row| &row.effect);
        let judged = |owner_gone| {
            let looker = Looker { owner_gone, ..Looker::default() };
            judge_effect(found, &request.digest, &request.digest, request.mode, policy, looker)
        };
        let EffectVerdict::LookAgain { owner: Some(number), within: left } = judged(false) else {
            return Ok(judged(false));
        };
        if within(owner::free(self.bag.database.pool(), &[number])).await?.is_empty() {
            self.gone.remove(&number);
            return Ok(EffectVerdict::LookAgain { within: left, owner: Some(number) });
        }
        let since = *self.gone.entry(number).or_insert_with(Instant::now);
        if since.elapsed() < owner::GRACE {
            return Ok(EffectVerdict::LookAgain { within: LOOK_AGAIN, owner: Some(number) });
        }
        Ok(judged(true))
    }

    async fn call(
        &mut self,
        plan: &Arc<Plan>,
        policy: &EffectPolicy,
        claim: Claim,
    ) -> Result<Report, StoreError> {
        let request = &plan.effects[0];
        let id = request.effect_type;
        if !self.bag.rates.try_take(id) {
            let seen = "limite_por_segundo is reached".to_owned();
            return Ok(Report::seen(Standing::Waiting {
                due_in: NO_BUDGET,
                seen,
                written: claim != Claim::New,
            }));
        }
        let asked = Instant::now();
        let reserve = Reserve { target: target(plan, policy), claim, lease: policy.lease };
        let wave = Wave { reserve: vec![reserve], ..empty_wave() };
        let run = Run::live();
        let done = self.session.write(&run.id, &wave).await?;
        if let Some((_, words)) = done.refused.first() {
            return Ok(Report::seen(Standing::No(format!("the database refuses its row: {words}"))));
        }
        if !done.not_reserved.is_empty() {
            return Ok(Report::seen(Standing::Open { within: LOOK_AGAIN }));
        }
        let claimed = done.claimed.into_iter().next().unwrap_or(Claimed {
            index: 0,
            stored_body: None,
            maybe_sent: false,
            attempts: 1,
        });
        let stored = claimed.stored_body.as_deref();
        let stored = stored.and_then(|text| crate::domain::effect::body_from_stored(text).ok());
        let call = Call {
            effect_type: id,
            key: request.key.clone(),
            body: stored.unwrap_or_else(|| request.body.clone()),
            lease_ends: asked + policy.lease,
            traceparent: None,
        };
        crate::crash::point("before_call");
        let answer = self.bag.gateway.call(call).await;
        crate::crash::point("after_call");
        self.bag.metrics.call_seconds(id, answer.evidence.elapsed);
        let attempt = Attempt {
            policy,
            attempts: claimed.attempts,
            maybe_sent: claimed.maybe_sent,
            probe: false,
            backoff: backoff(policy, claimed.attempts.saturating_sub(1)),
        };
        let target = target(plan, policy);
        let mut settled = Wave { closed: vec![wave.token], ..empty_wave() };
        let (standing, counted) = match consequence(answer, attempt) {
            Consequence::Done { result } => {
                settled.settle.push(Settle { target, token: wave.token, result });
                (Standing::Done, Some(Outcome::Applied))
            }
            Consequence::Move { to, evidence, next } => {
                let seen = evidence.detail.clone();
                let standing = match (to, next) {
                    (Destination::Uncertain, _) => (Standing::Uncertain(seen), Some(Outcome::Uncertain)),
                    (Destination::Gone, _) => (Standing::No(seen), Some(Outcome::Refused)),
                    (Destination::Waiting { maybe_sent: true, due_in, .. }, _) => {
                        (Standing::Open { within: due_in }, None)
                    }
                    (_, Next::Retry { due_in }) => (Standing::Waiting { due_in, seen, written: true }, None),
                    (_, _) => (Standing::Open { within: LOOK_AGAIN }, None),
                };
                settled.moves.push(Move {
                    target,
                    token: Some(wave.token),
                    to,
                    evidence: Some(evidence),
                    result: None,
                });
                standing
            }
        };
        let counted = counted.map(|outcome| (id, outcome));
        Ok(Report { standing, wave: Some(settled), until: asked + policy.lease, counted })
    }

    /// Takes a waiting errand back that was certainly never sent, so that it is not done later.
    pub fn withdraw(&self, errand: Errand<'_>) -> Report {
        let policy = self.bag.policies.get(errand.effect_type);
        let target = target(&Arc::new(errand.plan(&self.bag.policies)), policy);
        let gone = Move { target, token: None, to: Destination::Gone, evidence: None, result: None };
        let wave = Wave { moves: vec![gone], ..empty_wave() };
        let standing = Standing::No("its deadline was over before it could be sent".to_owned());
        Report { standing, wave: Some(wave), until: Instant::now(), counted: None }
    }

    /// Writes a report and what its caller has to write, in one transaction.
    pub async fn write(&mut self, report: Report, own: &dyn Alongside) -> Result<(), StoreError> {
        let writer = self.session.writer(&Run::live().id);
        let mut pause = FIRST_PAUSE;
        loop {
            match self.attempt(&writer, &report, own).await {
                Err(error @ StoreError::Transient(_)) if Instant::now() < report.until => {
                    tracing::warn!(%error, "what became of an errand is not written yet; trying again");
                }
                result => {
                    if let (Ok(()), Some((id, outcome))) = (&result, report.counted) {
                        self.bag.metrics.effect(id, outcome, RunKind::Live, 1);
                    }
                    return result;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn attempt(
        &mut self,
        writer: &Writer,
        report: &Report,
        own: &dyn Alongside,
    ) -> Result<(), StoreError> {
        let mut connection = self.session.take().await?;
        let mut transaction = connection.begin().await?;
        let done = match &report.wave {
            Some(wave) => within(perform(&mut transaction, writer, wave)).await?,
            None => WaveDone::default(),
        };
        let ours = done.fenced.is_empty() && done.not_moved.is_empty() && done.unmoved.is_empty();
        let open = Standing::Open { within: LOOK_AGAIN };
        within(own.write(&mut transaction, if ours { &report.standing } else { &open })).await?;
        transaction.commit().await?;
        self.session.keep(connection);
        Ok(())
    }
}

fn target(plan: &Arc<Plan>, policy: &EffectPolicy) -> Target {
    Target { plan: Arc::clone(plan), index: 0, effect_type: policy.name.as_str().into() }
}
