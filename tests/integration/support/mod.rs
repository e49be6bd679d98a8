//! The kit: what a case needs to play a whole deployment.
//!
//!   World      own topics, group, database and configuration; runs the commands of the binary; asks what is true
//!   Provider   the outside world, scripted per order; it counts calls by key and is the oracle of 'at most once'
//!   Process    one running command: kill, pause, resume, terminate, read its output
//!   Collector  an OTLP receiver that keeps every span
//!   Link       a wire to Postgres that can be cut or go silent
//!   Kafka      produce, read back, end offsets, committed offsets
//!
//! A case waits by asking until something is true, with a deadline ([`eventually`]); it never sleeps and hopes.

pub mod collector;
pub mod event;
pub mod http;
pub mod kafka;
pub mod link;
pub mod native;
pub mod process;
pub mod provider;
pub mod registry;
pub mod setup;
pub mod shop;
pub mod world;

use std::time::{Duration, Instant};

pub use collector::Collector;
pub use link::Link;
pub use provider::{Answer, Gate, Provider};
pub use setup::Setup;
pub use world::World;

/// For things that take well under a second on an idle machine.
pub const SOON: Duration = Duration::from_secs(20);
/// For things behind a session time-out, a lease or a start of several processes.
pub const LATER: Duration = Duration::from_mins(1);

const POLL_EVERY: Duration = Duration::from_millis(25);

/// Asks until there is an answer. Panics with `what` when `limit` is over.
pub async fn eventually<T>(what: &str, limit: Duration, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(POLL_EVERY).await;
    }
}

/// [`eventually`] for a plain condition.
pub async fn until(what: &str, limit: Duration, mut holds: impl AsyncFnMut() -> bool) {
    eventually(what, limit, async || holds().await.then_some(())).await;
}

/// Kafka bootstrap servers of the test stack.
pub fn kafka_servers() -> String {
    std::env::var("REPRISE_TEST_KAFKA").unwrap_or_else(|_| "127.0.0.1:29092".to_owned())
}

/// Postgres of the test stack: a superuser, without a database name.
pub fn postgres_server() -> String {
    std::env::var("REPRISE_TEST_PG").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:25432".to_owned())
}

/// The environment that makes the binary die, as by SIGKILL, the first time it passes the named crash point.
pub fn crash(point: &str) -> (&'static str, String) {
    ("REPRISE_CRASH", point.to_owned())
}

/// [`crash`] at the `n`-th time (from 1).
pub fn crash_at(point: &str, n: u32) -> (&'static str, String) {
    ("REPRISE_CRASH", format!("{point}:{n}"))
}

/// The environment that makes the binary stop, as by SIGSTOP, the `n`-th time it passes the point.
pub fn stop_at(point: &str, n: u32) -> (&'static str, String) {
    ("REPRISE_CRASH", format!("{point}:{n}:stop"))
}
