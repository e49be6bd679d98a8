//! The demo: a morning of orders on real servers, told as it happens.
//!
//! It makes its own topics, group and database (the next demo clears them away), runs this very binary as the service, and checks its own story: an expectation that does not hold ends it with an error. Nothing is faked;
//! the one thing that is staged, rows as an older, wrong program would have left them, is said so.

mod incident;
mod morning;
mod orders;
mod place;
mod provider;
mod service;
mod tell;

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sqlx::PgPool;

use crate::pg::connect::Database;
use crate::pg::demo::{Counting, counts, uncertain};
use crate::pg::schema;
use crate::stream::produce::produce;
use morning::{Morning, morning};
use place::{PARTITIONS, Place};
use provider::Provider;
use service::{Numbers, Service};
use tell::Teller;

/// Longest time the morning may take to be worked off: as much as a slow machine needs for the largest one.
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
    #[error("postgres.url: {0}; write it as postgres://user@host:port/database")]
    Url(String),
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
    pub place: Place,
}

/// Plays the whole story.
pub async fn play(stage: Stage) -> Result<(), DemoError> {
    let teller = Teller::new();
    teller.title("Reprise: events whose handling touches the outside world, and doing it again");
    let scene = set_up(&stage, &teller).await?;
    teller.chapter("1. A morning of orders");
    let numbers = work_off(&scene, &teller).await?;
    what_happened(&scene, numbers, &teller).await?;
    incident::play(&scene, &teller).await?;
    orders::play(&scene, &teller).await?;
    look_around(&scene, &teller).await
}

async fn set_up(stage: &Stage, teller: &Teller) -> Result<Scene, DemoError> {
    let place = Place::make(stage).await?;
    if place.cleared > 0 {
        teller.say(&format!("Cleared away what earlier demos left: {}.", plural(place.cleared, "demo")));
    }
    let database = Database::new(&place.database_url, 3)?;
    schema::migrate(&database).await?;
    let provider = Provider::start().await?;
    std::fs::create_dir_all(&stage.dir)?;
    let service = Service::new(&stage.dir, &stage.brokers, &place, &provider.url)?;
    let morning = morning(stage.events);
    produce(&stage.brokers, &place.names.topic, &morning.records)
        .await
        .map_err(|e| DemoError::Kafka { brokers: stage.brokers.clone(), cause: e.to_string() })?;
    teller.say(&format!(
        "Written to {} ({PARTITIONS} partitions): {} events of {} orders, some in several versions, {} of them \
         delivered twice, {} records of other kinds, {} that are broken.",
        place.names.topic,
        morning.events,
        morning.commissions.len(),
        morning.repeated,
        morning.others,
        morning.poison,
    ));
    teller.say(
        "A provider on this machine counts every notice it is sent. It refuses some sellers, and a few times it \
         takes the request and breaks off without an answer.",
    );
    Ok(Scene { morning, provider, service, pool: database.pool().clone(), place })
}

/// Runs the service until every record is settled and committed.
async fn work_off(scene: &Scene, teller: &Teller) -> Result<Numbers, DemoError> {
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
    let numbers = scene.service.numbers().await;
    live.stop().await?;
    teller.say(&format!(
        "`reprise live` worked it off in {:.1} s and was stopped in an orderly way.",
        begun.elapsed().as_secs_f64()
    ));
    numbers.ok_or_else(|| DemoError::Expectation("the service did not show its metrics".to_owned()))
}

async fn what_happened(scene: &Scene, numbers: Numbers, teller: &Teller) -> Result<(), DemoError> {
    let letters = counts(&scene.pool, Counting::DeadLetters).await?;
    let effects = counts(&scene.pool, Counting::Effects).await?;
    let (calls, repeated) = (scene.provider.counter.all(), scene.provider.counter.repeated());
    let open = of(&effects, "incerto");
    teller.summary(&[
        ("events by result", numbers.events.clone()),
        ("effects by outcome", numbers.effects.clone()),
        (
            "calls at the provider",
            vec![
                ("accepted".to_owned(), calls.accepted.into()),
                ("refused".to_owned(), calls.refused.into()),
                ("broken off".to_owned(), calls.unanswered.into()),
                ("repeated".to_owned(), count(repeated)),
            ],
        ),
        ("dead letters by reason", letters.clone()),
        ("left to do", vec![("lag".to_owned(), count(numbers.lag)), ("uncertain effects".to_owned(), open)]),
    ]);
    let settled: i64 = numbers.events.iter().map(|(_, count)| count).sum();
    equal("records with a result", settled, count(scene.morning.records.len()))?;
    equal("lag", count(numbers.lag), 0)?;
    equal("notices sent twice", count(repeated), 0)?;
    equal("effects known done", of(&effects, "concluido"), calls.accepted.into())?;
    equal("uncertain effects", open, calls.unanswered.into())?;
    let refused = of(&letters, "efeito-recusado");
    let broken: i64 = letters.iter().map(|(_, count)| count).sum::<i64>() - refused;
    equal("dead letters of broken records", broken, count(scene.morning.poison))?;
    incident::state_is_right(scene).await?;
    teller.say(
        "Every commission equals what this program added up from its own list. A notice that was broken off is \
         `incerto`: a person decides it, the program does not ask twice.",
    );
    Ok(())
}

async fn look_around(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    let config = scene.service.config_path();
    let program = std::env::args().next().unwrap_or_else(|| "reprise".to_owned());
    let replay = &scene.place.names.replay;
    teller.chapter("Where to look next");
    let mut lines = vec!["effects list".to_owned()];
    lines.extend(uncertain(&scene.pool).await?.map(|key| format!("effects show {key}")));
    lines.extend(["dlq list".to_owned(), "dlq redrive --all --dry-run".to_owned()]);
    lines.extend([format!("replay status --id {replay}"), format!("replay diff --id {replay}")]);
    lines.push("live".to_owned());
    for line in lines {
        teller.command(&format!("{program} --config {config} {line}"));
    }
    teller.say(
        "While `live` runs: http://127.0.0.1:9464/status and /metrics. The provider ended with this demo; what the \
         demo made on the servers stays until the next one.",
    );
    Ok(())
}

/// The count of one word.
fn of(rows: &[(String, i64)], word: &str) -> i64 {
    rows.iter().find(|(name, _)| name == word).map_or(0, |(_, count)| *count)
}

/// A count, as tables and comparisons take it.
fn count(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}

fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// One line of the demo's own proof.
fn equal(what: &str, is: i64, should: i64) -> Result<(), DemoError> {
    expect(is == should, || format!("{what}: {is}, not {should}"))
}

pub(super) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), DemoError> {
    if holds { Ok(()) } else { Err(DemoError::Expectation(otherwise())) }
}
