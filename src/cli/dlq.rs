//! `dlq`: dead letters, and handling them again.

use clap::{ArgGroup, Subcommand};
use jiff::Timestamp;

use super::Context;
use super::args::instant;
use super::ask::confirm;
use super::failure::Failure;
use super::output::Row;
use super::progress::Progress;
use crate::config::Config;
use crate::domain::poison::Reason;
use crate::pg::connect::Database;
use crate::pg::letters::{self, Selection};
use crate::run::redrive::{self, Redriven};
use crate::run::told::{ListedLetter, ShownLetter};

#[derive(Debug, Subcommand)]
pub enum Args {
    /// List dead letters
    List(Filter),
    /// Show one dead letter with its record
    Show(ShowArgs),
    /// Feed dead letters to the applier again (never to the shared topic)
    Redrive(RedriveArgs),
}

#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Reason code, as efeito-recusado
    #[arg(long, value_name = "R", value_parser = reason)]
    pub reason: Option<Reason>,
    /// Order (`pedidoId`)
    #[arg(long, value_name = "ID")]
    pub order: Option<String>,
    /// Dead-lettered at or after this instant
    #[arg(long, value_name = "T", value_parser = instant)]
    pub from: Option<Timestamp>,
    /// Dead-lettered before this instant
    #[arg(long, value_name = "T", value_parser = instant)]
    pub to: Option<Timestamp>,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    #[arg(value_name = "ID")]
    pub id: i64,
}

/// At least one selector; `--id` and `--all` stand alone, the others narrow one another.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("selection").required(true).multiple(true).args(["id", "reason", "order", "from", "to", "all"]))]
pub struct RedriveArgs {
    /// Numbers of dead letters
    #[arg(long, value_name = "N", num_args = 1.., conflicts_with_all = ["reason", "order", "from", "to", "all"])]
    pub id: Vec<i64>,
    #[command(flatten)]
    pub filter: Filter,
    /// Every open dead letter
    #[arg(long, conflicts_with_all = ["reason", "order", "from", "to"])]
    pub all: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// Rows of one listing.
const LIST_MAX: i64 = 1000;

impl Row for ListedLetter {
    const COLUMNS: &'static [&'static str] = &[
        "id", "motivo", "efeito", "pedidoId", "particao", "offset", "rodadas", "situacao", "criadoEm",
        "mensagem",
    ];
}

impl Row for ShownLetter {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "situacao",
        "motivo",
        "mensagem",
        "efeito",
        "pedidoId",
        "topico",
        "particao",
        "offset",
        "timestampMs",
        "criadoEm",
        "primeiraFalhaEm",
        "execucaoId",
        "tentativas",
        "rodadas",
        "chave",
        "tamanho",
        "sha256",
        "truncado",
        "cabecalhos",
        "valor",
    ];
}

impl Row for Redriven {
    const COLUMNS: &'static [&'static str] = &["selecionadas", "aplicadas", "devolvidas", "pendentes"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    match args {
        Args::List(filter) => list(&config, &filter, context).await,
        Args::Show(args) => show(&config, args.id, context).await,
        Args::Redrive(args) => Box::pin(redrive(&config, &args, context)).await,
    }
}

async fn list(config: &Config, filter: &Filter, context: &Context) -> Result<(), Failure> {
    let database = database(config)?;
    let found = letters::newest(database.pool(), &selection(filter), LIST_MAX).await?;
    let rows: Vec<ListedLetter> = found.iter().map(ListedLetter::from).collect();
    context.output.rows(&rows)?;
    if i64::try_from(rows.len()) == Ok(LIST_MAX) {
        tracing::warn!(
            "only the newest {LIST_MAX} are listed; narrow the list with --reason, --order, --from or --to"
        );
    }
    Ok(())
}

async fn show(config: &Config, id: i64, context: &Context) -> Result<(), Failure> {
    let wanted = Selection { ids: Some(vec![id]), ..Selection::default() };
    let found = letters::newest(database(config)?.pool(), &wanted, 1).await?;
    let Some(letter) = found.first() else {
        return Err(Failure::NotFound(format!(
            "there is no dead letter {id}; `reprise dlq list` shows them"
        )));
    };
    context.output.one(&ShownLetter::from(letter))
}

async fn redrive(config: &Config, args: &RedriveArgs, context: &Context) -> Result<(), Failure> {
    let mut wanted = selection(&args.filter);
    wanted.open_only = true;
    wanted.ids = (!args.id.is_empty()).then(|| args.id.clone());
    if args.dry_run {
        return context.output.one(&redrive::rehearse(config, &wanted).await?);
    }
    let count = letters::count(database(config)?.pool(), &wanted).await?;
    if count == 0 {
        context.output.note("no open dead letter is selected")?;
        return context.output.one(&Redriven::default());
    }
    if !args.yes {
        confirm(&format!(
            "{count} dead letters go through the applier again: commissions may change and providers may be called. Go on?"
        ))?;
    }
    let mut progress = Progress::new("redrive", "dead letters", u64::try_from(count).unwrap_or(0), 0);
    let redriven = redrive::run(config, &wanted, |done| progress.show(done.aplicadas + done.devolvidas));
    // Large, and only once.
    let done = Box::pin(redriven).await?;
    progress.end();
    context.output.one(&done)?;
    match (done.devolvidas, done.pendentes) {
        (0, 0) => Ok(()),
        (back, 0) => Err(Failure::failed(format!("{back} came back; `reprise dlq list` says why"))),
        (_, left) => {
            Err(Failure::failed(format!("interrupted; {left} are still open, run it again to go on")))
        }
    }
}

fn selection(filter: &Filter) -> Selection {
    Selection {
        ids: None,
        reason: filter.reason.map(|reason| reason.code().to_owned()),
        order: filter.order.clone(),
        from: filter.from,
        to: filter.to,
        open_only: false,
    }
}

fn database(config: &Config) -> Result<Database, Failure> {
    Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))
}

fn reason(text: &str) -> Result<Reason, String> {
    Reason::from_code(text).ok_or_else(|| format!("use one of: {}", Reason::ALL.map(Reason::code).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Probe {
        #[command(subcommand)]
        args: Args,
    }

    fn redrive(line: &str) -> Result<RedriveArgs, clap::Error> {
        match Probe::try_parse_from(line.split(' ')).map(|probe| probe.args)? {
            Args::Redrive(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_redrive_says_which_letters_it_means() {
        assert_eq!(redrive("dlq redrive --id 3 4 --yes").expect("ids").id, [3, 4]);
        assert_eq!(redrive("dlq redrive --id 3 --id 4").expect("ids").id, [3, 4]);
        let narrowed = redrive("dlq redrive --reason efeito-esgotado --order p").expect("filters").filter;
        assert_eq!((narrowed.reason, narrowed.order.as_deref()), (Some(Reason::EffectExhausted), Some("p")));
        assert!(redrive("dlq redrive --all --dry-run").expect("all").all);
        for line in
            ["dlq redrive", "dlq redrive --yes", "dlq redrive --all --id 3", "dlq redrive --reason nada"]
        {
            assert_eq!(redrive(line).expect_err("refused").exit_code(), 2, "{line}");
        }
    }
}
