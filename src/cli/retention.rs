//! `retention`: takes away what is older than `[retencao]` says, and remembers up to when.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::Context;
use super::args::instant;
use super::ask::confirm;
use super::failure::Failure;
use super::output::Row;
use super::progress::Progress;
use crate::config::Config;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::retention::{self, Aged, Horizons, OldRecords};
use crate::pg::schema;
use crate::run::RunError;

const ARCHIVE: &str = "evento_arquivado";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Count what would go, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[arg(
        long,
        value_name = "T",
        value_parser = instant,
        help = "Settled effects before this instant, in place of retencao.livro; replays behind it are refused from then on"
    )]
    ledger_before: Option<Timestamp>,
    #[arg(
        long,
        value_name = "T",
        value_parser = instant,
        help = "Attempts and resolved dead letters before this instant, in place of retencao.evidencia"
    )]
    evidence_before: Option<Timestamp>,
    #[arg(
        long,
        value_name = "T",
        value_parser = instant,
        help = "Archived records before this instant, in place of retencao.arquivo"
    )]
    archive_before: Option<Timestamp>,
    /// Who asks for it, for the record
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// One table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    tabela: &'static str,
    /// Exclusive, in UTC.
    ate: String,
    apagaveis: u64,
    /// 0 with `--dry-run`.
    apagadas: u64,
}

impl Row for Line {
    const COLUMNS: &'static [&'static str] = &["tabela", "ate", "apagaveis", "apagadas"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let horizons = horizons(&args, &config, whole_second(Timestamp::now()))?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    let refused = refuse_while_read(&database, horizons).await;
    let plan = Plan::make(&database, horizons).await.map_err(Failure::failed)?;
    let mut lines = plan.lines(horizons);
    if args.dry_run {
        context.output.rows(&lines)?;
        return refused;
    }
    refused?;
    let rows: u64 = lines.iter().map(|line| line.apagaveis).sum();
    if rows == 0 {
        // Nothing is forgotten, so no replay need be refused for it.
        return context.output.rows(&lines);
    }
    if !args.yes {
        confirm(&question(&lines, horizons))?;
    }
    let number =
        retention::begin(database.pool(), horizons, args.by.as_deref()).await.map_err(Failure::failed)?;
    // A replay that was stored between the question and the horizon began before it was told of the horizon.
    refuse_while_read(&database, horizons).await?;
    let mut taken =
        Taken { progress: Progress::new("retention", &number.to_string(), rows, 0), rows: BTreeMap::new() };
    plan.carry_out(&database, horizons, &mut taken).await.map_err(Failure::failed)?;
    taken.progress.end();
    retention::end(database.pool(), number, &taken.rows).await.map_err(Failure::failed)?;
    for line in &mut lines {
        line.apagadas = taken.rows.get(line.tabela).copied().unwrap_or_default();
    }
    context.output.rows(&lines)
}

/// Horizons are shown and recorded by the second.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// From the flags, else from the configured ages. None at all is a usage error: nothing would be done.
fn horizons(args: &Args, config: &Config, now: Timestamp) -> Result<Horizons, Failure> {
    let old = |age: Option<Duration>| age.and_then(|age| now.checked_sub(age).ok());
    let ages = config.retention;
    let horizons = Horizons {
        ledger: args.ledger_before.or_else(|| old(ages.ledger)),
        evidence: args.evidence_before.or_else(|| old(ages.evidence)),
        archive: args.archive_before.or_else(|| old(ages.archive)),
    };
    if horizons == Horizons::default() {
        return Err(Failure::Usage(
            "no horizon is given: set [retencao] livro, evidencia or arquivo (as \"9600h\"), \
             or give --ledger-before, --evidence-before or --archive-before"
                .to_owned(),
        ));
    }
    let newest = [horizons.ledger, horizons.evidence, horizons.archive].into_iter().flatten().max();
    match newest {
        Some(newest) if newest > now => {
            Err(Failure::Usage(format!("{newest} is in the future; a horizon lies in the past")))
        }
        _ => Ok(horizons),
    }
}

async fn refuse_while_read(database: &Database, horizons: Horizons) -> Result<(), Failure> {
    let readers = retention::in_the_way(database.pool(), horizons).await.map_err(Failure::failed)?;
    if readers.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = readers.iter().map(|one| format!("{} (from {})", one.id, one.from)).collect();
    Err(Failure::Refused(format!(
        "replays that are not finished begin before the horizon: {}; finish or cancel them first",
        list.join(", ")
    )))
}

fn question(lines: &[Line], horizons: Horizons) -> String {
    let parts: Vec<String> = lines
        .iter()
        .map(|line| format!("{} rows of {} before {}", line.apagaveis, line.tabela, line.ate))
        .collect();
    let after = horizons.ledger.map_or_else(String::new, |ledger| {
        format!(" Replays that begin before {ledger} will be refused unless they suppress every effect.")
    });
    format!("Take away for ever {}?{after}", parts.join(", "))
}

/// What would go, counted. The archive's bounds are kept: its last records are the same when it is carried out.
struct Plan {
    aged: Vec<(Aged, u64)>,
    archive: Vec<OldRecords>,
}

impl Plan {
    async fn make(database: &Database, horizons: Horizons) -> Result<Self, StoreError> {
        let mut aged = Vec::new();
        for kind in Aged::ALL {
            let Some(horizon) = horizons.of(kind) else { continue };
            let mut rows = 0;
            for step in retention::steps(database.pool(), kind).await? {
                rows += retention::count(database.pool(), kind, horizon, step).await?;
            }
            aged.push((kind, rows));
        }
        let archive = match horizons.archive {
            Some(horizon) => retention::old_records(database.pool(), horizon).await?,
            None => Vec::new(),
        };
        Ok(Self { aged, archive })
    }

    fn lines(&self, horizons: Horizons) -> Vec<Line> {
        let line = |tabela, until: Option<Timestamp>, apagaveis| {
            let ate = until.map_or_else(String::new, |at| at.to_string());
            Line { tabela, ate, apagaveis, apagadas: 0 }
        };
        let mut lines: Vec<Line> =
            self.aged.iter().map(|(kind, rows)| line(kind.table(), horizons.of(*kind), *rows)).collect();
        if horizons.archive.is_some() {
            let records = self.archive.iter().map(|old| old.records).sum();
            lines.push(line(ARCHIVE, horizons.archive, records));
        }
        lines
    }

    async fn carry_out(
        &self,
        database: &Database,
        horizons: Horizons,
        taken: &mut Taken,
    ) -> Result<(), StoreError> {
        for (kind, _) in &self.aged {
            let Some(horizon) = horizons.of(*kind) else { continue };
            for step in retention::steps(database.pool(), *kind).await? {
                let rows = retention::take(database.pool(), *kind, horizon, step).await?;
                taken.add(kind.table(), rows);
            }
        }
        for old in &self.archive {
            loop {
                match retention::take_records(database.pool(), old).await? {
                    0 => break,
                    rows => taken.add(ARCHIVE, rows),
                }
            }
        }
        Ok(())
    }
}

/// Rows that are gone, by table.
struct Taken {
    progress: Progress,
    rows: BTreeMap<&'static str, u64>,
}

impl Taken {
    fn add(&mut self, table: &'static str, rows: u64) {
        *self.rows.entry(table).or_default() += rows;
        self.progress.show(self.rows.values().sum());
    }
}
