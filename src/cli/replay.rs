//! `replay`: rewind by timestamp. Plan, dry run, run, watch, pause, cancel, compare.

mod not_yet;
mod request;
mod told;

use clap::Subcommand;
use serde_json::json;

use super::Context;
use super::ask::confirm;
use super::failure::Failure;
use super::output::Format;
use super::progress::Progress;
use super::replay_diff::{self, DiffArgs};
use crate::applier::intake::ResumeAt;
use crate::pg::connect::Database;
use crate::pg::replay::{self, Change, PartitionProgress, StoredRun};
use crate::run::dry_run::{self, DryRunPlan, Range};
use crate::run::replay::{ReplayEnd, ReplayPlan};
use crate::run::told::{ListedRun, Told};
use request::{Request, database, same};

pub use request::RunArgs;

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Show what a replay would cover; changes nothing
    Plan(RunArgs),
    /// Replay, or compare only with --dry-run
    Run(RunArgs),
    /// How far a replay is
    Status(WhichArgs),
    /// Begin nothing more until it is resumed; calls in flight finish
    Pause(WhichArgs),
    /// Go on
    Resume(WhichArgs),
    /// End it for good; what it did stays
    Cancel(WhichArgs),
    /// Every replay and dry run
    List,
    /// What a replay changed, or a dry run would change
    Diff(DiffArgs),
}

#[derive(Debug, clap::Args)]
pub struct WhichArgs {
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// The dry run of this id; without it the real run if there is one, else the dry run
    #[arg(long)]
    pub dry_run: bool,
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Plan(args) => plan(&args, context).await,
        Args::Run(args) if args.dry_run => compare(&args, context).await,
        Args::Run(args) => execute(&args, context).await,
        Args::Status(which) => status(&which, context).await,
        Args::Pause(which) => change(&which, context, Change::Pause).await,
        Args::Resume(which) => change(&which, context, Change::Resume).await,
        Args::Cancel(which) => change(&which, context, Change::Cancel).await,
        Args::List => list(context).await,
        Args::Diff(args) => replay_diff::run(args, context).await,
    }
}

async fn plan(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
    request.ready().await?;
    let captured = request.captured(args).await?;
    context.output.one(&Told::from(&request.planned(args, args.dry_run, &captured)))
}

async fn compare(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
    request.ready().await?;
    if request.load(&args.id, false).await?.is_some() {
        return Err(Failure::Refused(format!(
            "{} has run already; compare under another id, or see `reprise replay diff --id {}`",
            args.id, args.id
        )));
    }
    let captured = request.captured(args).await?;
    let planned = request.planned(args, true, &captured);
    replay::store(&request.database, &planned, true).await?;
    let ranges = planned
        .partitions
        .iter()
        .map(|p| Range { partition: p.partition, start: ResumeAt(p.start), end: ResumeAt(p.end) })
        .collect();
    let mut progress = Progress::new("dry run", &args.id, total(&planned), 0);
    let plan = DryRunPlan {
        id: args.id.clone(),
        ranges,
        policies: request.policies.clone(),
        orders: request.asked.orders.as_ref().map(|orders| orders.iter().cloned().collect()),
        period: request.period(),
        origin: args.source,
        per_second: args.rate,
    };
    let compared = dry_run::run(&request.config, plan, |at| progress.show(at.counts.read));
    // Large, and only once.
    Box::pin(compared).await?;
    progress.end();
    show(&request.database, &args.id, true, context).await
}

async fn execute(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
    request.ready().await?;
    let stored = match request.load(&args.id, false).await? {
        Some(stored) => {
            same(&stored, &request.asked, "give the new one an id of its own")?;
            stored
        }
        None => begin(args, &request, context).await?,
    };
    match stored.situation.as_str() {
        "concluido" => {
            tracing::info!(id = args.id, "this replay is finished; nothing is done");
            return show(&request.database, &args.id, false, context).await;
        }
        "cancelado" => {
            return Err(Failure::Refused(format!(
                "{} was cancelled; give a new one an id of its own",
                args.id
            )));
        }
        _ => {}
    }
    // Also where it goes on: the ledger may have been purged since it began.
    request.horizon().await?;
    if stored.partitions.iter().any(|p| p.at > p.start) {
        tracing::info!(id = args.id, "this replay goes on where it was left");
    }
    let from = ["planejado", "falhou"];
    replay::transition(request.database.pool(), &args.id, false, &from, "executando").await?;
    let mut progress = Progress::new("replay", &args.id, total(&stored), done(&stored));
    let plan = ReplayPlan {
        id: args.id.clone(),
        policies: request.policies.clone(),
        period: request.period(),
        origin: args.source,
        orders: request.asked.orders.clone(),
        per_second: args.rate,
        http: args.http,
    };
    let taking_part = crate::run::replay::run(&request.config, plan, |run| progress.show(done(run)));
    // Large, and only once.
    let end = Box::pin(taking_part).await?;
    progress.end();
    match end {
        ReplayEnd::Done => show(&request.database, &args.id, false, context).await,
        ReplayEnd::Cancelled => Err(Failure::NotFound(format!("{} was cancelled", args.id))),
        ReplayEnd::Interrupted => Err(Failure::failed(format!(
            "interrupted; run the same command again and {} goes on where it stands",
            args.id
        ))),
        ReplayEnd::Failed(reason) => Err(Failure::failed(format!("{} has failed: {reason}", args.id))),
    }
}

/// Stores a new run: the dry run's captured range if there is one, else the range now.
async fn begin(args: &RunArgs, request: &Request, context: &Context) -> Result<StoredRun, Failure> {
    let planned = if let Some(dry) = request.load(&args.id, true).await? {
        same(&dry, &request.asked, "repeat the dry run, or give the run an id of its own")?;
        let restart = |p: &PartitionProgress| PartitionProgress { at: p.start, ..*p };
        let partitions = dry.partitions.iter().map(restart).collect();
        StoredRun {
            dry_run: false,
            by: args.by.clone(),
            partitions,
            counts: json!({}),
            situation: "planejado".into(),
            ..dry
        }
    } else {
        let captured = request.captured(args).await?;
        request.planned(args, false, &captured)
    };
    let events = total(&planned);
    let asks = !args.yes && std::io::IsTerminal::is_terminal(&std::io::stdin());
    if asks && context.output.format() == Format::Table {
        context.output.one(&Told::from(&planned))?;
        confirm(&format!(
            "{events} records go through the applier again: commissions may change and missing effects are sent. Go on?"
        ))?;
    }
    if !replay::store(&request.database, &planned, false).await? {
        // Another process was faster with the same id.
        let stored = request.load(&args.id, false).await?;
        let stored = stored.ok_or_else(|| Failure::NotFound(format!("{} is gone", args.id)))?;
        same(&stored, &request.asked, "give the new one an id of its own")?;
        return Ok(stored);
    }
    Ok(planned)
}

fn total(run: &StoredRun) -> u64 {
    u64::try_from(run.partitions.iter().map(|p| p.end - p.start).sum::<i64>()).unwrap_or(0)
}

fn done(run: &StoredRun) -> u64 {
    u64::try_from(run.partitions.iter().map(|p| p.at - p.start).sum::<i64>()).unwrap_or(0)
}

async fn show(database: &Database, id: &str, dry_run: bool, context: &Context) -> Result<(), Failure> {
    let run = replay::load(database.pool(), id, dry_run).await?;
    let run = run.ok_or_else(|| Failure::NotFound(format!("there is no replay {id}")))?;
    context.output.one(&Told::from(&run))
}

/// The real run, else the dry run; or the dry run, if it is asked for.
async fn find(database: &Database, which: &WhichArgs) -> Result<StoredRun, Failure> {
    let real = if which.dry_run { None } else { replay::load(database.pool(), &which.id, false).await? };
    let found = match real {
        Some(run) => Some(run),
        None => replay::load(database.pool(), &which.id, true).await?,
    };
    found.ok_or_else(|| {
        Failure::NotFound(format!(
            "there is no replay {}; `reprise replay list` names those there are",
            which.id
        ))
    })
}

async fn status(which: &WhichArgs, context: &Context) -> Result<(), Failure> {
    let database = database(&context.config()?)?;
    context.output.one(&Told::from(&find(&database, which).await?))
}

async fn change(which: &WhichArgs, context: &Context, change: Change) -> Result<(), Failure> {
    let database = database(&context.config()?)?;
    let run = find(&database, which).await?;
    let to = change.to();
    if run.situation == to {
        return context.output.note(&format!("{} is {to} already", run.id));
    }
    if !replay::transition(database.pool(), &run.id, run.dry_run, change.from(), to).await? {
        return Err(Failure::NotFound(format!("{} is {} and cannot become {to}", run.id, run.situation)));
    }
    context.output.note(&format!("{} is {to}", run.id))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let database = database(&context.config()?)?;
    let mut rows = Vec::new();
    for (id, dry_run) in replay::list(database.pool()).await? {
        if let Some(run) = replay::load(database.pool(), &id, dry_run).await? {
            rows.push(ListedRun::from(&run));
        }
    }
    context.output.rows(&rows)
}
