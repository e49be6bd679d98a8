//! Orders, from their read model: filtered by tenant, status and id, a page at a time.

use axum::extract::State;
use axum::response::{IntoResponse, Redirect};
use maud::{Markup, html};
use uuid::Uuid;

use super::{Answer, OrPage, SHOWN, choice};
use crate::ops::console::Console;
use crate::ops::console::desk::invalid;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, grouped, link, money, number, page, table, text};
use crate::ops::problem::Problem;
use crate::ops::projections::STATUSES;
use crate::pg::projection_rows::{OrderRow, Wanted};
use crate::pg::projections::Lag;

pub const HERE: &str = "/console/orders";

pub async fn list(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let wanted = wanted(&fields).or_page(&view)?;
    if let Some((first, last)) = wanted.between
        && first == last
    {
        return Ok(Redirect::to(&link(HERE, &first.to_string())).into_response());
    }
    let mut found = console.orders(&wanted).await.or_page(&view)?;
    let more = found.len() > SHOWN;
    found.truncate(SHOWN);
    let behind = behind(&console.lags().await.or_page(&view)?, "orders_view");
    let next = found.last().filter(|_| more).map(|row| row.order_id.to_string());
    let body = html! {
        p class="quiet" { (view.say("orders.what")) " " (freshness(&view, behind)) }
        form method="get" class="filter" {
            label { (view.say("col.tenant")) input name="tenant" value=(fields.get("tenant").unwrap_or_default()); }
            (choice(&view, "status", &view.say("col.state"), &STATUSES, &fields))
            label { (view.say("orders.id")) input name="id" value=(fields.get("id").unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        (listing(&view, &found))
        p class="tabs" {
            @if fields.get("cursor").is_some() { a href=(format!("?{}", fields.with("cursor", ""))) { (view.say("page.first")) } }
            @if let Some(next) = next { a rel="next" href=(format!("?{}", fields.with("cursor", &next))) { (view.say("page.next")) } }
        }
    };
    Ok(page(&view, &view.say("orders.title"), HERE, &body).into_response())
}

fn wanted(fields: &Fields) -> Result<Wanted, Problem> {
    let status = fields.get("status");
    if status.is_some_and(|status| !STATUSES.contains(&status)) {
        return Err(invalid(format!("status: use one of {}", STATUSES.join(", "))));
    }
    let after = fields.get("cursor").map(str::parse).transpose();
    Ok(Wanted {
        tenant: fields.get("tenant").map(str::to_owned),
        status: status.map(str::to_owned),
        after: after.map_err(|_| invalid("cursor: is no page of this list; begin with the first"))?,
        between: fields.get("id").map(between).transpose()?,
        limit: u32::try_from(SHOWN + 1).unwrap_or(u32::MAX),
    })
}

/// The first and last id that begin so.
fn between(beginning: &str) -> Result<(Uuid, Uuid), Problem> {
    let digits: String = beginning.chars().filter(|c| *c != '-').collect();
    let is_one = !digits.is_empty() && digits.len() <= 32 && digits.chars().all(|c| c.is_ascii_hexdigit());
    let filled = |with: &str| format!("{digits}{}", with.repeat(32_usize.saturating_sub(digits.len())));
    let ends = is_one.then(|| Some((filled("0").parse().ok()?, filled("f").parse().ok()?))).flatten();
    ends.ok_or_else(|| invalid(format!("id: {beginning:?} is no UUID and no beginning of one")))
}

/// By how many events the view that readers see is behind.
pub fn behind(lags: &[Lag], name: &str) -> i64 {
    let active = lags.iter().filter(|lag| lag.name == name && lag.state == "active");
    active.map(|lag| lag.lag_events).max().unwrap_or(0)
}

/// How fresh a read model is, with the way to where that is mended.
pub fn freshness(view: &View, behind: i64) -> Markup {
    html! {
        a href="/console/projections" {
            @if behind == 0 { (view.say("fresh.now")) } @else { (view.fill("fresh.behind", &[("n", &grouped(behind))])) }
        }
    }
}

fn listing(view: &View, found: &[OrderRow]) -> Markup {
    let heads =
        ["col.order", "col.tenant", "col.state", "col.amount", "col.seller", "col.courier", "col.placed"]
            .map(|key| view.say(key));
    let rows = found.iter().map(|row| {
        let id = row.order_id.to_string();
        vec![
            cell(html! { a href=(link(HERE, &id)) { code class="id" { (id) } } }),
            text(&row.tenant_id),
            cell(badge(&row.status)),
            number(html! { (money(row.amount_cents.into())) }),
            text(&row.seller_id),
            text(row.courier_id.as_deref().unwrap_or("–")),
            cell(view.when(&row.placed_at)),
        ]
    });
    table(&heads, rows.collect(), &view.say("orders.none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_id_is_a_range_and_a_whole_one_is_itself() {
        let (first, last) = between("0b3E-4").expect("a range");
        assert_eq!(first.to_string(), "0b3e4000-0000-0000-0000-000000000000");
        assert_eq!(last.to_string(), "0b3e4fff-ffff-ffff-ffff-ffffffffffff");
        let (first, last) = between("0b3e4000-0000-4000-8000-000000000001").expect("an id");
        assert_eq!(first, last);
        assert!(between("x").is_err() && between("-").is_err() && between(&"0".repeat(33)).is_err());
    }
}
