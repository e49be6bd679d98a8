//! `orders`: the API, and what an operator asks of an order: how it is, how it was, what happened to it.

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::Context;
use super::failure::Failure;
use super::live;
use super::output::{Format, Row};
use crate::orders::audit::Finding;
use crate::orders::desk::{Desk, DeskError, History, PAGE_MAX, Told};
use crate::orders::event::NEWEST_FORM;
use crate::orders::order::{Order, Refusal};
use crate::orders::streams::{self, Moved};
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::orders::Until;
use crate::pg::schema;
use crate::run::{self, RunError};

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Serve the HTTP API of orders until told to stop
    Serve(live::Args),
    /// Show an order, now or as it was
    Show(ShowArgs),
    /// What happened to an order, who did it and why, and what today's rules would have refused
    History(HistoryArgs),
    /// Copy streams with old events into parallel ones; verify the copies; let them be read
    MigrateStreams(MigrateArgs),
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    #[arg(value_name = "ID")]
    pub id: Uuid,
    /// As it was at this instant (RFC 3339)
    #[arg(long, value_name = "T", conflicts_with = "version")]
    pub at: Option<Timestamp>,
    /// As it was at this version
    #[arg(long, value_name = "N")]
    pub version: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    #[arg(value_name = "ID")]
    pub id: Uuid,
    /// Events above this version
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub after: u32,
}

#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// The form that all events are to have
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u32).range(2..=NEWEST_FORM as i64))]
    pub to: u32,
    /// Hold the copies against their streams instead
    #[arg(long, conflicts_with = "cut_over")]
    pub verify: bool,
    /// Let verified copies be read instead of their streams
    #[arg(long)]
    pub cut_over: bool,
}

impl Row for Order {
    const COLUMNS: &'static [&'static str] = &[
        "orderId",
        "tenantId",
        "status",
        "version",
        "customerId",
        "sellerId",
        "items",
        "amountCents",
        "commissionPercent",
        "paidCents",
        "courierId",
        "vehicleType",
        "cancellationReason",
        "placedAt",
        "paidAt",
        "updatedAt",
    ];
}

impl Row for Told {
    const COLUMNS: &'static [&'static str] = &["version", "type", "at", "actor", "reason", "payload"];
}

impl Row for Finding {
    const COLUMNS: &'static [&'static str] = &["version", "type", "code", "detail"];
}

impl Row for History {
    const COLUMNS: &'static [&'static str] = &["orderId", "events", "findings"];
}

/// One step of a migration of streams.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    step: &'static str,
    #[serde(flatten)]
    moved: Moved,
}

impl Row for Step {
    const COLUMNS: &'static [&'static str] = &["step", "streams", "events", "different"];
}

impl From<DeskError> for Failure {
    fn from(error: DeskError) -> Self {
        match error {
            DeskError::Refused(Refusal::NoSuchOrder) => {
                Self::NotFound("there is no such order, or not yet at that version or instant".to_owned())
            }
            other => Self::failed(other),
        }
    }
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Serve(args) => Ok(run::orders::api(&context.config()?, args.options(context)).await?),
        Args::Show(args) => show(&args, context).await,
        Args::History(args) => history(&args, context).await,
        Args::MigrateStreams(args) => migrate(&args, context).await,
    }
}

async fn database(context: &Context) -> Result<(Database, Desk), Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    let desk = run::orders::desk(&config, database.clone());
    Ok((database, desk))
}

async fn show(args: &ShowArgs, context: &Context) -> Result<(), Failure> {
    let (_, desk) = database(context).await?;
    let until = match (args.at, args.version) {
        (Some(at), _) => Until::Instant(at),
        (None, Some(version)) => Until::Version(version),
        (None, None) => Until::Now,
    };
    context.output.one(&desk.show(args.id, until, None).await?)
}

async fn history(args: &HistoryArgs, context: &Context) -> Result<(), Failure> {
    let (_, desk) = database(context).await?;
    let history = desk.history(args.id, args.after, PAGE_MAX, None).await?;
    if context.output.format() == Format::Json {
        return context.output.one(&history);
    }
    context.output.rows(&history.events)?;
    if history.findings.is_empty() {
        return context.output.note("Nothing here that today's rules would have refused.");
    }
    context.output.note("\nToday's rules would have refused:")?;
    if context.output.format() == Format::Table { context.output.rows(&history.findings) } else { Ok(()) }
}

async fn migrate(args: &MigrateArgs, context: &Context) -> Result<(), Failure> {
    let (database, _) = database(context).await?;
    let mut connection = database.pool().acquire().await.map_err(StoreError::from)?;
    let (step, moved) = if args.verify {
        ("verify", streams::verify(&mut connection).await?)
    } else if args.cut_over {
        ("cut-over", streams::cut_over(&mut connection).await?)
    } else {
        ("copy", streams::copy(&mut connection, args.to).await?)
    };
    context.output.one(&Step { step, moved })?;
    if moved.different > 0 {
        let text = format!("{} parallel streams differ from theirs; they are not cut over", moved.different);
        return Err(Failure::failed(text));
    }
    Ok(())
}
