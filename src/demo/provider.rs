//! A small provider that counts: the outside world of the demo, and its oracle.
//!
//! Most notices are accepted after a few milliseconds. Some sellers are unknown to it (422), and now and then a
//! connection is closed without an answer after the request was read: nobody but this counter knows whether it
//! was carried out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::task::JoinHandle;

/// How long the provider thinks.
const LATENCY: Duration = Duration::from_millis(5);
/// Orders whose number ends so are refused, or left without an answer.
const REFUSED: &str = "77";
const SILENT: &str = "333";

/// Calls by `Idempotency-Key`.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<Mutex<HashMap<String, u32>>>);

impl Counter {
    fn calls(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn total(&self) -> u32 {
        self.calls().values().sum()
    }

    /// Keys that were called more than once.
    pub fn repeated(&self) -> usize {
        self.calls().values().filter(|calls| **calls > 1).count()
    }

    pub fn of(&self, key: &str) -> u32 {
        self.calls().get(key).copied().unwrap_or(0)
    }

    /// From here on nothing was called yet: what comes is counted afresh.
    pub fn forget(&self) {
        self.calls().clear();
    }
}

/// The provider, listening on a port of its own until it is dropped.
pub struct Provider {
    pub counter: Counter,
    pub url: String,
    task: JoinHandle<()>,
}

impl Provider {
    pub async fn start() -> std::io::Result<Self> {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}/notificar", listener.local_addr()?);
        let counter = Counter::default();
        let app = Router::new().route("/notificar", post(notify)).with_state(counter.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the demo's provider stopped");
            }
        });
        Ok(Self { counter, url, task })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn notify(State(counter): State<Counter>, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    *counter.calls().entry(key).or_default() += 1;
    tokio::time::sleep(LATENCY).await;
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let order = body["pedidoId"].as_str().unwrap_or_default();
    if order.ends_with(SILENT) {
        // Longer than any deadline of the demo: the connection is closed without an answer.
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    if order.ends_with(REFUSED) {
        return (StatusCode::UNPROCESSABLE_ENTITY, r#"{"erro":"vendedor desconhecido"}"#).into_response();
    }
    (StatusCode::OK, r#"{"ok":true}"#).into_response()
}
