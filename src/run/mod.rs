//! Builds the service: read this to learn the system.
//!
//! ```text
//!   kafka thread ── deliveries, control ──► applier (one thread, one task) ── waves ──► Postgres
//!        ▲                                        │      └── calls ──► providers
//!        └───────────── watermarks ◄──────────────┘
//!   beside it: admin listener (own thread), database probe, gauges, sweeper
//! ```
//!
//! Every long-lived part is waited for in one place, and an early end of any of them ends the process: readiness
//! turns false first, calls in flight are settled if they can be, and the exit code is not 0.

pub mod console;
pub mod decode;
pub mod dry_run;
mod gauges;
pub mod parts;
pub mod redrive;
pub mod replay;
mod replay_books;
pub mod selection;
pub mod sweeper;
pub mod told;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::applier::intake::{LaneId, ResumeAt, Watermarks};
use crate::applier::{self, ApplierError, Ended, Inlet, LetterRoute, Road};
use crate::config::Config;
use crate::domain::effect::Run;
use crate::health::Health;
use crate::ops::console::{Console, samples};
use crate::ops::http::{Admin, AdminError, AdminServer};
use crate::ops::probe::watch_database;
use crate::pg::schema::{self, SchemaError};
use crate::stream::starts::CommittedStarts;
use crate::stream::{self, ConsumerHandle, ConsumerSettings, KafkaDeadLetters, Outlets, StreamFailure};
use decode::{Everything, Reader, Schemas};
use parts::{Parts, Watch};

/// Batches between the polling thread and the applier. Small: it is the back-pressure.
const DELIVERIES: usize = 4;
/// What is left of the grace for settling and for leaving the group once calls had their time.
const CLOSE_WITHIN: Duration = Duration::from_secs(4);
/// After a failure: time to settle the calls in flight before the process ends.
const LAST_CALLS: Duration = Duration::from_secs(5);
const SCHEMA_PAUSE: Duration = Duration::from_secs(1);

/// Why a run could not begin, or ended otherwise than asked.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("configuration: {0}")]
    Configuration(String),
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error(transparent)]
    Stream(#[from] StreamFailure),
    #[error(transparent)]
    Applier(#[from] ApplierError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("the replay's bookkeeping cannot be written: {0}")]
    Bookkeeping(#[source] crate::pg::error::StoreError),
    #[error("a background task ended unexpectedly: {0}")]
    TaskLost(&'static str),
    #[error("asked to stop twice: ended at once, the ledger tells the rest")]
    StoppedTwice,
    #[error("not everything in flight could be settled within the grace period; the ledger tells the rest")]
    GraceOver,
    #[error("cannot listen to signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// How `live` is to run.
#[derive(Debug, Clone)]
pub struct LiveOptions {
    /// Apply missing migrations first.
    pub migrate: bool,
    /// From SIGTERM to the end.
    pub grace: Duration,
    /// The configuration file that commands of the console are given, if this process was given one.
    pub config_file: Option<std::path::PathBuf>,
}

/// Consumes until it is told to stop.
pub async fn live(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    let mut signals = Signals::listen()?;
    let parts = Parts::build(config, Run::live())?;
    let stop_background = CancellationToken::new();
    let console = console::of(config, &parts, options.config_file.clone())?;
    let admin = start_admin(config.http.address, config, &parts, console.router(), stop_background.clone())?;
    let mut watched = Watched::start(config, &parts, admin, &stop_background);
    watched.look(console, &stop_background);
    tokio::select! {
        ready = prepare_schema(&parts, options.migrate) => ready?,
        () = signals.next() => return Ok(()),
    }
    let result = consume(config, &parts, options.grace, &mut signals, &mut watched).await;
    if let Err(error) = &result {
        parts.health.fatal(error);
    }
    stop_background.cancel();
    result
}

/// Waits for a database that is away; a schema that is behind is refused.
async fn prepare_schema(parts: &Parts, migrate: bool) -> Result<(), RunError> {
    loop {
        let outcome = match schema::check(&parts.database).await {
            Err(SchemaError::Behind { missing, .. }) if migrate => {
                tracing::info!(missing, "applying migrations");
                schema::migrate(&parts.database).await.map(|_| ())
            }
            outcome => outcome,
        };
        match outcome {
            Err(SchemaError::Store(error)) => {
                tracing::warn!(%error, "the database cannot be reached; waiting");
                parts.health.database(Err(error));
            }
            outcome => return Ok(outcome?),
        }
        tokio::time::sleep(SCHEMA_PAUSE).await;
    }
}

async fn consume(
    config: &Config,
    parts: &Parts,
    grace: Duration,
    signals: &mut Signals,
    watched: &mut Watched,
) -> Result<(), RunError> {
    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let watermarks = Watermarks::default();
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks: watermarks.clone(),
        observer: Arc::new(Watch::new(parts)),
    };
    let schemas = parts::registry(config)?.map(Schemas::start);
    let mut reader = Reader::new(parts.policies.clone(), Everything, Arc::clone(&parts.metrics), schemas);
    let starts = Box::new(CommittedStarts { on_lost: parts::lost_offset(config) });
    let consumer = stream::spawn(settings(config), starts, move |_, raw| reader.read(raw), outlets)?;
    let road = Road {
        run: parts.run.clone(),
        policies: parts.policies.clone(),
        database: parts.database.clone(),
        gateway: Arc::clone(&parts.gateway),
        rates: parts.rates.clone(),
        dead_letters: LetterRoute::Topic(dead_letters(config)?),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        instance: Arc::clone(&parts.instance),
        watermarks,
        journal: None,
        paused: watch::channel(false).1,
        mark: None,
    };
    let (stop_out, stop) = watch::channel(None);
    let applier = applier::run(road, Inlet { control, deliveries }, stop);
    tokio::pin!(applier);
    let failure: RunError = tokio::select! {
        ended = &mut applier => ended.map_or_else(RunError::from, |_| RunError::TaskLost("applier")),
        ended = consumer.ended() => ended.map_or_else(RunError::from, |()| RunError::TaskLost("consumer")),
        error = watched.failed() => error,
        () = signals.next() => {
            tracing::info!(?grace, "stopping: no new work, calls in flight may finish");
            parts.health.draining();
            let drain = Drain { consumer, stop: stop_out, grace };
            let swept = watched.end_sweeping(grace);
            // A second signal, or what could not be settled, ends it without waiting for the other.
            return tokio::try_join!(drain.run(applier, signals), swept).map(|_| ());
        }
    };
    tracing::error!(error = %failure, "this process must end");
    parts.health.fatal(&failure);
    consumer.stop();
    settle_last_calls(applier, stop_out, consumer).await;
    Err(failure)
}

/// What one orderly stop needs.
struct Drain {
    consumer: ConsumerHandle,
    stop: watch::Sender<Option<Instant>>,
    grace: Duration,
}

impl Drain {
    /// No new work; calls in flight finish; everything is settled and committed; the group is left.
    async fn run(
        self,
        applier: impl Future<Output = Result<Ended, ApplierError>>,
        signals: &mut Signals,
    ) -> Result<(), RunError> {
        let calls_until = Instant::now() + self.grace.saturating_sub(CLOSE_WITHIN);
        self.consumer.stop();
        self.stop.send_replace(Some(calls_until));
        let orderly = async {
            let ended = applier.await?;
            let closed = self.consumer.close(ended.positions, CLOSE_WITHIN).await;
            tracing::info!(?closed, drained = ended.drained, "stopped");
            if ended.drained { Ok(()) } else { Err(RunError::GraceOver) }
        };
        tokio::select! {
            ended = tokio::time::timeout(self.grace, orderly) => ended.unwrap_or(Err(RunError::GraceOver)),
            () = signals.next() => Err(RunError::StoppedTwice),
        }
    }
}

async fn settle_last_calls(
    applier: impl Future<Output = Result<Ended, ApplierError>>,
    stop: watch::Sender<Option<Instant>>,
    consumer: ConsumerHandle,
) {
    stop.send_replace(Some(Instant::now() + LAST_CALLS));
    match tokio::time::timeout(LAST_CALLS + Duration::from_secs(1), applier).await {
        Ok(Ok(ended)) => {
            let positions: Vec<(LaneId, ResumeAt)> = ended.positions;
            let closed = consumer.close(positions, CLOSE_WITHIN).await;
            tracing::info!(?closed, "what was in flight is settled as far as it could be");
        }
        Ok(Err(error)) => tracing::error!(%error, "the applier ended as well"),
        Err(_) => tracing::error!("calls in flight did not end in time; the ledger tells the rest"),
    }
}

fn settings(config: &Config) -> ConsumerSettings {
    let kafka = &config.kafka;
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), kafka.topic.clone(), kafka.group.clone());
    settings.instance.clone_from(&kafka.instance);
    settings.properties.clone_from(&kafka.properties);
    settings.max_events = config.batch.max_events;
    settings
}

/// The dead-letter topic of this configuration.
pub fn dead_letters(config: &Config) -> Result<Arc<dyn applier::intake::DeadLetterTopic>, StreamFailure> {
    let kafka = &config.kafka;
    let topic = KafkaDeadLetters::new(&kafka.brokers, &kafka.dlq_topic, &kafka.group, &kafka.properties)?;
    Ok(Arc::new(topic))
}

fn start_admin(
    address: std::net::SocketAddr,
    config: &Config,
    parts: &Parts,
    console: axum::Router,
    stop: CancellationToken,
) -> Result<AdminServer, RunError> {
    let token = parts::admin_token(config)?;
    let admin = Admin {
        address,
        token,
        drain: Duration::from_secs(1),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        protected: axum::Router::new(),
        console,
        runtime: tokio::runtime::Handle::current(),
    };
    Ok(admin.start(stop)?)
}

/// Background parts whose early end is a failure.
struct Watched {
    tasks: tokio::task::JoinSet<(&'static str, Result<(), AdminError>)>,
    stop_sweeping: CancellationToken,
    swept: CancellationToken,
}

impl Watched {
    fn start(config: &Config, parts: &Parts, admin: AdminServer, stop: &CancellationToken) -> Self {
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { ("admin listener", admin.ended().await) });
        let (health, database, until) = (parts.health.clone(), parts.database.clone(), stop.clone());
        tasks.spawn(async move {
            let ping = || {
                let database = database.clone();
                async move { database.ping().await }
            };
            watch_database(health, until, ping).await;
            ("database probe", Ok(()))
        });
        let gauges = gauges::run(
            parts.database.clone(),
            Arc::clone(&parts.metrics),
            parts.policies.clone(),
            config.kafka.topic.clone(),
            stop.clone(),
        );
        tasks.spawn(async move {
            gauges.await;
            ("gauges", Ok(()))
        });
        let (stop_sweeping, swept) = (stop.child_token(), CancellationToken::new());
        let (sweeper, ended) = (sweeper::background(parts, config, stop_sweeping.clone()), swept.clone());
        tasks.spawn(async move {
            sweeper.await;
            ended.cancel();
            ("sweeper", Ok(()))
        });
        Self { tasks, stop_sweeping, swept }
    }

    /// The console's look at the group, for its plots.
    fn look(&mut self, console: Console, stop: &CancellationToken) {
        let looking = samples::look(console, stop.clone());
        self.tasks.spawn(async move {
            looking.await;
            ("console", Ok(()))
        });
    }

    /// No new sweeps; the sweeper's calls in flight are settled.
    async fn end_sweeping(&self, grace: Duration) -> Result<(), RunError> {
        self.stop_sweeping.cancel();
        tokio::time::timeout(grace, self.swept.cancelled()).await.map_err(|_| RunError::GraceOver)
    }

    async fn failed(&mut self) -> RunError {
        match self.tasks.join_next().await {
            Some(Ok((_, Err(error)))) => error.into(),
            Some(Ok((name, Ok(())))) => RunError::TaskLost(name),
            Some(Err(_)) => RunError::TaskLost("background"),
            None => std::future::pending().await,
        }
    }
}

/// SIGTERM and SIGINT.
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    /// The next request to stop.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Health as `live` and replays need it: partitions are expected.
pub(crate) fn health(run: &Run, names: &[String]) -> Health {
    Health::new(run.clone(), names.iter().map(String::as_str), crate::health::Partitions::Expected)
}
