//! The pages. Each says what there is to see, what can be done, and to how many.

mod dashboard;
mod effects;
mod kpis;
mod letters;
mod login;
mod order;
mod orders;
mod overview;
mod progress;
mod projections;
mod replay;
mod replays;
mod sagas;

use axum::Router;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::Console;
use super::fields::Fields;
use super::frame::{self, View};
use crate::ops::problem::Problem;

/// Rows of one listing.
const SHOWN: usize = 200;

/// An answer, or the page that says why there is none.
pub(super) type Answer = Result<Response, Refused>;

/// A problem that is still to become a page.
pub(super) struct Refused(View, Problem);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        frame::problem(&self.0, &self.1)
    }
}

trait OrPage<T> {
    fn or_page(self, view: &View) -> Result<T, Refused>;
}

impl<T> OrPage<T> for Result<T, Problem> {
    fn or_page(self, view: &View) -> Result<T, Refused> {
        self.map_err(|problem| Refused(view.clone(), problem))
    }
}

/// Without a session: assets, the door, and numbers that `/metrics` shows, too.
pub(super) fn open() -> Router<Console> {
    Router::new()
        .route("/", get(login::home))
        .route("/console", get(overview::show))
        .route("/console/login", get(login::show).post(login::enter))
        .route("/console/static/console.css", get(style))
        .route("/console/static/console.js", get(script))
        .route("/console/static/icon.svg", get(icon))
}

/// With a session only.
pub(super) fn guarded() -> Router<Console> {
    Router::new()
        .route("/console/logout", post(login::leave))
        .route("/console/effects", get(effects::list))
        .route("/console/effects/decide", get(effects::choose).post(effects::decide))
        .route("/console/effects/{key}", get(effects::show))
        .route("/console/dead-letters", get(letters::list))
        .route("/console/dead-letters/redrive", post(letters::redrive))
        .route("/console/dead-letters/{id}", get(letters::show))
        .route("/console/replays", get(replays::list))
        .route("/console/replays/new", get(replays::new))
        .route("/console/replays/plan", post(replays::plan))
        .route("/console/replays/begin", post(replays::begin))
        .route("/console/replays/{id}", get(replay::show))
        .route("/console/replays/{id}/change", post(replay::change))
        .route("/console/replays/{id}/events", get(progress::events))
        .route("/console/replays/{id}/diff.csv", get(replay::csv))
        .route("/console/orders", get(orders::list))
        .route("/console/orders/{id}", get(order::show))
        .route("/console/dashboard", get(dashboard::show))
        .route("/console/projections", get(projections::show))
        .route("/console/projections/events", get(projections::events))
        .route("/console/projections/{name}/change", post(projections::change))
        .route("/console/sagas", get(sagas::list))
        .route("/console/sagas/{id}", get(sagas::show))
        .route("/console/kpis", get(kpis::show))
}

const A_WHILE: &str = "max-age=300";

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../assets/console.css"))
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("../assets/console.js"))
}

async fn icon() -> Response {
    asset("image/svg+xml", frame::ICON.0)
}

fn asset(kind: &'static str, body: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, A_WHILE)], body).into_response()
}

/// The effect types, outcomes or reasons of a filter: a choice with an empty first entry.
fn choice(view: &View, name: &str, label: &str, choices: &[&str], fields: &Fields) -> maud::Markup {
    let chosen = fields.get(name).unwrap_or_default();
    maud::html! {
        label { (label)
            select name=(name) {
                option value="" { (view.say("filter.all")) }
                @for choice in choices {
                    option value=(choice) selected[*choice == chosen] { (choice) }
                }
            }
        }
    }
}
