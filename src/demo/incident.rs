//! The incident: since midnight a bug made commissions a tenth of what they should be. Fixed, and rewound.
//!
//! The proof is the provider's own count, which goes back to the first call of the demo: a seller who was told the
//! wrong amount and is told again, once, would show in it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::morning::BUG_FROM;
use super::provider::Calls;
use super::tell::Teller;
use super::{DemoError, Scene, count, equal, expect};
use crate::pg::demo::{Spoilt, commissions, spoil};

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
    let spoilt = stage(scene, teller).await?;
    plan(scene, teller).await?;
    dry_run(scene, &spoilt, teller).await?;
    let calls = replay(scene, &spoilt, teller).await?;
    prove(scene, &spoilt, calls, teller).await
}

async fn stage(scene: &Scene, teller: &Teller) -> Result<Spoilt, DemoError> {
    let spoilt = spoil(&scene.pool, BUG_FROM, MISSING).await?;
    scene.provider.counter.unsend(&spoilt.missing);
    equal("notices staged as missing", count(spoilt.missing.len()), MISSING)?;
    teller.say(&format!(
        "Staged: the demo now rewrites its own rows as an older, wrong program would have left them. Since {BUG_FROM} \
         5 % was taken for 0.5 %: {} commissions are a tenth of what they should be, {} notices told the wrong \
         amount, and {} were never sent. The code is right again; the rows are not.",
        spoilt.commissions,
        spoilt.notices,
        spoilt.missing.len(),
    ));
    Ok(spoilt)
}

async fn plan(scene: &Scene, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("3. Rewind: the plan");
    let plan = run(scene, teller, &["plan"], &[]).await?;
    let partitions = plan["particoes"].as_array().map_or(0, Vec::len);
    teller.say(&format!(
        "{} records from {} on, in {partitions} partitions. Nothing was changed.",
        records(&plan),
        text(&plan["de"]),
    ));
    expect(records(&plan) > 0, || "the plan found nothing to replay".to_owned())
}

/// Nobody is called and nothing changes; the diff names exactly what was staged.
async fn dry_run(scene: &Scene, spoilt: &Spoilt, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("4. The dry run: what would happen");
    let (calls, state) = (scene.provider.counter.all(), commissions(&scene.pool).await?);
    run(scene, teller, &["run", "--dry-run"], &[]).await?;
    expect(scene.provider.counter.all() == calls, || "a dry run called the provider".to_owned())?;
    expect(commissions(&scene.pool).await? == state, || "a dry run changed a commission".to_owned())?;

    let id = scene.place.names.replay.as_str();
    teller.command(&format!("reprise replay diff --id {id}"));
    let diff = scene.service.json(&["replay", "diff", "--id", id]).await?;
    let totals = &diff["totais"];
    let (before, after) = (cents(&totals["antesCentavos"]), cents(&totals["depoisCentavos"]));
    teller.say(&format!(
        "{} commissions would change, from {before} to {after} in all.",
        totals["pedidosAlterados"]
    ));
    equal(
        "commissions that would change",
        totals["pedidosAlterados"].as_i64().unwrap_or(-1),
        count(spoilt.commissions),
    )?;

    let notices = by_outcome(&diff);
    let would = notices.get("seria-aplicado").map_or(&[][..], Vec::as_slice);
    let again = would.iter().filter(|notice| !spoilt.missing.iter().any(|key| key == text(&notice["chave"])));
    let again: Vec<&str> = again.map(|notice| text(&notice["chave"])).collect();
    equal("notices of a wrong amount in the diff", in_diff(&notices, "divergente"), count(spoilt.notices))?;
    equal("missing notices in the diff", count(would.len() - again.len()), MISSING)?;
    let refused = |key: &&&str| scene.provider.counter.of(key).refused > 0;
    expect(again.iter().all(|key| refused(&key)), || "the diff would send what was sent before".to_owned())?;
    teller.table(
        "notices",
        &[
            (
                "divergente: sent, with another amount; not sent again".to_owned(),
                in_diff(&notices, "divergente"),
            ),
            ("seria-aplicado: never sent, would be".to_owned(), MISSING),
            ("seria-aplicado: refused before, would be asked again".to_owned(), count(again.len())),
            ("incerto: nobody knows, stays for review".to_owned(), in_diff(&notices, "incerto")),
        ],
    );
    for notice in notices.get("divergente").into_iter().flatten().take(3) {
        teller.say(&format!(
            "{}: told {}, right is {}",
            text(&notice["pedidoId"]),
            cents(&notice["requisicaoAntes"]["valorCentavos"]),
            cents(&notice["requisicaoDepois"]["valorCentavos"]),
        ));
    }
    teller.say("For finance, all of them:");
    teller.command(&format!("reprise replay diff --id {id} --output csv > diff.csv"));
    Ok(())
}

/// The real run. Returns the calls that it made.
async fn replay(scene: &Scene, spoilt: &Spoilt, teller: &Teller) -> Result<Calls, DemoError> {
    teller.chapter("5. The replay");
    let before = scene.provider.counter.all();
    let done = run(scene, teller, &["run"], &["--yes"]).await?;
    expect(done["situacao"] == "concluido", || format!("the replay ended as {}", done["situacao"]))?;
    let calls = scene.provider.counter.all().since(before);
    teller.table(
        "calls of the replay at the provider",
        &[
            ("accepted: the missing notices".to_owned(), calls.accepted.into()),
            ("refused, as before".to_owned(), calls.refused.into()),
            ("broken off".to_owned(), calls.unanswered.into()),
        ],
    );
    let applied = &done["efeitos"][EFFECT]["aplicado"];
    equal("effects applied by the replay", applied.as_i64().unwrap_or(-1), count(spoilt.missing.len()))?;
    let again = run(scene, teller, &["run"], &["--yes"]).await?;
    expect(again["situacao"] == "concluido", || format!("once more, it ended as {}", again["situacao"]))?;
    expect(scene.provider.counter.all().since(before) == calls, || {
        "a finished replay called again".to_owned()
    })?;
    teller.say("Run once more, it has nothing left to do and calls nobody.");
    Ok(calls)
}

async fn prove(scene: &Scene, spoilt: &Spoilt, calls: Calls, teller: &Teller) -> Result<(), DemoError> {
    teller.chapter("6. The proof");
    state_is_right(scene).await?;
    let counter = &scene.provider.counter;
    let once = spoilt.missing.iter().filter(|key| counter.of(key).accepted == 1).count();
    let twice = counter.repeated();
    teller.table(
        "checked against the demo's list and the provider's count",
        &[
            ("commissions that are right".to_owned(), count(scene.morning.commissions.len())),
            ("missing notices sent, once each".to_owned(), count(once)),
            ("sellers notified twice, since the demo began".to_owned(), count(twice)),
        ],
    );
    equal("missing notices sent once", count(once), count(spoilt.missing.len()))?;
    equal("notices sent twice", count(twice), 0)?;
    equal("notices that the replay sent", calls.accepted.into(), count(spoilt.missing.len()))?;
    equal("uncertain notices that the replay asked again", calls.unanswered.into(), 0)?;
    teller.say(
        "Every commission is right again; the missing notices were sent, once each; nobody was notified twice. Who \
         was told a wrong amount stands in the diff as `divergente`.",
    );
    Ok(())
}

/// `reprise replay VERB... --id ID --from T`, told and run. `quietly` are flags that only a program needs.
async fn run(scene: &Scene, teller: &Teller, verb: &[&str], quietly: &[&str]) -> Result<Value, DemoError> {
    let range = ["--id", scene.place.names.replay.as_str(), "--from", BUG_FROM];
    let told = [&["replay"], verb, &range].concat();
    teller.command(&format!("reprise {}", told.join(" ")));
    scene.service.json(&[&told, quietly].concat()).await
}

/// The notices of a diff by `desfecho`.
fn by_outcome(diff: &Value) -> BTreeMap<&str, Vec<&Value>> {
    let mut notices: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for notice in diff["efeitos"].as_array().into_iter().flatten() {
        notices.entry(text(&notice["desfecho"])).or_default().push(notice);
    }
    notices
}

fn in_diff(notices: &BTreeMap<&str, Vec<&Value>>, outcome: &str) -> i64 {
    notices.get(outcome).map_or(0, |notices| count(notices.len()))
}

fn records(plan: &Value) -> i64 {
    let partitions = plan["particoes"].as_array().into_iter().flatten();
    partitions.filter_map(|p| Some(p["fim"].as_i64()? - p["inicio"].as_i64()?)).sum()
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
