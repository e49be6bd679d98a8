//! `outbox`: messages that the broker refused for good, and a person's decision about them.

use clap::Subcommand;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::Context;
use super::failure::Failure;
use super::output::Row;
use crate::pg::connect::Database;
use crate::pg::outbox_parked::{self, Decision, Parked};
use crate::pg::{review, schema};
use crate::run::RunError;

/// Messages in one listing; more are cut, with a word about it.
const LIST_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub enum Args {
    /// List parked messages, with what the broker said about them
    Parked,
    /// Publish parked messages after all, behind what their aggregates have published since
    Requeue(DecideArgs),
    /// Leave parked messages out for good; they are kept with the decision
    Discard(DecideArgs),
}

#[derive(Debug, clap::Args)]
pub struct DecideArgs {
    /// Message ids, as in the list
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub ids: Vec<Uuid>,
    /// Every parked message
    #[arg(long)]
    pub all: bool,
    /// Who decides
    #[arg(long, value_name = "NAME", value_parser = review::name)]
    pub by: String,
    /// Why
    #[arg(long, value_name = "TEXT", value_parser = review::reason)]
    pub reason: String,
}

impl Row for Parked {
    const COLUMNS: &'static [&'static str] =
        &["id", "destination", "aggregateId", "eventType", "attempts", "lastError", "parkedAt", "later"];
}

#[derive(Debug, Serialize)]
struct Decided {
    id: Uuid,
    decision: &'static str,
}

impl Row for Decided {
    const COLUMNS: &'static [&'static str] = &["id", "decision"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Parked => parked(context).await,
        Args::Requeue(args) => decide(&args, Decision::Requeue, context).await,
        Args::Discard(args) => decide(&args, Decision::Discard, context).await,
    }
}

async fn connection(context: &Context) -> Result<PgConnection, Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    Ok(database.plain().await?)
}

async fn parked(context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let one_more = i64::try_from(LIST_MAX + 1).unwrap_or(i64::MAX);
    let mut found = outbox_parked::list(&mut connection, one_more).await?;
    if found.len() > LIST_MAX {
        found.truncate(LIST_MAX);
        tracing::warn!(shown = LIST_MAX, "there are more parked messages");
    }
    context.output.rows(&found)
}

/// Does what it can, prints what it did, and fails if a message that was named is not parked.
async fn decide(args: &DecideArgs, decision: Decision, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let ids = (!args.all).then_some(args.ids.as_slice());
    let decided = outbox_parked::decide(&mut connection, ids, decision, &args.by, &args.reason).await?;
    let row = |id: &Uuid| Decided { id: *id, decision: decision.as_str() };
    context.output.rows(&decided.iter().map(row).collect::<Vec<_>>())?;
    let absent: Vec<String> =
        args.ids.iter().filter(|id| !decided.contains(id)).map(Uuid::to_string).collect();
    if absent.is_empty() {
        return Ok(());
    }
    Err(Failure::NotFound(format!(
        "not parked (unknown, or decided by somebody else): {}; `reprise outbox parked` lists what is",
        absent.join(", ")
    )))
}
