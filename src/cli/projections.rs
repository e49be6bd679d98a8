//! `projections`: run read models, see how far they are, rebuild them beside the readers.

use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tokio::task::JoinSet;

use super::failure::Failure;
use super::output::Row;
use super::progress::Progress;
use super::{Context, live};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::projections::{self as store, Lag};
use crate::pg::{order_feed, schema};
use crate::projections::runner::{self, ProjectionError, Step};
use crate::projections::steer::{self, SteerError};
use crate::projections::{Name, Shard};
use crate::run::{self, RunError};

/// Where another runner is at the same shard.
const WAIT: Duration = Duration::from_millis(50);
/// Events per transaction of a rebuild.
const BATCH: u32 = 5_000;

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
    /// Parts built at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..=32))]
    pub shards: i32,
    /// Compare, and let readers see it when nothing differs
    #[arg(long)]
    pub cut_over: bool,
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
            SteerError::Behind { .. } | SteerError::Building(_) => Self::Refused(error.to_string()),
            SteerError::Projection(error) => Self::failed(error),
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
    let mut connection = database.plain().await.map_err(Failure::failed)?;
    let name = args.name;
    let generation = steer::begin(&mut connection, name, args.shards).await?;
    build(&database, name, generation, args.shards).await?;
    if !args.cut_over {
        return Ok(Outcome { name: name.as_str(), generation, outcome: "built" });
    }
    let (_, _, different) = steer::compare(&mut connection, name, Some(generation)).await?;
    refuse_different(different)?;
    steer::cut_over(&mut connection, name, Some(generation)).await?;
    Ok(Outcome { name: name.as_str(), generation, outcome: "active" })
}

/// Every shard at once, until each has met the tip. Runners elsewhere may help; they also go on with it after us.
async fn build(database: &Database, name: Name, generation: i32, shards: i32) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for shard in 0..shards {
        tasks.spawn(to_the_tip(database.clone(), Shard { name, generation, shard }));
    }
    let mut connection = database.plain().await.map_err(Failure::failed)?;
    let total = order_feed::floor(&mut connection).await.map_err(Failure::failed)?.0;
    let mut progress = Progress::new("rebuilding", name.as_str(), u64::try_from(total).unwrap_or(0), 0);
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => ended?.map_err(Failure::failed)?,
                None => break,
            },
            _ = tick.tick() => {
                let slowest = slowest(&mut connection, name, generation).await.map_err(Failure::failed)?;
                progress.show(u64::try_from(slowest).unwrap_or(0));
            }
        }
    }
    progress.end();
    Ok(())
}

async fn slowest(
    connection: &mut sqlx::PgConnection,
    name: Name,
    generation: i32,
) -> Result<i64, StoreError> {
    let cursors = store::cursors(connection).await?.into_iter();
    let ours = cursors.filter(|cursor| cursor.shard.name == name && cursor.shard.generation == generation);
    Ok(ours.map(|cursor| cursor.position).min().unwrap_or(0))
}

async fn to_the_tip(database: Database, shard: Shard) -> Result<(), ProjectionError> {
    let mut connection = database.plain().await?;
    loop {
        match runner::step(&mut connection, shard, BATCH).await? {
            Step::Moved => {}
            Step::AtTip => return Ok(()),
            Step::NotOurs => tokio::time::sleep(WAIT).await,
        }
    }
}
