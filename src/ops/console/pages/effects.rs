//! Review: effects that nobody knows about, their evidence in words, and a person's decision.

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde_json::Value;

use super::{Answer, OrPage, SHOWN, choice};
use crate::domain::effect::{Decision, EffectState};
use crate::ops::console::Console;
use crate::ops::console::desk::{Ruled, decision_of, invalid, state_of};
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, facts, link, number, page, pretty, table, text};
use crate::ops::console::session::Signed;
use crate::ops::problem::Problem;
use crate::pg::review::{Dossier, Filter, Summary};

const HERE: &str = "/console/effects";
/// Effects decided together: each is a decision of its own.
const TOGETHER: usize = 100;

pub async fn list(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let state = state_of(fields.get("estado")).or_page(&view)?;
    let filter = Filter { state, effect_type: fields.get("tipo"), order_id: fields.get("pedido") };
    let mut found = console.effects(filter, SHOWN + 1).await.or_page(&view)?;
    let more = found.len() > SHOWN;
    found.truncate(SHOWN);
    let types: Vec<&str> = console.effects.iter().map(|(name, _)| name.as_str()).collect();
    let body = html! {
        p class="quiet" { (view.say("review.what")) }
        form method="get" class="filter" {
            label { (view.say("col.state"))
                select name="estado" {
                    @for each in [EffectState::Uncertain, EffectState::Reserved, EffectState::Done] {
                        option value=(each.as_str()) selected[each == state] { (each.as_str()) }
                    }
                }
            }
            (choice(&view, "tipo", &view.say("col.effect"), &types, &fields))
            label { (view.say("col.order")) input name="pedido" value=(fields.get("pedido").unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        @if more { p class="box warn" { (view.fill("list.more", &[("n", &SHOWN.to_string())])) } }
        form method="get" action="/console/effects/decide" data-count="" {
            (listing(&view, &found, state))
            @if state == EffectState::Uncertain && !found.is_empty() {
                p class="actions" {
                    label class="inline" { input type="checkbox" data-all="chave"; (view.say("list.all")) }
                    button { (view.say("review.decide-chosen")) " " span data-chosen="" {} }
                }
            }
        }
    };
    Ok(page(&view, &view.say("review.title"), HERE, &body).into_response())
}

fn listing(view: &View, found: &[Summary], state: EffectState) -> Markup {
    let choosable = state == EffectState::Uncertain;
    let mut heads = vec![
        view.say("col.key"),
        view.say("col.order"),
        view.say("col.state"),
        view.say("col.attempts"),
        view.say("col.run"),
        view.say("col.since"),
    ];
    if choosable {
        heads.insert(0, view.say("col.choose"));
    }
    let rows = found.iter().map(|effect| {
        let mut row = vec![
            cell(html! { a href=(link(HERE, &effect.key)) { code { (effect.key) } } }),
            text(&effect.order_id),
            cell(badge(&effect.state)),
            number(html! { (effect.attempts) }),
            text(&effect.run_id),
            cell(view.when(&effect.updated_at)),
        ];
        if choosable {
            let words = view.fill("list.choose", &[("what", &effect.key)]);
            row.insert(
                0,
                cell(html! { input type="checkbox" name="chave" value=(effect.key) aria-label=(words); }),
            );
        }
        row
    });
    table(&heads, rows.collect(), &view.say("review.none"))
}

pub async fn show(State(console): State<Console>, view: View, Path(key): Path<String>) -> Answer {
    let dossier = console.effect(&key).await.or_page(&view)?;
    let effect = &dossier.summary;
    let uncertain = effect.state == EffectState::Uncertain.as_str();
    let known = [
        (view.say("col.state"), badge(&effect.state)),
        (view.say("col.effect"), html! { (effect.effect_type) }),
        (
            view.say("col.order"),
            html! { a href=(format!("{HERE}?estado={}&pedido={}", effect.state, effect.order_id)) { (effect.order_id) } },
        ),
        (view.say("col.event"), html! { (effect.event_id) " · v" (dossier.version) }),
        (view.say("col.run"), html! { (effect.run_id) }),
        (view.say("col.attempts"), html! { (effect.attempts) }),
        (view.say("effect.maybe-sent"), html! { (view.say(if dossier.maybe_sent { "yes" } else { "no" })) }),
        (view.say("effect.first-attempt"), view.when(&dossier.first_attempt_at)),
        (view.say("col.since"), view.when(&effect.updated_at)),
    ];
    let body = html! {
        p { code { (effect.key) } }
        @if uncertain { p class="box warn" { (view.say("effect.why-uncertain")) } }
        (facts(&known))
        h2 { (view.say("effect.history")) }
        (history(&view, &dossier))
        div class="columns" {
            section { h2 { (view.say("effect.request")) } (pretty(&dossier.request)) }
            section { h2 { (view.say("effect.commission")) } (optional(&view, dossier.commission.as_ref())) }
            section { h2 { (view.say("effect.result")) } (optional(&view, dossier.result.as_ref())) }
        }
        @if uncertain { h2 { (view.say("decide.title")) } (form(&view, std::slice::from_ref(&effect.key))) }
    };
    Ok(page(&view, &view.say("effect.title"), HERE, &body).into_response())
}

fn optional(view: &View, json: Option<&Value>) -> Markup {
    html! { @match json { Some(json) => { (pretty(json)) } None => { p class="empty" { (view.say("none")) } } } }
}

/// Attempts and decisions, as a story.
fn history(view: &View, dossier: &Dossier) -> Markup {
    html! { ol class="history" {
        @for line in &dossier.evidence {
            @let answer = line["resposta"].as_str().unwrap_or_default();
            li {
                (view.when(line["em"].as_str().unwrap_or_default()))
                strong { (view.word("answer", answer)) }
                span { (line["detalhe"].as_str().unwrap_or_default()) }
                span class="quiet" {
                    (answer)
                    @if let Some(reached) = line["alcance"].as_str() { " · " (view.say("effect.reached")) " " (reached) }
                    @if let Some(status) = line["status"].as_i64() { " · HTTP " (status) }
                    @if let Some(took) = line["duracaoMs"].as_i64() { " · " (took) " ms" }
                    @if let Some(by) = line["instancia"].as_str() { " · " (by) }
                }
            }
        }
        @for ruling in &dossier.rulings {
            li class="ruling" {
                (view.when(&ruling.at))
                strong { (view.fill("effect.ruled", &[("who", &ruling.by), ("decision", &ruling.decision)])) }
                span { (ruling.reason) }
            }
        }
        @if dossier.evidence.is_empty() && dossier.rulings.is_empty() { li { (view.say("effect.no-evidence")) } }
    } }
}

/// The decision about one or more effects: each choice says what it does.
fn form(view: &View, keys: &[String]) -> Markup {
    let n = keys.len().to_string();
    html! {
        form method="post" action="/console/effects/decide" class="stack" id="decide" {
            (view.csrf())
            @for key in keys { input type="hidden" name="chave" value=(key); }
            fieldset {
                legend { (view.fill("decide.about", &[("n", &n)])) }
                @for (decision, consequence) in [
                    (Decision::Done, view.fill("decide.concluido", &[("n", &n)])),
                    (Decision::NotSent, view.fill("decide.nao-enviado", &[("n", &n)])),
                    (Decision::Discarded, view.fill("decide.descartado", &[("n", &n)])),
                ] {
                    label class="choice" {
                        input type="radio" name="decisao" value=(decision.as_str()) required;
                        span { strong { (decision.as_str()) } " " (consequence) }
                    }
                }
                @if keys.len() == 1 {
                    label class="choice" {
                        input type="checkbox" name="reenviar" value="sim";
                        span { (view.say("decide.resend")) }
                    }
                }
            }
            label { (view.say("decide.by")) input name="por" required maxlength="200" autocomplete="name"; }
            label { (view.say("decide.reason")) textarea name="motivo" required maxlength="2000" rows="3" {} }
            p class="quiet" { (view.say("decide.final")) }
            button class="danger" { (view.fill("decide.button", &[("n", &n)])) }
        }
    }
}

pub async fn choose(view: View, fields: Fields) -> Answer {
    let keys: Vec<String> = fields.all("chave").map(str::to_owned).collect();
    if keys.is_empty() || keys.len() > TOGETHER {
        let text = view.fill("decide.choose-some", &[("n", &TOGETHER.to_string())]);
        return Err(invalid(text)).or_page(&view);
    }
    let body = html! {
        ul class="keys" { @for key in &keys { li { a href=(link(HERE, key)) { code { (key) } } } } }
        (form(&view, &keys))
    };
    Ok(page(&view, &view.say("decide.title"), HERE, &body).into_response())
}

pub async fn decide(State(console): State<Console>, view: View, Signed(fields): Signed) -> Answer {
    let ruled = Ruled {
        decision: decision_of(fields.get("decisao").unwrap_or_default()).or_page(&view)?,
        by: fields.get("por").unwrap_or_default().to_owned(),
        reason: fields.get("motivo").unwrap_or_default().to_owned(),
        resend: fields.get("reenviar").is_some(),
    };
    let keys: Vec<&str> = fields.all("chave").take(TOGETHER).collect();
    if let [key] = keys[..] {
        console.decide(key, &ruled).await.or_page(&view)?;
        return Ok(Redirect::to(&link(HERE, key)).into_response());
    }
    let mut ends = Vec::with_capacity(keys.len());
    for key in keys {
        ends.push((key, console.decide(key, &ruled).await));
    }
    Ok(told(&view, &ends))
}

fn told(view: &View, ends: &[(&str, Result<Dossier, Problem>)]) -> Response {
    let heads = [view.say("col.key"), view.say("col.outcome")];
    let rows = ends.iter().map(|(key, end)| {
        let said = match end {
            Ok(dossier) => {
                html! { span class="badge good" { (view.say("decide.won")) } " " (dossier.summary.state) }
            }
            Err(problem) => {
                html! { span class="badge bad" { (view.say("decide.lost")) } " " (problem.detail) }
            }
        };
        vec![cell(html! { a href=(link(HERE, key)) { code { (key) } } }), cell(said)]
    });
    let won = ends.iter().filter(|(_, end)| end.is_ok()).count().to_string();
    let words = view.fill("decide.told", &[("won", &won), ("n", &ends.len().to_string())]);
    let body = html! { p { (words) } (table(&heads, rows.collect(), "")) };
    page(view, &view.say("decide.title"), HERE, &body).into_response()
}
