//! The overview: what was done, what waits, how far behind; every number leads to what it counts.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use crate::domain::effect::{EffectState, Mode, Outcome};
use crate::health::Status;
use crate::ops::console::frame::{
    self, View, badge, cell, grouped, how_to_set_a_token, number, page, table, text,
};
use crate::ops::console::samples::{Seen, per_second};
use crate::ops::console::{Console, plot, session};

pub async fn show(State(console): State<Console>, view: View, headers: HeaderMap) -> Response {
    if !session::answerable(&console, &headers) {
        return frame::notice(&view, "refused.origin").into_response();
    }
    let view = match &console.sessions {
        None => view,
        Some(sessions) => match sessions.of(&headers) {
            Some(session) => View::of(&headers, Some(session)),
            None => return axum::response::Redirect::to("/console/login").into_response(),
        },
    };
    let (seen, status) = (console.ring.seen(), console.health.status());
    let body = html! {
        @if console.sessions.is_none() { details class="box warn" open { summary { (view.say("token.title")) } (how_to_set_a_token(&view)) } }
        @if let Some(trouble) = &seen.trouble { p class="box bad" role="alert" { (view.say("overview.trouble")) " " (trouble) } }
        @for reason in &status.motivos { p class="box bad" { code { (reason.motivo) } " " (reason.detalhe) } }
        (tiles(&view, &seen, &status))
        (plots(&view, &seen))
        h2 { (view.say("overview.effects")) }
        p class="quiet" { (view.say("overview.effects.of")) }
        (outcomes(&view, &console))
        h2 { (view.say("overview.pending")) }
        (pending(&view, &seen))
        h2 { (view.say("overview.partitions")) }
        (partitions(&view, &seen, &status))
    };
    page(&view, &view.say("overview.title"), "/console", &body).into_response()
}

fn tiles(view: &View, seen: &Seen, status: &Status) -> Markup {
    let of = |state| seen.pending.iter().filter(move |row| row.state == state);
    let uncertain: i64 = of(EffectState::Uncertain).map(|row| row.count).sum();
    let lag: i64 = seen.positions.iter().map(crate::stream::admin::Position::lag).sum();
    let rate = per_second(&seen.samples).last().copied();
    let tile = |name: String, value: String, link: &str, bad: bool| {
        html! { a class=(if bad { "tile bad" } else { "tile" }) href=(link) { span { (name) } strong { (value) } } }
    };
    html! { div class="tiles" {
        (tile(view.say("tile.uncertain"), grouped(uncertain), "/console/effects", uncertain > 0))
        (tile(view.say("tile.letters"), grouped(seen.open_letters), "/console/dead-letters?situacao=aberta", seen.open_letters > 0))
        (tile(view.say("tile.lag"), grouped(lag), "#partitions", false))
        (tile(view.say("tile.rate"), rate.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.1}")), "#throughput", false))
        (tile(view.say("tile.circuits"), status.circuitos_abertos.len().to_string(), "#effects", !status.circuitos_abertos.is_empty()))
    } }
}

fn plots(view: &View, seen: &Seen) -> Markup {
    let rates = per_second(&seen.samples);
    #[expect(clippy::cast_precision_loss, reason = "places on a drawing")]
    let lags: Vec<f64> = seen.samples.iter().map(|sample| sample.lag as f64).collect();
    let top = |values: &[f64]| format!("{:.1}", values.iter().copied().fold(0.0, f64::max));
    let since = seen.samples.front().map(|sample| view.local(sample.at)).unwrap_or_default();
    let figure = |title: String, values: &[f64]| {
        let words = view.fill("plot.max", &[("title", &title), ("max", &top(values)), ("since", &since)]);
        html! { figure { figcaption { (words) } (plot::line(&words, values)) } }
    };
    html! { div class="figures" id="throughput" {
        (figure(view.say("plot.rate"), &rates))
        (figure(view.say("plot.lag"), &lags))
    } }
}

/// Where the effects of an outcome can be looked at.
fn of_outcome(outcome: Outcome, effect: &str) -> String {
    match outcome {
        Outcome::Uncertain => format!("/console/effects?estado=incerto&tipo={effect}"),
        Outcome::Refused => "/console/dead-letters?motivo=efeito-recusado".to_owned(),
        Outcome::Failed => "/console/dead-letters?motivo=efeito-esgotado".to_owned(),
        Outcome::Divergent | Outcome::WouldApply | Outcome::Suppressed => "/console/replays".to_owned(),
        Outcome::Applied | Outcome::AlreadyRecorded => {
            format!("/console/effects?estado=concluido&tipo={effect}")
        }
    }
}

fn outcomes(view: &View, console: &Console) -> Markup {
    let status = console.health.status();
    let mut heads = vec![view.say("col.effect"), view.say("col.mode"), view.say("col.circuit")];
    heads.extend(Outcome::ALL.map(|outcome| outcome.as_str().to_owned()));
    let rows = console.policies.iter().map(|(id, policy)| {
        let open = status.circuitos_abertos.iter().find(|circuit| circuit.efeito == policy.name);
        let mode = if policy.mode == Mode::Apply { "aplicar" } else { "suprimir" };
        let circuit = html! {
            @match open {
                Some(open) => { span class="badge bad" { (view.say("circuit.open")) } " " (view.local(open.desde)) }
                None => { span class="badge good" { (view.say("circuit.closed")) } }
            }
        };
        let mut row = vec![text(&policy.name), text(mode), cell(circuit)];
        row.extend(Outcome::ALL.map(|outcome| {
            let n = i64::try_from(console.metrics.effects_of(id, outcome)).unwrap_or(i64::MAX);
            let link = of_outcome(outcome, &policy.name);
            number(html! { @if n == 0 { span class="zero" { "0" } } @else { a href=(link) { (grouped(n)) } } })
        }));
        row
    });
    html! { div id="effects" { (table(&heads, rows.collect(), &view.say("overview.no-effects"))) } }
}

fn pending(view: &View, seen: &Seen) -> Markup {
    let heads =
        [view.say("col.effect"), view.say("col.state"), view.say("col.count"), view.say("col.oldest")];
    let rows = seen.pending.iter().map(|row| {
        let state = row.state.as_str();
        let link = format!("/console/effects?estado={state}&tipo={}", row.effect_type);
        let age = humantime::format_duration(row.oldest).to_string();
        vec![
            text(&row.effect_type),
            cell(badge(state)),
            number(html! { a href=(link) { (grouped(row.count)) } }),
            text(age),
        ]
    });
    table(&heads, rows.collect(), &view.say("overview.nothing-pending"))
}

fn partitions(view: &View, seen: &Seen, status: &Status) -> Markup {
    let heads = [
        view.say("col.partition"),
        view.say("col.committed"),
        view.say("col.end"),
        view.say("col.lag"),
        view.say("col.here"),
    ];
    let rows = seen.positions.iter().map(|at| {
        let ours = status.particoes.iter().find(|ours| ours.particao == at.partition);
        let here = html! {
            @match ours {
                Some(ours) => {
                    (view.fill("partition.ours", &[("n", &ours.posicao.to_string())]))
                    @if let Some(cause) = &ours.causa { " " span class="cause" { (cause) } }
                }
                None => { span class="quiet" { "–" } }
            }
        };
        vec![
            number(html! { (at.partition) }),
            number(html! { @match at.committed { Some(n) => { (grouped(n)) } None => { "–" } } }),
            number(html! { (grouped(at.high)) }),
            number(html! { (grouped(at.lag())) }),
            cell(here),
        ]
    });
    html! { div id="partitions" { (table(&heads, rows.collect(), &view.say("overview.no-partitions"))) } }
}
