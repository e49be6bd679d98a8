//! A provider of 20 ms that counts calls by key: raw HTTP/1.1 with keep-alive, on one thread of its own.
//!
//! One thread, so that its CPU is told apart from everything else in this process; its CPU per call is the
//! calibrator by which runs on different days are compared.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{Failure, cost};

pub const PROVIDER_TIME: Duration = Duration::from_millis(20);

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}";

/// What is known of the calls since the last reset.
#[derive(Default)]
struct Seen {
    /// By hash of the key.
    calls: HashMap<u64, u32>,
    first: Option<Instant>,
    last: Option<Instant>,
}

pub struct Provider {
    pub url: String,
    seen: Arc<Mutex<Seen>>,
    /// While set, requests are read and never answered.
    hangs: Arc<AtomicBool>,
    thread: Arc<AtomicU64>,
}

impl Provider {
    pub fn start() -> Result<Self, Failure> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let provider = Self {
            url: format!("http://{}/notificar", listener.local_addr()?),
            seen: Arc::default(),
            hangs: Arc::default(),
            thread: Arc::default(),
        };
        let (seen, hangs) = (Arc::clone(&provider.seen), Arc::clone(&provider.hangs));
        let thread = Arc::clone(&provider.thread);
        std::thread::Builder::new().name("provider".into()).spawn(move || {
            thread.store(cost::thread_id().unwrap_or(0), Ordering::Release);
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                return;
            };
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serve(socket, Arc::clone(&seen), Arc::clone(&hangs)));
                }
            });
        })?;
        Ok(provider)
    }

    pub fn reset(&self) {
        *self.seen() = Seen::default();
    }

    pub fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::Release);
    }

    /// Keys that were called more than once.
    pub fn repeated(&self) -> usize {
        self.seen().calls.values().filter(|n| **n > 1).count()
    }

    /// Distinct keys that were called.
    pub fn keys(&self) -> usize {
        self.seen().calls.len()
    }

    pub fn first_call(&self) -> Option<Instant> {
        self.seen().first
    }

    pub fn last_call(&self) -> Option<Instant> {
        self.seen().last
    }

    /// CPU seconds of the provider's thread.
    pub fn cpu(&self) -> f64 {
        cost::thread_cpu(self.thread.load(Ordering::Acquire)).unwrap_or(0.0)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(mut socket: TcpStream, seen: Arc<Mutex<Seen>>, hangs: Arc<AtomicBool>) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(2048);
    loop {
        let head = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let length: usize = header(&buffer[..head], b"content-length")
            .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
            .unwrap_or(0);
        while buffer.len() < head + length {
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        let mut hasher = DefaultHasher::new();
        header(&buffer[..head], b"idempotency-key").hash(&mut hasher);
        {
            let now = Instant::now();
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen.calls.entry(hasher.finish()).or_insert(0) += 1;
            seen.first.get_or_insert(now);
            seen.last = Some(now);
        }
        buffer.drain(..head + length);
        if hangs.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(PROVIDER_TIME).await;
        socket.write_all(ANSWER).await?;
    }
}

fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (found, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":").filter(|_| found.eq_ignore_ascii_case(name))?;
        Some(value.trim_ascii())
    })
}
