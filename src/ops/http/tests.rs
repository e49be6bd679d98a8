use super::*;
use std::io::{Read, Write};
use std::net::TcpStream as Client;
use std::sync::mpsc;

use axum::body::Bytes;
use axum::routing::{get, post};

use crate::domain::effect::{EffectTypeId, Outcome, Run, RunKind};
use crate::health::Partitions;

/// A main runtime that nobody drives: what needs it can never be answered.
fn stuck() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime")
}

fn busy() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).thread_name("main-runtime").build().expect("a runtime")
}

struct Fixture {
    server: AdminServer,
    health: Health,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

fn admin(address: SocketAddr, protected: Router, runtime: &Runtime) -> Admin {
    let effects = ["notificar-vendedor"];
    Admin {
        address,
        token: None,
        drain: Duration::from_secs(5),
        health: Health::new(Run::live(), effects, Partitions::Expected),
        metrics: Arc::new(Metrics::new(effects).expect("metrics")),
        protected,
        console: Router::new(),
        runtime: runtime.handle().clone(),
    }
}

fn start(admin: Admin) -> Fixture {
    let (health, metrics) = (admin.health.clone(), Arc::clone(&admin.metrics));
    let stop = CancellationToken::new();
    let server = admin.start(stop.clone()).expect("serves");
    Fixture { server, health, metrics, stop }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

impl Fixture {
    fn send(&self, request: &str) -> Client {
        let mut client = Client::connect(self.server.address()).expect("connects");
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        client.write_all(request.as_bytes()).expect("sent");
        client
    }

    /// Status, head and body of one answer.
    fn ask(&self, request_line: &str, headers: &str, body: &str) -> (u16, String, String) {
        let request =
            format!("{request_line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n{body}");
        let mut answer = String::new();
        self.send(&request).read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.ask(&format!("GET {path}"), "", "");
        (status, body)
    }
}

#[test]
fn the_open_pages_answer_while_the_main_runtime_stands_still() {
    let main = stuck();
    let f = start(admin(loopback(), Router::new(), &main));
    assert_eq!(f.get("/livez"), (200, r#"{"vivo":true}"#.to_owned()));
    let (status, body) = f.get("/readyz");
    assert_eq!(status, 503);
    assert_eq!(
        body,
        r#"{"pronto":false,"motivos":[{"motivo":"banco-indisponivel","detalhe":"database has not answered yet"},{"motivo":"sem-atribuicao","detalhe":"the consumer group has not said which partitions are ours"}]}"#
    );
    f.health.assigned([(3, 40)]);
    f.health.database(Ok::<(), String>(()));
    assert_eq!(f.get("/readyz"), (200, r#"{"pronto":true,"motivos":[]}"#.to_owned()));
    let (status, head, body) = f.ask("GET /status", "", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(
        body.contains(r#""situacao":"pronto""#) && body.contains(r#""particao":3,"posicao":40"#),
        "{body}"
    );
}

#[test]
fn metrics_show_counts_and_the_facts_of_the_moment() {
    let main = stuck();
    let f = start(admin(loopback(), Router::new(), &main));
    f.metrics.effect(EffectTypeId(0), Outcome::Applied, RunKind::Live, 3);
    f.health.assigned([(3, 40)]);
    f.health.database(Ok::<(), String>(()));
    f.health.circuit_opened(EffectTypeId(0), Duration::from_secs(1));
    f.health.partition_end(3, 45);
    let (status, head, body) = f.ask("GET /metrics", "", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in [
        r#"reprise_efeitos_total{desfecho="aplicado",efeito="notificar-vendedor",execucao="ao-vivo"} 3"#,
        "reprise_banco_disponivel 1",
        r#"reprise_circuito_aberto{efeito="notificar-vendedor"} 1"#,
        r#"reprise_particao_posicao{particao="3"} 40"#,
        r#"reprise_particao_lag{particao="3"} 5"#,
    ] {
        assert!(body.lines().any(|l| l == line), "missing: {line}");
    }
    f.health.revoked([3]);
    assert!(!f.get("/metrics").1.contains(r#"particao="3""#));
}

#[test]
fn unknown_paths_and_methods_are_problem_documents() {
    let main = stuck();
    let f = start(admin(loopback(), Router::new(), &main));
    let (status, head, body) = f.ask("GET /nowhere", "", "");
    assert_eq!(status, 404);
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    assert_eq!(
        body,
        r#"{"type":"about:blank","title":"Not Found","status":404,"code":"not-found","detail":"there is no such path"}"#
    );
    let (status, _, body) = f.ask("DELETE /status", "", "");
    assert_eq!(status, 405);
    assert!(body.contains(r#""code":"method-not-allowed""#), "{body}");
}

#[test]
fn protected_routes_need_the_token_and_open_ones_do_not() {
    let main = busy();
    let protected = Router::new().route("/secret", post(|| async { "told" }));
    let mut admin = admin(loopback(), protected, &main);
    admin.token = Some(AdminToken::new("s3cret").expect("a token"));
    let f = start(admin);
    let (status, head, body) = f.ask("POST /secret", "", "");
    assert_eq!(status, 401);
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    assert!(body.contains(r#""code":"unauthorized""#), "{body}");
    assert_eq!(f.ask("POST /secret", "Authorization: Bearer wrong\r\n", "").0, 401);
    assert_eq!(f.ask("GET /secret", "", "").0, 401, "a stranger does not learn which methods there are");
    let (status, _, body) = f.ask("POST /secret", "Authorization: Bearer s3cret\r\n", "");
    assert_eq!((status, body.as_str()), (200, "told"));
    let (status, _, body) = f.ask("GET /secret", "Authorization: Bearer s3cret\r\n", "");
    assert_eq!(status, 405);
    assert!(body.contains(r#""code":"method-not-allowed""#), "{body}");
    assert_eq!(f.get("/livez").0, 200);
    assert_eq!(f.get("/status").0, 200);
    assert_eq!(f.get("/nowhere").0, 404);
}

#[test]
fn protected_routes_run_on_the_main_runtime() {
    let main = busy();
    let name = || async { std::thread::current().name().unwrap_or("none").to_owned() };
    let panics = || async { String::from_utf8(vec![0xff]).expect("panics on purpose") };
    let protected = Router::new().route("/thread", get(name)).route("/panics", get(panics));
    let f = start(admin(loopback(), protected, &main));
    assert_eq!(f.get("/thread"), (200, "main-runtime".to_owned()));
    let (status, body) = f.get("/panics");
    assert_eq!(status, 500);
    assert!(body.contains(r#""code":"internal""#), "{body}");
    assert_eq!(f.get("/livez").0, 200);
}

#[test]
fn a_body_that_is_too_large_is_refused_whether_it_says_so_or_not() {
    let main = busy();
    let protected = Router::new().route("/size", post(|body: Bytes| async move { body.len().to_string() }));
    let f = start(admin(loopback(), protected, &main));
    let (status, _, body) = f.ask("POST /size", "Content-Length: 3\r\n", "abc");
    assert_eq!((status, body.as_str()), (200, "3"));
    let (status, _, body) = f.ask("POST /size", "Content-Length: 1048577\r\n", "");
    assert_eq!(status, 413);
    assert!(body.contains(r#""code":"body-too-large""#), "{body}");
    // 1048576 bytes and one more, without a length; the last chunk is missing, so that nothing is left unread.
    let chunked = format!("100000\r\n{}\r\n1\r\nx\r\n", "a".repeat(1_048_576));
    assert_eq!(f.ask("POST /size", "Transfer-Encoding: chunked\r\n", &chunked).0, 413);
}

#[test]
fn an_address_that_is_taken_or_too_open_is_a_clear_failure() {
    let main = stuck();
    let taken = StdListener::bind(loopback()).expect("a port");
    let address = taken.local_addr().expect("an address");
    let error = admin(address, Router::new(), &main).start(CancellationToken::new()).err().expect("taken");
    assert!(matches!(error, AdminError::Bind { .. }));
    assert!(
        error.to_string().starts_with(&format!("http.endereco: cannot listen on {address}: ")),
        "{error}"
    );
    let open = "0.0.0.0:0".parse().expect("an address");
    let error = admin(open, Router::new(), &main).start(CancellationToken::new()).err().expect("too open");
    assert!(matches!(error, AdminError::Access(AccessError::TokenRequired(_))));
}

#[test]
fn an_idle_connection_does_not_hold_shutdown_open() {
    let main = stuck();
    let f = start(admin(loopback(), Router::new(), &main));
    let mut idle = f.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let mut first = [0; 15];
    idle.read_exact(&mut first).expect("kept alive");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    f.stop.cancel();
    let address = f.server.address();
    assert!(main.block_on(f.server.ended()).is_ok());
    assert!(Client::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_request_that_never_ends_cannot_hold_shutdown_open() {
    let main = busy();
    let (entered, seen) = mpsc::channel();
    let never = move || {
        let entered = entered.clone();
        async move {
            entered.send(()).expect("the test listens");
            std::future::pending::<&'static str>().await
        }
    };
    let mut admin = admin(loopback(), Router::new().route("/never", get(never)), &main);
    admin.drain = Duration::from_millis(50);
    let f = start(admin);
    let mut client = f.send("GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n");
    seen.recv_timeout(Duration::from_secs(10)).expect("the handler runs");
    f.stop.cancel();
    assert!(main.block_on(f.server.ended()).is_ok());
    let mut answer = String::new();
    let read = client.read_to_string(&mut answer);
    assert!(read.is_err() || answer.is_empty(), "cut off, not answered: {answer}");
}

#[test]
fn a_request_in_flight_is_answered_after_the_stop() {
    let main = busy();
    let (entered, seen) = mpsc::channel();
    let gate = CancellationToken::new();
    let opened = gate.clone();
    let waits = move || {
        let (entered, opened) = (entered.clone(), opened.clone());
        async move {
            entered.send(()).expect("the test listens");
            opened.cancelled().await;
            "late, but whole"
        }
    };
    let f = start(admin(loopback(), Router::new().route("/waits", get(waits)), &main));
    let mut client = f.send("GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n");
    seen.recv_timeout(Duration::from_secs(10)).expect("the handler runs");
    f.stop.cancel();
    gate.cancel();
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer, then the end");
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("late, but whole"), "{answer}");
    assert!(main.block_on(f.server.ended()).is_ok());
}
