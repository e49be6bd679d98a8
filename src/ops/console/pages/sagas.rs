//! Sagas: what goes on over several steps, and each step of one, forward and back.

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use maud::{Markup, html};

use super::{Answer, OrPage, SHOWN, choice, orders};
use crate::ops::console::Console;
use crate::ops::console::desk::invalid;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, facts, link, money, page, table, text};
use crate::ops::console::order_side::SAGA_STATES;
use crate::ops::problem::Problem;
use crate::pg::saga::{Shown, ShownStep, Wanted};

const HERE: &str = "/console/sagas";

pub async fn list(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let wanted = wanted(&fields).or_page(&view)?;
    let mut found = console.sagas(wanted, SHOWN + 1).await.or_page(&view)?;
    let more = found.len() > SHOWN;
    found.truncate(SHOWN);
    let next = found.last().filter(|_| more).map(|saga| saga.id.to_string());
    let body = html! {
        p class="quiet" { (view.say("sagas.what")) }
        form method="get" class="filter" {
            (choice(&view, "estado", &view.say("col.state"), &SAGA_STATES, &fields))
            label { (view.say("col.order")) input name="pedido" value=(fields.get("pedido").unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        (listing(&view, &found))
        p class="tabs" {
            @if fields.get("cursor").is_some() { a href=(format!("?{}", fields.with("cursor", ""))) { (view.say("page.first")) } }
            @if let Some(next) = next { a rel="next" href=(format!("?{}", fields.with("cursor", &next))) { (view.say("page.next")) } }
        }
    };
    Ok(page(&view, &view.say("sagas.title"), HERE, &body).into_response())
}

fn wanted(fields: &Fields) -> Result<Wanted<'_>, Problem> {
    let state = fields.get("estado");
    if state.is_some_and(|state| !SAGA_STATES.contains(&state)) {
        return Err(invalid(format!("estado: use one of {}", SAGA_STATES.join(", "))));
    }
    let order = fields.get("pedido").map(str::parse).transpose();
    let before = fields.get("cursor").map(str::parse).transpose();
    Ok(Wanted {
        state,
        order_id: order.map_err(|_| invalid("pedido: must be the UUID of an order"))?,
        tenant_id: None,
        before: before.map_err(|_| invalid("cursor: is no page of this list; begin with the first"))?,
    })
}

pub fn listing(view: &View, found: &[Shown]) -> Markup {
    let heads = ["col.saga", "col.order", "col.state", "col.step", "col.created"].map(|key| view.say(key));
    let rows = found.iter().map(|saga| {
        let (id, order) = (saga.id.to_string(), saga.order_id.to_string());
        vec![
            cell(html! { a href=(link(HERE, &id)) { code class="id" { (id) } } }),
            cell(html! { a href=(link(orders::HERE, &order)) { code class="id" { (order) } } }),
            cell(badge(&saga.state)),
            text(&saga.step),
            cell(view.when(&saga.created_at)),
        ]
    });
    table(&heads, rows.collect(), &view.say("sagas.none"))
}

pub async fn show(State(console): State<Console>, view: View, Path(id): Path<String>) -> Answer {
    let (saga, steps) = console.saga(&id).await.or_page(&view)?;
    let held = steps.last().is_some_and(|step| step.state == "uncertain");
    let order = saga.order_id.to_string();
    let known = &saga.context;
    let said = |text: &Option<String>| html! { (text.as_deref().unwrap_or("–")) };
    let body = html! {
        @if held { p class="box warn" { (view.say("sagas.held")) } }
        @if let Some(why) = &known.failed_because { p class="box bad" { (view.say("sagas.failed-because")) " " (why) } }
        (facts(&[
            (view.say("col.state"), badge(&saga.state)),
            (view.say("col.name"), html! { (saga.name) }),
            (view.say("col.order"), html! { a href=(link(orders::HERE, &order)) { (order) } }),
            (view.say("col.tenant"), html! { (saga.tenant_id) }),
            (view.say("col.step"), html! { (saga.step) }),
            (view.say("col.attempts"), html! { (saga.attempts) }),
            (view.say("sagas.next"), view.when(&saga.next_at)),
            (view.say("col.courier"), said(&known.courier_id)),
            (view.say("sagas.vehicle"), said(&known.vehicle_type)),
            (view.say("sagas.fee"), html! { (money(known.fee_cents.into())) }),
            (view.say("col.created"), view.when(&saga.created_at)),
            (view.say("col.updated"), view.when(&saga.updated_at)),
        ]))
        h2 { (view.say("sagas.steps")) }
        (story(&view, &steps))
    };
    Ok(page(&view, &view.fill("sagas.one", &[("id", &saga.id.to_string())]), HERE, &body).into_response())
}

fn story(view: &View, steps: &[ShownStep]) -> Markup {
    html! { ol class="history" id="steps" {
        @for step in steps {
            li class=[(step.kind == "compensation").then_some("back")] {
                (view.when(&step.at))
                strong { (step.step) }
                (badge(&step.state))
                @if let Some(note) = &step.note { span { (note) } }
                span class="quiet" {
                    (view.word("step", &step.kind))
                    @if let Some(key) = &step.key { " · " a href=(link("/console/effects", key)) { code { (key) } } }
                }
            }
        }
        @if steps.is_empty() { li { (view.say("sagas.no-steps")) } }
    } }
}
