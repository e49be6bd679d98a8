//! The console: its JSON API, who may use it, and the two stories that people play in a browser.

mod browser;
mod order_side;

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event};
use crate::support::http::Reply;
use crate::support::process::Process;
use crate::support::{Answer, LATER, Setup, World, eventually, until};

const TOKEN: &str = "a-token-of-the-tests-0123456789";
const NOTIFY: &str = "notificar-vendedor";

/// A world whose listener has a token.
async fn world() -> World {
    let mut world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    let config = world.write_config_as("token", &toml::Table::new());
    std::fs::write(&config, TOKEN).expect("a token can be written");
    world.set(&["http", "token_arquivo"], config.display().to_string());
    world
}

fn bearer() -> (&'static str, String) {
    ("authorization", format!("Bearer {TOKEN}"))
}

async fn call(world: &World, method: &str, path: &str, body: Option<&Value>) -> Reply {
    let (name, value) = bearer();
    world.request(method, path, &[(name, &value)], body).await.expect("the console answers")
}

async fn get(world: &World, path: &str) -> Value {
    let reply = call(world, "GET", path, None).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    reply.json()
}

/// `reprise console`, open.
async fn console(world: &World) -> Process {
    let mut process = world.run(&["console"]);
    eventually("the console is open", LATER, async || {
        assert!(process.is_alive(), "the console ended:\n{}", process.stderr());
        world.get("/livez").await.filter(|reply| reply.status == 200)
    })
    .await;
    process
}

/// Two orders whose commissions a bug has made wrong, told so to the provider.
async fn two_orders_told_wrongly(world: &World) {
    let mut live = world.live().await;
    world.feed_from(0, 6, MIDNIGHT_MS).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    let changed =
        world.execute("update comissao set valor_centavos = 50 where pedido_id in ('ped-1', 'ped-2')").await;
    assert_eq!(changed, 2);
}

#[tokio::test]
async fn without_the_token_nothing_of_the_business_is_shown_or_changed() {
    let world = world().await;
    let _console = console(&world).await;
    let open = ["/console/login", "/console/static/console.css", "/console/static/console.js"];
    for path in open {
        assert_eq!(world.get(path).await.map(|reply| reply.status), Some(200), "{path}");
    }
    let pages = [
        "/console",
        "/console/effects",
        "/console/effects/x",
        "/console/dead-letters",
        "/console/dead-letters/1",
        "/console/replays",
        "/console/replays/new",
        "/console/replays/replay-x",
        "/console/replays/replay-x/events",
        "/console/orders",
        "/console/orders/x",
        "/console/dashboard",
        "/console/projections",
        "/console/projections/events",
        "/console/sagas",
        "/console/sagas/x",
        "/console/kpis",
    ];
    for path in pages {
        assert_eq!(world.get(path).await.map(|reply| reply.status), Some(303), "{path}");
    }
    for path in [
        "/api/v1/openapi.json",
        "/api/v1/overview",
        "/api/v1/effects",
        "/api/v1/replays",
        "/api/v1/dead-letters",
        "/api/v1/projections",
        "/api/v1/kpis",
    ] {
        let reply = world.get(path).await.expect("an answer");
        assert_eq!((reply.status, &reply.json()["code"]), (401, &json!("unauthorized")), "{path}");
    }
    let wrong = world.request("GET", "/api/v1/effects", &[("authorization", "Bearer wrong")], None).await;
    assert_eq!(wrong.map(|reply| reply.status), Some(401));
    let posted = world.request("POST", "/console/replays/begin", &[], None).await;
    assert_eq!(posted.map(|reply| reply.status), Some(303));
    let paths = get(&world, "/api/v1/openapi.json").await;
    assert!(paths["paths"]["/api/v1/replays"]["post"].is_object());
}

#[tokio::test]
async fn without_a_configured_token_the_console_says_how_to_set_one() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let mut process = console(&world).await;
    let overview = world.get("/console").await.expect("an answer");
    assert_eq!(overview.status, 200);
    assert!(overview.body.contains("token_arquivo ="), "{}", overview.body);
    let effects = world.get("/console/effects").await.expect("an answer");
    assert_eq!(effects.status, 403);
    assert!(effects.body.contains("token_arquivo ="), "{}", effects.body);
    let api = world.get("/api/v1/effects").await.expect("an answer");
    assert_eq!((api.status, &api.json()["code"]), (403, &json!("no-token")));
    let rebound = world.request("GET", "/console", &[("host", "rebound.example")], None).await;
    assert!(rebound.expect("an answer").body.contains("another site"));
    process.terminate();
    assert_eq!(process.ended(LATER).await.code, Some(0), "it ends when it is told to");
}

/// Status, cookie and body of a form.
async fn form(
    world: &World,
    path: &str,
    cookie: &str,
    origin: Option<&str>,
    fields: &[(&str, &str)],
) -> (u16, String, String) {
    let client =
        reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let mut request = client
        .post(format!("http://127.0.0.1:{}{path}", world.http_port))
        .header("content-type", "application/x-www-form-urlencoded")
        .header("cookie", cookie)
        .body(body);
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    let answer = request.send().await.expect("an answer");
    let set = answer
        .headers()
        .get("set-cookie")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    (answer.status().as_u16(), set, answer.text().await.expect("a body"))
}

#[tokio::test]
async fn a_form_needs_the_session_its_own_csrf_value_and_our_origin() {
    let world = world().await;
    let _console = console(&world).await;
    let (status, set, _) = form(&world, "/console/login", "", None, &[("token", "wrong")]).await;
    assert_eq!((status, set.as_str()), (401, ""));
    let evil = Some("https://evil.example");
    assert_eq!(form(&world, "/console/login", "", evil, &[("token", TOKEN)]).await.0, 403);
    let (status, set, _) = form(&world, "/console/login", "", None, &[("token", TOKEN)]).await;
    assert_eq!(status, 303);
    assert!(set.contains("HttpOnly; SameSite=Strict") && !set.contains(TOKEN), "{set}");
    let cookie = set.split(';').next().expect("a cookie").to_owned();
    let page =
        world.request("GET", "/console/replays/new", &[("cookie", &cookie)], None).await.expect("a page");
    assert_eq!(page.status, 200);
    let csrf = page
        .body
        .split("name=\"csrf\" value=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("a value");
    let begin = "/console/replays/begin";
    assert_eq!(form(&world, begin, &cookie, None, &[("id", "replay-x")]).await.0, 403, "no csrf");
    assert_eq!(
        form(&world, begin, &cookie, None, &[("csrf", "x"), ("id", "replay-x")]).await.0,
        403,
        "a wrong one"
    );
    assert_eq!(form(&world, begin, &cookie, evil, &[("csrf", csrf)]).await.0, 403, "another origin");
    // Let in, and refused for what it says: there is no beginning.
    let (status, _, body) = form(&world, begin, &cookie, None, &[("csrf", csrf), ("id", "replay-x")]).await;
    assert_eq!(status, 422, "{body}");
    let read = world.request("GET", "/api/v1/replays", &[("cookie", &cookie)], None).await;
    assert_eq!(read.map(|reply| reply.status), Some(200), "a session reads the API");
    let written =
        world.request("POST", "/api/v1/replays/plan", &[("cookie", &cookie)], Some(&json!({}))).await;
    assert_eq!(written.map(|reply| reply.status), Some(401), "and does not change by it");
}

#[tokio::test]
async fn every_answer_carries_the_strict_policy() {
    let world = world().await;
    let _console = console(&world).await;
    for path in ["/console/login", "/console/static/console.js", "/api/v1/effects", "/console/replays"] {
        let client =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        let answer = client
            .get(format!("http://127.0.0.1:{}{path}", world.http_port))
            .send()
            .await
            .expect("an answer");
        let header = |name: &str| {
            answer.headers().get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
        };
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"),
            "{path}: {policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(
            (header("x-frame-options"), header("x-content-type-options")),
            ("DENY".into(), "nosniff".into()),
            "{path}"
        );
    }
    let page = world.get("/console/login").await.expect("a page").body;
    assert!(!page.contains("style=") && !page.contains("<style") && !page.contains("onclick"), "{page}");
}

fn ask(id: &str, dry_run: bool) -> Value {
    json!({"id": id, "de": "2026-10-14T00:00:00-03:00", "ate": "2026-10-14T01:00:00-03:00", "simular": dry_run, "por": "ana"})
}

/// Waits for a run to be over, and tells how.
async fn over(world: &World, id: &str, dry_run: bool) -> Value {
    let path = format!("/api/v1/replays/{id}?simular={dry_run}");
    eventually("the run is over", LATER, async || {
        let reply = call(world, "GET", &path, None).await;
        if reply.status != 200 {
            return None;
        }
        let run = reply.json();
        matches!(run["situacao"].as_str(), Some("concluido" | "cancelado" | "falhou")).then_some(run)
    })
    .await
}

#[tokio::test]
async fn a_replay_is_planned_rehearsed_and_run_over_http() {
    let world = world().await;
    two_orders_told_wrongly(&world).await;
    let _console = console(&world).await;
    let bars = get(&world, "/api/v1/timeline?de=2026-10-14T02:00:00Z&ate=2026-10-14T05:00:00Z").await;
    let counts: Vec<_> = bars.as_array().expect("bars").iter().map(|bar| bar["registros"].as_i64()).collect();
    assert_eq!(counts, [Some(0), Some(6), Some(0)]);

    let plan = call(&world, "POST", "/api/v1/replays/plan", Some(&ask("replay-api", true))).await;
    assert_eq!(plan.status, 200, "{}", plan.body);
    let records: i64 = plan.json()["particoes"]
        .as_array()
        .expect("partitions")
        .iter()
        .map(|p| p["fim"].as_i64().expect("an end") - p["inicio"].as_i64().expect("a beginning"))
        .sum();
    assert_eq!(records, 6);
    let refused = call(&world, "POST", "/api/v1/replays/plan", Some(&ask("comissao", true))).await;
    assert_eq!((refused.status, &refused.json()["code"]), (409, &json!("refused")));
    assert!(refused.body.contains("must begin with replay-"), "{}", refused.body);

    assert_eq!(call(&world, "POST", "/api/v1/replays", Some(&ask("replay-api", true))).await.status, 202);
    assert_eq!(over(&world, "replay-api", true).await["situacao"], "concluido");
    let diff = get(&world, "/api/v1/replays/replay-api/diff?simular=true").await;
    assert_eq!(diff["totais"]["pedidosAlterados"], 2);
    assert_eq!(
        (&diff["totais"]["antesCentavos"], &diff["totais"]["depoisCentavos"]),
        (&json!(100), &json!(1000))
    );
    assert_eq!(world.commissions().await["ped-1"], 50, "a dry run changes nothing");
    let csv = call(&world, "GET", "/api/v1/replays/replay-api/diff?simular=true&formato=csv", None).await;
    assert!(csv.body.lines().any(|line| line.starts_with("pedido,ped-1,50,1,500,1")), "{}", csv.body);

    assert_eq!(call(&world, "POST", "/api/v1/replays", Some(&ask("replay-api", false))).await.status, 202);
    assert_eq!(over(&world, "replay-api", false).await["situacao"], "concluido");
    assert_eq!((world.commissions().await["ped-1"], world.commissions().await["ped-2"]), (500, 500));
    assert_eq!(world.provider.count(), 6, "nobody was called again");
    let late = call(&world, "POST", "/api/v1/replays/replay-api/pause", None).await;
    assert_eq!((late.status, &late.json()["code"]), (409, &json!("lost")));
}

#[tokio::test]
async fn a_replay_begun_over_http_outlives_the_process_that_began_it() {
    let world = world().await;
    two_orders_told_wrongly(&world).await;
    let mut process = console(&world).await;
    let mut slow = ask("replay-slow", false);
    slow["ritmo"] = json!(1);
    assert_eq!(call(&world, "POST", "/api/v1/replays", Some(&slow)).await.status, 202);
    let sql = "select situacao from reprocessamento where execucao_id = 'replay-slow' and not simular";
    until("it runs", LATER, async || world.rows::<(String,)>(sql).await == [("executando".to_owned(),)])
        .await;
    process.kill();
    until("it ends without its console", LATER, async || world.one::<String>(sql).await == "concluido").await;
    assert_eq!(world.commissions().await["ped-2"], 500);
}

#[tokio::test]
async fn a_decision_over_http_has_one_winner_and_the_loser_is_told() {
    let world = world().await;
    world.provider.script("ped-0", [Answer::Close, Answer::Status(200)]);
    let _live = world.live().await;
    world.feed(0, 1).await;
    world.settled().await;
    let key = format!("evt-0-1:{NOTIFY}");
    let listed = get(&world, "/api/v1/effects").await;
    assert_eq!(listed[0]["chave"], json!(key));
    let path = format!("/api/v1/effects/{}/resolve", key.replace(':', "%3A"));
    let missing =
        call(&world, "POST", &path, Some(&json!({"decisao": "concluido", "por": " ", "motivo": "seen"})))
            .await;
    assert_eq!(missing.status, 422, "{}", missing.body);
    let first = call(
        &world,
        "POST",
        &path,
        Some(&json!({"decisao": "concluido", "por": "ana", "motivo": "seen in the panel"})),
    )
    .await;
    assert_eq!((first.status, &first.json()["estado"]), (200, &json!("concluido")));
    let second =
        call(&world, "POST", &path, Some(&json!({"decisao": "descartado", "por": "rui", "motivo": "old"})))
            .await;
    assert_eq!((second.status, &second.json()["code"]), (409, &json!("lost")));
    assert!(second.body.contains("ana decided concluido"), "{}", second.body);
    assert_eq!(world.provider.count(), 1);
}

#[tokio::test]
async fn dead_letters_are_shown_rehearsed_and_driven_again_over_http() {
    let world = world().await;
    world.provider.script("ped-3", [Answer::Status(422), Answer::Status(200)]);
    let _live = world.live().await;
    world.send(&event(3)).await;
    world.settled().await;
    let letters = get(&world, "/api/v1/dead-letters?situacao=aberta").await;
    assert_eq!(
        (letters[0]["motivo"].as_str(), letters[0]["pedidoId"].as_str()),
        (Some("efeito-recusado"), Some("ped-3"))
    );
    let shown = get(&world, &format!("/api/v1/dead-letters/{}", letters[0]["id"])).await;
    assert!(shown["valor"].as_str().is_some_and(|value| value.contains("\"ped-3\"")), "{shown}");
    let redrive = "/api/v1/dead-letters/redrive";
    let nothing = call(&world, "POST", redrive, Some(&json!({"simular": true}))).await;
    assert_eq!(nothing.status, 422, "{}", nothing.body);
    let rehearsed =
        call(&world, "POST", redrive, Some(&json!({"ids": [letters[0]["id"]], "simular": true}))).await;
    assert_eq!(
        (rehearsed.json()["selecionadas"].as_i64(), rehearsed.json()["aplicadas"].as_i64()),
        (Some(1), Some(1)),
        "{}",
        rehearsed.body
    );
    assert_eq!(world.provider.count(), 1, "a rehearsal calls nobody");
    let driven = call(&world, "POST", redrive, Some(&json!({"motivo": "efeito-recusado"}))).await;
    assert_eq!((driven.status, driven.json()["aplicadas"].as_i64()), (200, Some(1)), "{}", driven.body);
    assert_eq!(world.provider.count(), 2);
    assert_eq!(get(&world, "/api/v1/dead-letters?situacao=aberta").await, json!([]));
}

/// Where pictures are put, if they are wanted.
fn pictures() -> Option<PathBuf> {
    std::env::var_os("REPRISE_SCREENSHOTS").map(PathBuf::from)
}
