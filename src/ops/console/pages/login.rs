//! The door: the token once, then a session.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;

use crate::ops::console::Console;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{self, View, page};
use crate::ops::console::session::{Signed, closed, same_origin};

/// A wrong token costs so long: guessing goes nowhere.
const WRONG_COSTS: std::time::Duration = std::time::Duration::from_millis(500);
/// A token is a word.
const FORM_MAX: usize = 16 * 1024;

pub async fn home() -> Redirect {
    Redirect::to("/console")
}

pub async fn show(State(console): State<Console>, view: View, fields: Fields) -> Response {
    if console.sessions.is_none() {
        return (StatusCode::FORBIDDEN, frame::without_token(&view)).into_response();
    }
    form(&view, next_of(&fields), None)
}

fn form(view: &View, next: &str, wrong: Option<&str>) -> Response {
    let status = if wrong.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    let body = html! {
        @if let Some(wrong) = wrong { p class="box bad" role="alert" { (wrong) } }
        form method="post" action="/console/login" class="stack" {
            p { (view.say("login.why")) }
            input type="hidden" name="next" value=(next);
            label { (view.say("login.token"))
                input type="password" name="token" autocomplete="current-password" required autofocus;
            }
            button { (view.say("login.enter")) }
        }
    };
    (status, page(view, &view.say("login.title"), "", &body)).into_response()
}

/// Where to go afterwards: a page of ours, whatever the link said.
fn next_of(fields: &Fields) -> &str {
    let next = fields.get("next").unwrap_or("/console");
    let ours = (next == "/console" || next.starts_with("/console/") || next.starts_with("/console?"))
        && !next.contains(['\\', '\r', '\n']);
    if ours { next } else { "/console" }
}

pub async fn enter(
    State(console): State<Console>,
    view: View,
    headers: HeaderMap,
    body: axum::body::Bytes,
) -> Response {
    let Some(sessions) = &console.sessions else {
        return (StatusCode::FORBIDDEN, frame::without_token(&view)).into_response();
    };
    if !same_origin(&headers) || body.len() > FORM_MAX {
        return (StatusCode::FORBIDDEN, frame::notice(&view, "refused.origin")).into_response();
    }
    let fields = Fields::parse(&body);
    let next = next_of(&fields);
    if let Some(cookie) = sessions.open(fields.get("token").unwrap_or_default(), &headers) {
        return ([(header::SET_COOKIE, cookie)], Redirect::to(next)).into_response();
    }
    tracing::warn!("somebody offered a wrong token at the console");
    tokio::time::sleep(WRONG_COSTS).await;
    form(&view, next, Some(&view.say("login.wrong")))
}

pub async fn leave(headers: HeaderMap, Signed(_): Signed) -> Response {
    ([(header::SET_COOKIE, closed(&headers))], Redirect::to("/console/login")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_door_comes_a_page_of_ours() {
        for (query, next) in [
            ("next=/console/replays?a=b", "/console/replays?a=b"),
            ("next=/console", "/console"),
            ("next=https://evil.example/console", "/console"),
            ("next=//evil.example", "/console"),
            ("next=/consolefoo", "/console"),
            ("next=/console/%0d%0aX", "/console"),
            ("", "/console"),
        ] {
            assert_eq!(next_of(&Fields::parse(query.as_bytes())), next, "{query}");
        }
    }
}
