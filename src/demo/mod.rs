//! The demo: a morning of orders on real servers, told as it happens.
//!
//! It makes its own topics, group and database (and makes them anew the next time), runs this very binary as the
//! service, and checks its own story: an expectation that does not hold ends it with an error. Nothing is faked;
//! the one thing that is staged, rows as an older, wrong program would have left them, is said so.

mod incident;
mod morning;
mod provider;
mod service;
mod tell;

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sqlx::PgPool;

use crate::pg::connect::Database;
use crate::pg::demo::{Counting, counts, fresh_database};
use crate::pg::schema;
use crate::stream::produce::{create_topics, delete_topics, produce};
use morning::{Morning, morning};
use provider::Provider;
use service::Service;
use tell::Teller;

pub(super) const TOPIC: &str = "pedido.pago.demo";
pub(super) const DLQ: &str = "pedido.pago.demo.dlq";
const DATABASE: &str = "reprise_demo";
const PARTITIONS: i32 = 6;
/// Longest time the morning may take to be worked off.
const CATCH_UP_MAX: Duration = Duration::from_mins(3);

/// Why the demo ended early.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("Kafka at {brokers}: {cause}; start the servers with `make up`")]
    Kafka { brokers: String, cause: String },
    #[error("Postgres: {0}; start the servers with `make up`")]
    Postgres(#[from] crate::pg::error::StoreError),
    #[error(transparent)]
    Schema(#[from] crate::pg::schema::SchemaError),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the service ended by itself; its log is {0}")]
    ServiceEnded(String),
    #[error("the morning was not worked off within {0:?}; the service's log is {1}")]
    TooSlow(Duration, String),
    #[error("`reprise {0}` failed: {1}")]
    Command(String, String),
    #[error("the demo expected something else: {0}")]
    Expectation(String),
}

/// Where the demo plays.
#[derive(Debug, Clone)]
pub struct Stage {
    pub brokers: String,
    /// Any database of the server; the demo makes its own beside it.
    pub postgres: String,
    pub events: usize,
    /// Where configuration and logs go.
    pub dir: PathBuf,
}

/// Everything the demo has set up.
pub(super) struct Scene {
    pub morning: Morning,
    pub provider: Provider,
    pub service: Service,
    pub pool: PgPool,
}

/// Plays the whole story.
pub async fn play(stage: Stage) -> Result<(), DemoError> {
    let teller = Teller::new();
    teller.title("Reprise: events whose handling touches the outside world, and doing it again");
    let scene = set_up(&stage, &teller).await?;
    teller.chapter("1. A morning of orders");
    work_off(&scene, &teller).await?;
    what_happened(&scene, &teller).await?;
    incident::play(&scene, &teller).await?;
    look_around(&scene, &teller);
    Ok(())
}

async fn set_up(stage: &Stage, teller: &Teller) -> Result<Scene, DemoError> {
    let kafka = |cause: String| DemoError::Kafka { brokers: stage.brokers.clone(), cause };
    let brokers = stage.brokers.as_str();
    delete_topics(brokers, &[TOPIC, DLQ]).await.map_err(|e| kafka(e.to_string()))?;
    make_topics(brokers).await.map_err(kafka)?;
    let url = fresh_database(&stage.postgres, DATABASE).await?;
    let database = Database::new(&url, 3)?;
    schema::migrate(&database).await?;
    let provider = Provider::start().await?;
    std::fs::create_dir_all(&stage.dir)?;
    let group = format!("comissao-demo-{}", std::process::id());
    let service = Service::new(&stage.dir, brokers, &url, &group, &provider.url)?;
    let morning = morning(stage.events);
    produce(brokers, TOPIC, &morning.records).await.map_err(|e| kafka(e.to_string()))?;
    teller.say(&format!(
        "Written to {TOPIC} ({PARTITIONS} partitions): {} events of {} orders, {} of them delivered twice, \
         {} records of other kinds, {} that are broken.",
        morning.events,
        morning.commissions.len(),
        morning.repeated,
        morning.others,
        morning.poison,
    ));
    teller.say(
        "A provider on this machine counts every notice it is sent. It refuses some sellers, and a few \
                times it takes the request and never answers.",
    );
    Ok(Scene { morning, provider, service, pool: database.pool().clone() })
}

/// A deleted topic may take a moment to be gone; the broker then takes the new one.
async fn make_topics(brokers: &str) -> Result<(), String> {
    let mut left = 20;
    loop {
        match create_topics(brokers, &[(TOPIC, PARTITIONS), (DLQ, 1)]).await {
            Ok(()) => break,
            Err(error) if left == 0 => return Err(error.to_string()),
            Err(_) => left -= 1,
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    Ok(())
}

/// Runs the service until every record is settled and committed.
async fn work_off(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    let total = scene.morning.records.len() as u64;
    let bar = ProgressBar::new(total);
    bar.set_style(
        ProgressStyle::with_template("  {bar:40} {pos}/{len} records  {per_sec}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let begun = std::time::Instant::now();
    let mut live = scene.service.live()?;
    loop {
        if let Some(committed) = scene.service.committed().await {
            bar.set_position(committed);
            if committed >= total {
                break;
            }
        }
        if live.has_ended()? {
            return Err(DemoError::ServiceEnded(scene.service.log()));
        }
        if begun.elapsed() > CATCH_UP_MAX {
            return Err(DemoError::TooSlow(CATCH_UP_MAX, scene.service.log()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bar.finish_and_clear();
    let numbers = scene.service.outcomes().await;
    live.stop().await?;
    teller.say(&format!(
        "`reprise live` worked it off in {:.1} s and was stopped in an orderly way.",
        begun.elapsed().as_secs_f64()
    ));
    teller.table("effects by outcome (notificar-vendedor)", &numbers);
    Ok(())
}

async fn what_happened(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    let effects = counts(&scene.pool, Counting::Effects).await?;
    let letters = counts(&scene.pool, Counting::DeadLetters).await?;
    teller.table("the ledger", &effects);
    teller.table("dead letters by reason", &letters);
    let (calls, repeated) = (scene.provider.counter.total(), scene.provider.counter.repeated());
    teller.table(
        "the provider's own count",
        &[
            ("calls".to_owned(), i64::from(calls)),
            ("repeated".to_owned(), i64::try_from(repeated).unwrap_or(i64::MAX)),
        ],
    );
    expect(repeated == 0, || format!("{repeated} notices were sent twice"))?;
    incident::state_is_right(scene).await?;
    teller.say(
        "Every commission equals what this program added up from its own list. What the provider never \
                answered is `incerto`: a person decides it, the program never asks twice.",
    );
    Ok(())
}

fn look_around(scene: &Scene, teller: &Teller) {
    let config = scene.service.config_path();
    teller.chapter("Where to look next");
    for line in [
        "effects list",
        "effects show CHAVE",
        "dlq list",
        "dlq redrive --all --dry-run",
        "replay list",
        "doctor",
        "live",
    ] {
        teller.command(&format!("reprise --config {config} {line}"));
    }
    teller.say("While `live` runs: http://127.0.0.1:9464/status and /metrics.");
}

pub(super) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), DemoError> {
    if holds { Ok(()) } else { Err(DemoError::Expectation(otherwise())) }
}
