//! What the windows count: orders by the minute and the hour, by event time, and couriers of whom nothing is heard.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::IntoResponse;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};

use super::{Answer, OrPage};
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, cell, grouped, money, page, table, text};
use crate::ops::console::{Console, plot};
use crate::pg::kpi_rows::{Offline, Window};

const HERE: &str = "/console/kpis";
/// Points of a plot; a longer gap than that is no plot.
const POINTS_MAX: usize = 300;

pub async fn show(State(console): State<Console>, view: View, fields: Fields) -> Answer {
    let tenant = fields.get("tenant");
    let kpis = console.kpis(tenant).await.or_page(&view)?;
    let absent = kpis.per_minute.is_none() && kpis.per_hour.is_none() && kpis.couriers_offline.is_none();
    let minute = SignedDuration::from_mins(1);
    let five = SignedDuration::from_mins(5);
    let body = html! {
        p class="quiet" { (view.say("kpis.what")) }
        @if absent { p class="empty" { (view.say("kpis.absent")) } }
        @if kpis.per_minute.is_some() {
            p class="tabs" {
                a href="?" aria-current=[tenant.is_none().then_some("true")] { (view.say("kpis.all")) }
                @for each in &kpis.tenants {
                    a href=(format!("?{}", fields.with("tenant", each))) aria-current=[(Some(each.as_str()) == tenant).then_some("true")] { (each) }
                }
            }
        }
        div class="figures" {
            @if let Some(windows) = &kpis.per_minute { (figure(&view, "minute", &view.say("kpis.minute"), windows, minute)) }
            @if let Some(windows) = &kpis.per_hour { (figure(&view, "hour", &view.say("kpis.hour"), windows, five)) }
        }
        @if let Some(couriers) = &kpis.couriers_offline {
            h2 { (view.say("kpis.couriers")) }
            (offline(&view, couriers))
        }
    };
    Ok(page(&view, &view.say("kpis.title"), HERE, &body).into_response())
}

/// Values at every step from the first window to the last; where nothing was counted there is nought.
fn filled(windows: &[Window], step: SignedDuration) -> Vec<f64> {
    let at = |window: &Window| window.window_start.parse::<Timestamp>().ok();
    let by_start: HashMap<Timestamp, i64> =
        windows.iter().filter_map(|window| Some((at(window)?, window.orders))).collect();
    let (Some(first), Some(last)) = (windows.first().and_then(at), windows.last().and_then(at)) else {
        return Vec::new();
    };
    let next = |at: &Timestamp| at.saturating_add(step).ok().filter(|next| *next <= last);
    let steps = std::iter::successors(Some(first), next).take(POINTS_MAX);
    #[expect(clippy::cast_precision_loss, reason = "places on a drawing")]
    steps.map(|at| by_start.get(&at).copied().unwrap_or(0) as f64).collect()
}

fn figure(view: &View, id: &str, title: &str, windows: &[Window], step: SignedDuration) -> Markup {
    let Some((first, last)) = windows.first().zip(windows.last()) else {
        return html! { figure id=(id) { figcaption { (title) } p class="empty" { (view.say("kpis.none")) } } };
    };
    let orders: i64 = windows.iter().map(|window| window.orders).max().unwrap_or(0);
    let values = [
        ("title", title.to_owned()),
        ("max", grouped(orders)),
        ("n", grouped(last.orders)),
        ("amount", money(last.amount_cents.into())),
    ];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let words = view.fill("kpis.words", &values);
    html! {
        figure id=(id) data-newest=(last.orders) {
            figcaption { (words) }
            (plot::line(&words, &filled(windows, step)))
            p class="ends quiet" { span { (view.when(&first.window_start)) } span { (view.when(&last.window_start)) } }
        }
    }
}

fn offline(view: &View, couriers: &[Offline]) -> Markup {
    let heads = ["col.courier", "col.tenant", "col.state", "kpis.last-seen", "kpis.detected", "kpis.back"]
        .map(|key| view.say(key));
    let rows = couriers.iter().map(|courier| {
        let away = courier.back_at.is_none();
        vec![
            text(&courier.courier_id),
            text(&courier.tenant_id),
            cell(badge(if away { "offline" } else { "online" })),
            cell(view.when(&courier.last_seen_at)),
            cell(view.when(&courier.detected_at)),
            cell(html! { @match &courier.back_at { Some(at) => { (view.when(at)) } None => { "–" } } }),
        ]
    });
    html! { div id="couriers" { (table(&heads, rows.collect(), &view.say("kpis.no-couriers"))) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_without_orders_is_drawn_as_nought() {
        let window = |at: &str, orders| Window { window_start: at.to_owned(), orders, amount_cents: 0 };
        let windows = [window("2026-10-14T03:00:00Z", 3), window("2026-10-14T03:02:00Z", 5)];
        let drawn = filled(&windows, SignedDuration::from_mins(1));
        assert_eq!(drawn.iter().map(|v| format!("{v}")).collect::<Vec<_>>(), ["3", "0", "5"]);
        assert!(filled(&[], SignedDuration::from_mins(1)).is_empty());
    }
}
