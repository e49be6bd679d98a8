//! The page around every page, and the pieces they are built of. Later rooms add an entry to [`PLACES`] and use the
//! same pieces.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::fields::encode;
use super::session::{Session, cookie_of};
use super::words::Lang;
use crate::ops::problem::Problem;

/// How a page is seen: language, time zone, and whose session it is.
#[derive(Clone)]
pub struct View {
    pub lang: Lang,
    zone: TimeZone,
    pub zone_name: String,
    session: Option<Session>,
}

/// An entry of the navigation.
struct Place {
    key: &'static str,
    path: &'static str,
}

const PLACES: [Place; 9] = [
    Place { key: "nav.overview", path: "/console" },
    Place { key: "nav.replays", path: "/console/replays" },
    Place { key: "nav.review", path: "/console/effects" },
    Place { key: "nav.letters", path: "/console/dead-letters" },
    Place { key: "nav.orders", path: "/console/orders" },
    Place { key: "nav.dashboard", path: "/console/dashboard" },
    Place { key: "nav.sagas", path: "/console/sagas" },
    Place { key: "nav.kpis", path: "/console/kpis" },
    Place { key: "nav.projections", path: "/console/projections" },
];

impl View {
    pub fn of(headers: &HeaderMap, session: Option<Session>) -> Self {
        let asked = cookie_of(headers, "tz").map(|name| name.replace("%2F", "/"));
        let named = asked.and_then(|name| Some((TimeZone::get(&name).ok()?, name)));
        let (zone, zone_name) = named.unwrap_or_else(|| (TimeZone::UTC, "UTC".to_owned()));
        Self { lang: Lang::of(headers), zone, zone_name, session }
    }

    pub fn say(&self, key: &str) -> String {
        self.lang.say(key)
    }

    pub fn fill(&self, key: &str, values: &[(&str, &str)]) -> String {
        self.lang.fill(key, values)
    }

    /// The word of a group of keys, or the word itself.
    pub fn word(&self, group: &str, word: &str) -> String {
        self.lang.known(&format!("{group}.{word}")).map_or_else(|| word.to_owned(), str::to_owned)
    }

    /// The hidden field that makes a form ours.
    pub fn csrf(&self) -> Markup {
        html! { @if let Some(session) = &self.session { input type="hidden" name="csrf" value=(session.csrf); } }
    }

    pub fn is_signed_in(&self) -> bool {
        self.session.is_some()
    }

    /// An instant in the reader's zone, with its offset.
    pub fn local(&self, at: Timestamp) -> String {
        at.to_zoned_datetime(self.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string()
    }

    /// As the value of an input of the browser, in the reader's zone.
    pub fn input(&self, at: Timestamp) -> String {
        at.to_zoned_datetime(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S").to_string()
    }

    /// An instant as the browser's input or a program writes it; without an offset it is in the reader's zone.
    pub fn instant(&self, text: &str) -> Option<Timestamp> {
        if let Ok(at) = text.parse() {
            return Some(at);
        }
        let civil: jiff::civil::DateTime = text.parse().ok()?;
        civil.to_zoned_datetime(self.zone.clone()).ok().map(|zoned| zoned.timestamp())
    }

    /// The last midnight, or the last full hour, of the reader's zone.
    pub fn floor(&self, at: Timestamp, unit: jiff::Unit) -> Timestamp {
        let zoned = at.to_zoned_datetime(self.zone.clone());
        let floored = jiff::ZonedDateTimeRound::new().smallest(unit).mode(jiff::RoundMode::Trunc);
        zoned.round(floored).map_or(at, |zoned| zoned.timestamp())
    }

    /// An instant of the database, for people and for programs.
    pub fn when(&self, text: &str) -> Markup {
        html! {
            @match text.parse::<Timestamp>() {
                Ok(at) => { time datetime=(text) title=(text) { (self.local(at)) } }
                Err(_) => { (text) }
            }
        }
    }
}

/// A whole page.
pub fn page(view: &View, title: &str, here: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang=(view.lang.tag()) {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Reprise" }
                link rel="stylesheet" href="/console/static/console.css";
                link rel="icon" href="/console/static/icon.svg";
                script src="/console/static/console.js" defer {}
            }
            body data-zone=(view.zone_name) {
                a class="skip" href="#main" { (view.say("nav.skip")) }
                header {
                    a class="brand" href="/console" { "Reprise" }
                    nav aria-label=(view.say("nav.label")) {
                        @for place in &PLACES {
                            a href=(place.path) aria-current=[(place.path == here).then_some("page")] { (view.say(place.key)) }
                        }
                    }
                    div class="aside" {
                        span class="zone" title=(view.say("nav.zone")) { (view.zone_name) }
                        @if view.is_signed_in() {
                            form method="post" action="/console/logout" {
                                (view.csrf())
                                button class="plain" { (view.say("nav.logout")) }
                            }
                        }
                    }
                }
                main id="main" tabindex="-1" {
                    h1 { (title) }
                    (body)
                }
                footer { "Reprise " (env!("CARGO_PKG_VERSION")) " · " a href="/api/v1/openapi.json" { "API" } " · " a href="/metrics" { "metrics" } }
            }
        }
    }
}

/// A page that says one thing.
pub fn notice(view: &View, key: &str) -> Markup {
    let body = html! {
        p class="box bad" role="alert" { (view.say(key)) }
        p { a href="/console" { (view.say("nav.overview")) } }
    };
    page(view, &view.say("notice.title"), "", &body)
}

/// A problem of the API as a page.
pub fn problem(view: &View, problem: &Problem) -> Response {
    let title = match problem.code {
        "lost" => view.say("problem.lost"),
        "refused" => view.say("problem.refused"),
        "not-found" => view.say("problem.not-found"),
        "invalid" => view.say("problem.invalid"),
        _ => view.say("problem.other"),
    };
    let body = html! {
        p class="box bad" role="alert" data-code=(problem.code) { (problem.detail) }
        p class="quiet" { (view.say("problem.back")) }
    };
    let status = StatusCode::from_u16(problem.status.as_u16()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, page(view, &title, "", &body)).into_response()
}

/// Why there is nothing to see without a token, and how to set one.
pub fn without_token(view: &View) -> Markup {
    let body = html! { div class="box warn" { (how_to_set_a_token(view)) } };
    page(view, &view.say("token.title"), "", &body)
}

pub fn how_to_set_a_token(view: &View) -> Markup {
    html! {
        p { (view.say("token.why")) }
        pre { "openssl rand -hex 32 > /etc/reprise/token && chmod 600 /etc/reprise/token\n\n[http]\ntoken_arquivo = \"/etc/reprise/token\"" }
        p { (view.say("token.then")) }
    }
}

/// A cell of a table.
pub struct Cell {
    body: Markup,
    numeric: bool,
}

pub fn cell(body: Markup) -> Cell {
    Cell { body, numeric: false }
}

pub fn text(text: impl AsRef<str>) -> Cell {
    cell(html! { (text.as_ref()) })
}

/// A number: it stands at the right, in figures of one width.
pub fn number(body: Markup) -> Cell {
    Cell { body, numeric: true }
}

/// A table that becomes a list of cards on a narrow screen; `empty` is said where there are no rows.
pub fn table(heads: &[String], rows: Vec<Vec<Cell>>, empty: &str) -> Markup {
    if rows.is_empty() {
        return html! { p class="empty" { (empty) } };
    }
    let column = |i: usize| rows.iter().any(|row: &Vec<Cell>| row.get(i).is_some_and(|cell| cell.numeric));
    let numeric: Vec<bool> = (0..heads.len()).map(column).collect();
    html! {
        div class="scroll" { table {
            thead { tr {
                @for (head, numeric) in heads.iter().zip(numeric) {
                    th scope="col" class=[numeric.then_some("n")] { (head) }
                }
            } }
            tbody { @for row in rows {
                tr { @for (cell, head) in row.iter().zip(heads) {
                    td class=[cell.numeric.then_some("n")] data-label=(head) { (cell.body) }
                } }
            } }
        } }
    }
}

/// Names and values, one below the other.
pub fn facts(facts: &[(String, Markup)]) -> Markup {
    html! { dl class="facts" { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } } }
}

/// A word of state, coloured by what it means.
pub fn badge(word: &str) -> Markup {
    let kind = match word {
        "concluido" | "aplicado" | "resolvida" | "ja-registrado" | "delivered" | "active" | "succeeded"
        | "done" | "online" => "good",
        "incerto" | "falhou" | "recusado" | "aberta" | "divergente" | "cancelled" | "failed"
        | "uncertain" | "offline" => "bad",
        "executando"
        | "reservado"
        | "seria-aplicado"
        | "planejado"
        | "building"
        | "started"
        | "compensating"
        | "cancellation_requested" => "busy",
        _ => "still",
    };
    html! { span class=(format!("badge {kind}")) { (word) } }
}

/// Cents as units with two decimals.
pub fn money(cents: i128) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.unsigned_abs() / 100, cents.unsigned_abs() % 100)
}

/// Figures in groups of three.
pub fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if n < 0 { format!("-{out}") } else { out }
}

pub fn link(path: &str, segment: &str) -> String {
    format!("{path}/{}", encode(segment))
}

/// JSON, indented for people.
pub fn pretty(json: &serde_json::Value) -> Markup {
    html! { pre { (serde_json::to_string_pretty(json).unwrap_or_default()) } }
}

/// A drawing beside words needs no words of its own.
pub const ICON: PreEscaped<&str> = PreEscaped(include_str!("assets/icon.svg"));

#[cfg(test)]
mod tests {
    use super::*;

    fn view(cookie: &'static str) -> View {
        let mut headers = HeaderMap::new();
        headers.insert("cookie", cookie.parse().expect("a cookie"));
        View::of(&headers, None)
    }

    #[test]
    fn times_are_shown_and_read_in_the_readers_zone_with_their_offset() {
        let sao_paulo = view("a=b; tz=America%2FSao_Paulo");
        let at: Timestamp = "2026-10-14T03:00:00Z".parse().expect("an instant");
        assert_eq!(sao_paulo.local(at), "2026-10-14 00:00:00 -03:00");
        assert_eq!(sao_paulo.instant("2026-10-14T00:00"), Some(at));
        assert_eq!(sao_paulo.instant("2026-10-14T05:00:00+02:00"), Some(at));
        assert_eq!(sao_paulo.instant("yesterday"), None);
        let late: Timestamp = "2026-10-15T02:59:00Z".parse().expect("an instant");
        assert_eq!(sao_paulo.floor(late, jiff::Unit::Day), at);
        assert_eq!(view("tz=Nowhere%2FAtAll").local(at), "2026-10-14 03:00:00 +00:00");
    }

    #[test]
    fn what_others_wrote_cannot_become_markup() {
        let shown = table(&["<th>".to_owned()], vec![vec![text("<script>x</script>")]], "none").into_string();
        assert!(
            shown.contains("&lt;script&gt;") && !shown.contains("<script>") && shown.contains("&lt;th&gt;"),
            "{shown}"
        );
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(
            [0, 999, 1_000, -1_234_567].map(grouped),
            ["0", "999", "1\u{202f}000", "-1\u{202f}234\u{202f}567"]
        );
    }
}
