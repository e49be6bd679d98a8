//! The incident: since midnight a bug made commissions a tenth of what they should be. Fixed, and rewound.

use serde_json::Value;

use super::morning::BUG_FROM;
use super::tell::Teller;
use super::{DemoError, Scene, expect};
use crate::pg::demo::{commissions, spoil};

const REPLAY: &str = "replay-2026-10-14-v2";
const EFFECT: &str = "notificar-vendedor";
/// Notices that the old code never sent.
const MISSING: i64 = 25;

/// Every commission equals what the demo added up from its own list.
pub async fn state_is_right(scene: &Scene) -> Result<(), DemoError> {
    let rows = commissions(&scene.pool).await?;
    let wanted = &scene.morning.commissions;
    expect(rows.len() == wanted.len(), || format!("{} commissions, {} orders", rows.len(), wanted.len()))?;
    let wrong = rows.iter().find(|(order, cents)| wanted.get(order) != Some(cents));
    expect(wrong.is_none(), || format!("a wrong commission: {wrong:?}"))
}

/// The whole incident, from the damage to the proof.
pub async fn play(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("2. An incident");
    let spoilt = spoil(&scene.pool, BUG_FROM, MISSING).await?;
    teller.say(&format!(
        "Staged: the demo now rewrites its own rows as an older, wrong program would have left them. Since {BUG_FROM} \
         5 % was taken for 0.5 %: {} commissions are a tenth too small, {} sellers were told the wrong amount, and {} \
         were never told anything.",
        spoilt.commissions,
        spoilt.notices,
        spoilt.missing.len(),
    ));
    scene.provider.counter.forget();

    teller.chapter("3. Rewind: the plan");
    let args = ["--id", REPLAY, "--from", BUG_FROM];
    let with = |verb: &'static [&'static str]| [verb, &args[..]].concat();
    teller.command(&format!("reprise replay plan --id {REPLAY} --from {BUG_FROM}"));
    let plan = scene.service.json(&with(&["replay", "plan"])).await?;
    teller.say(&format!(
        "{} records from {} on, in {} partitions.",
        records(&plan),
        text(&plan["de"]),
        partitions(&plan)
    ));

    teller.chapter("4. The dry run: what would happen");
    teller.command(&format!("reprise replay run --dry-run --id {REPLAY} --from {BUG_FROM}"));
    scene.service.json(&with(&["replay", "run", "--dry-run"])).await?;
    let diff = scene.service.json(&["replay", "diff", "--id", REPLAY]).await?;
    tell_diff(teller, &diff);
    expect(scene.provider.counter.total() == 0, || "a dry run called the provider".to_owned())?;

    teller.chapter("5. The replay");
    teller.command(&format!("reprise replay run --id {REPLAY} --from {BUG_FROM}"));
    let run = scene.service.json(&with(&["replay", "run", "--yes"])).await?;
    teller.table("effects of the replay", &outcomes(&run["efeitos"][EFFECT]));

    teller.chapter("6. The proof");
    state_is_right(scene).await?;
    let twice = scene.provider.counter.repeated();
    let once = spoilt.missing.iter().filter(|key| scene.provider.counter.of(key) == 1).count();
    expect(twice == 0, || format!("{twice} notices were sent twice"))?;
    expect(once == spoilt.missing.len(), || {
        format!("only {once} of {} missing notices were sent", spoilt.missing.len())
    })?;
    teller.say(&format!(
        "Every commission is right again. The {once} missing notices were sent, once each; nobody was notified \
         twice. Who was told a wrong amount stands in the diff as `divergente`: finance has the list."
    ));
    Ok(())
}

fn tell_diff(teller: &Teller, diff: &Value) {
    let totals = &diff["totais"];
    let (before, after) = (cents(&totals["antesCentavos"]), cents(&totals["depoisCentavos"]));
    teller.say(&format!(
        "{} orders would change, from {before} to {after} in all.",
        totals["pedidosAlterados"]
    ));
    teller.table("effects of the dry run", &outcomes(&totals["efeitos"][EFFECT]));
    let divergent =
        diff["efeitos"].as_array().into_iter().flatten().filter(|effect| effect["desfecho"] == "divergente");
    for effect in divergent.take(3) {
        teller.say(&format!(
            "{}: told {}, right is {}",
            text(&effect["pedidoId"]),
            cents(&effect["requisicaoAntes"]["valorCentavos"]),
            cents(&effect["requisicaoDepois"]["valorCentavos"]),
        ));
    }
    teller.command(&format!("reprise replay diff --id {REPLAY} --output csv > diff.csv"));
}

fn outcomes(of: &Value) -> Vec<(String, i64)> {
    let rows = of.as_object().into_iter().flatten();
    rows.filter_map(|(name, count)| Some((name.clone(), count.as_i64()?)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn records(plan: &Value) -> i64 {
    let partitions = plan["particoes"].as_array().into_iter().flatten();
    partitions.filter_map(|p| Some(p["fim"].as_i64()? - p["inicio"].as_i64()?)).sum()
}

fn partitions(plan: &Value) -> usize {
    plan["particoes"].as_array().map_or(0, Vec::len)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

/// Cents as an amount.
fn cents(value: &Value) -> String {
    let cents = value.as_i64().unwrap_or(0);
    format!("{}{}.{:02}", if cents < 0 { "-" } else { "" }, (cents / 100).abs(), (cents % 100).abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cents_are_read_as_amounts() {
        assert_eq!(cents(&json!(12_345)), "123.45");
        assert_eq!(cents(&json!(-50)), "-0.50");
    }
}
