//! How far a replay is, as it happens: the same piece of page that was served, sent again whenever it changed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use maud::{Markup, html};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use crate::ops::console::Console;
use crate::ops::console::desk::Launch;
use crate::ops::console::fields::Fields;
use crate::ops::console::frame::{View, badge, facts, grouped, number, table};
use crate::ops::problem::Problem;
use crate::pg::replay::StoredRun;

const ASK_EVERY: Duration = Duration::from_secs(1);
/// A stream ends then and the browser asks again: no watcher stays for ever.
const LASTS: u32 = 600;
/// A comment now and then finds out that the browser has left.
const BEAT_EVERY: u32 = 15;

/// Over, one way or the other.
pub fn is_over(situation: &str) -> bool {
    matches!(situation, "concluido" | "cancelado" | "falhou")
}

/// The piece of page that changes while a run goes on.
pub fn piece(view: &View, run: Option<&StoredRun>, launch: Option<&Launch>) -> Markup {
    html! {
        @if let Some(Launch::Ended(said)) = launch {
            @if said.code != 0 && !said.refusal.is_empty() && run.is_none_or(|run| run.situation != "concluido") {
                p class="box bad" role="alert" { (said.refusal) }
            }
        }
        @match run {
            Some(run) => { (standing(view, run)) }
            None => { p { (view.say("replay.planning")) } }
        }
    }
}

fn standing(view: &View, run: &StoredRun) -> Markup {
    let all: i64 = run.partitions.iter().map(|p| p.end - p.start).sum();
    let done: i64 = run.partitions.iter().map(|p| (p.at - p.start).clamp(0, p.end - p.start)).sum();
    let words = view.fill("replay.progress", &[("done", &grouped(done)), ("all", &grouped(all))]);
    let heads = ["col.partition", "col.start", "col.end", "col.position"].map(|key| view.say(key));
    let rows = run.partitions.iter().map(|p| {
        [i64::from(p.partition), p.start, p.end, p.at].map(|n| number(html! { (grouped(n)) })).into()
    });
    html! {
        p { span id="situacao" data-situacao=(run.situation) { (badge(&run.situation)) } " " (words) }
        progress max=(all.max(1)) value=(if all == 0 { 1 } else { done }) aria-label=(words) {}
        @if let Some(failure) = &run.failure { p class="box bad" { (failure) } }
        div class="columns" {
            section { h3 { (view.say("replay.partitions")) } (table(&heads, rows.collect(), &view.say("none"))) }
            section { h3 { (view.say("replay.events")) } (counted(view, &run.counts["eventos"])) }
            section { h3 { (view.say("replay.state")) } (counted(view, &run.counts["estado"])) }
        }
    }
}

fn counted(view: &View, counts: &Value) -> Markup {
    let counts = counts.as_object().into_iter().flatten();
    let lines: Vec<_> =
        counts.map(|(name, n)| (name.clone(), html! { (grouped(n.as_i64().unwrap_or(0))) })).collect();
    if lines.is_empty() {
        html! { p class="empty" { (view.say("none")) } }
    } else {
        facts(&lines)
    }
}

pub async fn events(
    State(console): State<Console>,
    view: View,
    Path(id): Path<String>,
    fields: Fields,
) -> Response {
    let dry_run = fields.get("simular").is_some();
    let watchers = Arc::clone(&console.watchers);
    stream(&watchers, move || {
        let (console, view, id) = (console.clone(), view.clone(), id.clone());
        async move {
            let run = console.run_of(&id, dry_run).await.ok()?;
            let launch = console.launches.of(&id, dry_run);
            let running = launch.as_ref() == Some(&Launch::Running);
            let over = run.as_ref().map_or(!running, |run| is_over(&run.situation) && !running);
            Some(Piece { markup: piece(&view, run.as_ref(), launch.as_ref()), over })
        }
        .boxed()
    })
}

/// What is shown now, and whether it will change no more.
pub struct Piece {
    pub markup: Markup,
    pub over: bool,
}

/// Sends what `look` sees whenever it changed, until it is over. `None`: it could not look.
pub fn stream(
    watchers: &Arc<Semaphore>,
    look: impl Fn() -> BoxFuture<'static, Option<Piece>> + Send + 'static,
) -> Response {
    let Ok(seat) = Arc::clone(watchers).try_acquire_owned() else {
        return Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "busy",
            "too many browsers watch; reload now and then",
        )
        .into_response();
    };
    let (out, body) = mpsc::channel::<Result<Bytes, std::convert::Infallible>>(2);
    // On this runtime, where the pools are; it ends with the browser's connection.
    tokio::spawn(async move {
        let _seat = seat;
        follow(look, &out).await;
    });
    let stream = futures::stream::unfold(body, async |mut body| body.recv().await.map(|part| (part, body)));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(stream)).into_response()
}

type Out = mpsc::Sender<Result<Bytes, std::convert::Infallible>>;

async fn follow(look: impl Fn() -> BoxFuture<'static, Option<Piece>>, out: &Out) {
    let mut ask = tokio::time::interval(ASK_EVERY);
    ask.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = String::new();
    for turn in 0..LASTS {
        ask.tick().await;
        // A database that is away is asked again a second later; the page stands as it stood.
        let Some(Piece { markup, over }) = look().await else { continue };
        let piece = markup.into_string();
        let mut message = String::new();
        if piece != last {
            message = format!("event: piece\ndata: {}\n\n", piece.replace(['\n', '\r'], " "));
            last = piece;
        } else if turn % BEAT_EVERY == 0 {
            ": here\n\n".clone_into(&mut message);
        }
        if over {
            message.push_str("event: over\ndata: \n\n");
        }
        if !message.is_empty() && out.send(Ok(Bytes::from(message))).await.is_err() {
            return;
        }
        if over {
            return;
        }
    }
}
