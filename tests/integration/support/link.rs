//! A wire between the product and a server, that can be cut, or go silent like a peer whose machine has died.
//!
//! For Postgres: `world.set(&["postgres", "url"], link.url(&world.database_url))`. For Kafka [`Link::to_kafka`], which
//! puts itself in the place of the address that the broker advertises, where its clients go on to.

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

/// What is said on the wire.
#[derive(Debug, Clone, Copy)]
enum Speech {
    Any,
    /// Answers in frames, some of which name the broker's `advertised` port.
    Kafka {
        advertised: i32,
    },
}

/// The other end.
#[derive(Debug, Clone)]
struct Server {
    address: String,
    speech: Speech,
    /// Our own port.
    link: u16,
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
        Self::speaking(server, Speech::Any).await
    }

    /// A link to a Kafka broker that is advertised as `server` (`host:port`), or under another name of the host.
    pub async fn to_kafka(server: &str) -> Self {
        let (_, port) = server.rsplit_once(':').expect("host:port");
        let advertised = port.parse().expect("a port is a number");
        Self::speaking(server, Speech::Kafka { advertised }).await
    }

    async fn speaking(server: &str, speech: Speech) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let wire = Arc::new(watch::Sender::new(Wire::Open));
        let end = CancellationToken::new();
        let server = Server { address: server.to_owned(), speech, link: port };
        let accepting = accept(listener, server, Arc::clone(&wire));
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
async fn accept(listener: TcpListener, server: Server, wire: Arc<watch::Sender<Wire>>) {
    let connections = TaskTracker::new();
    let end = CancellationToken::new();
    let _ends_them = end.clone().drop_guard();
    while let Ok((client, _)) = listener.accept().await {
        let carrying = carry(client, server.clone(), wire.subscribe());
        connections.spawn(end.clone().run_until_cancelled_owned(carrying));
    }
}

async fn carry(client: TcpStream, server: Server, mut wire: watch::Receiver<Wire>) {
    if wire.wait_for(|w| *w != Wire::Silent).await.is_ok_and(|w| *w == Wire::Cut) {
        return;
    }
    let Ok(peer) = TcpStream::connect(&server.address).await else { return };
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), peer.into_split());
    let mut watching = wire.clone();
    let answers = async {
        match server.speech {
            Speech::Any => pump(from_server, to_client, wire.clone()).await,
            Speech::Kafka { advertised } => {
                let ports = (advertised, i32::from(server.link));
                pump_frames(from_server, to_client, wire.clone(), ports).await
            }
        }
    };
    tokio::select! {
        _ = pump(from_client, to_server, wire.clone()) => {}
        _ = answers => {}
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

/// Kafka's answers, frame by frame: wherever the broker names itself, its port becomes ours.
async fn pump_frames(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut wire: watch::Receiver<Wire>,
    (advertised, ours): (i32, i32),
) -> std::io::Result<()> {
    // A broker is named as a string and an int32, in metadata and as a group's coordinator.
    let named: Vec<Vec<u8>> =
        ["127.0.0.1", "localhost"].map(|host| [host.as_bytes(), &advertised.to_be_bytes()].concat()).into();
    loop {
        let length = from.read_u32().await?;
        let mut frame = vec![0; length as usize];
        from.read_exact(&mut frame).await?;
        for name in &named {
            let places: Vec<usize> = frame
                .windows(name.len())
                .enumerate()
                .filter_map(|(at, w)| (w == name).then_some(at))
                .collect();
            for at in places {
                frame[at + name.len() - 4..at + name.len()].copy_from_slice(&ours.to_be_bytes());
            }
        }
        if wire.wait_for(|w| *w != Wire::Silent).await.is_err() {
            return Ok(());
        }
        to.write_u32(length).await?;
        to.write_all(&frame).await?;
    }
}
