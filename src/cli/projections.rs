//! `projections`: run read models, see how far they are, rebuild them beside the readers.

use clap::Subcommand;
use serde::Serialize;

use super::failure::Failure;
use super::output::Row;
use super::progress::Progress;
use super::{Context, live};
use crate::pg::connect::Database;
use crate::pg::projections::{self as store, Lag};
use crate::pg::schema;
use crate::projections::Name;
use crate::projections::steer::{self, SteerError};
use crate::run::rebuild::{self, RebuildError, Seen, Topic};
use crate::run::{self, RunError};

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Keep read models up to date until told to stop
    Run(live::Args),
    /// Position, lag and state of every generation
    List,
    /// Build a new generation beside the active one, up to the newest event
    Rebuild(RebuildArgs),
    /// Count the rows that differ between the active generation and another
    Compare(OneArgs),
    /// Let readers see the newest other generation; again, to go back
    CutOver(OneArgs),
    /// Drop generations that readers do not see
    Drop(OneArgs),
}

#[derive(Debug, clap::Args)]
pub struct RebuildArgs {
    /// `orders_view`, `dashboard_aggregate` or `delivery_eta`
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// Where events are read: `order_events`, or the topic of orders first, for what the store no longer has
    #[arg(long, value_name = "SOURCE", value_enum, default_value = "store")]
    pub source: Source,
    /// At most so many events a second, so that live work does not suffer
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: Option<u32>,
    /// Go on with a rebuild that was stopped or killed, from its own source and with its own shards
    #[arg(long, conflicts_with_all = ["source", "shards"])]
    pub resume: bool,
    /// Parts built at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..=32))]
    pub shards: i32,
    /// Compare, and let readers see it when nothing differs
    #[arg(long)]
    pub cut_over: bool,
}

/// Where a rebuild reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    Store,
    Kafka,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// `orders_view`, `dashboard_aggregate` or `delivery_eta`
    #[arg(value_name = "NAME")]
    pub name: Name,
    /// Another generation than the newest
    #[arg(long, value_name = "N")]
    pub generation: Option<i32>,
}

impl Row for Lag {
    const COLUMNS: &'static [&'static str] =
        &["name", "generation", "shard", "state", "position", "lagEvents", "lagSeconds"];
}

/// What became of a generation.
#[derive(Debug, Serialize)]
struct Outcome {
    name: &'static str,
    generation: i32,
    outcome: &'static str,
}

impl Row for Outcome {
    const COLUMNS: &'static [&'static str] = &["name", "generation", "outcome"];
}

#[derive(Debug, Serialize)]
struct Compared {
    name: &'static str,
    active: i32,
    generation: i32,
    different: i64,
}

impl Row for Compared {
    const COLUMNS: &'static [&'static str] = &["name", "active", "generation", "different"];
}

impl From<SteerError> for Failure {
    fn from(error: SteerError) -> Self {
        match error {
            SteerError::NoGeneration(_) => Self::NotFound(error.to_string()),
            SteerError::Behind { .. } | SteerError::Building(_) | SteerError::Unfinished { .. } => {
                Self::Refused(error.to_string())
            }
            SteerError::Projection(error) => Self::failed(error),
        }
    }
}

impl From<RebuildError> for Failure {
    fn from(error: RebuildError) -> Self {
        match error {
            RebuildError::Steer(error) => error.into(),
            RebuildError::Hole { .. } | RebuildError::Dropped => Self::Refused(error.to_string()),
            error => Self::failed(error),
        }
    }
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let one = match args {
        Args::Run(args) => {
            return Ok(run::projections::projections(&context.config()?, args.options(context)).await?);
        }
        Args::List => {
            let mut connection = database(context).await?.plain().await.map_err(Failure::failed)?;
            return context.output.rows(&store::lags(&mut connection).await.map_err(Failure::failed)?);
        }
        Args::Rebuild(args) => rebuild(&args, context).await?,
        Args::Compare(args) => {
            let database = database(context).await?;
            return compare(&args, &database, context).await;
        }
        Args::CutOver(args) => {
            let mut connection = database(context).await?.plain().await.map_err(Failure::failed)?;
            let generation = steer::cut_over(&mut connection, args.name, args.generation).await?;
            Outcome { name: args.name.as_str(), generation, outcome: "active" }
        }
        Args::Drop(args) => {
            let mut connection = database(context).await?.plain().await.map_err(Failure::failed)?;
            let dropped = steer::drop_old(&mut connection, args.name, args.generation).await?;
            let outcome = |generation| Outcome { name: args.name.as_str(), generation, outcome: "dropped" };
            return context.output.rows(&dropped.into_iter().map(outcome).collect::<Vec<_>>());
        }
    };
    context.output.one(&one)
}

async fn database(context: &Context) -> Result<Database, Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    Ok(database)
}

async fn compare(args: &OneArgs, database: &Database, context: &Context) -> Result<(), Failure> {
    let mut connection = database.plain().await.map_err(Failure::failed)?;
    let (active, generation, different) = steer::compare(&mut connection, args.name, args.generation).await?;
    context.output.one(&Compared { name: args.name.as_str(), active, generation, different })?;
    refuse_different(different)
}

fn refuse_different(different: i64) -> Result<(), Failure> {
    if different == 0 {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{different} rows differ between the two generations; readers go on with the active one"
    )))
}

async fn rebuild(args: &RebuildArgs, context: &Context) -> Result<Outcome, Failure> {
    let database = database(context).await?;
    let name = args.name;
    let config = context.config()?;
    let topic = Topic { kafka: config.kafka.clone(), name: config.orders.topic.clone() };
    let begun = if args.resume {
        let begun = rebuild::resume(&database, name).await?;
        tracing::info!(name = name.as_str(), generation = begun.generation, "goes on with what was begun");
        begun
    } else {
        let from_topic = (args.source == Source::Kafka).then_some(&topic);
        rebuild::begin(&database, name, args.shards, from_topic).await?
    };
    let generation = begun.generation;
    let mut shown: Option<(&'static str, Progress)> = None;
    let show = |seen: Seen| {
        let [done, total] = [seen.done, seen.total].map(|n| u64::try_from(n).unwrap_or(0));
        if shown.as_ref().is_none_or(|(phase, _)| *phase != seen.phase) {
            let what = if seen.phase == "topic" { "rebuilding from the topic" } else { "rebuilding" };
            shown = Some((seen.phase, Progress::new(what, name.as_str(), total, done)));
        }
        if let Some((_, progress)) = &mut shown {
            progress.follow(total, seen.behind_seconds);
            progress.show(done);
        }
    };
    begun.build(&database, Some(&topic), args.rate, show).await?;
    if let Some((_, progress)) = shown {
        progress.end();
    }
    if !args.cut_over {
        return Ok(Outcome { name: name.as_str(), generation, outcome: "built" });
    }
    let mut connection = database.plain().await.map_err(Failure::failed)?;
    let (_, _, different) = steer::compare(&mut connection, name, Some(generation)).await?;
    refuse_different(different)?;
    steer::cut_over(&mut connection, name, Some(generation)).await?;
    Ok(Outcome { name: name.as_str(), generation, outcome: "active" })
}
