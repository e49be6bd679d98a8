//! Against real sockets: a raw TCP server that counts what it saw is the oracle.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::super::settings::tests::provider;
use super::super::signature::Secret;
use super::*;
use crate::domain::effect::EffectTypeId;

const BODY: &str = r#"{"chave":"evt-1:notificar-vendedor"}"#;

/// What the server does with a request.
enum Reply {
    /// Answers and keeps the connection.
    Keep(String),
    /// Answers and closes the connection; an empty answer is none.
    Close(String),
    /// Writes this much and then nothing, until the client goes.
    Hang(String),
}

type Seen = Arc<Mutex<Vec<String>>>;

struct Server {
    address: SocketAddr,
    seen: Seen,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// `reply` is asked with the number of the request, from 0.
    async fn start(reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let seen = Seen::default();
        let (reply, all) = (Arc::new(reply), Arc::clone(&seen));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&reply), Arc::clone(&all)));
            }
        });
        Self { address, seen, task }
    }

    fn url(&self) -> String {
        format!("http://{}/notificar?de=reprise", self.address)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn seen_with_key(&self, key: &str) -> usize {
        let line = format!("idempotency-key: {key}\r\n");
        self.seen().iter().filter(|request| request.contains(&line)).count()
    }
}

async fn serve(mut stream: TcpStream, reply: Arc<impl Fn(usize) -> Reply>, seen: Seen) {
    while let Some(request) = read_request(&mut stream).await {
        let number = {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(request);
            seen.len() - 1
        };
        let (text, after) = match reply(number) {
            Reply::Keep(text) => (text, None),
            Reply::Close(text) => (text, Some(false)),
            Reply::Hang(text) => (text, Some(true)),
        };
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        match after {
            None => {}
            Some(false) => return,
            Some(true) => {
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.ok();
                return;
            }
        }
    }
}

/// One whole request, lossy; `None` when the client has gone.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, _)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.expect("a length").parse().expect("a number");
            let start = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("end of head") + 4;
            if bytes.len() >= start + length {
                return Some(text);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

fn gateway(settings: ProviderSettings) -> HttpGateway {
    HttpGateway::new(vec![settings]).expect("valid settings")
}

fn call(key: &str) -> Call {
    let lease_ends = Instant::now() + Duration::from_hours(1);
    Call {
        effect_type: EffectTypeId(0),
        key: key.to_owned(),
        body: BODY.to_owned(),
        lease_ends,
        traceparent: None,
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

fn done(result: &str) -> Proof {
    Proof::Done { result: result.to_owned() }
}

const fn not_now(seconds: u64) -> Proof {
    Proof::NotNow { retry_after: Some(Duration::from_secs(seconds)) }
}

#[tokio::test]
async fn b51_every_answer_proves_what_the_table_says_with_exactly_one_request() {
    let table: Vec<(&str, &str, Proof)> = vec![
        ("200 OK", "", done(r#"{"ok":true}"#)),
        ("202 Accepted", "", done(r#"{"ok":true}"#)),
        ("301 Moved Permanently", "location: http://127.0.0.1:1/\r\n", Proof::Refused),
        ("307 Temporary Redirect", "location: /again\r\n", Proof::Refused),
        ("400 Bad Request", "", Proof::Refused),
        ("401 Unauthorized", "", Proof::Credentials),
        ("403 Forbidden", "", Proof::Credentials),
        ("404 Not Found", "", Proof::Refused),
        ("407 Proxy Authentication Required", "", Proof::Credentials),
        ("408 Request Timeout", "", Proof::Unknown),
        ("409 Conflict", "", Proof::InProgress),
        ("410 Gone", "", Proof::Refused),
        ("422 Unprocessable Entity", "", Proof::Refused),
        ("425 Too Early", "", Proof::InProgress),
        ("429 Too Many Requests", "", Proof::NotNow { retry_after: None }),
        ("429 Too Many Requests", "retry-after: 7\r\n", not_now(7)),
        ("429 Too Many Requests", "retry-after: Fri, 31 Dec 2100 23:59:59 GMT\r\n", not_now(3_600)),
        ("500 Internal Server Error", "retry-after: 7\r\n", Proof::Unknown),
        ("503 Service Unavailable", "", Proof::Unknown),
        ("503 Service Unavailable", "retry-after: soon\r\n", Proof::Unknown),
        ("503 Service Unavailable", "retry-after: 7\r\n", not_now(7)),
    ];
    for (status, headers, proof) in table {
        let text = answer(status, headers, r#"{"ok":true}"#);
        let server = Server::start(move |_| Reply::Keep(text.clone())).await;
        let got = gateway(provider(server.url())).call(call("evt-1:notificar-vendedor")).await;
        assert_eq!(got.proof, proof, "{status} {headers}");
        assert_eq!(got.evidence.reached, Reached::Body, "{status}");
        assert_eq!(got.evidence.status.map(|code| code.to_string()).as_deref(), status.get(..3));
        let detail = if matches!(proof, Proof::Done { .. }) {
            String::new()
        } else {
            format!("HTTP {status}: {{\"ok\":true}}")
        };
        assert_eq!(got.evidence.detail, detail);
        assert_eq!(server.seen().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn answers_without_a_body_and_interim_answers_are_understood() {
    for (text, proof) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", done("null")),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", done(r#""ok""#)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n", done("[1]")),
    ] {
        let server = Server::start(move |_| Reply::Keep(text.to_owned())).await;
        assert_eq!(gateway(provider(server.url())).call(call("k")).await.proof, proof, "{text}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn overrides_of_respostas_are_applied() {
    let server = Server::start(|_| Reply::Keep(answer("409 Conflict", "", "1"))).await;
    let mut settings = provider(server.url());
    settings.answers.insert(409, Override::Done);
    assert_eq!(gateway(settings).call(call("k")).await.proof, done("1"));
}

#[tokio::test]
async fn the_target_of_a_redirect_is_never_called() {
    let target = Server::start(|_| Reply::Keep(answer("200 OK", "", ""))).await;
    let to = format!("location: {}\r\n", target.url());
    let server = Server::start(move |_| Reply::Keep(answer("308 Permanent Redirect", &to, ""))).await;
    assert_eq!(gateway(provider(server.url())).call(call("k")).await.proof, Proof::Refused);
    assert_eq!((server.seen().len(), target.seen().len()), (1, 0));
}

#[tokio::test]
async fn closed_without_an_answer_is_unknown_and_not_sent_again() {
    let server = Server::start(|_| Reply::Close(String::new())).await;
    let got = gateway(provider(server.url())).call(call("k")).await;
    assert_eq!((got.proof, got.evidence.reached, got.evidence.status), (Proof::Unknown, Reached::Sent, None));
    assert!(got.evidence.detail.starts_with("sent, no answer: "), "{}", got.evidence.detail);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn half_an_answer_is_unknown_whatever_its_status_line() {
    for text in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"ok\":",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 100\r\n\r\nno",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"ok\"\r\n",
    ] {
        let server = Server::start(move |_| Reply::Close(text.to_owned())).await;
        let got = gateway(provider(server.url())).call(call("k")).await;
        assert_eq!((got.proof, got.evidence.reached), (Proof::Unknown, Reached::Head), "{text}");
        assert!(got.evidence.detail.contains("did not end"), "{}", got.evidence.detail);
        assert_eq!(server.seen().len(), 1);
    }
    for text in ["HTTP/1.1 200 OK\r\ncontent-le", "SMTP ready\r\n\r\n"] {
        let server = Server::start(move |_| Reply::Close(text.to_owned())).await;
        let got = gateway(provider(server.url())).call(call("k")).await;
        assert_eq!((got.proof, got.evidence.reached), (Proof::Unknown, Reached::Sent), "{text}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn b37_an_answer_later_than_the_deadline_is_unknown() {
    for (text, reached, status) in [
        ("", Reached::Sent, None),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", Reached::Head, Some(200)),
    ] {
        let server = Server::start(move |_| Reply::Hang(text.to_owned())).await;
        let mut settings = provider(server.url());
        settings.deadline = Duration::from_millis(200);
        let got = gateway(settings).call(call("k")).await;
        assert_eq!((got.proof, got.evidence.reached, got.evidence.status), (Proof::Unknown, reached, status));
        assert!(got.evidence.detail.contains("the deadline of 200ms passed"), "{}", got.evidence.detail);
        assert!(got.evidence.elapsed >= Duration::from_millis(200));
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_call_that_its_reservation_may_not_outlive_is_not_begun() {
    let server =
        Server::start(|_| Reply::Close("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned())).await;
    let mut settings = provider(server.url());
    settings.deadline = Duration::from_secs(5);
    let lease_ends = Instant::now() + Duration::from_millis(4900);
    let got = gateway(settings).call(Call { lease_ends, ..call("k") }).await;
    assert_eq!(got.proof, Proof::NotNow { retry_after: None });
    assert_eq!(got.evidence.reached, Reached::NotConnected);
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn b51_a_refused_connection_and_an_unknown_name_are_not_sent() {
    let port =
        TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound").port();
    for url in [format!("http://127.0.0.1:{port}/"), "http://name.invalid/".to_owned()] {
        let got = gateway(provider(url.clone())).call(call("k")).await;
        assert_eq!((got.proof, got.evidence.reached), (Proof::NotSent, Reached::NotConnected), "{url}");
        assert!(got.evidence.detail.starts_with("not sent: "), "{}", got.evidence.detail);
    }
}

#[tokio::test]
async fn a_tls_handshake_that_fails_or_never_ends_is_not_sent() {
    // Accepts (the kernel does) and never says anything.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut settings = provider(format!("https://{}/", silent.local_addr().expect("bound")));
    settings.deadline = Duration::from_millis(200);
    let got = gateway(settings).call(call("k")).await;
    assert_eq!((got.proof, got.evidence.reached), (Proof::NotSent, Reached::NotConnected));

    let plain = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("https://{}/", plain.local_addr().expect("bound"));
    let server = tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.expect("a client");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.ok();
    });
    let got = gateway(provider(url)).call(call("k")).await;
    assert_eq!((got.proof, got.evidence.reached), (Proof::NotSent, Reached::NotConnected));
    server.await.expect("the server ends");
}

#[tokio::test]
async fn a_kept_connection_that_closes_on_the_second_request_is_unknown_and_not_tried_again() {
    let server = Server::start(|number| match number {
        0 => Reply::Keep(answer("200 OK", "", "1")),
        _ => Reply::Close(String::new()),
    })
    .await;
    let gateway = gateway(provider(server.url()));
    assert_eq!(gateway.call(call("first")).await.proof, done("1"));
    let got = gateway.call(call("second")).await;
    assert_eq!((got.proof, got.evidence.reached), (Proof::Unknown, Reached::Sent));
    assert_eq!(server.seen().len(), 2);
}

/// The server closes each connection right after its answer, without saying so: the next request meets an open, a
/// closing or a closed connection as it falls. Whatever is claimed must agree with what the server saw.
#[tokio::test]
async fn a_connection_closed_between_calls_never_makes_a_false_claim() {
    let server = Server::start(|_| Reply::Close(answer("200 OK", "", "1"))).await;
    let gateway = gateway(provider(server.url()));
    let mut done_calls = 0;
    for number in 0..200 {
        let key = format!("evt-{number}:t");
        let proof = gateway.call(call(&key)).await.proof;
        match proof {
            Proof::Done { .. } => assert_eq!(server.seen_with_key(&key), 1),
            Proof::NotSent => assert_eq!(server.seen_with_key(&key), 0),
            Proof::Unknown => assert!(server.seen_with_key(&key) <= 1),
            other => panic!("impossible proof {other:?}"),
        }
        done_calls += usize::from(matches!(proof, Proof::Done { .. }));
        if number % 2 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(done_calls > 0);
}

#[tokio::test]
async fn a_request_carries_the_contracts_headers_and_the_exact_body() {
    let server = Server::start(|_| Reply::Keep(answer("200 OK", "", ""))).await;
    let mut request = call("evt-1:notificar-vendedor");
    request.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    gateway(provider(server.url())).call(request).await;
    let expected = format!(
        "POST /notificar?de=reprise HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
         user-agent: reprise/0.1.0\r\n\
         traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\
         idempotency-key: evt-1:notificar-vendedor\r\ncontent-length: 36\r\n\r\n{BODY}",
        server.address
    );
    assert_eq!(server.seen(), [expected]);
}

#[tokio::test]
async fn a_signed_request_can_be_verified_by_its_receiver() {
    let server = Server::start(|_| Reply::Keep(answer("200 OK", "", ""))).await;
    let mut settings = provider(server.url());
    settings.signature_secret = Some(Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"));
    gateway(settings).call(call("evt-1:t")).await;
    let seen = server.seen();
    let header = |name: &str| seen[0].lines().find_map(|line| line.strip_prefix(name)).expect("the header");
    assert_eq!(header("webhook-id: "), "evt-1:t");
    let mac = Signer::new(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).expect("a secret");
    let expected = mac.sign(b"evt-1:t", header("webhook-timestamp: "), BODY.as_bytes());
    assert_eq!(header("webhook-signature: "), expected);
}

#[tokio::test]
async fn keys_that_are_no_plain_text_still_reach_the_provider() {
    let server = Server::start(|_| Reply::Keep(answer("200 OK", "", ""))).await;
    let gateway = gateway(provider(server.url()));
    for (key, sent) in [
        ("ped-é:t", "ped-é"),
        (" evt:t", "%20evt:t"),
        ("a\u{7f}\nb:t", "a%7F%0Ab:t"),
        ("50%:t", "50%25:t"),
        ("a b:t", "a b:t"),
    ] {
        let mut request = call(key);
        request.traceparent = Some("broken\n".to_owned());
        assert_eq!(gateway.call(request).await.proof, done("null"));
        let seen = server.seen();
        let last = seen.last().expect("a request");
        assert!(last.contains(&format!("idempotency-key: {sent}")), "{last}");
        assert!(!last.contains("traceparent"));
    }
}

#[tokio::test]
async fn a_long_answer_is_read_to_its_end_and_kept_in_part() {
    let long = answer("200 OK", "", &"x".repeat(3_000_000));
    let server = Server::start(move |_| Reply::Keep(long.clone())).await;
    let gateway = gateway(provider(server.url()));
    let Proof::Done { result } = gateway.call(call("k")).await.proof else {
        panic!("a complete answer is done")
    };
    assert!(result.starts_with(r#"{"truncado":true,"tamanho":3000000,"inicio":"xxx"#), "{}", &result[..60]);
    assert!(result.len() < 17_000);
}

#[tokio::test]
async fn many_calls_at_once_share_the_kept_connections() {
    let server = Server::start(|_| Reply::Keep(answer("200 OK", "", "1"))).await;
    let mut settings = provider(server.url());
    settings.slots = 64;
    let gateway = gateway(settings);
    for _ in 0..3 {
        let calls = (0..64).map(|number| gateway.call(call(&format!("evt-{number}:t"))));
        assert!(futures::future::join_all(calls).await.iter().all(|got| got.proof == done("1")));
    }
    assert_eq!(server.seen().len(), 192);
}

#[tokio::test]
async fn a_connection_that_nobody_uses_is_closed_by_us_after_four_seconds() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let gateway = gateway(provider(format!("http://{}/", listener.local_addr().expect("bound"))));
    let asked = tokio::spawn(gateway.call(call("k")));
    let (mut stream, _) = listener.accept().await.expect("a client");
    read_request(&mut stream).await.expect("a request");
    stream.write_all(answer("200 OK", "", "1").as_bytes()).await.expect("written");
    assert_eq!(asked.await.expect("answered").proof, done("1"));
    let kept = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
    assert!(kept.is_err(), "kept for the next call");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(5)).await;
    tokio::time::resume();
    let closed =
        tokio::time::timeout(Duration::from_secs(2), stream.read_u8()).await.expect("closed in time");
    assert_eq!(closed.expect_err("no byte").kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_type_without_a_provider_is_not_sent_and_bad_settings_name_their_key() {
    let gateway = gateway(provider("http://127.0.0.1:1/"));
    let mut request = call("k");
    request.effect_type = EffectTypeId(7);
    assert_eq!(gateway.call(request).await.proof, Proof::NotSent);
    let error = HttpGateway::new(vec![provider("nowhere")]).err().expect("refused");
    assert!(error.to_string().starts_with("efeitos.notificar-vendedor.url "), "{error}");
}
