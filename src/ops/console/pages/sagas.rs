//! Sagas: what goes on over several steps, and each step of one, forward and back.

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use maud::{Markup, html};

use super::{Answer, OrPage, SHOWN, choice, orders};
use crate::ops::console::Console;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, facts, link, page, pretty, table, text};
use crate::ops::console::order_side::{SAGA_STATES, sagas_of};
use crate::pg::order_side::{Saga, SagaStep};

const HERE: &str = "/console/sagas";

pub async fn list(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let asked = sagas_of(("estado", fields.get("estado")), ("pedido", fields.get("pedido")));
    let filter = asked.or_page(&view)?;
    let limit = i64::try_from(SHOWN + 1).unwrap_or(i64::MAX);
    let mut found = console.sagas(&filter, limit).await.or_page(&view)?;
    let more = found.as_ref().is_some_and(|found| found.len() > SHOWN);
    if let Some(found) = &mut found {
        found.truncate(SHOWN);
    }
    let body = html! {
        p class="quiet" { (view.say("sagas.what")) }
        form method="get" class="filter" {
            (choice(&view, "estado", &view.say("col.state"), &SAGA_STATES, &fields))
            label { (view.say("col.order")) input name="pedido" value=(fields.get("pedido").unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        @if more { p class="box warn" { (view.fill("list.more", &[("n", &SHOWN.to_string())])) } }
        (listing(&view, found.as_deref()))
    };
    Ok(page(&view, &view.say("sagas.title"), HERE, &body).into_response())
}

/// `None`: there are no tables of sagas.
pub fn listing(view: &View, found: Option<&[Saga]>) -> Markup {
    let Some(found) = found else { return html! { p class="empty" { (view.say("sagas.absent")) } } };
    let heads = ["col.saga", "col.order", "col.state", "col.step", "col.created"].map(|key| view.say(key));
    let rows = found.iter().map(|saga| {
        vec![
            cell(html! { a href=(link(HERE, &saga.id)) { code class="id" { (saga.id) } } }),
            cell(
                html! { a href=(link(orders::HERE, &saga.order_id)) { code class="id" { (saga.order_id) } } },
            ),
            cell(badge(&saga.state)),
            text(saga.step.as_deref().unwrap_or("–")),
            cell(view.when(&saga.created_at)),
        ]
    });
    table(&heads, rows.collect(), &view.say("sagas.none"))
}

pub async fn show(State(console): State<Console>, view: View, Path(id): Path<String>) -> Answer {
    let story = console.saga(&id).await.or_page(&view)?;
    let saga = &story.saga;
    let held = story.steps.last().is_some_and(|step| step.state == "uncertain");
    let body = html! {
        @if held { p class="box warn" { (view.say("sagas.held")) } }
        (facts(&[
            (view.say("col.state"), badge(&saga.state)),
            (view.say("col.name"), html! { (saga.name) }),
            (view.say("col.order"), html! { a href=(link(orders::HERE, &saga.order_id)) { (saga.order_id) } }),
            (view.say("col.step"), html! { (saga.step.as_deref().unwrap_or("–")) }),
            (view.say("col.attempts"), html! { (saga.attempts) }),
            (view.say("sagas.next"), html! { @match &saga.next_at { Some(at) => { (view.when(at)) } None => { "–" } } }),
            (view.say("sagas.courier"), html! { (if story.couriers.is_empty() { "–".to_owned() } else { story.couriers.join(", ") }) }),
            (view.say("col.created"), view.when(&saga.created_at)),
            (view.say("col.updated"), view.when(&saga.updated_at)),
        ]))
        h2 { (view.say("sagas.steps")) }
        (steps(&view, &story.steps))
        h2 { (view.say("sagas.context")) }
        (pretty(&story.context))
    };
    Ok(page(&view, &view.fill("sagas.one", &[("id", &saga.id)]), HERE, &body).into_response())
}

fn steps(view: &View, steps: &[SagaStep]) -> Markup {
    html! { ol class="history" id="steps" {
        @for step in steps {
            li class=[(step.kind == "compensation").then_some("back")] {
                (view.when(&step.at))
                strong { (step.step) }
                (badge(&step.state))
                @if let Some(note) = &step.note { span { (note) } }
                span class="quiet" {
                    (view.word("step", &step.kind))
                    @if let Some(key) = &step.chave { " · " a href=(link("/console/effects", key)) { code { (key) } } }
                }
            }
        }
        @if steps.is_empty() { li { (view.say("sagas.no-steps")) } }
    } }
}
