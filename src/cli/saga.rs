//! `saga`: run the workers, see sagas and their stories, have one tried now.

use clap::Subcommand;
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use super::failure::Failure;
use super::output::Row;
use super::{Context, live};
use crate::pg::connect::Database;
use crate::pg::saga::{self as store, Shown, ShownStep, Wanted};
use crate::pg::schema;
use crate::run::{self, RunError};

/// Sagas in one listing; more are cut, with a word about it.
const LIST_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Work on sagas until told to stop
    Run(live::Args),
    /// List sagas, newest first
    List(ListArgs),
    /// Tell the story of one saga, in order
    Show(OneArgs),
    /// Have a saga that waits tried now
    Retry(OneArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// started, compensating, succeeded or failed
    #[arg(long, value_name = "STATE", value_parser = ["started", "compensating", "succeeded", "failed"])]
    pub state: Option<String>,
    /// Order id
    #[arg(long, value_name = "ID")]
    pub order: Option<Uuid>,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// Saga id
    #[arg(value_name = "ID")]
    pub id: Uuid,
}

impl Row for Shown {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "orderId",
        "tenantId",
        "state",
        "step",
        "attempts",
        "nextAt",
        "createdAt",
        "updatedAt",
        "context",
    ];
}

/// A saga and its story.
#[derive(Debug, Serialize)]
struct Told {
    #[serde(flatten)]
    saga: Shown,
    steps: Vec<ShownStep>,
}

impl Row for ShownStep {
    const COLUMNS: &'static [&'static str] = &["at", "kind", "step", "state", "chave", "note"];
}

impl Row for Told {
    const COLUMNS: &'static [&'static str] = &["id", "orderId", "state", "step", "context", "steps"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Run(args) => Ok(run::saga::saga(&context.config()?, args.options(context)).await?),
        Args::List(args) => list(&args, context).await,
        Args::Show(args) => show(args.id, context).await,
        Args::Retry(args) => retry(args.id, context).await,
    }
}

async fn connection(context: &Context) -> Result<PgConnection, Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    Ok(database.plain().await?)
}

async fn list(args: &ListArgs, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let wanted = Wanted { state: args.state.as_deref(), order_id: args.order, ..Wanted::default() };
    let one_more = i64::try_from(LIST_MAX + 1).unwrap_or(i64::MAX);
    let mut found = store::list(&mut connection, wanted, one_more).await?;
    if found.len() > LIST_MAX {
        found.truncate(LIST_MAX);
        tracing::warn!(shown = LIST_MAX, "there are more; narrow the list with --state or --order");
    }
    context.output.rows(&found)
}

async fn show(id: Uuid, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let Some((saga, steps)) = store::find(&mut connection, id).await? else {
        return Err(Failure::NotFound(format!("there is no saga {id}; `reprise saga list` shows them")));
    };
    if context.output.format() == super::output::Format::Json {
        return context.output.one(&Told { saga, steps });
    }
    let why = saga.context.failed_because.as_deref().map(|why| format!("; {why}")).unwrap_or_default();
    context.output.note(&format!("{} of order {}: {}{why}", saga.name, saga.order_id, saga.state))?;
    context.output.rows(&steps)
}

async fn retry(id: Uuid, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    if store::retry(&mut connection, id).await? {
        return show(id, context).await;
    }
    match store::find(&mut connection, id).await? {
        None => Err(Failure::NotFound(format!("there is no saga {id}; `reprise saga list` shows them"))),
        Some((saga, _)) => Err(Failure::Refused(format!(
            "nothing was changed: saga {id} is {} (a worker is at it, or it has ended)",
            saga.state
        ))),
    }
}
