//! `replay diff`: what a replay changed, or a dry run would change; and what was told wrongly.
//!
//! Programs get all of it, row by row as the database gives it: memory does not grow with the diff. People get the
//! totals, the first rows of each kind, and are told how to get the rest.

use std::io::{self, BufWriter, Write};

use futures::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Context;
use super::failure::Failure;
use super::output::{Format, Output, Row};
use crate::domain::effect::Outcome;
use crate::pg::connect::Database;
use crate::pg::replay_diff::{DiffOf, DiffReader, EffectRow, Extent, OrderRow, Snapshot, Totals};

/// Rows of each kind in a table for people.
const SHOWN: i64 = 50;

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
        Format::Table => people(&mut diff, &totals, context.output).await,
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
struct Commission {
    valor_centavos: i64,
    versao_evento: i64,
}

impl Commission {
    fn read(json: Option<&RawValue>) -> Option<Self> {
        serde_json::from_str(json?.get()).ok()
    }

    fn amount_cell(&self) -> String {
        self.valor_centavos.to_string()
    }

    fn version_cell(&self) -> String {
        self.versao_evento.to_string()
    }
}

/// The amount a request tells.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    valor_centavos: i64,
}

fn told(request: Option<&RawValue>) -> Option<i128> {
    let told: Told = serde_json::from_str(request?.get()).ok()?;
    Some(told.valor_centavos.into())
}

/// Cents as units with two decimals.
fn money(cents: i128) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.unsigned_abs() / 100, cents.unsigned_abs() % 100)
}

fn money_or_none(cents: Option<i128>) -> String {
    cents.map_or_else(|| "-".to_owned(), money)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OrderLine {
    pedido_id: String,
    antes: String,
    depois: String,
    diferenca: String,
    versao: String,
}

impl Row for OrderLine {
    const COLUMNS: &'static [&'static str] = &["pedidoId", "antes", "depois", "diferenca", "versao"];
}

impl From<OrderRow> for OrderLine {
    fn from(row: OrderRow) -> Self {
        let (before, after) =
            (Commission::read(row.before.as_deref()), Commission::read(row.after.as_deref()));
        let amount = |side: &Option<Commission>| side.as_ref().map(|c| i128::from(c.valor_centavos));
        let version = |side: &Option<Commission>| side.as_ref().map(|c| c.versao_evento);
        Self {
            pedido_id: row.order_id,
            antes: money_or_none(amount(&before)),
            depois: money_or_none(amount(&after)),
            diferenca: money(amount(&after).unwrap_or(0) - amount(&before).unwrap_or(0)),
            versao: match (version(&before), version(&after)) {
                (Some(before), Some(after)) if before != after => format!("{before} -> {after}"),
                (before, after) => after.or(before).map(|v| v.to_string()).unwrap_or_default(),
            },
        }
    }
}

/// 'Order, amount told, amount right': what finance asks first.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DivergentLine {
    pedido_id: String,
    tipo_efeito: String,
    informado: String,
    correto: String,
}

impl Row for DivergentLine {
    const COLUMNS: &'static [&'static str] = &["pedidoId", "tipoEfeito", "informado", "correto"];
}

impl From<EffectRow> for DivergentLine {
    fn from(row: EffectRow) -> Self {
        Self {
            informado: money_or_none(told(row.request_before.as_deref())),
            correto: money_or_none(told(row.request_after.as_deref())),
            pedido_id: row.order_id,
            tipo_efeito: row.effect_type,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OutcomeLine {
    tipo_efeito: String,
    desfecho: String,
    efeitos: i64,
}

impl Row for OutcomeLine {
    const COLUMNS: &'static [&'static str] = &["tipoEfeito", "desfecho", "efeitos"];
}

/// Totals first, then what changed, then what was told wrongly.
async fn people(diff: &mut Snapshot<'_>, totals: &Totals, output: Output) -> Result<(), Failure> {
    let of = diff.of();
    let kind = if of.dry_run { "dry run of" } else { "replay" };
    output.note(&format!("{kind} {} ({})", of.id, of.situation))?;
    output.note(&format!(
        "{} orders change: {} before, {} after, difference {}",
        totals.orders,
        money(totals.before),
        money(totals.after),
        money(totals.after - totals.before)
    ))?;
    let outcomes = totals.effects.iter().flat_map(|(effect_type, outcomes)| {
        outcomes.iter().map(|(outcome, n)| OutcomeLine {
            tipo_efeito: effect_type.clone(),
            desfecho: outcome.clone(),
            efeitos: *n,
        })
    });
    let outcomes: Vec<OutcomeLine> = outcomes.collect();
    if !outcomes.is_empty() {
        output.note("\nEffects")?;
        output.rows(&outcomes)?;
    }
    if totals.orders > 0 {
        output.note("\nOrders")?;
        let lines: Vec<OrderLine> = diff
            .orders(Extent::First(SHOWN))
            .map_ok(OrderLine::from)
            .try_collect()
            .await
            .map_err(Failure::failed)?;
        output.rows(&lines)?;
        rest(output, totals.orders, lines.len())?;
    }
    let divergent = Outcome::Divergent.as_str();
    // One more than is shown tells whether there are more; the totals count events, the rows are effects.
    let mut lines: Vec<DivergentLine> = diff
        .effects(Extent::First(SHOWN + 1), Some(divergent))
        .map_ok(DivergentLine::from)
        .try_collect()
        .await
        .map_err(Failure::failed)?;
    if lines.is_empty() {
        return Ok(());
    }
    let shown = usize::try_from(SHOWN).unwrap_or(usize::MAX).min(lines.len());
    let more = lines.len() > shown;
    lines.truncate(shown);
    output.note("\nTold with another amount (not sent again)")?;
    output.rows(&lines)?;
    if more { output.note(&format!("the first {shown}; {ALL_OF_IT}")) } else { Ok(()) }
}

const ALL_OF_IT: &str = "all of them with --output json or --output csv";

fn rest(output: Output, all: i64, shown: usize) -> Result<(), Failure> {
    let shown = i64::try_from(shown).unwrap_or(i64::MAX);
    if all > shown { output.note(&format!("the first {shown} of {all}; {ALL_OF_IT}")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cents_read_as_money_with_two_decimals_and_their_sign() {
        assert_eq!(
            [0, 5, 50, 12_345, -5, -12_300].map(money),
            ["0.00", "0.05", "0.50", "123.45", "-0.05", "-123.00"]
        );
        assert_eq!(money_or_none(None), "-");
    }

    #[expect(clippy::unnecessary_wraps, reason = "the fields it fills are optional")]
    fn raw(json: &str) -> Option<Box<RawValue>> {
        Some(RawValue::from_string(json.to_owned()).expect("json"))
    }

    #[test]
    fn an_order_line_has_both_sides_and_the_difference() {
        let row = OrderRow {
            order_id: "ped-40".into(),
            before: raw(r#"{"versaoEvento": 1, "valorCentavos": 50}"#),
            after: raw(r#"{"versaoEvento": 2, "valorCentavos": 500}"#),
        };
        let line = OrderLine::from(row);
        assert_eq!(
            (line.antes, line.depois, line.diferenca, line.versao),
            ("0.50".into(), "5.00".into(), "4.50".into(), "1 -> 2".into())
        );
        let new = OrderRow {
            order_id: "p".into(),
            before: None,
            after: raw(r#"{"versaoEvento": 1, "valorCentavos": -5}"#),
        };
        let line = OrderLine::from(new);
        assert_eq!(
            (line.antes, line.depois, line.diferenca, line.versao),
            ("-".into(), "-0.05".into(), "-0.05".into(), "1".into())
        );
    }

    #[test]
    fn a_divergent_line_has_the_amount_told_and_the_amount_right() {
        let row = EffectRow {
            key: "e:notificar-vendedor".into(),
            order_id: "ped-x".into(),
            effect_type: "notificar-vendedor".into(),
            outcome: "divergente".into(),
            request_before: raw(r#"{"valorCentavos": 5}"#),
            request_after: raw(r#"{"valorCentavos": 50}"#),
        };
        let line = DivergentLine::from(row);
        assert_eq!((line.informado, line.correto), ("0.05".into(), "0.50".into()));
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let broken = |kind| Err(WriteError::Out(io::Error::from(kind)));
        assert!(unless_closed(broken(io::ErrorKind::BrokenPipe)).is_ok());
        assert!(unless_closed(broken(io::ErrorKind::StorageFull)).is_err());
    }
}
