//! `dlq`: dead letters, and handling them again.

use clap::{ArgGroup, Subcommand};
use jiff::Timestamp;

use super::args::instant;
use crate::domain::poison::Reason;

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
