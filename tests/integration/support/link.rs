//! A wire between the product and a server, that can be cut, or go silent like a peer whose machine has died.
//!
//! For Postgres: `world.set(&["postgres", "url"], link.url(&world.database_url))`. Not for Kafka, whose clients go
//! on to the address that the broker advertises.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Open,
    /// Existing connections end, and new ones end at once.
    Cut,
    /// Connections stay, and no byte goes either way.
    Silent,
}

/// Ends with its owner.
pub struct Link {
    wire: Arc<watch::Sender<Wire>>,
    port: u16,
    _end: DropGuard,
}

impl Link {
    /// `server` is `host:port`.
    pub async fn to(server: &str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let wire = Arc::new(watch::Sender::new(Wire::Open));
        let end = CancellationToken::new();
        let accepting = accept(listener, server.to_owned(), Arc::clone(&wire));
        tokio::spawn(end.clone().run_until_cancelled_owned(accepting));
        Self { wire, port, _end: end.drop_guard() }
    }

    /// A link to the server named in `url`.
    pub async fn to_url(url: &str) -> Self {
        Self::to(authority(url)).await
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `url`, by way of this link.
    pub fn url(&self, url: &str) -> String {
        url.replacen(authority(url), &self.address(), 1)
    }

    pub fn cut(&self) {
        self.wire.send_replace(Wire::Cut);
    }

    pub fn silence(&self) {
        self.wire.send_replace(Wire::Silent);
    }

    pub fn restore(&self) {
        self.wire.send_replace(Wire::Open);
    }
}

/// `host:port` of a URL.
fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split('/').next().unwrap_or(rest);
    rest.rsplit_once('@').map_or(rest, |(_, server)| server)
}

/// Dropped with the link, and with it every connection.
async fn accept(listener: TcpListener, server: String, wire: Arc<watch::Sender<Wire>>) {
    let connections = TaskTracker::new();
    let end = CancellationToken::new();
    let _ends_them = end.clone().drop_guard();
    while let Ok((client, _)) = listener.accept().await {
        let carrying = carry(client, server.clone(), wire.subscribe());
        connections.spawn(end.clone().run_until_cancelled_owned(carrying));
    }
}

async fn carry(client: TcpStream, server: String, mut wire: watch::Receiver<Wire>) {
    if wire.wait_for(|w| *w != Wire::Silent).await.is_ok_and(|w| *w == Wire::Cut) {
        return;
    }
    let Ok(server) = TcpStream::connect(&server).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut watching = wire.clone();
    tokio::select! {
        _ = pump(from_client, to_server, wire.clone()) => {}
        _ = pump(from_server, to_client, wire) => {}
        _ = watching.wait_for(|w| *w == Wire::Cut) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        // What was read while silent is delivered after a restore, as a network would.
        if wire.wait_for(|w| *w != Wire::Silent).await.is_err() {
            return Ok(());
        }
        to.write_all(&buffer[..n]).await?;
    }
}
