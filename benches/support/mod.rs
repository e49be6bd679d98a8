//! What the benches share: servers, a provider, the service as a process, what it costs, tables and JSON.
//!
//! Everything here measures from outside: the service is the release binary, the servers are real, CPU seconds come
//! from the operating system and are told apart by process. Nothing asserts on time.

pub mod cost;
pub mod events;
pub mod plain;
pub mod provider;
pub mod raw;
pub mod report;
pub mod servers;
pub mod service;

use std::time::{Duration, Instant};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Longest a bench waits for anything; `LIMIT_SECONDS` where a run is meant to take longer.
fn limit() -> Duration {
    Duration::from_secs(size("LIMIT_SECONDS", 900) as u64)
}

/// A size from the environment.
pub fn size(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Asks every few milliseconds until there is an answer.
pub async fn wait_for<T, F: Future<Output = Option<T>>>(mut probe: impl FnMut() -> F) -> Result<T, Failure> {
    let end = Instant::now() + limit();
    loop {
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err("not within the limit".into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
pub fn as_f64(n: usize) -> f64 {
    n as f64
}
