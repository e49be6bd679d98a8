//! `replay`: rewind by timestamp. Plan, dry run, run, watch, pause, cancel, compare.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroU32;
use std::path::PathBuf;

use clap::Subcommand;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::Context;
use super::args::instant;
use super::ask::{confirm, progress_bar};
use super::failure::Failure;
use super::output::{Format, Row};
use super::replay_diff::{self, DiffArgs};
use crate::applier::intake::ResumeAt;
use crate::config::{Config, REPLAY_GROUP_PREFIX};
use crate::domain::effect::{EffectPolicy, Mode};
use crate::domain::plan::Policies;
use crate::pg::connect::Database;
use crate::pg::replay::{self, Asked, PartitionProgress, StoredRun};
use crate::run::dry_run::{self, DryRunPlan, Range};
use crate::run::replay::{ReplayEnd, ReplayPlan};
use crate::run::selection::Period;
use crate::stream::range::{CapturedRange, capture};

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

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Consumer group of the replay; begins with `replay-`
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// Beginning by log time, with its offset: 2026-10-14T00:00:00-03:00
    #[arg(long, value_name = "T", value_parser = instant)]
    pub from: Timestamp,
    /// End by log time, exclusive; without it the end of the log now
    #[arg(long, value_name = "T", value_parser = instant)]
    pub to: Option<Timestamp>,
    /// Compare only: call nobody, write only the diff
    #[arg(long)]
    pub dry_run: bool,
    /// Policy of an effect type in this run
    #[arg(long = "effect", value_name = "TIPO=MODO")]
    pub effects: Vec<String>,
    /// Only these orders (repeatable)
    #[arg(long = "order", value_name = "ID")]
    pub orders: Vec<String>,
    /// Only the orders in this file, one a line
    #[arg(long, value_name = "F")]
    pub orders_file: Option<PathBuf>,
    /// At most so many events a second
    #[arg(long, value_name = "N")]
    pub rate: Option<NonZeroU32>,
    /// Go on although records of the period are gone
    #[arg(long)]
    pub accept_gap: bool,
    /// Go on although the topic is compacted
    #[arg(long)]
    pub accept_compacted: bool,
    /// Who asks
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// Answers of `plan`, `run` and `status`.
#[derive(Debug, Serialize)]
struct Told {
    id: String,
    situacao: String,
    simular: bool,
    de: String,
    ate: Option<String>,
    fonte: &'static str,
    politicas: BTreeMap<String, String>,
    particoes: Vec<Part>,
    eventos: Value,
    estado: Value,
    efeitos: Value,
}

#[derive(Debug, Serialize)]
struct Part {
    particao: i32,
    inicio: i64,
    fim: i64,
    posicao: i64,
}

impl Row for Told {
    const COLUMNS: &'static [&'static str] =
        &["id", "situacao", "simular", "de", "ate", "politicas", "particoes", "eventos", "estado", "efeitos"];
}

impl From<&StoredRun> for Told {
    fn from(run: &StoredRun) -> Self {
        let counted = |name: &str| match &run.counts[name] {
            Value::Null => json!({}),
            counts => counts.clone(),
        };
        let mut events = json!({
            "lidos": 0, "aplicados": 0, "cartasMortas": 0, "ignorados": 0, "antesDoPeriodo": 0, "depoisDoPeriodo": 0
        });
        for (name, count) in counted("eventos").as_object().into_iter().flatten() {
            events[name] = count.clone();
        }
        let part = |p: &PartitionProgress| Part {
            particao: p.partition,
            inicio: p.start,
            fim: p.end,
            posicao: p.at,
        };
        Self {
            id: run.id.clone(),
            situacao: run.situation.clone(),
            simular: run.dry_run,
            de: run.asked.from.to_string(),
            ate: run.asked.to.map(|to| to.to_string()),
            fonte: "kafka",
            politicas: run.asked.policies.clone(),
            particoes: run.partitions.iter().map(part).collect(),
            eventos: events,
            estado: counted("estado"),
            efeitos: counted("efeitos"),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    id: String,
    simular: bool,
    situacao: String,
    de: String,
    ate: Option<String>,
    pedido_por: Option<String>,
    criado_em: String,
    restante: i64,
}

impl Row for Listed {
    const COLUMNS: &'static [&'static str] =
        &["id", "simular", "situacao", "de", "ate", "restante", "pedidoPor", "criadoEm"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Plan(args) => plan(&args, context).await,
        Args::Run(args) if args.dry_run => compare(&args, context).await,
        Args::Run(args) => execute(&args, context).await,
        Args::Status(which) => status(&which, context).await,
        Args::Pause(which) => change(&which, context, &["planejado", "executando"], "pausado").await,
        Args::Resume(which) => change(&which, context, &["pausado"], "executando").await,
        Args::Cancel(which) => {
            change(&which, context, &["planejado", "executando", "pausado", "falhou"], "cancelado").await
        }
        Args::List => list(context).await,
        Args::Diff(args) => replay_diff::run(args, context).await,
    }
}

fn database(config: &Config) -> Result<Database, Failure> {
    Database::new(config.postgres.url.expose(), config.replay.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))
}

/// Everything that can be checked before a broker or database is asked.
struct Request {
    config: Config,
    database: Database,
    policies: Policies,
    asked: Asked,
}

impl Request {
    fn check(args: &RunArgs, context: &Context) -> Result<Self, Failure> {
        let config = context.config()?;
        if !args.id.starts_with(REPLAY_GROUP_PREFIX) || args.id == config.kafka.group {
            return Err(Failure::Refused(format!(
                "{} cannot be a replay's id: it is its consumer group, and must begin with {REPLAY_GROUP_PREFIX} and not be live's; try {REPLAY_GROUP_PREFIX}{}",
                args.id, args.id
            )));
        }
        if args.to.is_some_and(|to| to <= args.from) {
            return Err(Failure::Usage("--to must be later than --from".to_owned()));
        }
        let policies = policies(&config, &args.effects)?;
        let asked = Asked {
            from: micros(args.from),
            to: args.to.map(micros),
            policies: policies.iter().map(|(_, p)| (p.name.clone(), p.mode.as_str().to_owned())).collect(),
            orders: orders(args)?,
        };
        Ok(Self { database: database(&config)?, config, policies, asked })
    }

    fn period(&self) -> Period {
        Period { from: self.asked.from, to: self.asked.to }
    }

    /// The range, now; with everything that speaks against it.
    async fn captured(&self, args: &RunArgs) -> Result<CapturedRange, Failure> {
        let (kafka, from, to) = (self.config.kafka.clone(), self.asked.from, self.asked.to);
        let captured =
            tokio::task::spawn_blocking(move || capture(&kafka, from, to)).await?.map_err(Failure::failed)?;
        if !captured.history_missing.is_empty() && !args.accept_gap {
            return Err(Failure::Refused(format!(
                "records of this period are gone from partitions {:?}: the oldest that is left is younger than --from; give --accept-gap to go on without them",
                captured.history_missing
            )));
        }
        if captured.compacted && !args.accept_compacted {
            return Err(Failure::Refused(
                "the topic is compacted: superseded events are gone; give --accept-compacted to go on without them".to_owned(),
            ));
        }
        if !captured.open_transactions.is_empty() {
            tracing::warn!(partitions = ?captured.open_transactions, "open transactions: the range ends at the last stable offset there");
        }
        self.horizon().await?;
        Ok(captured)
    }

    /// Effects behind the ledger's horizon would be sent again.
    async fn horizon(&self) -> Result<(), Failure> {
        let suppressed = self.policies.iter().all(|(_, policy)| policy.mode == Mode::Suppress);
        let Some(purged) = replay::horizon(self.database.pool()).await? else { return Ok(()) };
        let until: Timestamp = purged.parse().unwrap_or(Timestamp::MAX);
        if suppressed || self.asked.from >= until {
            return Ok(());
        }
        Err(Failure::Refused(format!(
            "the ledger no longer knows effects before {purged}: they would be sent again; begin later, or suppress every effect with --effect TIPO=suprimir"
        )))
    }

    fn planned(&self, args: &RunArgs, dry_run: bool, captured: &CapturedRange) -> StoredRun {
        let part = |p: &crate::stream::range::PartitionRange| PartitionProgress {
            partition: p.partition,
            start: p.start,
            end: p.end,
            at: p.start,
        };
        StoredRun {
            id: args.id.clone(),
            dry_run,
            situation: "planejado".to_owned(),
            asked: self.asked.clone(),
            by: args.by.clone(),
            created_at: String::new(),
            partitions: captured.partitions.iter().map(part).collect(),
            counts: json!({}),
        }
    }

    async fn load(&self, id: &str, dry_run: bool) -> Result<Option<StoredRun>, Failure> {
        Ok(replay::load(self.database.pool(), id, dry_run).await?)
    }
}

/// The database keeps microseconds.
fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

fn policies(config: &Config, overrides: &[String]) -> Result<Policies, Failure> {
    let mut policies: Vec<EffectPolicy> =
        config.policies().iter().map(|(_, policy)| policy.clone()).collect();
    for given in overrides {
        let usage = |what: String| Failure::Usage(format!("--effect {given}: {what}"));
        let (name, mode) =
            given.split_once('=').ok_or_else(|| usage("write TIPO=aplicar or TIPO=suprimir".into()))?;
        let mode = match mode {
            "aplicar" => Mode::Apply,
            "suprimir" => Mode::Suppress,
            other => return Err(usage(format!("{other} is no mode; use aplicar or suprimir"))),
        };
        let known: Vec<&str> = config.effects.iter().map(|effect| effect.policy.name.as_str()).collect();
        let unknown = || usage(format!("{name} is not configured; known are {}", known.join(", ")));
        policies.iter_mut().find(|policy| policy.name == name).ok_or_else(unknown)?.mode = mode;
    }
    for policy in &mut policies {
        policy.slots = config.replay.slots.unwrap_or(policy.slots);
    }
    Ok(Policies::new(policies))
}

/// `--order` and `--orders-file` together, sorted.
fn orders(args: &RunArgs) -> Result<Option<Vec<String>>, Failure> {
    let mut orders: HashSet<String> = args.orders.iter().cloned().collect();
    if let Some(path) = &args.orders_file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("--orders-file {}: {error}", path.display())))?;
        orders.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    } else if orders.is_empty() {
        return Ok(None);
    }
    let mut sorted: Vec<String> = orders.into_iter().collect();
    sorted.sort();
    Ok(Some(sorted))
}

/// A run under this id that asks otherwise is another run.
fn same(stored: &StoredRun, asked: &Asked, remedy: &str) -> Result<(), Failure> {
    let differs = stored.asked.differs(asked);
    if differs.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} was asked for with other parameters ({}); {remedy}",
        stored.id,
        differs.join(", ")
    )))
}

async fn plan(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
    let captured = request.captured(args).await?;
    context.output.one(&Told::from(&request.planned(args, args.dry_run, &captured)))
}

async fn compare(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
    if request.load(&args.id, false).await?.is_some() {
        return Err(Failure::Refused(format!(
            "{} has run already; compare under another id, or see `reprise replay diff --id {}`",
            args.id, args.id
        )));
    }
    let captured = request.captured(args).await?;
    let planned = request.planned(args, true, &captured);
    replay::store(&request.database, &planned, &request.config.kafka.topic, true).await?;
    let ranges = planned
        .partitions
        .iter()
        .map(|p| Range { partition: p.partition, start: ResumeAt(p.start), end: ResumeAt(p.end) })
        .collect();
    let bar = progress_bar(total(&planned));
    let plan = DryRunPlan {
        id: args.id.clone(),
        ranges,
        policies: request.policies.clone(),
        orders: request.asked.orders.as_ref().map(|orders| orders.iter().cloned().collect()),
        period: request.period(),
        per_second: args.rate,
    };
    let compared = dry_run::run(&request.config, plan, |progress| bar.set_position(progress.counts.read));
    // Large, and only once.
    Box::pin(compared).await?;
    bar.finish_and_clear();
    show(&request.database, &args.id, true, context).await
}

async fn execute(args: &RunArgs, context: &Context) -> Result<(), Failure> {
    let request = Request::check(args, context)?;
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
    if stored.partitions.iter().any(|p| p.at > p.start) {
        tracing::info!(id = args.id, "this replay goes on where it was left");
    }
    let from = ["planejado", "falhou"];
    replay::transition(request.database.pool(), &args.id, false, &from, "executando").await?;
    let bar = progress_bar(total(&stored));
    let plan = ReplayPlan {
        id: args.id.clone(),
        policies: request.policies.clone(),
        period: request.period(),
        orders: request.asked.orders.clone(),
        per_second: args.rate,
    };
    let end = crate::run::replay::run(&request.config, plan, |run| bar.set_position(done(run))).await?;
    bar.finish_and_clear();
    match end {
        ReplayEnd::Done => show(&request.database, &args.id, false, context).await,
        ReplayEnd::Cancelled => Err(Failure::NotFound(format!("{} was cancelled", args.id))),
        ReplayEnd::Interrupted => Err(Failure::failed(format!(
            "interrupted; run the same command again and {} goes on where it stands",
            args.id
        ))),
    }
}

/// Stores a new run: the dry run's captured range if there is one, else the range now.
async fn begin(args: &RunArgs, request: &Request, context: &Context) -> Result<StoredRun, Failure> {
    let planned = if let Some(dry) = request.load(&args.id, true).await? {
        same(&dry, &request.asked, "repeat the dry run, or give the run an id of its own")?;
        request.horizon().await?;
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
    if events == 0 {
        tracing::info!(de = %request.asked.from, "0 events at or after that time");
    }
    let asks = !args.yes && std::io::IsTerminal::is_terminal(&std::io::stdin());
    if asks && context.output.format() == Format::Table {
        context.output.one(&Told::from(&planned))?;
        confirm(&format!(
            "{events} records go through the applier again: commissions may change and missing effects are sent. Go on?"
        ))?;
    }
    if !replay::store(&request.database, &planned, &request.config.kafka.topic, false).await? {
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

async fn change(which: &WhichArgs, context: &Context, from: &[&str], to: &str) -> Result<(), Failure> {
    let database = database(&context.config()?)?;
    let run = find(&database, which).await?;
    if run.situation == to {
        return context.output.note(&format!("{} is {to} already", run.id));
    }
    if !replay::transition(database.pool(), &run.id, run.dry_run, from, to).await? {
        return Err(Failure::NotFound(format!("{} is {} and cannot become {to}", run.id, run.situation)));
    }
    context.output.note(&format!("{} is {to}", run.id))
}

async fn list(context: &Context) -> Result<(), Failure> {
    let database = database(&context.config()?)?;
    let mut rows = Vec::new();
    for (id, dry_run) in replay::list(database.pool()).await? {
        if let Some(run) = replay::load(database.pool(), &id, dry_run).await? {
            rows.push(Listed {
                restante: run.partitions.iter().map(|p| (p.end - p.at).max(0)).sum(),
                id: run.id,
                simular: run.dry_run,
                situacao: run.situation,
                de: run.asked.from.to_string(),
                ate: run.asked.to.map(|to| to.to_string()),
                pedido_por: run.by,
                criado_em: run.created_at,
            });
        }
    }
    context.output.rows(&rows)
}
