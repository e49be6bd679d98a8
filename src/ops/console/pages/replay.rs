//! One replay or dry run: how far it is, what can be done with it, and its diff.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Redirect};
use futures::TryStreamExt as _;
use maud::{Markup, html};
use serde_json::json;
use serde_json::value::RawValue;

use super::progress::{is_over, piece};
use super::replays::policies;
use super::{Answer, OrPage, SHOWN, choice};
use crate::domain::effect::Outcome;
use crate::ops::console::Console;
use crate::ops::console::desk::{Launch, ReplayAsk, invalid, unknown};
use crate::ops::console::fields::{Fields, encode};
use crate::ops::console::frame::{View, cell, facts, grouped, link, money, number, page, table, text};
use crate::ops::console::session::Signed;
use crate::ops::problem::Problem;
use crate::pg::error::StoreError;
use crate::pg::replay::{Change, StoredRun};
use crate::pg::replay_diff::{DiffReader, EffectRow, Extent, OrderRow, Totals};

const HERE: &str = "/console/replays";

pub async fn show(
    State(console): State<Console>,
    view: View,
    Path(id): Path<String>,
    fields: Fields,
) -> Answer {
    let dry_run = fields.get("simular").is_some();
    let run = console.run_of(&id, dry_run).await.or_page(&view)?;
    let other = console.run_of(&id, !dry_run).await.or_page(&view)?;
    let launch = console.launches.of(&id, dry_run);
    if run.is_none() && launch.is_none() {
        if other.is_some() {
            let query = if dry_run { "" } else { "?simular=sim" };
            return Ok(Redirect::to(&format!("{}{query}", link(HERE, &id))).into_response());
        }
        return Err(unknown(view.fill("replay.unknown", &[("id", &id)]))).or_page(&view);
    }
    let diff = match &run {
        Some(_) => Some(Diff::read(&console, &id, dry_run, &fields).await.or_page(&view)?),
        None => None,
    };
    let running = run.as_ref().is_none_or(|run| !is_over(&run.situation)) || launch == Some(Launch::Running);
    let query = if dry_run { "?simular=sim" } else { "" };
    let watch = running.then(|| format!("{}/events{query}", link(HERE, &id)));
    let body = html! {
        @if let Some(run) = &run { (asked(&view, run)) }
        @if other.is_some() {
            p { a href=(format!("{}{}", link(HERE, &id), if dry_run { "" } else { "?simular=sim" })) { (view.say(if dry_run { "replay.to-run" } else { "replay.to-dry-run" })) } }
        }
        section id="progress" data-events=[watch] aria-live="polite" { (piece(&view, run.as_ref(), launch.as_ref())) }
        @if running { noscript { p { a href="" { (view.say("replay.reload")) } } } }
        @if let Some(run) = &run { (actions(&view, run, other.is_some(), launch.as_ref())) }
        @if let Some(diff) = diff.flatten() { (diff.show(&view, &id, dry_run, &fields)) }
    };
    let title = view.fill(if dry_run { "replay.dry-title" } else { "replay.title" }, &[("id", &id)]);
    Ok(page(&view, &title, HERE, &body).into_response())
}

fn asked(view: &View, run: &StoredRun) -> Markup {
    let to = run.asked.to;
    facts(&[
        (view.say("col.from"), html! { (view.local(run.asked.from)) " = " (run.asked.from) }),
        (
            view.say("col.to"),
            html! { @match to { Some(to) => { (view.local(to)) " = " (to) } None => { (view.say("replay.open-end")) } } },
        ),
        (view.say("new.policies"), policies(&json!(run.asked.policies))),
        (
            view.say("replay.orders"),
            html! { @match &run.asked.orders { Some(orders) => { (orders.len()) } None => { (view.say("filter.all")) } } },
        ),
        (view.say("col.by"), html! { (run.by.as_deref().unwrap_or("–")) " · " (view.when(&run.created_at)) }),
    ])
}

/// What can be done now, each with what it does.
fn actions(view: &View, run: &StoredRun, other: bool, launch: Option<&Launch>) -> Markup {
    let records: i64 = run.partitions.iter().map(|p| (p.end - p.at).max(0)).sum();
    let all: i64 = run.partitions.iter().map(|p| p.end - p.start).sum();
    let (left, all) = (grouped(records), grouped(all));
    let situation = run.situation.as_str();
    let can = |change: Change| change.from().contains(&situation);
    let button = |what: &str, class: &str, label: String, consequence: String| {
        html! { div class="action" { button class=(class) name="o-que" value=(what) { (label) } span { (consequence) } } }
    };
    html! {
        form method="post" action=(format!("{}/change", link(HERE, &run.id))) class="actions-list" id="actions" {
            (view.csrf())
            @if run.dry_run { input type="hidden" name="simular" value="sim"; }
            @if run.dry_run && situation == "concluido" && !other {
                (button("executar", "danger", view.fill("action.run", &[("n", &all)]), view.fill("action.run-will", &[("n", &all)])))
            }
            @if run.dry_run && is_over(situation) && !other {
                (button("repetir", "", view.say("action.again"), view.say("action.again-will")))
            }
            @if !run.dry_run && matches!(situation, "planejado" | "executando" | "falhou") && launch != Some(&Launch::Running) {
                (button("continuar", "", view.fill("action.join", &[("n", &left)]), view.say("action.join-will")))
            }
            @if can(Change::Pause) { (button("pausar", "", view.say("action.pause"), view.say("action.pause-will"))) }
            @if can(Change::Resume) { (button("retomar", "", view.say("action.resume"), view.fill("action.resume-will", &[("n", &left)]))) }
            @if can(Change::Cancel) { (button("cancelar", "danger", view.say("action.cancel"), view.fill("action.cancel-will", &[("n", &left)]))) }
        }
    }
}

pub async fn change(
    State(console): State<Console>,
    view: View,
    Path(id): Path<String>,
    Signed(fields): Signed,
) -> Answer {
    let dry_run = fields.get("simular").is_some();
    let mut shows_dry_run = dry_run;
    let change = match fields.get("o-que").unwrap_or_default() {
        "pausar" => Some(Change::Pause),
        "retomar" => Some(Change::Resume),
        "cancelar" => Some(Change::Cancel),
        again @ ("executar" | "repetir" | "continuar") => {
            let run = console.replay(&id, dry_run).await.or_page(&view)?;
            shows_dry_run = again == "repetir";
            let ask = ReplayAsk { simular: shows_dry_run, ..ReplayAsk::again(&run, None) };
            console.begin(&ask).await.or_page(&view)?;
            None
        }
        other => return Err(invalid(format!("o-que: {other:?} is no action"))).or_page(&view),
    };
    if let Some(change) = change {
        console.change(&id, dry_run, change).await.or_page(&view)?;
    }
    let query = if shows_dry_run { "?simular=sim" } else { "" };
    Ok(Redirect::to(&format!("{}{query}", link(HERE, &id))).into_response())
}

/// The part of a diff that one page shows.
struct Diff {
    totals: Totals,
    situation: String,
    orders: Vec<OrderRow>,
    effects: Vec<EffectRow>,
}

impl Diff {
    async fn read(
        console: &Console,
        id: &str,
        dry_run: bool,
        fields: &Fields,
    ) -> Result<Option<Self>, Problem> {
        let rows = Extent::First(i64::try_from(SHOWN + 1).unwrap_or(i64::MAX));
        let outcome = fields.get("desfecho");
        let outcome = outcome.and_then(|word| Outcome::ALL.into_iter().find(|each| each.as_str() == word));
        let mut reader = DiffReader::connect(&console.database).await?;
        let Some(mut diff) = reader.open(id, Some(dry_run)).await? else { return Ok(None) };
        let totals = diff.totals().await?;
        let orders = match fields.get("pedido") {
            Some(order) => diff.order(order).await?.into_iter().collect(),
            None => diff.orders(rows).try_collect().await?,
        };
        let of_order = |row: &EffectRow| fields.get("pedido").is_none_or(|order| row.order_id == order);
        let effects: Result<Vec<EffectRow>, StoreError> =
            diff.effects(rows, outcome.map(Outcome::as_str)).try_collect().await;
        let effects = effects?.into_iter().filter(of_order).collect();
        let situation = diff.of().situation.clone();
        Ok(Some(Self { totals, situation, orders, effects }))
    }

    fn show(mut self, view: &View, id: &str, dry_run: bool, fields: &Fields) -> Markup {
        let more = self.orders.len() > SHOWN || self.effects.len() > SHOWN;
        self.orders.truncate(SHOWN);
        self.effects.truncate(SHOWN);
        let totals = &self.totals;
        let outcomes: Vec<&str> = Outcome::ALL
            .into_iter()
            .filter(|each| *each != Outcome::AlreadyRecorded)
            .map(Outcome::as_str)
            .collect();
        let query = if dry_run { "?simular=sim" } else { "" };
        html! {
            h2 id="diff" { (view.say("diff.title")) }
            @if self.situation != "concluido" { p class="box warn" { (view.say("diff.unfinished")) } }
            div class="tiles" {
                div class="tile" { span { (view.say("diff.orders")) } strong id="pedidos-alterados" { (grouped(totals.orders)) } }
                div class="tile" { span { (view.say("diff.before")) } strong { (money(totals.before)) } }
                div class="tile" { span { (view.say("diff.after")) } strong { (money(totals.after)) } }
                div class="tile" { span { (view.say("diff.difference")) } strong { (money(totals.after - totals.before)) } }
            }
            (by_outcome(view, totals, fields))
            form method="get" class="filter" {
                @if dry_run { input type="hidden" name="simular" value="sim"; }
                label { (view.say("col.order")) input name="pedido" value=(fields.get("pedido").unwrap_or_default()); }
                (choice(view, "desfecho", &view.say("col.outcome"), &outcomes, fields))
                button { (view.say("filter.apply")) }
                a class="button" href=(format!("{}/diff.csv{query}", link(HERE, id))) download { "CSV" }
            }
            @if more { p class="box warn" { (view.fill("list.more", &[("n", &SHOWN.to_string())])) } }
            h3 { (view.say("diff.by-order")) }
            (orders(view, &self.orders))
            h3 { (view.say("diff.by-effect")) }
            (effects(view, &self.effects))
        }
    }
}

fn by_outcome(view: &View, totals: &Totals, fields: &Fields) -> Markup {
    let heads = ["col.effect", "col.outcome", "col.count"].map(|key| view.say(key));
    let rows = totals.effects.iter().flat_map(|(effect, outcomes)| {
        outcomes.iter().map(move |(outcome, n)| {
            let link = format!("?{}#diff", fields.with("desfecho", outcome));
            // Those that were recorded already are counted, not listed.
            let listed = outcome != Outcome::AlreadyRecorded.as_str();
            vec![
                text(effect),
                cell(super::super::frame::badge(outcome)),
                number(html! { @if listed { a href=(link) { (grouped(*n)) } } @else { (grouped(*n)) } }),
            ]
        })
    });
    table(&heads, rows.collect(), &view.say("diff.no-effects"))
}

/// A number inside the JSON of one side.
fn within(json: Option<&RawValue>, name: &str) -> Option<i64> {
    let value: serde_json::Value = serde_json::from_str(json?.get()).ok()?;
    value[name].as_i64()
}

fn amount(cents: Option<i64>) -> Markup {
    html! { @match cents { Some(cents) => { (money(cents.into())) } None => { "–" } } }
}

fn orders(view: &View, rows: &[OrderRow]) -> Markup {
    let heads =
        ["col.order", "diff.before", "diff.after", "diff.difference", "col.version"].map(|key| view.say(key));
    let rows = rows.iter().map(|row| {
        let [before, after] = [&row.before, &row.after].map(|side| within(side.as_deref(), "valorCentavos"));
        let version = within(row.after.as_deref().or(row.before.as_deref()), "versaoEvento");
        let difference = i128::from(after.unwrap_or(0)) - i128::from(before.unwrap_or(0));
        vec![
            cell(html! { a href=(format!("/console/effects?estado=concluido&pedido={}", encode(&row.order_id))) { (row.order_id) } }),
            number(amount(before)),
            number(amount(after)),
            number(html! { (money(difference)) }),
            number(html! { @if let Some(version) = version { (version) } }),
        ]
    });
    table(&heads, rows.collect(), &view.say("diff.no-orders"))
}

fn effects(view: &View, rows: &[EffectRow]) -> Markup {
    let heads = ["col.key", "col.order", "col.outcome", "diff.told", "diff.right"].map(|key| view.say(key));
    let rows = rows.iter().map(|row| {
        let [told, right] =
            [&row.request_before, &row.request_after].map(|side| within(side.as_deref(), "valorCentavos"));
        vec![
            cell(html! { a href=(link("/console/effects", &row.key)) { code { (row.key) } } }),
            text(&row.order_id),
            cell(super::super::frame::badge(&row.outcome)),
            number(amount(told)),
            number(amount(right)),
        ]
    });
    table(&heads, rows.collect(), &view.say("diff.no-effects"))
}

/// The whole diff, row by row, however large.
pub async fn csv(
    State(console): State<Console>,
    view: View,
    Path(id): Path<String>,
    fields: Fields,
) -> Answer {
    let run = console.replay(&id, fields.get("simular").is_some()).await.or_page(&view)?;
    let body = console.diff(&run, "csv").or_page(&view)?;
    let name: String =
        id.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.csv\"")),
    ];
    Ok((headers, body).into_response())
}
