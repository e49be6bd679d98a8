//! Keep-alive connections to one provider, each lent to one call at a time.
//!
//!   (none) ──connect──► lent ──its answer was read to the end──► idle ──lent again──► ...
//!                         └──anything else──► closed              └──4 s, or closed by the other side──► gone
//!
//! A connection is lent only when it is ready for a request, so what fails before that is proof that nothing was
//! sent. hyper's own pool does the same for 3 us more of CPU per call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::{Instant, sleep_until};
use tower_service::Service as _;

use super::handover::GuardedBody;

/// How long an idle connection is kept. Common servers close theirs after 5 s or more; a request that meets the
/// closing half-way is an unknown answer, so we must be the first to let go.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Largest buffer of one connection; an answer's head must fit. hyper would go to 400 KiB, times every slot.
const BUFFER_MAX: usize = 64 * 1024;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The connections to one address, newest used first.
pub(super) struct Connections {
    connector: HttpsConnector<HttpConnector>,
    address: Uri,
    shelf: Arc<Mutex<Shelf>>,
    idle_max: usize,
}

#[derive(Default)]
struct Shelf {
    /// Oldest first.
    idle: VecDeque<Idle>,
    /// Whether a task lets go of what has been here too long.
    watched: bool,
}

struct Idle {
    connection: Connection,
    since: Instant,
}

/// One connection, ready for a request. Dropped, it is closed.
pub(super) struct Connection(SendRequest<GuardedBody>);

impl Connections {
    /// Opens none. At most `idle_max` are kept while nobody uses them.
    pub(super) fn new(connector: HttpsConnector<HttpConnector>, address: Uri, idle_max: usize) -> Self {
        Self { connector, address, shelf: Arc::default(), idle_max }
    }

    /// A connection that is ready, an idle one if there is any. An error says that there is none to be had.
    pub(super) async fn lend(&self) -> Result<Connection, Error> {
        while let Some(mut connection) = self.next_idle() {
            if connection.0.ready().await.is_ok() {
                return Ok(connection);
            }
        }
        let stream = self.connector.clone().call(self.address.clone()).await?;
        let (mut sender, driver) = http1::Builder::new().max_buf_size(BUFFER_MAX).handshake(stream).await?;
        // Its end and its errors reach whoever holds the sender.
        tokio::spawn(async move { driver.await.unwrap_or_default() });
        sender.ready().await?;
        Ok(Connection(sender))
    }

    /// Takes a connection back whose answer was read to its end.
    pub(super) fn keep(&self, connection: Connection) {
        if connection.0.is_closed() {
            return;
        }
        let mut kept = locked(&self.shelf);
        if kept.idle.len() >= self.idle_max {
            return;
        }
        kept.idle.push_back(Idle { connection, since: Instant::now() });
        if !std::mem::replace(&mut kept.watched, true) {
            tokio::spawn(let_go(Arc::clone(&self.shelf)));
        }
    }

    fn next_idle(&self) -> Option<Connection> {
        let newest = locked(&self.shelf).idle.pop_back()?;
        (newest.since.elapsed() < IDLE_MAX).then_some(newest.connection)
    }
}

impl Connection {
    /// Puts one request on the wire, unless the connection turns out to be closed; the body's handover tells.
    pub(super) fn send(
        &mut self,
        request: Request<GuardedBody>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> {
        self.0.send_request(request)
    }
}

/// Closes what nobody has used for too long, until nothing is idle.
async fn let_go(kept: Arc<Mutex<Shelf>>) {
    while let Some(oldest) = oldest_after_clearing(&kept) {
        sleep_until(oldest + IDLE_MAX).await;
    }
}

fn oldest_after_clearing(shelf: &Mutex<Shelf>) -> Option<Instant> {
    let mut shelf = locked(shelf);
    while shelf.idle.front().is_some_and(|oldest| oldest.since.elapsed() >= IDLE_MAX) {
        shelf.idle.pop_front();
    }
    shelf.watched = !shelf.idle.is_empty();
    shelf.idle.front().map(|oldest| oldest.since)
}

fn locked(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}
