//! The JSON API of the console, for programs: the same operations, in the shapes of the commands' `--output json`.
//!
//! Every route is described at `/api/v1/openapi.json`, and nothing else is (test
//! `every_route_is_described_and_every_description_is_a_route`). Errors are RFC 9457 problem documents.

use std::num::NonZeroU32;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{OpenApi, ToSchema};

use super::Console;
use super::desk::{BARS_MAX, ReplayAsk, Ruled, decision_of, invalid, state_of};
use super::fields::Fields;
use super::order_side::{Source, Steer};
use super::samples::per_second;
use crate::domain::effect::Outcome;
use crate::ops::problem::Problem;
use crate::pg::letters::Selection;
use crate::pg::replay::Change;
use crate::pg::review::Filter;
use crate::run::told::{ListedLetter, ListedRun, ShownLetter, Told};

/// Rows of one listing, as on the command line.
const LIST_MAX: usize = 1_000;

type Answer = Result<Response, Problem>;

/// Path, and what is there.
fn routes() -> Vec<(&'static str, MethodRouter<Console>)> {
    vec![
        ("/api/v1/openapi.json", get(description)),
        ("/api/v1/overview", get(overview)),
        ("/api/v1/effects", get(effects)),
        ("/api/v1/effects/{key}", get(effect)),
        ("/api/v1/effects/{key}/resolve", post(resolve)),
        ("/api/v1/dead-letters", get(letters)),
        ("/api/v1/dead-letters/{id}", get(letter)),
        ("/api/v1/dead-letters/redrive", post(redrive)),
        ("/api/v1/timeline", get(timeline)),
        ("/api/v1/replays", get(replays).post(begin)),
        ("/api/v1/replays/plan", post(plan)),
        ("/api/v1/replays/{id}", get(replay)),
        ("/api/v1/replays/{id}/diff", get(diff)),
        ("/api/v1/replays/{id}/{change}", post(change)),
        ("/api/v1/projections", get(projections)),
        ("/api/v1/projections/{name}/{step}", post(steer)),
        ("/api/v1/kpis", get(kpis)),
    ]
}

pub(super) fn router() -> Router<Console> {
    routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods))
}

/// The description of everything above.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Reprise console API",
        description = "Operate a Reprise service. Send the admin token as `Authorization: Bearer <token>`. \
                       Field names are the words of the ledger; instants are RFC 3339."
    ),
    paths(
        description,
        overview,
        effects,
        effect,
        resolve,
        letters,
        letter,
        redrive,
        timeline,
        replays,
        begin,
        plan,
        replay,
        diff,
        change,
        projections,
        steer,
        kpis
    ),
    components(schemas(ReplayAsk, ResolveAsk, RedriveAsk, SteerAsk))
)]
struct Description;

/// JSON of a request; what is wrong with it names the field.
struct Body<T>(T);

impl<T: DeserializeOwned> axum::extract::FromRequest<Console> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: axum::extract::Request, console: &Console) -> Result<Self, Problem> {
        let bytes = axum::body::Bytes::from_request(request, console).await;
        let bytes = bytes.map_err(|error| invalid(format!("the body cannot be read: {error}")))?;
        serde_json::from_slice(&bytes)
            .map(Self)
            .map_err(|error| invalid(format!("the body is not as described: {error}")))
    }
}

/// This description.
#[utoipa::path(get, path = "/api/v1/openapi.json", responses((status = 200, description = "OpenAPI document")))]
async fn description() -> Response {
    Json(Description::openapi()).into_response()
}

/// What is done, what waits, how far behind.
#[utoipa::path(get, path = "/api/v1/overview", responses((status = 200, description = "Effects of this process by outcome, what is pending, positions and lag of the group, samples of the last hour")))]
async fn overview(State(console): State<Console>) -> Response {
    let seen = console.ring.seen();
    let outcomes = |id| -> Value {
        Outcome::ALL
            .iter()
            .map(|o| (o.as_str().to_owned(), json!(console.metrics.effects_of(id, *o))))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let effects: serde_json::Map<String, Value> =
        console.policies.iter().map(|(id, policy)| (policy.name.clone(), outcomes(id))).collect();
    let pending: Vec<Value> = seen
        .pending
        .iter()
        .map(|row| json!({"tipoEfeito": row.effect_type, "estado": row.state.as_str(), "quantidade": row.count, "maisAntigoSegundos": row.oldest.as_secs()}))
        .collect();
    let parts: Vec<Value> = seen
        .positions
        .iter()
        .map(|p| json!({"particao": p.partition, "confirmado": p.committed, "fim": p.high, "lag": p.lag()}))
        .collect();
    let samples: Vec<Value> = seen
        .samples
        .iter()
        .map(|s| json!({"em": s.at.to_string(), "confirmado": s.committed, "lag": s.lag, "incertos": s.uncertain}))
        .collect();
    Json(json!({
        "efeitos": effects, "pendentes": pending, "cartasAbertas": seen.open_letters, "particoes": parts,
        "eventosPorSegundo": per_second(&seen.samples).last(), "amostras": samples,
        "processo": console.health.status(), "problema": seen.trouble,
    }))
    .into_response()
}

/// Effects; the uncertain ones without a filter.
#[utoipa::path(get, path = "/api/v1/effects",
    params(("estado" = Option<String>, Query, description = "reservado, concluido or incerto"), ("tipo" = Option<String>, Query), ("pedido" = Option<String>, Query)),
    responses((status = 200, description = "At most 1000 effects"), (status = 422, description = "A filter cannot be used")))]
async fn effects(State(console): State<Console>, fields: Fields) -> Answer {
    let state = state_of(fields.get("estado"))?;
    let filter = Filter { state, effect_type: fields.get("tipo"), order_id: fields.get("pedido") };
    Ok(Json(console.effects(filter, LIST_MAX).await?).into_response())
}

/// One effect with request, evidence and decisions.
#[utoipa::path(get, path = "/api/v1/effects/{key}", params(("key" = String, Path, description = "chave")),
    responses((status = 200, description = "The effect"), (status = 404, description = "No such key")))]
async fn effect(State(console): State<Console>, Path(key): Path<String>) -> Answer {
    Ok(Json(console.effect(&key).await?).into_response())
}

/// A decision about an uncertain effect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResolveAsk {
    /// `concluido`, `nao-enviado` or `descartado`.
    decisao: String,
    /// Who decides.
    por: String,
    /// Why.
    motivo: String,
    /// With `nao-enviado`: send it now and wait for the answer.
    #[serde(default)]
    reenviar: bool,
}

/// Decides an uncertain effect, once and for all.
#[utoipa::path(post, path = "/api/v1/effects/{key}/resolve", params(("key" = String, Path, description = "chave")), request_body = ResolveAsk,
    responses((status = 200, description = "Decided; the effect as it stands"), (status = 409, description = "Somebody else was faster, or it is not uncertain: `code` is `lost`, `detail` tells the present state"),
    (status = 404, description = "No such key"), (status = 422, description = "A field is missing or wrong")))]
async fn resolve(
    State(console): State<Console>,
    Path(key): Path<String>,
    Body(ask): Body<ResolveAsk>,
) -> Answer {
    let ruled =
        Ruled { decision: decision_of(&ask.decisao)?, by: ask.por, reason: ask.motivo, resend: ask.reenviar };
    Ok(Json(console.decide(&key, &ruled).await?).into_response())
}

fn instant(name: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|_| {
        invalid(format!("{name}: {text:?}; write an instant with its offset, as 2026-10-14T00:00:00-03:00"))
    })
}

/// Dead letters, newest first.
#[utoipa::path(get, path = "/api/v1/dead-letters",
    params(("motivo" = Option<String>, Query), ("pedido" = Option<String>, Query), ("de" = Option<String>, Query, description = "criado_em, inclusive"), ("ate" = Option<String>, Query, description = "exclusive"), ("situacao" = Option<String>, Query, description = "aberta")),
    responses((status = 200, description = "At most 1000 dead letters"), (status = 422, description = "A filter cannot be used")))]
async fn letters(State(console): State<Console>, fields: Fields) -> Answer {
    let wanted = Selection {
        ids: None,
        reason: fields.get("motivo").map(str::to_owned),
        order: fields.get("pedido").map(str::to_owned),
        from: fields.get("de").map(|text| instant("de", text)).transpose()?,
        to: fields.get("ate").map(|text| instant("ate", text)).transpose()?,
        open_only: fields.get("situacao") == Some("aberta"),
    };
    let (found, _) = console.letters(&wanted, i64::try_from(LIST_MAX).unwrap_or(i64::MAX)).await?;
    Ok(Json(found.iter().map(ListedLetter::from).collect::<Vec<_>>()).into_response())
}

/// One dead letter with its record.
#[utoipa::path(get, path = "/api/v1/dead-letters/{id}", params(("id" = i64, Path)),
    responses((status = 200, description = "The dead letter"), (status = 404, description = "No such letter")))]
async fn letter(State(console): State<Console>, Path(id): Path<i64>) -> Answer {
    Ok(Json(ShownLetter::from(&console.letter(id).await?)).into_response())
}

/// Which open dead letters are handled again; at least one field.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RedriveAsk {
    #[serde(default)]
    ids: Vec<i64>,
    motivo: Option<String>,
    pedido: Option<String>,
    #[schema(value_type = Option<String>)]
    de: Option<Timestamp>,
    #[schema(value_type = Option<String>)]
    ate: Option<Timestamp>,
    /// Every open one.
    #[serde(default)]
    todas: bool,
    /// Say what would come of it, and do nothing.
    #[serde(default)]
    simular: bool,
}

/// Handles dead letters again, or says what would come of it.
#[utoipa::path(post, path = "/api/v1/dead-letters/redrive", request_body = RedriveAsk,
    responses((status = 200, description = "How many were selected, applied and returned"), (status = 422, description = "Nothing, or contradictory things, were selected")))]
async fn redrive(State(console): State<Console>, Body(ask): Body<RedriveAsk>) -> Answer {
    let narrowed = ask.motivo.is_some() || ask.pedido.is_some() || ask.de.is_some() || ask.ate.is_some();
    if [!ask.ids.is_empty(), narrowed, ask.todas].iter().filter(|set| **set).count() != 1 {
        return Err(invalid("give ids, or filters (motivo, pedido, de, ate), or todas: one of the three"));
    }
    let ids = (!ask.ids.is_empty()).then_some(ask.ids);
    let wanted =
        Selection { ids, reason: ask.motivo, order: ask.pedido, from: ask.de, to: ask.ate, open_only: true };
    Ok(Json(console.redrive(&wanted, ask.simular).await?).into_response())
}

#[derive(Serialize)]
struct TimelineBar {
    de: String,
    registros: i64,
}

/// How much of the topic lies in each hour, or other step, of a period by log time.
#[utoipa::path(get, path = "/api/v1/timeline",
    params(("de" = String, Query), ("ate" = Option<String>, Query, description = "now, if absent"), ("passoSegundos" = Option<i64>, Query, description = "3600, if absent")),
    responses((status = 200, description = "One entry a step: `de`, `registros`"), (status = 422, description = "The period cannot be used")))]
async fn timeline(State(console): State<Console>, fields: Fields) -> Answer {
    let from = instant("de", fields.get("de").unwrap_or_default())?;
    let to = fields.get("ate").map(|text| instant("ate", text)).transpose()?.unwrap_or_else(Timestamp::now);
    let step = fields.get("passoSegundos").map_or(Ok(3600), str::parse);
    let step =
        step.ok().filter(|step| *step > 0).ok_or_else(|| invalid("passoSegundos: is no number above 0"))?;
    let (mut edges, mut at) = (Vec::new(), from);
    while at < to && edges.len() < BARS_MAX {
        edges.push(at);
        at = at.saturating_add(SignedDuration::from_secs(step)).unwrap_or(Timestamp::MAX);
    }
    edges.push(to);
    let counts = console.timeline(edges.clone()).await?;
    let bars = edges.iter().zip(counts).take(edges.len() - 1);
    let bars: Vec<TimelineBar> =
        bars.map(|(at, registros)| TimelineBar { de: at.to_string(), registros }).collect();
    Ok(Json(bars).into_response())
}

/// Replays and dry runs, newest first.
#[utoipa::path(get, path = "/api/v1/replays", responses((status = 200, description = "The newest 100")))]
async fn replays(State(console): State<Console>) -> Answer {
    Ok(Json(console.replays().await?.iter().map(ListedRun::from).collect::<Vec<_>>()).into_response())
}

/// Begins a replay or dry run, or takes part in one that is under way.
#[utoipa::path(post, path = "/api/v1/replays", request_body = ReplayAsk,
    responses((status = 202, description = "Begun, in a process of its own; look at it by its id"), (status = 409, description = "A safety check said no: `detail` says which"), (status = 422, description = "A field is missing or wrong")))]
async fn begin(State(console): State<Console>, Body(ask): Body<ReplayAsk>) -> Answer {
    console.begin(&ask).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "id": ask.id, "simular": ask.simular }))).into_response())
}

/// What a replay would cover; changes nothing.
#[utoipa::path(post, path = "/api/v1/replays/plan", request_body = ReplayAsk,
    responses((status = 200, description = "The plan"), (status = 409, description = "A safety check said no"), (status = 422, description = "A field is missing or wrong")))]
async fn plan(State(console): State<Console>, Body(ask): Body<ReplayAsk>) -> Answer {
    Ok(Json(console.plan(&ask).await?).into_response())
}

fn dry_run(fields: &Fields) -> bool {
    fields.get("simular") == Some("true")
}

/// How far a replay is.
#[utoipa::path(get, path = "/api/v1/replays/{id}", params(("id" = String, Path), ("simular" = Option<bool>, Query, description = "the dry run of this id")),
    responses((status = 200, description = "How it stands"), (status = 404, description = "No such replay")))]
async fn replay(State(console): State<Console>, Path(id): Path<String>, fields: Fields) -> Answer {
    Ok(Json(Told::from(&console.replay(&id, dry_run(&fields)).await?)).into_response())
}

/// What a replay changed, or a dry run would change: all of it, as it is read.
#[utoipa::path(get, path = "/api/v1/replays/{id}/diff", params(("id" = String, Path), ("simular" = Option<bool>, Query), ("formato" = Option<String>, Query, description = "json or csv")),
    responses((status = 200, description = "The diff"), (status = 404, description = "No such replay")))]
async fn diff(State(console): State<Console>, Path(id): Path<String>, fields: Fields) -> Answer {
    let run = console.replay(&id, dry_run(&fields)).await?;
    let (format, kind) = match fields.get("formato") {
        None | Some("json") => ("json", "application/json"),
        Some("csv") => ("csv", "text/csv; charset=utf-8"),
        Some(other) => return Err(invalid(format!("formato: {other:?}; use json or csv"))),
    };
    Ok(([(header::CONTENT_TYPE, kind)], console.diff(&run, format)?).into_response())
}

/// Pauses, resumes or cancels a replay.
#[utoipa::path(post, path = "/api/v1/replays/{id}/{change}",
    params(("id" = String, Path), ("change" = String, Path, description = "pause, resume or cancel"), ("simular" = Option<bool>, Query)),
    responses((status = 200, description = "How it stands now"), (status = 404, description = "No such replay"), (status = 409, description = "It is in no situation for that")))]
async fn change(
    State(console): State<Console>,
    Path((id, change)): Path<(String, String)>,
    fields: Fields,
) -> Answer {
    let change = match change.as_str() {
        "pause" => Change::Pause,
        "resume" => Change::Resume,
        "cancel" => Change::Cancel,
        other => return Err(invalid(format!("{other:?}; use pause, resume or cancel"))),
    };
    Ok(Json(Told::from(&console.change(&id, dry_run(&fields), change).await?)).into_response())
}

/// Every shard of every generation of the read models.
#[utoipa::path(get, path = "/api/v1/projections", responses((status = 200, description = "One entry a shard: name, generation, shard, state, fedBy, position, lagEvents, lagSeconds")))]
async fn projections(State(console): State<Console>) -> Answer {
    Ok(Json(console.lags().await?).into_response())
}

/// What is done with the generations of a read model.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SteerAsk {
    /// Parts that are built at the same time, from 1 to 32; only with `rebuild`.
    shards: Option<u8>,
    /// `store` or `kafka`; only with `rebuild`.
    source: Option<String>,
    /// At most so many events a second; only with `rebuild` and `resume`.
    #[schema(value_type = Option<u32>)]
    rate: Option<NonZeroU32>,
    /// Another generation than the newest; not with `rebuild` and `resume`.
    generation: Option<i32>,
}

/// Rebuilds, compares, shows or drops a generation of a read model.
#[utoipa::path(post, path = "/api/v1/projections/{name}/{step}", request_body = SteerAsk,
    params(("name" = String, Path, description = "orders_view, dashboard_aggregate or delivery_eta"), ("step" = String, Path, description = "rebuild, resume, compare, cut-over or drop")),
    responses((status = 200, description = "What the command of this name answers; `compare` says how many rows are `different`"), (status = 202, description = "The rebuild goes on in a process of its own; see /api/v1/projections"),
    (status = 404, description = "There is no such generation"), (status = 409, description = "Not now: `detail` says why"), (status = 422, description = "A field is missing or wrong")))]
async fn steer(
    State(console): State<Console>,
    Path((name, step)): Path<(String, String)>,
    Body(ask): Body<SteerAsk>,
) -> Answer {
    let name = name.parse().map_err(|why: String| invalid(format!("name: {why}")))?;
    let generation = ask.generation;
    let steer = match step.as_str() {
        "rebuild" => Steer::Rebuild {
            shards: match ask.shards.unwrap_or(2) {
                shards @ 1..=32 => shards,
                _ => return Err(invalid("shards: use a number from 1 to 32")),
            },
            from: Source::of(ask.source.as_deref()).ok_or_else(|| invalid("source: use store or kafka"))?,
            rate: ask.rate,
        },
        "resume" => Steer::Resume { rate: ask.rate },
        "compare" => Steer::Compare { generation },
        "cut-over" => Steer::CutOver { generation },
        "drop" => Steer::Drop { generation },
        other => {
            return Err(invalid(format!("{other:?}; use rebuild, resume, compare, cut-over or drop")));
        }
    };
    for (field, given, is_known) in [
        ("generation", generation.is_some(), !steer.is_long()),
        ("shards", ask.shards.is_some(), matches!(steer, Steer::Rebuild { .. })),
        ("source", ask.source.is_some(), matches!(steer, Steer::Rebuild { .. })),
        ("rate", ask.rate.is_some(), steer.is_long()),
    ] {
        if given && !is_known {
            return Err(invalid(format!("{field}: says nothing to {step}; leave it out")));
        }
    }
    let answer = console.steer(name, steer).await?;
    if steer.is_long() {
        return Ok((StatusCode::ACCEPTED, Json(json!({ "name": name.as_str() }))).into_response());
    }
    Ok(Json(answer).into_response())
}

/// What the windows count: orders by minute and hour, couriers offline.
#[utoipa::path(get, path = "/api/v1/kpis", params(("tenant" = Option<String>, Query, description = "all together, if absent")),
    responses((status = 200, description = "perMinute, perHour, couriersOffline (null where they are not set up), tenants")))]
async fn kpis(State(console): State<Console>, fields: Fields) -> Answer {
    Ok(Json(console.kpis(fields.get("tenant")).await?).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_route_is_described_and_every_description_is_a_route() {
        let description = serde_json::to_value(Description::openapi()).expect("JSON");
        let described: BTreeSet<(String, String)> = description["paths"]
            .as_object()
            .expect("paths")
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().expect("methods").keys().map(move |method| (path.clone(), method.clone()))
            })
            .collect();
        let methods_of = |router: &MethodRouter<Console>| -> Vec<&'static str> {
            // A method router says what it allows only in its Debug form.
            let shown = format!("{router:?}");
            [
                ("get", "get: "),
                ("post", "post: "),
                ("put", "put: "),
                ("delete", "delete: "),
                ("patch", "patch: "),
            ]
            .into_iter()
            .filter(|(_, field)| !shown.contains(&format!("{field}None")))
            .map(|(method, _)| method)
            .collect()
        };
        let served: BTreeSet<(String, String)> = routes()
            .iter()
            .flat_map(|(path, router)| {
                methods_of(router).into_iter().map(|m| ((*path).to_owned(), m.to_owned()))
            })
            .collect();
        assert_eq!(served, described);
        assert_eq!(served.len(), 18);
    }

    #[test]
    fn a_request_body_is_described_with_its_fields() {
        let description = serde_json::to_value(Description::openapi()).expect("JSON");
        let fields = &description["components"]["schemas"]["ResolveAsk"]["properties"];
        let names: Vec<&String> = fields.as_object().expect("properties").keys().collect();
        assert_eq!(names, ["decisao", "motivo", "por", "reenviar"]);
        assert!(description["components"]["schemas"]["ReplayAsk"]["properties"]["aceitarLacuna"].is_object());
    }
}
