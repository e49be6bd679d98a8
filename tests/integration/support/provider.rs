//! The outside world: an HTTP provider that does as it is told, counts every call by key, and is the oracle.
//!
//! It speaks HTTP by hand on plain sockets, because it must be able to do what servers should not: close without
//! an answer, send half of one, never answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What the provider does with a request.
#[derive(Debug, Clone)]
pub enum Answer {
    Status(u16),
    Full {
        status: u16,
        headers: Vec<(String, String)>,
        body: String,
    },
    /// Closes without a byte. The effect has happened.
    Close,
    /// A status line that says yes, and the connection ends within the body. The effect has happened.
    Half,
    Slow(Duration, Box<Answer>),
    /// Waits for the gate.
    Hang(Gate, Box<Answer>),
}

impl Answer {
    pub fn slow(by: Duration, then: Answer) -> Self {
        Self::Slow(by, Box::new(then))
    }

    pub fn hang(gate: &Gate, then: Answer) -> Self {
        Self::Hang(gate.clone(), Box::new(then))
    }

    pub fn with_header(status: u16, name: &str, value: &str) -> Self {
        Self::Full { status, headers: vec![(name.to_owned(), value.to_owned())], body: String::new() }
    }

    /// Whether a provider that answers so has done what it was asked.
    fn performs(&self) -> bool {
        match self {
            Self::Status(status) | Self::Full { status, .. } => (200..300).contains(status),
            Self::Close | Self::Half => true,
            Self::Slow(_, then) | Self::Hang(_, then) => then.performs(),
        }
    }
}

/// Closed until opened, once.
#[derive(Debug, Clone, Default)]
pub struct Gate(CancellationToken);

impl Gate {
    pub fn open(&self) {
        self.0.cancel();
    }
}

/// One request as it arrived.
#[derive(Debug, Clone)]
pub struct Call {
    pub at: Instant,
    /// The request line.
    pub line: String,
    /// By lower-case name.
    pub headers: HashMap<String, String>,
    pub body: Value,
    /// The `Idempotency-Key`.
    pub key: String,
    /// `pedidoId` of the body.
    pub order: String,
    /// `tipoEfeito` of the body.
    pub effect: String,
    /// The status, once it was written completely.
    pub answered: Option<u16>,
}

/// Whether the provider remembers keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// Every request is an effect of its own.
    #[default]
    None,
    /// A key it has performed is answered with 200, and not performed again.
    Idempotent,
}

#[derive(Debug)]
struct State {
    calls: Vec<Call>,
    performed: HashMap<String, usize>,
    script: HashMap<String, VecDeque<Answer>>,
    default: Answer,
    memory: Memory,
    in_flight: usize,
    most_in_flight: usize,
}

/// Requests in the order of their arrival, and what is to be answered.
pub struct Provider {
    state: Arc<Mutex<State>>,
    port: u16,
    open: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Provider {
    /// Answers 200 to everything, until told otherwise.
    pub async fn start() -> Self {
        let state = State {
            calls: Vec::new(),
            performed: HashMap::new(),
            script: HashMap::new(),
            default: Answer::Status(200),
            memory: Memory::None,
            in_flight: 0,
            most_in_flight: 0,
        };
        let mut provider = Self { state: Arc::new(Mutex::new(state)), port: 0, open: None };
        provider.open().await;
        provider
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/notificar", self.port)
    }

    /// Listens again, on the same port.
    pub async fn open(&mut self) {
        assert!(self.open.is_none(), "the provider is open");
        let listener =
            TcpListener::bind(("127.0.0.1", self.port)).await.expect("the provider's port is free");
        self.port = listener.local_addr().expect("a bound socket has an address").port();
        let closing = CancellationToken::new();
        let task = tokio::spawn(accept(listener, Arc::clone(&self.state), closing.clone()));
        self.open = Some((closing, task));
    }

    /// From now on connections are refused, and the existing ones are cut.
    pub async fn shut(&mut self) {
        let (closing, task) = self.open.take().expect("the provider is open");
        closing.cancel();
        task.await.expect("the provider does not panic");
    }

    /// What an order's requests are answered, one by one; the last answer repeats.
    /// `order` is a `pedidoId`, or `pedidoId/tipoEfeito`, which goes first.
    pub fn script(&self, order: &str, answers: impl IntoIterator<Item = Answer>) {
        let answers: VecDeque<Answer> = answers.into_iter().collect();
        assert!(!answers.is_empty(), "a script has at least one answer");
        lock(&self.state).script.insert(order.to_owned(), answers);
    }

    /// What everybody else is answered.
    pub fn default_answer(&self, answer: Answer) {
        lock(&self.state).default = answer;
    }

    pub fn remember(&self, memory: Memory) {
        lock(&self.state).memory = memory;
    }

    pub fn calls(&self) -> Vec<Call> {
        lock(&self.state).calls.clone()
    }

    pub fn calls_of(&self, order: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|c| c.order == order).collect()
    }

    pub fn count(&self) -> usize {
        lock(&self.state).calls.len()
    }

    pub fn count_of(&self, order: &str) -> usize {
        lock(&self.state).calls.iter().filter(|c| c.order == order).count()
    }

    /// Keys that arrived more than once, with their number of calls. Empty is the promise of `manter`.
    pub fn repeated_calls(&self) -> HashMap<String, usize> {
        let mut by_key = HashMap::new();
        for call in &lock(&self.state).calls {
            *by_key.entry(call.key.clone()).or_insert(0) += 1;
        }
        by_key.retain(|_, n| *n > 1);
        by_key
    }

    /// Keys whose effect really happened more than once. Empty is the promise to everybody.
    pub fn repeated_effects(&self) -> HashMap<String, usize> {
        let mut performed = lock(&self.state).performed.clone();
        performed.retain(|_, n| *n > 1);
        performed
    }

    /// How many effects really happened.
    pub fn performed(&self) -> usize {
        lock(&self.state).performed.values().sum()
    }

    pub fn most_in_flight(&self) -> usize {
        lock(&self.state).most_in_flight
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if let Some((closing, _)) = self.open.take() {
            closing.cancel();
        }
    }
}

/// A test that failed elsewhere still wants to read what was called.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, closing: CancellationToken) {
    let connections = tokio_util::task::TaskTracker::new();
    while let Some(accepted) = closing.run_until_cancelled(listener.accept()).await {
        let Ok((stream, _)) = accepted else { continue };
        let (state, closing) = (Arc::clone(&state), closing.clone());
        connections.spawn(async move {
            // An error is a client that went away, or one of our own cuts.
            closing.run_until_cancelled(serve(stream, &state)).await.map(Result::ok)
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn serve(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufStream::new(stream);
    while let Some(call) = read_request(&mut stream).await? {
        let (answer, index) = {
            let mut state = lock(state);
            let answer = state.next_answer(&call);
            state.calls.push(call);
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
            (answer, state.calls.len() - 1)
        };
        let flight = InFlight(state);
        let status = respond(&mut stream, answer).await?;
        drop(flight);
        let Some(status) = status else { break };
        lock(state).calls[index].answered = Some(status);
    }
    stream.shutdown().await
}

/// Counts down however the call ends, a cut connection included.
struct InFlight<'a>(&'a Mutex<State>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        lock(self.0).in_flight -= 1;
    }
}

impl State {
    fn next_answer(&mut self, call: &Call) -> Answer {
        if self.memory == Memory::Idempotent && self.performed.contains_key(&call.key) {
            return Answer::Status(200);
        }
        let by_type = format!("{}/{}", call.order, call.effect);
        let name = if self.script.contains_key(&by_type) { &by_type } else { &call.order };
        let answer = match self.script.get_mut(name) {
            Some(script) if script.len() > 1 => script.pop_front(),
            Some(script) => script.front().cloned(),
            None => None,
        };
        let answer = answer.unwrap_or_else(|| self.default.clone());
        if answer.performs() {
            *self.performed.entry(call.key.clone()).or_insert(0) += 1;
        }
        answer
    }
}

/// `None` at the end of the connection.
async fn read_request(stream: &mut BufStream<TcpStream>) -> std::io::Result<Option<Call>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut headers = HashMap::new();
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header).await? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = header.trim_end().split_once(':') else { break };
        headers.insert(name.trim().to_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().expect("a content-length is a number"), 0);
        stream.read_exact(&mut body).await?;
    } else if headers.get("transfer-encoding").is_some_and(|e| e == "chunked") {
        read_chunks(stream, &mut body).await?;
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    Ok(Some(Call {
        at: Instant::now(),
        line: line.trim_end().to_owned(),
        key: text(headers.get("idempotency-key").map(String::as_str)),
        order: text(body["pedidoId"].as_str()),
        effect: text(body["tipoEfeito"].as_str()),
        headers,
        body,
        answered: None,
    }))
}

async fn read_chunks(stream: &mut BufStream<TcpStream>, body: &mut Vec<u8>) -> std::io::Result<()> {
    loop {
        let mut size = String::new();
        stream.read_line(&mut size).await?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).expect("a chunk begins with its size");
        let start = body.len();
        // The chunk and its line end.
        body.resize(start + size + 2, 0);
        stream.read_exact(&mut body[start..]).await?;
        body.truncate(start + size);
        if size == 0 {
            return Ok(());
        }
    }
}

/// The status that was sent completely; `None` where the connection ends instead.
async fn respond(stream: &mut BufStream<TcpStream>, mut answer: Answer) -> std::io::Result<Option<u16>> {
    let (status, headers, body) = loop {
        answer = match answer {
            Answer::Slow(by, then) => {
                tokio::time::sleep(by).await;
                *then
            }
            Answer::Hang(gate, then) => {
                gate.0.cancelled().await;
                *then
            }
            Answer::Close => return Ok(None),
            Answer::Half => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"ok\":").await?;
                stream.flush().await?;
                return Ok(None);
            }
            Answer::Status(status) => break (status, Vec::new(), r#"{"ok":true}"#.to_owned()),
            Answer::Full { status, headers, body } => break (status, headers, body),
        }
    };
    let headers = headers.iter().fold(String::new(), |all, (name, value)| all + name + ": " + value + "\r\n");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}"
    );
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    stream.flush().await?;
    Ok(Some(status))
}
