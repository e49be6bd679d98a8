//! Replays: those there are, and a new one: a time on the topic's timeline, a plan, a dry run first.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect};
use jiff::{SignedDuration, Timestamp, Unit};
use maud::{Markup, html};
use serde_json::Value;

use super::{Answer, OrPage};
use crate::config::REPLAY_GROUP_PREFIX;
use crate::domain::effect::Mode;
use crate::ops::console::desk::{ReplayAsk, invalid};
use crate::ops::console::fields::{Fields, encode};
use crate::ops::console::frame::{View, badge, cell, facts, grouped, link, number, page, table, text};
use crate::ops::console::session::Signed;
use crate::ops::console::{Console, plot};
use crate::ops::problem::Problem;

const HERE: &str = "/console/replays";

pub async fn list(State(console): State<Console>, view: View) -> Answer {
    let runs = console.replays().await.or_page(&view)?;
    let heads =
        ["col.id", "col.kind", "col.state", "col.from", "col.to", "col.left", "col.by", "col.created"]
            .map(|key| view.say(key));
    let rows = runs.iter().map(|run| {
        let dry = if run.dry_run { "?simular=sim" } else { "" };
        let left: i64 = run.partitions.iter().map(|p| (p.end - p.at).max(0)).sum();
        let to = run.asked.to.map_or_else(|| view.say("replay.open-end"), |to| view.local(to));
        vec![
            cell(html! { a href=(format!("{}{dry}", link(HERE, &run.id))) { (run.id) } }),
            text(view.say(if run.dry_run { "kind.dry-run" } else { "kind.run" })),
            cell(badge(&run.situation)),
            text(view.local(run.asked.from)),
            text(to),
            number(html! { (grouped(left)) }),
            text(run.by.as_deref().unwrap_or("–")),
            cell(view.when(&run.created_at)),
        ]
    });
    let body = html! {
        p class="quiet" { (view.say("replays.what")) }
        p { a class="button" href="/console/replays/new" { (view.say("replays.new")) } }
        (table(&heads, rows.collect(), &view.say("replays.none")))
    };
    Ok(page(&view, &view.say("replays.title"), HERE, &body).into_response())
}

/// A window of the timeline: its bars and where they begin.
struct Window {
    span: &'static str,
    edges: Vec<Timestamp>,
    step: SignedDuration,
}

const SPANS: [(&str, Unit, i64, i64); 3] =
    [("dia", Unit::Hour, 1, 24), ("semana", Unit::Hour, 6, 28), ("mes", Unit::Day, 24, 31)];

impl Window {
    /// Ends at `until` (now, if it is not given); a day by the hour unless another span is asked for.
    fn of(view: &View, fields: &Fields) -> Self {
        let asked = fields.get("periodo").unwrap_or("dia");
        let (span, unit, hours, bars) =
            SPANS.iter().copied().find(|(span, ..)| *span == asked).unwrap_or(SPANS[0]);
        let step = SignedDuration::from_hours(hours);
        let until = fields.get("fim").and_then(|text| view.instant(text)).unwrap_or_else(Timestamp::now);
        let last = view.floor(until, unit);
        let back = |n: i64| {
            last.saturating_sub(step.saturating_mul(i32::try_from(n).unwrap_or(0))).unwrap_or(Timestamp::MIN)
        };
        // The last bar is open: it holds everything from its edge on, so the window ends with an edge to stop at.
        let edges =
            (0..bars).rev().map(back).chain([last.saturating_add(step).unwrap_or(Timestamp::MAX)]).collect();
        Self { span, edges, step }
    }
}

pub async fn new(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let window = Window::of(&view, &fields);
    let counted = console.timeline(window.edges.clone()).await;
    let body = html! {
        p class="quiet" { (view.say("new.what")) }
        h2 { (view.fill("new.timeline", &[("topic", &console.kafka.topic)])) }
        (timeline(&view, &fields, &window, &counted))
        (form(&view, &console, &fields))
    };
    Ok(page(&view, &view.say("new.title"), HERE, &body).into_response())
}

fn timeline(view: &View, fields: &Fields, window: &Window, counted: &Result<Vec<i64>, Problem>) -> Markup {
    let counts = match counted {
        Ok(counts) => counts,
        Err(problem) => return html! { p class="box bad" role="alert" { (problem.detail) } },
    };
    let (from, to) =
        (fields.get("de").and_then(|t| view.instant(t)), fields.get("ate").and_then(|t| view.instant(t)));
    let shown = window.edges.iter().zip(counts).take(window.edges.len() - 1);
    let bars: Vec<plot::Bar> = shown
        .map(|(edge, n)| plot::Bar {
            n: *n,
            words: view.fill("new.bar", &[("n", &grouped(*n)), ("from", &view.local(*edge))]),
            link: format!("?{}", fields.with("de", &edge.to_string())),
            chosen: from.is_some_and(|from| *edge >= from) && to.is_none_or(|to| *edge < to),
        })
        .collect();
    let total: i64 = bars.iter().map(|bar| bar.n).sum();
    let (first, last) =
        (window.edges.first().copied().unwrap_or_default(), window.edges.last().copied().unwrap_or_default());
    let width = window.step.saturating_mul(i32::try_from(window.edges.len() - 1).unwrap_or(0));
    let moved = |end: Timestamp| format!("?{}", fields.with("fim", &end.to_string()));
    html! {
        p class="tabs" {
            @for (span, ..) in SPANS {
                a href=(format!("?{}", fields.with("periodo", span))) aria-current=[(span == window.span).then_some("true")] { (view.word("span", span)) }
            }
            a href=(moved(first)) { (view.say("new.earlier")) }
            a href=(moved(last.saturating_add(width).unwrap_or(Timestamp::MAX))) { (view.say("new.later")) }
        }
        (plot::bars(&view.say("new.bars"), &bars))
        p class="ends quiet" { span { (view.local(first)) } span { (view.fill("new.total", &[("n", &grouped(total)), ("zone", &view.zone_name)])) } span { (view.local(last)) } }
    }
}

fn form(view: &View, console: &Console, fields: &Fields) -> Markup {
    let input = |name: &str| {
        fields.get(name).and_then(|t| view.instant(t)).map(|at| view.input(at)).unwrap_or_default()
    };
    let today = Timestamp::now().strftime("%Y-%m-%d-%H%M").to_string();
    html! {
        form method="post" action="/console/replays/plan" class="stack" id="new" {
            (view.csrf())
            label { (view.say("new.id")) input name="id" required pattern="replay-.+" value=(fields.get("id").map_or_else(|| format!("{REPLAY_GROUP_PREFIX}{today}"), str::to_owned)); }
            div class="row" {
                label { (view.fill("new.from", &[("zone", &view.zone_name)])) input type="datetime-local" step="1" name="de" required value=(input("de")); }
                label { (view.fill("new.to", &[("zone", &view.zone_name)])) input type="datetime-local" step="1" name="ate" value=(input("ate")); }
            }
            fieldset {
                legend { (view.say("new.policies")) }
                @for (name, mode) in &console.effects {
                    label { (name)
                        select name="efeito" {
                            @for (each, word) in [(Mode::Apply, "aplicar"), (Mode::Suppress, "suprimir")] {
                                option value=(format!("{name}={word}")) selected[each == *mode] { (word) " – " (view.word("mode", word)) }
                            }
                        }
                    }
                }
            }
            details {
                summary { (view.say("new.more")) }
                label { (view.say("new.orders")) textarea name="pedidos" rows="3" { (fields.get("pedidos").unwrap_or_default()) } }
                label { (view.say("new.rate")) input type="number" min="1" name="ritmo"; }
                label class="choice" { input type="checkbox" name="lacuna" value="sim"; span { (view.say("new.gap")) } }
                label class="choice" { input type="checkbox" name="compactado" value="sim"; span { (view.say("new.compacted")) } }
            }
            label { (view.say("new.by")) input name="por" required maxlength="200" autocomplete="name"; }
            button { (view.say("new.plan")) }
        }
    }
}

/// A form as what is asked for.
fn asked(view: &View, fields: &Fields) -> Result<ReplayAsk, Problem> {
    let instant = |name: &str| -> Result<Option<Timestamp>, Problem> {
        let Some(given) = fields.get(name) else { return Ok(None) };
        view.instant(given).map(Some).ok_or_else(|| invalid(format!("{name}: {given:?} is no instant")))
    };
    let rate = fields
        .get("ritmo")
        .map(|n| n.parse().map_err(|_| invalid(format!("ritmo: {n:?} is no number above 0"))));
    let orders = fields.all("pedidos").flat_map(str::lines).map(str::trim).filter(|order| !order.is_empty());
    Ok(ReplayAsk {
        id: fields.get("id").ok_or_else(|| invalid("id: is empty"))?.to_owned(),
        de: instant("de")?.ok_or_else(|| invalid("de: is empty; a replay begins at a time"))?,
        ate: instant("ate")?,
        simular: fields.get("simular").is_some(),
        efeitos: fields.all("efeito").map(str::to_owned).collect(),
        pedidos: orders.map(str::to_owned).collect(),
        ritmo: rate.transpose()?,
        aceitar_lacuna: fields.get("lacuna").is_some(),
        aceitar_compactado: fields.get("compactado").is_some(),
        por: fields.get("por").map(str::to_owned),
    })
}

/// What it would cover, before anything is stored.
pub async fn plan(State(console): State<Console>, view: View, Signed(fields): Signed) -> Answer {
    let ask = asked(&view, &fields).or_page(&view)?;
    let plan = console.plan(&ask).await.or_page(&view)?;
    let parts = plan["particoes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let records: i64 =
        parts.iter().map(|p| p["fim"].as_i64().unwrap_or(0) - p["inicio"].as_i64().unwrap_or(0)).sum();
    let n = grouped(records);
    let heads = ["col.partition", "col.start", "col.end", "col.records"].map(|key| view.say(key));
    let rows = parts.iter().map(|p| {
        let [id, start, end] = ["particao", "inicio", "fim"].map(|name| p[name].as_i64().unwrap_or(0));
        [id, start, end, end - start].map(|n| number(html! { (grouped(n)) })).into()
    });
    let body = html! {
        (facts(&[
            (view.say("col.id"), html! { (ask.id) }),
            (view.say("col.from"), html! { (view.local(ask.de)) " = " (ask.de) }),
            (view.say("col.to"), html! { @match ask.ate { Some(to) => { (view.local(to)) " = " (to) } None => { (view.say("replay.open-end")) } } }),
            (view.say("new.policies"), policies(&plan["politicas"])),
            (view.say("col.records"), html! { strong id="registros" { (n) } }),
        ]))
        (table(&heads, rows.collect(), &view.say("none")))
        form method="post" action="/console/replays/begin" class="stack" {
            (view.csrf())
            @for (name, value) in fields.pairs() { @if !matches!(name, "csrf" | "simular") { input type="hidden" name=(name) value=(value); } }
            p { (view.fill("plan.dry-run-will", &[("n", &n)])) }
            button name="simular" value="sim" { (view.fill("plan.dry-run", &[("n", &n)])) }
            details {
                summary { (view.say("plan.at-once")) }
                p { (view.fill("plan.run-will", &[("n", &n)])) }
                button class="danger" { (view.fill("plan.run", &[("n", &n)])) }
            }
        }
    };
    Ok(page(&view, &view.say("plan.title"), HERE, &body).into_response())
}

pub fn policies(policies: &Value) -> Markup {
    html! { @for (name, mode) in policies.as_object().into_iter().flatten() { span class="pair" { (name) "=" (mode.as_str().unwrap_or_default()) } " " } }
}

pub async fn begin(State(console): State<Console>, view: View, Signed(fields): Signed) -> Answer {
    let ask = asked(&view, &fields).or_page(&view)?;
    console.begin(&ask).await.or_page(&view)?;
    let dry = if ask.simular { "?simular=sim" } else { "" };
    Ok(Redirect::to(&format!("{HERE}/{}{dry}", encode(&ask.id))).into_response())
}
