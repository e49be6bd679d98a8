//! Builds the service: read this to learn the system.
//!
//! ```text
//!   kafka thread ── deliveries, control ──► applier (one thread, one task) ── waves ──► Postgres
//!        ▲                                        │      └── calls ──► providers
//!        └───────────── watermarks ◄──────────────┘
//!   beside it: admin listener (own thread), database probe, gauges, sweeper, and in `all` every other room
//! ```
//!
//! Every long-lived part is waited for in one place, and an early end of any of them ends the process: readiness
//! turns false first, calls in flight are settled if they can be, and the exit code is not 0.

pub mod archive;
mod archive_source;
mod beside;
pub mod console;
pub mod decode;
pub mod dry_run;
mod foreign;
mod gauges;
pub mod orders;
pub mod parts;
pub mod projections;
pub mod rebuild;
pub mod redrive;
pub mod relay;
pub mod replay;
mod replay_books;
pub mod rooms;
pub mod saga;
pub mod selection;
mod source;
pub mod sweeper;
pub mod told;
pub mod windows;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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
use rooms::{Beside, Room};

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
    #[error(transparent)]
    Relay(#[from] crate::outbox::relay::RelayError),
    #[error("the replay's bookkeeping cannot be written: {0}")]
    Bookkeeping(#[source] crate::pg::error::StoreError),
    #[error("the archive cannot be read: {0}")]
    Archive(String),
    #[error("a background task ended unexpectedly: {0}")]
    TaskLost(&'static str),
    #[error("asked to stop twice: ended at once, the ledger tells the rest")]
    StoppedTwice,
    #[error("not everything in flight could be settled within the grace period; the ledger tells the rest")]
    GraceOver,
    #[error("cannot listen to signals: {0}")]
    Signals(#[from] std::io::Error),
}

/// How `live`, and everything else that runs until it is told to stop, is to run.
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
    // Large, and only once.
    Box::pin(live_beside(config, options, Beside::default())).await
}

/// [`live`], with other rooms beside it.
async fn live_beside(config: &Config, options: LiveOptions, beside: Beside) -> Result<(), RunError> {
    let mut signals = Signals::listen()?;
    let parts = Parts::build(config, Run::live())?;
    let stop_background = CancellationToken::new();
    let console = console::of(config, &parts, options.config_file.clone())?;
    let routes = Routes { protected: beside.router(config, &parts)?, console: console.router() };
    let admin = start_admin_with(config.http.address, config, &parts, routes, stop_background.clone())?;
    let mut watched = Watched::start(&parts, admin, &stop_background);
    watched.with_ledger(config, &parts);
    watched.look(console);
    tokio::select! {
        ready = prepare_schema(&parts, options.migrate) => ready?,
        () = signals.next() => return Ok(()),
    }
    watched.with_rooms(config, &parts, &beside.rooms)?;
    let result = consume(config, &parts, options.grace, &mut signals, &mut watched).await;
    if let Err(error) = &result {
        parts.health.fatal(error);
    }
    stop_background.cancel();
    result
}

/// Rooms and routes without a consumer, until it is told to stop.
pub async fn serve(config: &Config, options: LiveOptions, beside: Beside) -> Result<(), RunError> {
    let mut signals = Signals::listen()?;
    let parts = Parts::without_consumer(config)?;
    let stop = CancellationToken::new();
    let routes = beside.router(config, &parts)?;
    let admin = start_admin_with(
        config.http.address,
        config,
        &parts,
        Routes { protected: routes, ..Routes::default() },
        stop.clone(),
    )?;
    let mut watched = Watched::start(&parts, admin, &stop);
    tokio::select! {
        ready = prepare_schema(&parts, options.migrate) => ready?,
        () = signals.next() => return Ok(()),
    }
    watched.with_rooms(config, &parts, &beside.rooms)?;
    let result = tokio::select! {
        error = watched.failed() => {
            tracing::error!(%error, "this process must end");
            Err(error)
        }
        () = signals.next() => {
            tracing::info!(grace = ?options.grace, "stopping: what is on its way may finish");
            parts.health.draining();
            tokio::select! {
                ended = watched.end_beside(options.grace) => ended,
                () = signals.next() => Err(RunError::StoppedTwice),
            }
        }
    };
    if let Err(error) = &result {
        parts.health.fatal(error);
    }
    stop.cancel();
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
        traces: parts.traces.clone(),
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
            let beside = watched.end_beside(grace);
            // A second signal, or what could not be settled, ends it without waiting for the other.
            return tokio::try_join!(drain.run(applier, signals), beside).map(|_| ());
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
    stop: CancellationToken,
) -> Result<AdminServer, RunError> {
    start_admin_with(address, config, parts, Routes::default(), stop)
}

/// What an admin listener serves beside metrics and health.
#[derive(Default)]
struct Routes {
    /// Behind the token.
    protected: axum::Router,
    /// Guards itself.
    console: axum::Router,
}

fn start_admin_with(
    address: std::net::SocketAddr,
    config: &Config,
    parts: &Parts,
    routes: Routes,
    stop: CancellationToken,
) -> Result<AdminServer, RunError> {
    let token = parts::admin_token(config)?;
    let admin = Admin {
        address,
        token,
        drain: Duration::from_secs(1),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        protected: routes.protected,
        console: routes.console,
        runtime: tokio::runtime::Handle::current(),
    };
    Ok(admin.start(stop)?)
}

/// Background parts whose early end is a failure.
struct Watched {
    tasks: JoinSet<(&'static str, Result<(), RunError>)>,
    stop: CancellationToken,
    /// Parts that have something to finish: the sweeper, the rooms.
    stop_beside: CancellationToken,
    beside: TaskTracker,
}

impl Watched {
    /// What every process has.
    fn start(parts: &Parts, admin: AdminServer, stop: &CancellationToken) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { ("admin listener", admin.ended().await.map_err(RunError::from)) });
        let (health, database, until) = (parts.health.clone(), parts.database.clone(), stop.clone());
        tasks.spawn(async move {
            let ping = || {
                let database = database.clone();
                async move { database.ping().await }
            };
            watch_database(health, until, ping).await;
            ("database probe", Ok(()))
        });
        Self { tasks, stop: stop.clone(), stop_beside: stop.child_token(), beside: TaskTracker::new() }
    }

    /// What a process with a consumer has.
    fn with_ledger(&mut self, config: &Config, parts: &Parts) {
        let gauges = gauges::run(
            parts.database.clone(),
            Arc::clone(&parts.metrics),
            parts.policies.clone(),
            config.kafka.topic.clone(),
            self.stop.clone(),
        );
        self.tasks.spawn(async move {
            gauges.await;
            ("gauges", Ok(()))
        });
        let sweeper = sweeper::background(parts, config, self.stop_beside.clone());
        self.tasks.spawn(self.beside.track_future(async move {
            sweeper.await;
            ("sweeper", Ok(()))
        }));
    }

    fn with_rooms(&mut self, config: &Config, parts: &Parts, rooms: &[Room]) -> Result<(), RunError> {
        for room in rooms {
            let (name, life) = (room.name, room.begin(config, parts, self.stop_beside.clone())?);
            self.tasks.spawn(self.beside.track_future(async move { (name, life.await) }));
        }
        Ok(())
    }

    /// No new sweeps, nothing new in any room; what is in flight is settled.
    async fn end_beside(&mut self, grace: Duration) -> Result<(), RunError> {
        self.stop_beside.cancel();
        self.beside.close();
        tokio::time::timeout(grace, self.beside.wait()).await.map_err(|_| RunError::GraceOver)?;
        while let Some(ended) = self.tasks.try_join_next() {
            ended.map_err(|_| RunError::TaskLost("background"))?.1?;
        }
        Ok(())
    }

    /// The console's look at the group, for its plots.
    fn look(&mut self, console: Console) {
        let looking = samples::look(console, self.stop.clone());
        self.tasks.spawn(async move {
            looking.await;
            ("console", Ok(()))
        });
    }

    async fn failed(&mut self) -> RunError {
        match self.tasks.join_next().await {
            Some(Ok((_, Err(error)))) => error,
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
