//! Read models: how far each generation is, and what can be done with it.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use futures::FutureExt as _;
use maud::{Markup, html};

use super::progress::{Piece, stream};
use super::{Answer, OrPage};
use crate::ops::console::Console;
use crate::ops::console::desk::{Launch, invalid};
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, grouped, link, number, page, table, text};
use crate::ops::console::order_side::{Source, Steer};
use crate::ops::console::session::Signed;
use crate::ops::problem::Problem;
use crate::pg::projections::Lag;
use crate::projections::Name;

const HERE: &str = "/console/projections";
const SHARDS_MAX: u8 = 32;
/// Who feeds a generation that nobody rebuilds any more.
const RUNNER: &str = "runner";

pub async fn show(State(console): State<Console>, view: View) -> Answer {
    let lags = console.lags().await.or_page(&view)?;
    let watch = (!is_over(&console, &lags)).then(|| format!("{HERE}/events"));
    let body = html! {
        p class="quiet" { (view.say("projections.what")) }
        section id="progress" data-events=[watch.as_ref()] aria-live="polite" { (standing(&view, &console, &lags)) }
        @if watch.is_some() { noscript { p { a href="" { (view.say("replay.reload")) } } } }
        @for name in Name::ALL { (actions(&view, name, &lags)) }
    };
    Ok(page(&view, &view.say("projections.title"), HERE, &body).into_response())
}

/// Nothing that was begun here goes on, and what is being built is at the tip.
fn is_over(console: &Console, lags: &[Lag]) -> bool {
    let runs = Name::ALL.into_iter().any(|name| console.rebuild_of(name) == Some(Launch::Running));
    !runs && !lags.iter().any(|lag| lag.state == "building" && lag.lag_events > 0)
}

fn standing(view: &View, console: &Console, lags: &[Lag]) -> Markup {
    let heads = [
        "col.view",
        "col.generation",
        "col.shard",
        "col.state",
        "col.position",
        "col.behind",
        "col.progress",
    ]
    .map(|key| view.say(key));
    let rows = lags.iter().map(|lag| {
        let all = lag.position + lag.lag_events;
        let words = view.fill("projections.at", &[("done", &grouped(lag.position)), ("all", &grouped(all))]);
        vec![
            cell(html! { a href=(format!("#{}", lag.name)) { (lag.name) } }),
            number(html! { (lag.generation) }),
            number(html! { (lag.shard) }),
            cell(html! { (badge(&lag.state)) @if lag.fed_by != RUNNER { " " code { (lag.fed_by) } } }),
            number(html! { (grouped(lag.position)) }),
            text(view.fill("projections.behind", &[("n", &grouped(lag.lag_events)), ("s", &format!("{:.1}", lag.lag_seconds))])),
            cell(html! { progress max=(all.max(1)) value=(if all == 0 { 1 } else { lag.position }) aria-label=(words) {} }),
        ]
    });
    html! {
        @for name in Name::ALL { @if let Some(Launch::Ended(said)) = console.rebuild_of(name) {
            @if said.code != 0 { p class="box bad" role="alert" { (name.as_str()) ": " (said.refusal) } }
        } }
        (table(&heads, rows.collect(), &view.say("none")))
    }
}

/// What can be done now, each with what it does.
fn actions(view: &View, name: Name, lags: &[Lag]) -> Markup {
    let ours = || lags.iter().filter(|lag| lag.name == name.as_str());
    let mut others: Vec<(i32, &str)> =
        ours().filter(|lag| lag.state != "active").map(|lag| (lag.generation, lag.state.as_str())).collect();
    others.dedup();
    let active = ours().find(|lag| lag.state == "active").map_or(0, |lag| lag.generation).to_string();
    let unfinished = ours().any(|lag| lag.fed_by != RUNNER);
    let building = others.iter().any(|(_, state)| *state == "building");
    let button = |what: String, class: &str, label: String, consequence: String| {
        html! { div class="action" { button class=(class) name="o-que" value=(what) { (label) } span { (consequence) } } }
    };
    html! {
        h2 id=(name.as_str()) { (name.as_str()) }
        p class="quiet" { (view.word("projection", name.as_str())) }
        form method="post" action=(format!("{}/change", link(HERE, name.as_str()))) class="actions-list" data-name=(name.as_str()) {
            (view.csrf())
            @for (generation, _) in &others {
                @let n = generation.to_string();
                @let both = [("n", n.as_str()), ("active", active.as_str())];
                @if !unfinished {
                (button(format!("comparar-{n}"), "", view.fill("projections.compare", &both), view.fill("projections.compare-will", &both)))
                (button(format!("trocar-{n}"), "", view.fill("projections.cut-over", &both), view.fill("projections.cut-over-will", &both)))
                }
                (button(format!("apagar-{n}"), "danger", view.fill("projections.drop", &both), view.fill("projections.drop-will", &both)))
            }
            @if unfinished {
                (button("continuar".to_owned(), "", view.say("projections.resume"), view.say("projections.resume-will")))
            }
            @if building {
                p class="quiet" { (view.say("projections.one-at-a-time")) }
            } @else {
                div class="action" {
                    button name="o-que" value="reconstruir" { (view.say("projections.rebuild")) }
                    label class="inline" { (view.say("projections.shards")) input type="number" name="partes" min="1" max=(SHARDS_MAX) value="2"; }
                    label class="inline" { (view.say("projections.source"))
                        select name="fonte" { @for source in Source::ALL { option value=(source.as_str()) { (source.as_str()) } } }
                    }
                    label class="inline" { (view.say("projections.rate")) input type="number" name="ritmo" min="1"; }
                    span { (view.fill("projections.rebuild-will", &[("active", &active)])) }
                }
            }
        }
    }
}

fn steer_of(fields: &Fields) -> Result<Steer, Problem> {
    let asked = fields.get("o-que").unwrap_or_default();
    if asked == "continuar" {
        return Ok(Steer::Resume { rate: None });
    }
    if asked == "reconstruir" {
        let shards = fields.get("partes").unwrap_or("2");
        let shards = shards.parse().ok().filter(|shards| (1..=SHARDS_MAX).contains(shards));
        let rate = fields.get("ritmo").map(str::parse).transpose();
        return Ok(Steer::Rebuild {
            shards: shards.ok_or_else(|| invalid(format!("partes: use a number from 1 to {SHARDS_MAX}")))?,
            from: Source::of(fields.get("fonte")).ok_or_else(|| invalid("fonte: use store or kafka"))?,
            rate: rate.map_err(|_| invalid("ritmo: is no number above 0"))?,
        });
    }
    let parsed = asked.split_once('-').and_then(|(what, n)| Some((what, n.parse().ok()?)));
    let steer = parsed.and_then(|(what, generation)| {
        let generation = Some(generation);
        match what {
            "comparar" => Some(Steer::Compare { generation }),
            "trocar" => Some(Steer::CutOver { generation }),
            "apagar" => Some(Steer::Drop { generation }),
            _ => None,
        }
    });
    steer.ok_or_else(|| invalid(format!("o-que: {asked:?} is no action")))
}

pub async fn change(
    State(console): State<Console>,
    view: View,
    Path(name): Path<String>,
    Signed(fields): Signed,
) -> Answer {
    let name: Name = name.parse().map_err(|why: String| invalid(format!("name: {why}"))).or_page(&view)?;
    let steer = steer_of(&fields).or_page(&view)?;
    let answer = console.steer(name, steer).await.or_page(&view)?;
    let Steer::Compare { .. } = steer else { return Ok(Redirect::to(HERE).into_response()) };
    let answer = answer.unwrap_or_default();
    let number_of = |key: &str| answer[key].as_i64().unwrap_or_default();
    let different = number_of("different");
    let figures = [number_of("generation"), number_of("active"), different].map(grouped);
    let values = [("n", figures[0].as_str()), ("active", &figures[1]), ("rows", &figures[2])];
    let words = if different == 0 {
        view.fill("compared.same", &values)
    } else {
        view.fill("compared.differ", &values)
    };
    let body = html! {
        p id="compared" data-different=(different) class=(if different == 0 { "box good" } else { "box bad" }) { (words) }
        p { a href=(format!("{HERE}#{}", name.as_str())) { (view.say("compared.back")) } }
    };
    Ok(page(&view, &view.fill("compared.title", &[("name", name.as_str())]), HERE, &body).into_response())
}

/// How far they are, as it happens.
pub async fn events(State(console): State<Console>, view: View) -> Response {
    let watchers = Arc::clone(&console.watchers);
    stream(&watchers, move || {
        let (console, view) = (console.clone(), view.clone());
        async move {
            let lags = console.lags().await.ok()?;
            Some(Piece { markup: standing(&view, &console, &lags), over: is_over(&console, &lags) })
        }
        .boxed()
    })
}
