//! The diff for people: totals first, then what changed, then what was told wrongly.

use futures::TryStreamExt as _;
use serde::Serialize;
use serde_json::value::RawValue;

use super::Commission;
use crate::cli::failure::Failure;
use crate::cli::output::{Output, Row};
use crate::domain::effect::Outcome;
use crate::pg::replay_diff::{EffectRow, Extent, OrderRow, Snapshot, Totals};

/// Rows of each kind in a table for people.
const SHOWN: i64 = 50;

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
pub(super) async fn show(diff: &mut Snapshot<'_>, totals: &Totals, output: Output) -> Result<(), Failure> {
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
}
