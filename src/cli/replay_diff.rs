//! `replay diff`: what a replay changed, or a dry run would change; and what was told wrongly.
//!
//! Programs get all of it, row by row as the database gives it: memory does not grow with the diff. People get the
//! totals, the first rows of each kind, and are told how to get the rest.

mod people;

use std::io::{self, BufWriter, Write};

use futures::StreamExt as _;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Context;
use super::failure::Failure;
use super::output::Format;
use crate::pg::connect::Database;
use crate::pg::replay_diff::{DiffOf, DiffReader, Extent, Snapshot, Totals};

#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// The replay's id
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// The dry run's diff; without it the real run's if there is one, else the dry run's
    #[arg(long)]
    pub dry_run: bool,
}

pub async fn run(args: DiffArgs, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    let mut reader = DiffReader::connect(&database).await.map_err(Failure::failed)?;
    let wanted = args.dry_run.then_some(true);
    let Some(mut diff) = reader.open(&args.id, wanted).await.map_err(Failure::failed)? else {
        let kind = if args.dry_run { "dry run" } else { "replay" };
        return Err(Failure::NotFound(format!(
            "there is no {kind} with the id {}; `reprise replay list` names those there are",
            args.id
        )));
    };
    warn_if_unfinished(diff.of());
    let totals = diff.totals().await.map_err(Failure::failed)?;
    match context.output.format() {
        Format::Table => people::show(&mut diff, &totals, context.output).await,
        Format::Json => {
            let mut out = BufWriter::new(io::stdout().lock());
            unless_closed(write_json(&mut diff, &totals, &mut out).await)
        }
        Format::Csv => {
            let mut out = BufWriter::new(io::stdout().lock());
            unless_closed(write_csv(&mut diff, &mut out).await)
        }
    }
}

fn warn_if_unfinished(of: &DiffOf) {
    if of.situation == "concluido" {
        return;
    }
    let what = if of.dry_run {
        "the dry run is not finished; until it is, this is the diff of the one before, if there was one"
    } else {
        "the replay is not finished, and neither is its diff"
    };
    tracing::warn!(reprocessamento.id = of.id, situacao = of.situation, "{what}");
}

/// Why a diff was not written to its end.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Store(#[from] crate::pg::error::StoreError),
    #[error("cannot write the diff: {0}")]
    Out(#[from] io::Error),
}

impl From<serde_json::Error> for WriteError {
    fn from(error: serde_json::Error) -> Self {
        Self::Out(error.into())
    }
}

impl From<csv::Error> for WriteError {
    fn from(error: csv::Error) -> Self {
        match error.into_kind() {
            csv::ErrorKind::Io(error) => Self::Out(error),
            kind => Self::Out(io::Error::other(format!("{kind:?}"))),
        }
    }
}

/// A reader that has seen enough (`| head`) is no error.
fn unless_closed(written: Result<(), WriteError>) -> Result<(), Failure> {
    match written {
        Err(WriteError::Out(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::failed),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OrderJson<'a> {
    pedido_id: &'a str,
    antes: Option<&'a RawValue>,
    depois: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EffectJson<'a> {
    chave: &'a str,
    pedido_id: &'a str,
    tipo_efeito: &'a str,
    desfecho: &'a str,
    requisicao_antes: Option<&'a RawValue>,
    requisicao_depois: Option<&'a RawValue>,
}

/// The whole document, one row a line.
pub async fn write_json(
    diff: &mut Snapshot<'_>,
    totals: &Totals,
    out: &mut impl Write,
) -> Result<(), WriteError> {
    let (id, dry_run) = (serde_json::to_string(&diff.of().id)?, diff.of().dry_run);
    let effects = serde_json::to_string(&totals.effects)?;
    // The sums are wider than JSON numbers are in the library, not than they are in JSON.
    writeln!(
        out,
        r#"{{"id":{id},"simular":{dry_run},"totais":{{"pedidosAlterados":{},"antesCentavos":{},"depoisCentavos":{},"efeitos":{effects}}},"#,
        totals.orders, totals.before, totals.after
    )?;
    out.write_all(b"\"pedidos\":[")?;
    let mut separator: &[u8] = b"\n";
    let mut orders = diff.orders(Extent::All);
    while let Some(row) = orders.next().await {
        let row = row?;
        out.write_all(separator)?;
        let (antes, depois) = (row.before.as_deref(), row.after.as_deref());
        serde_json::to_writer(&mut *out, &OrderJson { pedido_id: &row.order_id, antes, depois })?;
        separator = b",\n";
    }
    drop(orders);
    out.write_all(b"],\n\"efeitos\":[")?;
    separator = b"\n";
    let mut effects = diff.effects(Extent::All, None);
    while let Some(row) = effects.next().await {
        let row = row?;
        out.write_all(separator)?;
        let row = EffectJson {
            chave: &row.key,
            pedido_id: &row.order_id,
            tipo_efeito: &row.effect_type,
            desfecho: &row.outcome,
            requisicao_antes: row.request_before.as_deref(),
            requisicao_depois: row.request_after.as_deref(),
        };
        serde_json::to_writer(&mut *out, &row)?;
        separator = b",\n";
    }
    out.write_all(b"]}\n")?;
    Ok(out.flush()?)
}

const CSV_COLUMNS: [&str; 11] = [
    "tipo",
    "pedidoId",
    "antesCentavos",
    "antesVersao",
    "depoisCentavos",
    "depoisVersao",
    "chave",
    "tipoEfeito",
    "desfecho",
    "requisicaoAntes",
    "requisicaoDepois",
];

/// One line per order (`pedido`) and then per effect (`efeito`).
pub async fn write_csv(diff: &mut Snapshot<'_>, out: &mut impl Write) -> Result<(), WriteError> {
    let mut lines = csv::Writer::from_writer(out);
    lines.write_record(CSV_COLUMNS)?;
    let mut orders = diff.orders(Extent::All);
    while let Some(row) = orders.next().await {
        let row = row?;
        let (before, after) =
            (Commission::read(row.before.as_deref()), Commission::read(row.after.as_deref()));
        let cells = [Commission::amount_cell, Commission::version_cell];
        let [before, after] =
            [before, after].map(|side| cells.map(|cell| side.as_ref().map(cell).unwrap_or_default()));
        lines.write_record([
            "pedido",
            &row.order_id,
            &before[0],
            &before[1],
            &after[0],
            &after[1],
            "",
            "",
            "",
            "",
            "",
        ])?;
    }
    drop(orders);
    let mut effects = diff.effects(Extent::All, None);
    while let Some(row) = effects.next().await {
        let row = row?;
        let (before, after) = (text(row.request_before.as_deref()), text(row.request_after.as_deref()));
        lines.write_record([
            "efeito",
            &row.order_id,
            "",
            "",
            "",
            "",
            &row.key,
            &row.effect_type,
            &row.outcome,
            before,
            after,
        ])?;
    }
    Ok(lines.flush()?)
}

fn text(json: Option<&RawValue>) -> &str {
    json.map_or("", RawValue::get)
}

/// One side of an order's row.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Commission {
    pub(super) valor_centavos: i64,
    pub(super) versao_evento: i64,
}

impl Commission {
    pub(super) fn read(json: Option<&RawValue>) -> Option<Self> {
        serde_json::from_str(json?.get()).ok()
    }

    fn amount_cell(&self) -> String {
        self.valor_centavos.to_string()
    }

    fn version_cell(&self) -> String {
        self.versao_evento.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let broken = |kind| Err(WriteError::Out(io::Error::from(kind)));
        assert!(unless_closed(broken(io::ErrorKind::BrokenPipe)).is_ok());
        assert!(unless_closed(broken(io::ErrorKind::StorageFull)).is_err());
    }
}
