//! A small provider that counts: the outside world of the demo, and its oracle.
//!
//! Most notices are accepted after a few milliseconds. Some sellers are unknown to it (422), and now and then it
//! breaks the connection off after it read the request: nobody but this counter knows whether it was carried out.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
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

/// Calls, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    pub accepted: u32,
    pub refused: u32,
    /// Broken off without an answer.
    pub unanswered: u32,
}

impl Calls {
    /// Calls that the seller may have heard of. More than one for a key is what must never happen.
    const fn maybe_done(self) -> u32 {
        self.accepted + self.unanswered
    }

    /// What came after `before`.
    pub const fn since(self, before: Self) -> Self {
        Self {
            accepted: self.accepted.saturating_sub(before.accepted),
            refused: self.refused.saturating_sub(before.refused),
            unanswered: self.unanswered.saturating_sub(before.unanswered),
        }
    }
}

/// Calls by `Idempotency-Key`. Nothing is ever forgotten, but for what the story takes back.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<Mutex<HashMap<String, Calls>>>);

impl Counter {
    fn calls(&self) -> MutexGuard<'_, HashMap<String, Calls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Calls {
        self.calls().values().fold(Calls::default(), |sum, calls| Calls {
            accepted: sum.accepted + calls.accepted,
            refused: sum.refused + calls.refused,
            unanswered: sum.unanswered + calls.unanswered,
        })
    }

    /// Keys that were sent again although an earlier call may have been carried out.
    pub fn repeated(&self) -> usize {
        self.calls().values().filter(|calls| calls.maybe_done() > 1).count()
    }

    pub fn of(&self, key: &str) -> Calls {
        self.calls().get(key).copied().unwrap_or_default()
    }

    /// Staging: these notices were never sent, neither here nor in the ledger.
    pub fn unsend(&self, keys: &[String]) {
        let mut calls = self.calls();
        for key in keys {
            calls.remove(key);
        }
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
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let order = body["pedidoId"].as_str().unwrap_or_default();
    // Counted before the answer: what is broken off here happened all the same.
    let answer = {
        let mut calls = counter.calls();
        let calls = calls.entry(key).or_default();
        if order.ends_with(SILENT) {
            calls.unanswered += 1;
            None
        } else if order.ends_with(REFUSED) {
            calls.refused += 1;
            Some((StatusCode::UNPROCESSABLE_ENTITY, r#"{"erro":"vendedor desconhecido"}"#))
        } else {
            calls.accepted += 1;
            Some((StatusCode::OK, r#"{"ok":true}"#))
        }
    };
    tokio::time::sleep(LATENCY).await;
    answer.map_or_else(broken_off, IntoResponse::into_response)
}

/// An answer that breaks off before its end: the connection is closed, and nothing can be told from it.
fn broken_off() -> Response {
    let end = std::io::Error::from(std::io::ErrorKind::ConnectionAborted);
    Response::new(Body::from_stream(futures::stream::iter([Err::<Bytes, _>(end)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn call(provider: &Provider, order: &str) -> Result<u16, reqwest::Error> {
        let body = serde_json::json!({ "pedidoId": order }).to_string();
        let request = reqwest::Client::new().post(&provider.url).header("Idempotency-Key", order).body(body);
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        answer.bytes().await?;
        Ok(status)
    }

    #[tokio::test]
    async fn it_accepts_refuses_or_breaks_off_and_counts_all_three() {
        let provider = Provider::start().await.expect("a provider");
        assert_eq!(call(&provider, "ped-1").await.expect("an answer"), 200);
        assert_eq!(call(&provider, "ped-77").await.expect("an answer"), 422);
        assert!(call(&provider, "ped-333").await.is_err());
        assert_eq!(provider.counter.all(), Calls { accepted: 1, refused: 1, unanswered: 1 });
    }

    #[tokio::test]
    async fn a_refusal_may_be_asked_again_what_may_be_done_may_not() {
        let provider = Provider::start().await.expect("a provider");
        for _ in 0..2 {
            call(&provider, "ped-77").await.expect("an answer");
        }
        assert_eq!(provider.counter.repeated(), 0);
        for _ in 0..2 {
            call(&provider, "ped-1").await.expect("an answer");
            assert!(call(&provider, "ped-333").await.is_err());
        }
        assert_eq!(provider.counter.repeated(), 2);
        provider.counter.unsend(&["ped-1".to_owned()]);
        assert_eq!(provider.counter.repeated(), 1);
        assert_eq!(provider.counter.of("ped-1"), Calls::default());
    }
}
