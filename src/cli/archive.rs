//! `archive`: keep every record beyond the topic's retention, and compare what is kept with the topic.

use std::net::SocketAddr;

use clap::Subcommand;
use serde::Serialize;

use super::Context;
use super::failure::Failure;
use super::output::Row;
use super::progress::Progress;
use crate::run::archive::{self, ArchiveOptions, Compared};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Bring the database schema up to date first; without it a schema that is behind is refused
    #[arg(long)]
    migrate: bool,
    /// Serve /metrics and health of this process there; without it nothing listens
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Compare the archive with what the topic still has, byte by byte
    Verify,
}

/// One partition, compared.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    particao: i32,
    /// First offset compared.
    inicio: i64,
    /// Exclusive.
    fim: i64,
    iguais: u64,
    faltando: u64,
    diferentes: u64,
    /// Offsets of the topic that the archive has still to reach.
    por_arquivar: i64,
    /// Records in the archive, older ones included.
    arquivados: i64,
}

impl Row for Line {
    const COLUMNS: &'static [&'static str] =
        &["particao", "inicio", "fim", "iguais", "faltando", "diferentes", "porArquivar", "arquivados"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    match args.verb {
        None => {
            let options = ArchiveOptions { http: args.http, migrate: args.migrate };
            Ok(archive::run(&config, options).await?)
        }
        Some(Verb::Verify) => verify(&config, context).await,
    }
}

async fn verify(config: &crate::config::Config, context: &Context) -> Result<(), Failure> {
    let mut shown: Option<Progress> = None;
    let compared = archive::verify(config, |done, total| {
        shown.get_or_insert_with(|| Progress::new("compare", "archive", total, 0)).show(done);
    })
    .await?;
    if let Some(progress) = shown {
        progress.end();
    }
    let lines: Vec<Line> = compared.iter().map(|(partition, one)| line(*partition, one)).collect();
    context.output.rows(&lines)?;
    let wrong: u64 = compared.values().map(|one| one.missing + one.different).sum();
    if wrong > 0 {
        return Err(Failure::failed(format!(
            "{wrong} records of the topic are not in the archive as they are; copy the range again under a new arquivo.grupo"
        )));
    }
    Ok(())
}

const fn line(particao: i32, one: &Compared) -> Line {
    Line {
        particao,
        inicio: one.start,
        fim: one.end,
        iguais: one.equal,
        faltando: one.missing,
        diferentes: one.different,
        por_arquivar: one.to_come,
        arquivados: one.kept,
    }
}
