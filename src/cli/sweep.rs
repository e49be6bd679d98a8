//! `sweep`: settles effects whose event never comes back, outside of `live`.

use serde::Serialize;

use super::Context;
use super::failure::Failure;
use super::output::Row;
use crate::run::sweeper;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sweep once and end (the service sweeps by itself, so there is no other way)
    #[arg(long, required = true)]
    pub once: bool,
}

/// What became of the due effects of one type.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    tipo_efeito: String,
    /// Called and done.
    aplicados: u64,
    /// To review.
    incertos: u64,
    /// Called, and waiting for the next attempt.
    em_espera: u64,
    /// Left as they were.
    intocados: u64,
}

impl Row for Line {
    const COLUMNS: &'static [&'static str] =
        &["tipoEfeito", "aplicados", "incertos", "emEspera", "intocados"];
}

pub async fn run(_: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let Some(totals) = sweeper::once(&config).await? else {
        let text = "another process is sweeping, and has been for half a minute; try again later";
        return Err(Failure::NotFound(text.to_owned()));
    };
    let lines: Vec<Line> = totals
        .into_iter()
        .map(|(tipo_efeito, swept)| Line {
            tipo_efeito,
            aplicados: swept.done,
            incertos: swept.uncertain,
            em_espera: swept.waiting,
            intocados: swept.left,
        })
        .collect();
    context.output.rows(&lines)
}
