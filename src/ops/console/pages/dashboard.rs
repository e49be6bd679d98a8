//! Orders by tenant and status, from the read model that counts them; every number leads to what it counts.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::IntoResponse;
use maud::{Markup, html};

use super::orders::{behind, freshness};
use super::{Answer, OrPage};
use crate::ops::console::Console;
use crate::ops::console::fields::{Fields, encode};
use crate::ops::console::frame::{View, badge, cell, grouped, money, number, page, table};
use crate::ops::projections::STATUSES;
use crate::pg::projection_rows::DashboardRow;

const HERE: &str = "/console/dashboard";
/// Tenants with tiles of their own.
const TENANTS: usize = 50;

pub async fn show(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let tenant = fields.get("tenant");
    let rows = console.dashboard(tenant).await.or_page(&view)?;
    let behind = behind(&console.lags().await.or_page(&view)?, "dashboard_aggregate");
    let mut tenants: BTreeMap<&str, Vec<&DashboardRow>> = BTreeMap::new();
    for row in &rows {
        tenants.entry(&row.tenant_id).or_default().push(row);
    }
    let body = html! {
        p class="quiet" { (view.say("dashboard.what")) " " (freshness(&view, behind)) }
        form method="get" class="filter" {
            label { (view.say("col.tenant")) input name="tenant" value=(tenant.unwrap_or_default()); }
            button { (view.say("filter.apply")) }
        }
        @if tenants.is_empty() { p class="empty" { (view.say("dashboard.none")) } }
        @if tenants.len() > TENANTS { p class="box warn" { (view.fill("list.more", &[("n", &TENANTS.to_string())])) } }
        @for (tenant, rows) in tenants.iter().take(TENANTS) { (of_tenant(&view, tenant, rows)) }
    };
    Ok(page(&view, &view.say("dashboard.title"), HERE, &body).into_response())
}

fn of_tenant(view: &View, tenant: &str, rows: &[&DashboardRow]) -> Markup {
    let all = format!("/console/orders?tenant={}", encode(tenant));
    let orders: i64 = rows.iter().map(|row| row.orders).sum();
    let cents: i128 = rows.iter().map(|row| i128::from(row.amount_cents)).sum();
    let of = |status: &str| rows.iter().find(|row| row.status == status);
    let heads = ["col.state", "col.orders", "col.amount"].map(|key| view.say(key));
    let lines = STATUSES.iter().filter_map(|status| of(status)).map(|row| {
        let link = format!("{all}&status={}", encode(&row.status));
        vec![
            cell(badge(&row.status)),
            number(html! { a href=(link) { (grouped(row.orders)) } }),
            number(html! { a href=(link) { (money(row.amount_cents.into())) } }),
        ]
    });
    html! {
        section class="tenant" data-tenant=(tenant) {
            h2 { (tenant) }
            div class="tiles" {
                a class="tile" href=(all) { span { (view.say("col.orders")) } strong { (grouped(orders)) } }
                a class="tile" href=(all) { span { (view.say("col.amount")) } strong { (money(cents)) } }
            }
            (table(&heads, lines.collect(), &view.say("none")))
        }
    }
}
