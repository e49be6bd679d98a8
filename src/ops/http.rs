//! The admin listener.
//!
//! Promises:
//! * it answers while everything else is stuck: it has a thread of its own with a small runtime of its own, and the
//!   open pages read memory only (test `the_open_pages_answer_while_the_main_runtime_stands_still`);
//! * protected routes run on the *main* runtime, where the pools they use were made: a connection opened here would
//!   die with this thread (test `protected_routes_run_on_the_main_runtime`);
//! * connections, heads, bodies and durations are bounded; no client can hold shutdown open longer than `drain`
//!   (test `a_request_that_never_ends_cannot_hold_shutdown_open`);
//! * an address that cannot be used is an error before anything else has begun.
//!
//! Stop it last: readiness should be seen to be false while the process drains.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::{Access, AccessError, AdminToken};
use super::pages::{Shown, app};
use crate::health::Health;
use crate::metrics::Metrics;

#[cfg(test)]
mod tests;

/// Connections served at once; more wait in the backlog. Scrapers, probes and a few people need a handful.
const CONNECTIONS_MAX: usize = 256;

/// Longest wait for a request head, idle time between two requests included. Not one of the usual scrape intervals
/// (10, 15, 30 s), so that a connection is not closed at the very moment its next request is sent.
const HEAD_MAX: Duration = Duration::from_secs(20);

/// Pause after a failed accept: out of file descriptors, most likely, which trying at once does not cure.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why the admin listener does not serve.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("http.endereco: cannot listen on {address}: {source}; free the address or choose another")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("admin listener: cannot start its thread: {0}")]
    Thread(io::Error),
    #[error("admin listener: its socket failed: {0}")]
    Socket(io::Error),
    #[error("admin listener: its thread ended without a word (it panicked)")]
    Died,
}

/// Everything the admin listener needs.
pub struct Admin {
    /// Port 0 lets the system choose; see [`AdminServer::address`].
    pub address: SocketAddr,
    pub token: Option<AdminToken>,
    /// How long requests may go on after the stop.
    pub drain: Duration,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    /// Routes that change or show business data. They must not repeat an open path, nor have a fallback.
    pub protected: Router,
    /// Routes with an access rule of their own: the console and its API. Run where `protected` runs.
    pub console: Router,
    /// Where `protected` runs.
    pub runtime: Handle,
}

/// A listener that serves. Its end before the stop is a failure: [`ended`](Self::ended) belongs among the tasks
/// whose early end ends the process.
pub struct AdminServer {
    address: SocketAddr,
    ended: oneshot::Receiver<Result<(), AdminError>>,
}

impl AdminServer {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the thread is done: `Ok` only after the stop.
    pub async fn ended(self) -> Result<(), AdminError> {
        self.ended.await.unwrap_or(Err(AdminError::Died))
    }
}

impl Admin {
    /// Binds and begins to serve until `stop`. Everything that can be wrong is known when this returns.
    pub fn start(self, stop: CancellationToken) -> Result<AdminServer, AdminError> {
        let access = Access::decide(self.address, self.token)?;
        let bind = |source| AdminError::Bind { address: self.address, source };
        let listener = StdListener::bind(self.address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(AdminError::Socket)?;
        let address = listener.local_addr().map_err(AdminError::Socket)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(AdminError::Thread)?;

        let shown = Shown { health: self.health, metrics: self.metrics };
        let app = app(shown, access, self.protected, self.console, self.runtime);
        let drain = self.drain;
        let (tell, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("admin-http".to_owned())
            .spawn(move || {
                let end = run(runtime, listener, app, &stop, drain);
                if let Err(Err(unheard)) = tell.send(end) {
                    tracing::error!(erro = %unheard, "admin listener failed");
                }
            })
            .map_err(AdminError::Thread)?;
        tracing::info!(endereco = %address, "admin listener serves");
        Ok(AdminServer { address, ended })
    }
}

/// The thread's whole life. The runtime is gone, with all its connections, when this returns.
fn run(
    runtime: Runtime,
    listener: StdListener,
    app: Router,
    stop: &CancellationToken,
    drain: Duration,
) -> Result<(), AdminError> {
    let end = runtime.block_on(serve(listener, app, stop, drain));
    drop(runtime);
    end
}

async fn serve(
    listener: StdListener,
    app: Router,
    stop: &CancellationToken,
    drain: Duration,
) -> Result<(), AdminError> {
    let listener = TcpListener::from_std(listener).map_err(AdminError::Socket)?;
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let connections = TaskTracker::new();
    while let Some((stream, slot)) = stop.run_until_cancelled(accept(&listener, &slots)).await {
        connections.spawn(connection(stream, slot, app.clone(), stop.clone()));
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(drain, connections.wait()).await.is_err() {
        let left = connections.len();
        tracing::warn!(
            left,
            drain_s = drain.as_secs_f64(),
            "admin requests were cut off at the end of the drain time"
        );
    }
    Ok(())
}

/// The next connection, once there is room for it. The semaphore is never closed, so the slot is always there.
async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _peer)) => return (stream, slot),
            Err(error) => {
                tracing::warn!(erro = %error, "admin listener cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection until its client leaves; after the stop, until the request that runs is answered.
async fn connection(
    stream: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
    app: Router,
    stop: CancellationToken,
) {
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut http = pin!(http);
    let end = tokio::select! {
        end = http.as_mut() => end,
        () = stop.cancelled() => {
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = end {
        // Clients that leave in mid-request are their own business.
        tracing::debug!(erro = %error, "admin connection ended early");
    }
}
