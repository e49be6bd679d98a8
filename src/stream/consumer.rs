//! A consumer on its own thread, and the handle to stop it in two steps.
//!
//! ```text
//! Consuming ──stop()──► Draining ──close(final positions)──► Closed
//!     └─────────────────────┴──failure──► ended() says why; the thread leaves the group by itself
//! ```
//!
//! Draining pops nothing more but polls on, so that the group keeps us while calls in flight finish. Closing sends
//! the last commit, leaves the group and gives up at its deadline: a client that cannot be closed is left behind
//! for the process to end with.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;
use tokio::sync::{mpsc, watch};

use super::assignment::GroupContext;
use super::driver::Driver;
use super::health::Observer;
use super::settings::ConsumerSettings;
use super::starts::Starts;
use super::wake::Waker;
use crate::applier::intake::{Content, Control, Delivery, LaneId, RawRecord, ResumeAt, Watermarks};

/// Why the log side cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFailure {
    #[error("the Kafka client failed for good: {cause}")]
    Client { cause: String },
    #[error(
        "partition {partition}: records from offset {from} to {} no longer exist; set kafka.offset_perdido = \"avancar\" to go on at {to}",
        to - 1
    )]
    LostOffsets { partition: i32, from: i64, to: i64 },
    #[error(
        "partition {partition}: position {at} lies beyond the end of the log ({end}), the topic was made anew; set kafka.offset_perdido = \"avancar\" to read it from its beginning"
    )]
    TopicRecreated { partition: i32, at: i64, end: i64 },
    #[error("partition {partition} has stalled at {position}, the log ends at {end}")]
    Stalled { partition: i32, position: i64, end: i64 },
    #[error("nobody receives the records any more")]
    ReceiverGone,
    #[error("the polling thread ended without a word")]
    ThreadLost,
}

/// What the caller made of a record.
pub enum Decoding {
    Ready {
        content: Content,
        raw: Box<RawRecord>,
        traceparent: Option<String>,
    },
    /// Cannot be decoded yet (a schema is being fetched): the record comes again shortly, its partition waits.
    Wait(Box<RawRecord>),
}

/// Where everything goes.
pub struct Outlets {
    pub control: mpsc::UnboundedSender<Control>,
    pub deliveries: mpsc::Sender<Delivery>,
    pub watermarks: Watermarks,
    pub observer: Arc<dyn Observer>,
}

/// How closing went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// No settled position is left uncommitted.
    pub committed: bool,
    /// The client was closed within the deadline.
    pub left_group: bool,
}

impl Closed {
    const ABANDONED: Self = Self { committed: false, left_group: false };
}

/// What the handle wants of the thread.
#[derive(Debug, Default)]
pub(super) enum Wish {
    #[default]
    Consume,
    Drain,
    Close {
        settled: Vec<(LaneId, ResumeAt)>,
        deadline: Instant,
    },
}

#[derive(Debug, Default)]
pub(super) struct Bench {
    pub wish: Mutex<Wish>,
    pub waker: Arc<Waker>,
}

impl Bench {
    fn ask(&self, wish: Wish) {
        *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = wish;
        self.waker.ring();
    }
}

#[derive(Debug)]
pub struct ConsumerHandle {
    bench: Arc<Bench>,
    ended: watch::Receiver<Option<Result<(), StreamFailure>>>,
    closed: watch::Receiver<Option<Closed>>,
}

impl ConsumerHandle {
    /// Resolves when the thread consumes no more: `Ok` after `close`, else the failure. May be asked repeatedly.
    pub fn ended(&self) -> impl Future<Output = Result<(), StreamFailure>> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            match ended.wait_for(Option::is_some).await {
                Ok(end) => end.clone().unwrap_or(Err(StreamFailure::ThreadLost)),
                Err(_) => Err(StreamFailure::ThreadLost),
            }
        }
    }

    /// Pops nothing more; polls and commits on. What was popped before may still be delivered.
    pub fn stop(&self) {
        self.bench.ask(Wish::Drain);
    }

    /// Commits the final positions and leaves the group, within `within`.
    pub async fn close(mut self, settled: Vec<(LaneId, ResumeAt)>, within: Duration) -> Closed {
        let deadline = Instant::now() + within;
        self.bench.ask(Wish::Close { settled, deadline });
        // The thread keeps the deadline itself; this is for a thread that hangs in the client.
        let closed =
            tokio::time::timeout(within + Duration::from_millis(500), self.closed.wait_for(Option::is_some));
        match closed.await {
            Ok(Ok(closed)) => closed.unwrap_or(Closed::ABANDONED),
            Ok(Err(_)) | Err(_) => Closed::ABANDONED,
        }
    }
}

/// Starts the thread. Fails where the client refuses its configuration, and names the property.
pub fn spawn(
    settings: ConsumerSettings,
    starts: Box<dyn Starts>,
    decode: impl FnMut(LaneId, Box<RawRecord>) -> Decoding + Send + 'static,
    outlets: Outlets,
) -> Result<ConsumerHandle, StreamFailure> {
    let refused = |cause: String| StreamFailure::Client { cause };
    let bench = Arc::new(Bench::default());
    let context = GroupContext::new(
        Arc::from(settings.topic.as_str()),
        outlets.control.clone(),
        outlets.watermarks.clone(),
        Arc::clone(&outlets.observer),
        settings.commits,
        settings.revocation_limit(),
    );
    let mut consumer: BaseConsumer<GroupContext> =
        BaseConsumer::from_config_and_context(&settings.client_config(), context)
            .map_err(|error| refused(error.to_string()))?;
    let waker = Arc::clone(&bench.waker);
    consumer.set_nonempty_callback(move || waker.ring());

    let (say_ended, ended) = watch::channel(None);
    let (say_closed, closed) = watch::channel(None);
    let driver = Driver::new(settings, starts, decode, outlets, Arc::new(consumer), Arc::clone(&bench));
    std::thread::Builder::new()
        .name("kafka-consumer".into())
        .spawn(move || {
            let closed = driver.run(|end| {
                say_ended.send_replace(Some(end));
            });
            say_closed.send_replace(Some(closed));
        })
        .map_err(|error| refused(error.to_string()))?;
    Ok(ConsumerHandle { bench, ended, closed })
}
