//! The workers: each claims what has been due longest, takes one step, and writes what came of it.
//!
//! ```text
//!   due ──claim──► work ──► outcome, story and next step in one transaction ──► due again, or ended
//!                    └─ not known yet ──► the same step, later
//! ```
//!
//! A claim is a lease: a worker that died is replaced when it is over. What it did meanwhile, the ledger tells.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::machine::{Outcome, Position, Step, Work};
use crate::applier::errand::{Alongside, Messenger, Postbag, Standing};
use crate::crash;
use crate::domain::effect::effect_key;
use crate::domain::money::Cents;
use crate::domain::plan::Errand;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::orders::desk::{Desk, DeskError, Request};
use crate::orders::order::{Command, Refusal, Status};
use crate::pg::connect::within;
use crate::pg::error::StoreError;
use crate::pg::orders::Until;
use crate::pg::saga::{self as store, Change, Claimed, Context, Line, Next};

/// A worker that died is replaced after so long.
const CLAIM: Duration = Duration::from_secs(5);
/// Waiting for a person or for another process: looked at again so soon.
const HELD: Duration = Duration::from_millis(500);
const GAUGES_EVERY: Duration = Duration::from_secs(1);
const TROUBLE_PAUSE: Duration = Duration::from_millis(500);
/// Who gives the orders' commands.
const ACTOR: &str = "saga";

/// `[saga]`
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub workers: usize,
    pub poll_interval: Duration,
    /// A step that has not come to an end within it is not begun any more; what it did is undone.
    pub step_deadline: Duration,
    /// Between attempts: doubles up to the most.
    pub backoff_initial: Duration,
    pub backoff_max: Duration,
}

/// What the workers of a process share.
#[derive(Clone)]
pub struct Office {
    pub bag: Postbag,
    pub desk: Desk,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub health: Health,
}

/// Works until `stop`; a step that is under way is finished.
pub async fn run(office: Office, stop: CancellationToken) {
    let mut tasks = JoinSet::new();
    for _ in 0..office.settings.workers {
        let worker = Worker { messenger: Messenger::new(office.bag.clone()), office: office.clone() };
        tasks.spawn(worker.run(stop.clone()));
    }
    tasks.spawn(gauges(office, stop.clone()));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a saga worker ended unexpectedly; the others go on");
        }
    }
}

async fn gauges(office: Office, stop: CancellationToken) {
    loop {
        let running = async {
            let mut connection = office.bag.database.pool().acquire().await?;
            store::running(&mut connection).await
        };
        match running.await {
            Ok(running) => office.metrics.sagas_running(&running),
            Err(error) => tracing::debug!(%error, "running sagas cannot be counted"),
        }
        tokio::select! {
            () = tokio::time::sleep(GAUGES_EVERY) => {}
            () = stop.cancelled() => return,
        }
    }
}

struct Worker {
    office: Office,
    messenger: Messenger,
}

/// What came of a step.
enum Came {
    /// Its outcome is known.
    To(Outcome, Option<String>),
    /// Certainly not done so far: an attempt more, after a while.
    Again { due_in: Duration, seen: String },
    /// Others will tell.
    Held { due_in: Duration, uncertain: Option<String> },
}

impl Worker {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let pause = match self.once().await {
                Ok(true) => continue,
                Ok(false) => self.office.settings.poll_interval,
                Err(error) => {
                    tracing::warn!(%error, "a saga cannot go on now; it does later");
                    self.office.health.database(Err(&error));
                    TROUBLE_PAUSE
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// One step of one saga; whether anything was due.
    async fn once(&mut self) -> Result<bool, StoreError> {
        let claimed = {
            let mut connection = self.office.bag.database.pool().acquire().await?;
            within(store::claim(&mut connection, CLAIM)).await?
        };
        let Some(saga) = claimed else { return Ok(false) };
        crash::point("saga_after_claim");
        let Some(at) = Position::of(&saga.state, &saga.step) else {
            tracing::error!(saga = %saga.id, step = saga.step, "this program does not know this step; it is left alone");
            return Ok(true);
        };
        match at.work() {
            Work::Reserve => self.reserve(&saga, at).await?,
            Work::Release => self.write(&saga, at, Deed::Release).await?,
            Work::Assign => self.assign(&saga, at).await?,
            Work::Effect(effect) => self.effect(&saga, at, effect).await?,
            Work::Nothing => self.write(&saga, at, Deed::None(Outcome::Done.into())).await?,
        }
        crash::point("saga_after_commit");
        Ok(true)
    }

    /// Why a step forward is not to be begun any more.
    async fn unwanted(&self, saga: &Claimed, at: Position) -> Result<Option<String>, StoreError> {
        if !matches!(at, Position::Forward(_)) {
            return Ok(None);
        }
        if let Some(why) = self.overdue(saga, Duration::ZERO) {
            return Ok(Some(why));
        }
        match self.office.desk.show(saga.order_id, Until::Now, None).await {
            Ok(order) if order.status == Status::Paid => Ok(None),
            Ok(order) => Ok(Some(format!("the order is {}", order.status.as_str()))),
            Err(DeskError::Refused(Refusal::NoSuchOrder)) => Ok(Some("there is no such order".to_owned())),
            Err(DeskError::Store(error)) => Err(error),
            Err(error) => Ok(Some(error.to_string())),
        }
    }

    fn overdue(&self, saga: &Claimed, since_claim: Duration) -> Option<String> {
        let over = saga.step_age + since_claim > self.office.settings.step_deadline;
        over.then(|| "the deadline of the step is over".to_owned())
    }

    async fn reserve(&self, saga: &Claimed, at: Position) -> Result<(), StoreError> {
        let deed = match self.unwanted(saga, at).await? {
            Some(why) => Deed::None(Came::To(Outcome::Failed, Some(why))),
            None => Deed::Reserve { or_again_in: self.backoff(saga) },
        };
        self.write(saga, at, deed).await
    }

    async fn assign(&self, saga: &Claimed, at: Position) -> Result<(), StoreError> {
        let Context { courier_id: Some(courier_id), vehicle_type: Some(vehicle_type), .. } =
            saga.context.clone()
        else {
            let why = "its context names no courier".to_owned();
            return self.write(saga, at, Deed::None(Came::To(Outcome::Failed, Some(why)))).await;
        };
        let request = Request {
            order_id: saga.order_id,
            command: Command::Assign { courier_id, vehicle_type },
            command_id: format!("saga-{}", saga.id),
            expected_version: None,
            tenant_id: None,
            actor: ACTOR.to_owned(),
            reason: None,
            traceparent: None,
        };
        // The command is known by its id: after a crash here it answers with its first result.
        let came = match self.office.desk.take(&request).await {
            Ok(_) => Outcome::Done.into(),
            Err(DeskError::Refused(refusal)) => Came::To(Outcome::Failed, Some(refusal.to_string())),
            Err(DeskError::Store(error)) => return Err(error),
            Err(error) => Came::Again { due_in: self.backoff(saga), seen: error.to_string() },
        };
        crash::point("saga_after_assign");
        self.write(saga, at, Deed::None(came)).await
    }

    async fn effect(&mut self, saga: &Claimed, at: Position, name: &str) -> Result<(), StoreError> {
        let Some(id) = self.messenger.policies().id_of(name) else {
            tracing::error!(saga = %saga.id, "[efeitos.{name}] is not configured; the saga waits for it");
            return self.write(saga, at, Deed::None(Came::Held { due_in: HELD, uncertain: None })).await;
        };
        let begun = Instant::now();
        let mut unwanted = self.unwanted(saga, at).await?;
        let event_id = event_id(saga.id, name);
        let order_id = saga.order_id.to_string();
        let errand = Errand {
            effect_type: id,
            event_id: &event_id,
            order_id: &order_id,
            version: -i64::from(saga.ordinal),
            amount: Cents(saga.context.fee_cents),
            occurred_at: saga.created_at,
        };
        let mut report = self.messenger.run(errand, unwanted.is_none()).await?;
        if unwanted.is_some()
            && let Standing::Waiting { written: true, .. } = report.standing
        {
            report = self.messenger.withdraw(errand);
        }
        // What was done may have been done too late. What waits for another try is taken back before that try.
        let is_done = matches!(report.standing, Standing::Done | Standing::Suppressed);
        if unwanted.is_none() && is_done && matches!(at, Position::Forward(_)) {
            unwanted = self.overdue(saga, begun.elapsed());
        }
        let moving = Moving {
            saga,
            at,
            key: effect_key(&event_id, name),
            unwanted,
            backoff: self.backoff(saga),
            next: Mutex::new(None),
        };
        self.messenger.write(report, &moving).await?;
        let next = *moving.next.lock().unwrap_or_else(PoisonError::into_inner);
        ended(&self.office, saga, at, next);
        Ok(())
    }

    fn backoff(&self, saga: &Claimed) -> Duration {
        let Settings { backoff_initial, backoff_max, .. } = self.office.settings;
        let doubled = 2_u32.saturating_pow(u32::try_from(saga.attempts).unwrap_or(0).min(20));
        backoff_initial.saturating_mul(doubled).min(backoff_max)
    }

    /// Does what is to be done in the database, and writes what came of it, at once.
    async fn write(&self, saga: &Claimed, at: Position, deed: Deed) -> Result<(), StoreError> {
        let written = within(async {
            let mut connection = self.office.bag.database.pool().acquire().await?;
            let mut transaction = connection.begin().await?;
            let mut context = saga.context.clone();
            let came = match deed {
                Deed::None(came) => came,
                Deed::Release => {
                    store::release(&mut transaction, saga.id).await?;
                    Outcome::Done.into()
                }
                Deed::Reserve { or_again_in } => {
                    if let Some((courier, vehicle)) = store::reserve(&mut transaction, saga).await? {
                        context.courier_id = Some(courier);
                        context.vehicle_type = Some(vehicle);
                        Outcome::Done.into()
                    } else {
                        let seen = format!("no courier of tenant {} is free", saga.tenant_id);
                        Came::Again { due_in: or_again_in, seen }
                    }
                }
            };
            let next = move_on(&mut transaction, saga, at, None, &came, context).await?;
            if next.is_some() {
                transaction.commit().await?;
            } else {
                transaction.rollback().await?;
            }
            Ok(next)
        })
        .await?;
        ended(&self.office, saga, at, written);
        Ok(())
    }
}

/// What a step does in the database.
enum Deed {
    None(Came),
    Reserve { or_again_in: Duration },
    Release,
}

/// The saga's part of an effect's transaction.
struct Moving<'a> {
    saga: &'a Claimed,
    at: Position,
    key: String,
    unwanted: Option<String>,
    backoff: Duration,
    /// Where it stands now; `None`: the claim was over.
    next: Mutex<Option<Position>>,
}

impl Alongside for Moving<'_> {
    fn write<'a>(
        &'a self,
        connection: &'a mut PgConnection,
        standing: &'a Standing,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            let back = matches!(self.at, Position::Back(_));
            let came = came(standing, back, self.unwanted.as_deref(), self.backoff);
            let context = self.saga.context.clone();
            let next = move_on(connection, self.saga, self.at, Some(&self.key), &came, context).await?;
            *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
            Ok(())
        }
        .boxed()
    }
}

impl From<Outcome> for Came {
    fn from(outcome: Outcome) -> Self {
        Self::To(outcome, None)
    }
}

/// Stands for the event in the ledger.
pub fn event_id(saga: Uuid, effect: &str) -> String {
    format!("{saga}-{effect}")
}

/// From what is known of an effect to what that means for its step.
fn came(standing: &Standing, back: bool, unwanted: Option<&str>, backoff: Duration) -> Came {
    match (standing, unwanted) {
        (Standing::Done | Standing::Suppressed, Some(why)) => {
            Came::To(Outcome::DoneTooLate, Some(format!("it is undone: {why}")))
        }
        (Standing::Done | Standing::Suppressed, None) => Outcome::Done.into(),
        // An undoing that was refused is not done: it is asked for again.
        (Standing::No(said), _) if back => Came::Again { due_in: backoff, seen: said.clone() },
        (Standing::No(said), _) => Came::To(Outcome::Failed, Some(said.clone())),
        (Standing::Waiting { .. }, Some(why)) => Came::To(Outcome::Failed, Some(why.to_owned())),
        (Standing::Waiting { due_in, seen, .. }, None) => Came::Again { due_in: *due_in, seen: seen.clone() },
        (Standing::Uncertain(seen), _) => Came::Held { due_in: HELD, uncertain: Some(seen.clone()) },
        (Standing::Open { within }, _) => Came::Held { due_in: (*within).min(HELD), uncertain: None },
    }
}

/// Tells the story and moves the saga; `None`: the claim is over, and nothing of this may stand.
async fn move_on(
    connection: &mut PgConnection,
    saga: &Claimed,
    at: Position,
    key: Option<&str>,
    came: &Came,
    mut context: Context,
) -> Result<Option<Position>, StoreError> {
    let Some((step, kind)) = at.told_as() else { return Ok(None) };
    let next = match came {
        Came::To(outcome, note) => {
            if let (Some(note), Position::Forward(_)) = (note, at)
                && context.failed_because.is_none()
            {
                context.failed_because = Some(format!("{step}: {note}"));
            }
            at.after(*outcome)
        }
        Came::Again { .. } | Came::Held { .. } => at,
    };
    let (change, due_in) = match came {
        Came::To(..) => (Change::Entered, Duration::ZERO),
        Came::Again { due_in, .. } => (Change::Again, *due_in),
        Came::Held { due_in, .. } => (Change::Held, *due_in),
    };
    let stored = match next {
        Position::Forward(step) | Position::Back(step) => step,
        Position::Succeeded => Step::AssignOrder,
        Position::Failed => Step::ReserveCourier,
    };
    let written = Next { state: next.state(), step: stored.as_str(), context: &context, change, due_in };
    if !store::move_on(connection, saga, &written).await? {
        return Ok(None);
    }
    let line = |state, note| Line { step, kind, state, key, note };
    let told = match came {
        Came::To(Outcome::Failed, note) => Some(line("failed", note.as_deref())),
        Came::To(_, note) => Some(line("done", note.as_deref())),
        Came::Held { uncertain: Some(seen), .. } => Some(line("uncertain", Some(seen.as_str()))),
        Came::Held { .. } => None,
        Came::Again { seen, .. } => {
            tracing::debug!(saga = %saga.id, step, attempts = saga.attempts, seen, "a step is tried again");
            None
        }
    };
    if let Some(line) = told {
        store::tell(connection, saga.id, line).await?;
    }
    if change == Change::Entered
        && let Some((step, kind)) = next.told_as()
    {
        store::tell(connection, saga.id, Line { step, kind, state: "started", key: None, note: None })
            .await?;
    }
    crash::point("saga_before_commit");
    Ok(Some(next))
}

fn ended(office: &Office, saga: &Claimed, at: Position, written: Option<Position>) {
    let Some(next) = written else {
        tracing::info!(saga = %saga.id, "another worker went on with this saga meanwhile");
        return;
    };
    if next != at && matches!(next, Position::Succeeded | Position::Failed) {
        office.metrics.saga_ended(next.state());
        tracing::info!(saga = %saga.id, order = %saga.order_id, state = next.state(), "a saga ended");
    }
}
