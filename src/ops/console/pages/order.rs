//! One order: what it is, how it came to be so, and how it was at any of its versions.

use axum::extract::{Path, State};
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use super::orders::HERE;
use super::{Answer, OrPage, sagas};
use crate::ops::console::Console;
use crate::ops::console::desk::{invalid, unknown};
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, facts, link, money, number, page, pretty, table, text};
use crate::ops::problem::Problem;
use crate::orders::audit::Finding;
use crate::orders::desk::{History, Told};
use crate::orders::order::Order;
use crate::pg::orders::Until;
use crate::pg::review::Summary;
use crate::pg::saga::Wanted;

/// Events of one page of a history.
const EVENTS: u32 = 100;
/// Sagas of one order that are shown.
const SAGAS: usize = 20;

pub async fn show(
    State(console): State<Console>,
    view: View,
    Path(id): Path<String>,
    fields: Fields,
) -> Answer {
    let id: Uuid = id.parse().map_err(|_| unknown(format!("{id:?} is no order id"))).or_page(&view)?;
    let newest = console.order(id, Until::Now).await.or_page(&view)?;
    let version = version(&fields, &newest).or_page(&view)?;
    let at = match version {
        version if version == newest.version => newest.clone(),
        version => console.order(id, Until::Version(version)).await.or_page(&view)?,
    };
    let before = match version {
        ..=1 => None,
        version => Some(console.order(id, Until::Version(version - 1)).await.or_page(&view)?),
    };
    // The page of the history that holds this version.
    let after = (version.saturating_sub(1)) / EVENTS * EVENTS;
    let history = console.history(id, after, EVENTS).await.or_page(&view)?;
    let name = id.to_string();
    let effects = console.effects_of(&name).await.or_page(&view)?;
    let wanted = Wanted { order_id: Some(id), ..Wanted::default() };
    let sagas = console.sagas(wanted, SAGAS).await.or_page(&view)?;
    let body = html! {
        (slider(&view, version, newest.version))
        section id="moment" aria-live="polite" { (moment(&view, &at, before.as_ref(), &history, newest.version)) }
        h2 { (view.say("order.history")) }
        div id="history" { (story(&view, &history, version, newest.version)) }
        h2 { (view.say("order.effects")) }
        (ledger(&view, &effects))
        h2 { (view.say("order.sagas")) }
        (sagas::listing(&view, &sagas))
    };
    Ok(page(&view, &view.fill("order.title", &[("id", &name)]), HERE, &body).into_response())
}

fn version(fields: &Fields, newest: &Order) -> Result<u32, Problem> {
    let Some(asked) = fields.get("version") else { return Ok(newest.version) };
    let version = asked.parse().ok().filter(|version| (1..=newest.version).contains(version));
    version.ok_or_else(|| {
        invalid(format!("version: {asked:?}; this order has the versions 1 to {}", newest.version))
    })
}

/// A form for those without script; with it the slider shows each version as it is passed.
fn slider(view: &View, version: u32, newest: u32) -> Markup {
    html! {
        form method="get" class="travel" id="travel" {
            label for="version" { (view.fill("order.travel", &[("newest", &newest.to_string())])) }
            input type="range" id="version" name="version" min="1" max=(newest) value=(version) data-travel;
            noscript { button { (view.say("filter.apply")) } }
        }
    }
}

fn moment(view: &View, at: &Order, before: Option<&Order>, history: &History, newest: u32) -> Markup {
    let event = history.events.iter().find(|event| event.version == at.version);
    let step = |version: u32, key: &str| html! { a href=(format!("?version={version}")) { (view.say(key)) } };
    let numbers = [("version", at.version.to_string()), ("newest", newest.to_string())];
    let numbers = [(numbers[0].0, numbers[0].1.as_str()), (numbers[1].0, numbers[1].1.as_str())];
    html! {
        p class="tabs" {
            strong id="at" data-version=(at.version) { (view.fill("order.at", &numbers)) }
            @if at.version > 1 { (step(at.version - 1, "order.earlier")) }
            @if at.version < newest { (step(at.version + 1, "order.later")) (step(newest, "order.newest")) }
        }
        @if let Some(event) = event { p class="box" { strong { (words(view, event)) } " " (view.local(event.at)) } }
        (facts(&fields_of(at).into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (view.word("field", &name), shown(view, &name, &value))).collect::<Vec<_>>()))
        h2 { (view.fill("order.changed", &[("version", &at.version.to_string())])) }
        (changed(view, before, at))
    }
}

/// Fields by their names at the boundary, those in front first that say most.
fn fields_of(order: &Order) -> Vec<(String, Value)> {
    let first = ["status", "amountCents", "paidCents", "tenantId", "customerId", "sellerId", "items"];
    let dull = ["orderId", "version"];
    let fields = serde_json::to_value(order).unwrap_or_default();
    let fields = fields.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| !dull.contains(&name.as_str()));
    let mut fields: Vec<(String, Value)> =
        fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    let place = |name: &String| first.iter().position(|each| each == name).unwrap_or(first.len());
    fields.sort_by_key(|(name, _)| place(name));
    fields
}

fn shown(view: &View, name: &str, value: &Value) -> Markup {
    match value {
        Value::Null => html! { span class="quiet" { "–" } },
        Value::Number(cents) if name.ends_with("Cents") => {
            html! { (money(cents.as_i64().unwrap_or_default().into())) }
        }
        Value::String(at) if name.ends_with("At") => view.when(at),
        Value::String(word) if name == "status" => badge(word),
        Value::String(text) => html! { (text) },
        Value::Array(items) => html! { @for item in items { (line(item)) br; } },
        other => html! { (other) },
    }
}

fn line(item: &Value) -> Markup {
    let price = item["unitPriceCents"].as_i64().unwrap_or_default();
    html! { (item["quantity"]) " × " (item["sku"].as_str().unwrap_or_default()) " · " (money(price.into())) }
}

/// The difference to the version before.
fn changed(view: &View, before: Option<&Order>, at: &Order) -> Markup {
    let old: std::collections::HashMap<String, Value> =
        before.map(fields_of).unwrap_or_default().into_iter().collect();
    let heads = ["col.field", "diff.before", "diff.after"].map(|key| view.say(key));
    let rows = fields_of(at).into_iter().filter_map(|(name, after)| {
        let before = old.get(&name).unwrap_or(&Value::Null);
        (*before != after && name != "updatedAt").then(|| {
            vec![
                text(view.word("field", &name)),
                cell(html! { @if before.is_null() { (shown(view, &name, before)) } @else { del { (shown(view, &name, before)) } } }),
                cell(html! { ins { (shown(view, &name, &after)) } }),
            ]
        })
    });
    html! { div id="changed" { (table(&heads, rows.collect(), &view.say("order.nothing-changed"))) } }
}

/// An event in words.
fn words(view: &View, event: &Told) -> String {
    let text = |name: &str| event.payload[name].as_str().unwrap_or_default().to_owned();
    let cents = |name: &str| money(event.payload[name].as_i64().unwrap_or_default().into());
    match event.name.as_str() {
        "OrderPlaced" => {
            let items = event.payload["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let of = |item: &Value, name: &str| i128::from(item[name].as_i64().unwrap_or_default());
            let total: i128 =
                items.iter().map(|item| of(item, "quantity") * of(item, "unitPriceCents")).sum();
            let n = items.len().to_string();
            let values = [("n", n.as_str()), ("amount", &money(total)), ("who", &text("customerId"))];
            view.fill("event.OrderPlaced", &values)
        }
        "OrderPaid" => view.fill("event.OrderPaid", &[("amount", &cents("amountCents"))]),
        "CourierAssigned" => {
            let vehicle = Some(text("vehicleType")).filter(|vehicle| !vehicle.is_empty());
            let vehicle = vehicle.unwrap_or_else(|| view.say("event.vehicle-unknown"));
            view.fill("event.CourierAssigned", &[("who", &text("courierId")), ("vehicle", &vehicle)])
        }
        "CancellationRequested" => view.fill("event.CancellationRequested", &[("why", &text("reason"))]),
        "Cancelled" => view.fill("event.Cancelled", &[("why", &text("reason"))]),
        name => view.word("event", name),
    }
}

/// Who, why, when; each event leads to the order as it was then.
fn story(view: &View, history: &History, version: u32, newest: u32) -> Markup {
    let (first, last) =
        (history.events.first().map_or(1, |e| e.version), history.events.last().map_or(1, |e| e.version));
    html! {
        @for finding in &history.findings { (refused_today(view, finding)) }
        ol class="history" start=(first) {
            @for event in &history.events {
                li class=[(event.version == version).then_some("ruling")] {
                    (view.when(&event.at.to_string()))
                    a href=(format!("?version={}", event.version)) aria-current=[(event.version == version).then_some("true")] {
                        strong { (words(view, event)) }
                    }
                    @if let Some(reason) = &event.reason { span { (view.fill("order.why", &[("why", reason)])) } }
                    span class="quiet" {
                        "v" (event.version) " · " (event.name) " " (event.schema_version)
                        @if !event.actor.is_empty() { " · " (view.fill("order.by", &[("who", &event.actor)])) }
                    }
                    details { summary { "JSON" } (pretty(&serde_json::to_value(event).unwrap_or_default())) }
                }
            }
        }
        p class="tabs" {
            @if first > 1 { a href=(format!("?version={}", first - 1)) { (view.say("order.events-earlier")) } }
            @if last < newest { a href=(format!("?version={}", last + 1)) { (view.say("order.events-later")) } }
        }
    }
}

/// The history shows a fault that a table of the present would have hidden.
fn refused_today(view: &View, finding: &Finding) -> Markup {
    let values = [("version", finding.version.to_string()), ("event", finding.name.to_owned())];
    let values = [("version", values[0].1.as_str()), ("event", values[1].1.as_str())];
    html! { p class="box warn" { (view.fill("order.finding", &values)) " " code { (finding.code) } " " (finding.detail) } }
}

fn ledger(view: &View, effects: &[Summary]) -> Markup {
    let heads = ["col.key", "col.effect", "col.state", "col.attempts", "col.since"].map(|key| view.say(key));
    let rows = effects.iter().map(|effect| {
        vec![
            cell(html! { a href=(link("/console/effects", &effect.key)) { code { (effect.key) } } }),
            text(&effect.effect_type),
            cell(badge(&effect.state)),
            number(html! { (effect.attempts) }),
            cell(view.when(&effect.updated_at)),
        ]
    });
    html! { div id="effects" { (table(&heads, rows.collect(), &view.say("order.no-effects"))) } }
}
