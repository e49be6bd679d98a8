//! One relay worker: owns buckets, reads what is theirs, sends it in waves, marks what the broker acknowledged.
//!
//! ```text
//!   claim buckets ─► read a batch ─► wave of distinct lanes ─► acknowledged ─► mark
//!        ▲                ▲               └─ refused: hold the lane, try again, at last park it ─┘
//!        └── session lost └─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! * One session holds the buckets' locks and marks the rows: whoever has lost it has lost both.
//! * A row is marked after its acknowledgement, so a kill anywhere repeats records and loses none.
//! * Marks need not survive a crash of the server (`synchronous_commit` is off): losing one is a repetition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::broker::{Broker, Parting, Record, RefusedBy, SendError};
use super::floor::Floor;
use super::lanes::{HELD_MAX, Held, waves};
use super::relay::{Relay, RelayError};
use crate::codec::outgoing::{EncodeError, Kind, Outgoing};
use crate::crash;
use crate::domain::message::{Destination, header};
use crate::metrics::OutboxFailure;
use crate::pg::error::StoreError;
use crate::pg::outbox::{Row, Session};

/// How often ownership is looked after: a dead worker's buckets are taken over within this time and its session's end.
const REBALANCE_EVERY: Duration = Duration::from_secs(1);
/// After work was found the table is looked at again so soon, then ever more rarely: a commit right behind the one
/// that sent the hint has sent none of its own.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const TROUBLE_PAUSE: Duration = Duration::from_millis(200);
const TROUBLE_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Acknowledgements are waited for so long once a stop was asked for; what has none by then stays unpublished.
const FLUSH_MAX: Duration = Duration::from_secs(10);

pub(super) struct Worker {
    pub relay: Arc<Relay>,
    pub broker: Arc<dyn Broker>,
    pub hints: watch::Receiver<u64>,
    pub stop: CancellationToken,
    held: Held,
    floor: Floor,
    trouble: Duration,
}

/// What became of a batch, before it is written down.
#[derive(Default)]
struct Settled {
    published: Vec<Row>,
    refused: Vec<(Row, String)>,
    parked: Vec<(Row, String)>,
    /// The broker acknowledged nothing of a wave, or there is no schema registry: said once, waited out.
    away: Option<String>,
}

impl Worker {
    pub fn new(
        relay: Arc<Relay>,
        broker: Arc<dyn Broker>,
        hints: watch::Receiver<u64>,
        stop: CancellationToken,
    ) -> Self {
        let (held, floor) = (Held::default(), Floor::default());
        Self { relay, broker, hints, stop, held, floor, trouble: TROUBLE_PAUSE }
    }

    /// Publishes until the stop. A database that is away is waited for.
    pub async fn run(mut self) -> Result<(), RelayError> {
        while !self.stop.is_cancelled() {
            match self.with_session().await {
                Ok(()) => return Ok(()),
                Err(WorkerError::Relay(error)) => return Err(error),
                Err(WorkerError::Store(error)) => {
                    // The buckets are free: somebody else may be sending the same rows now.
                    self.broker.forget();
                    tracing::warn!(%error, "the relay lost its session; it begins again");
                    self.relay.health.database(Err(&error));
                    self.pause().await;
                }
            }
        }
        Ok(())
    }

    async fn with_session(&mut self) -> Result<(), WorkerError> {
        let mut session = Session::open(&self.relay.database).await?;
        self.held.clear();
        self.floor.reset();
        let (mut rebalance_at, mut quiet) = (Instant::now(), LOOK_AGAIN);
        while !self.stop.is_cancelled() {
            if Instant::now() >= rebalance_at {
                if session.rebalance().await? {
                    self.held.clear();
                    self.floor.reset();
                }
                rebalance_at = Instant::now() + REBALANCE_EVERY;
            }
            let rows = self.read(&mut session).await?;
            if rows.is_empty() {
                self.wait(quiet, rebalance_at).await;
                quiet = (quiet * 2).min(self.relay.settings.poll_interval);
                continue;
            }
            quiet = LOOK_AGAIN;
            let settled = self.publish(rows).await?;
            self.write_down(&mut session, settled).await?;
        }
        session.close().await?;
        Ok(())
    }

    async fn read(&mut self, session: &mut Session) -> Result<Vec<Row>, StoreError> {
        if self.held.is_full() {
            tracing::warn!(
                lanes = HELD_MAX,
                "too many aggregates wait one by one; all of them wait together"
            );
            self.held.clear();
            self.pause().await;
        }
        let now = Instant::now();
        let after = if self.held.is_empty() { self.floor.at(now) } else { 0 };
        session.unpublished(after, &self.held.waiting(now), self.relay.settings.batch).await
    }

    /// Until a hint, the next try of a held lane, or `quiet` is over.
    async fn wait(&mut self, quiet: Duration, rebalance_at: Instant) {
        let now = Instant::now();
        let due = self.held.next_due().map_or(quiet, |due| due.saturating_duration_since(now).min(quiet));
        let limit = due.min(rebalance_at.saturating_duration_since(now)).max(Duration::from_millis(1));
        tokio::select! {
            changed = self.hints.changed() => {
                // Without its sender there are no hints; the pace is the poll interval's.
                if changed.is_err() {
                    tokio::time::sleep(limit).await;
                }
            }
            () = tokio::time::sleep(limit) => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn pause(&mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.trouble) => {}
            () = self.stop.cancelled() => {}
        }
        self.trouble = (self.trouble * 2).min(TROUBLE_PAUSE_MAX);
    }

    /// Sends the rows wave by wave. A lane that failed in one wave is not in the next.
    async fn publish(&mut self, rows: Vec<Row>) -> Result<Settled, RelayError> {
        let mut settled = Settled::default();
        let mut failed: Vec<String> = Vec::new();
        for wave in waves(rows) {
            let wave: Vec<Row> = wave.into_iter().filter(|row| !failed.contains(&row.lane())).collect();
            if self.stop.is_cancelled() || settled.away.is_some() {
                break;
            }
            let Some(outcomes) = self.flushed(join_all(wave.iter().map(|row| self.send(row)))).await else {
                break;
            };
            let nothing =
                !outcomes.is_empty() && outcomes.iter().all(|o| matches!(o, Err(SendError::Away(_))));
            for (row, outcome) in wave.into_iter().zip(outcomes) {
                match outcome {
                    Ok(()) => settled.published.push(row),
                    Err(SendError::Fatal(cause)) => return Err(RelayError::Producer(cause)),
                    Err(SendError::Away(cause)) if nothing => settled.away = Some(cause),
                    Err(SendError::Away(cause)) => {
                        self.relay.metrics.outbox_failed(OutboxFailure::Away);
                        tracing::debug!(seq = row.seq, cause, "one lane is not acknowledged; it waits");
                        failed.push(row.lane());
                        self.held.hold(row.lane(), Instant::now());
                    }
                    Err(SendError::Refused { by, cause }) => {
                        failed.push(row.lane());
                        self.refused(row, by, cause, &mut settled).await;
                    }
                }
            }
        }
        Ok(settled)
    }

    async fn send(&self, row: &Row) -> Result<(), SendError> {
        let value = self.relay.encoder.encode(self.outgoing(row)).await.map_err(|error| {
            let cause = error.to_string();
            match error {
                EncodeError::Away(_) => SendError::Away(cause),
                EncodeError::Never(_) => SendError::Refused { by: RefusedBy::Schema, cause },
            }
        })?;
        self.broker.send(Arc::new(self.record(row, value))).await
    }

    fn outgoing<'a>(&'a self, row: &'a Row) -> Outgoing<'a> {
        Outgoing {
            topic: self.relay.topics.of(row.destination),
            kind: match row.destination {
                Destination::Events => Kind::OrderEvent,
                Destination::Paid => Kind::PedidoPago,
                Destination::CourierStatus => Kind::CourierStatus,
            },
            event_type: &row.event_type,
            schema_version: row.headers.get(header::SCHEMA_VERSION).map(String::as_str),
            payload: &row.payload,
        }
    }

    fn record(&self, row: &Row, value: Vec<u8>) -> Record {
        Record {
            topic: Arc::clone(self.relay.topics.of(row.destination)),
            key: row.aggregate_id.clone(),
            value,
            headers: row.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            timestamp_ms: row.created_ms,
        }
    }

    /// Holds the lane, or parks its head once it was refused often enough.
    async fn refused(&mut self, row: Row, by: RefusedBy, cause: String, settled: &mut Settled) {
        self.relay.metrics.outbox_failed(OutboxFailure::Refused);
        let attempts = row.attempts + 1;
        self.held.hold(row.lane(), Instant::now());
        if attempts < self.relay.settings.max_attempts {
            tracing::warn!(seq = row.seq, attempts, cause, "message refused; its aggregate waits for it");
            settled.refused.push((row, cause));
            return;
        }
        let record = Arc::new(self.record(&row, row.payload.clone().into_bytes()));
        let parting = Parting { by, cause: cause.clone(), attempts };
        match self.flushed(self.broker.park(record, parting)).await {
            Some(Ok(())) => settled.parked.push((row, cause)),
            Some(Err(error)) => {
                tracing::error!(seq = row.seq, %error, "the dead-letter topic of the outbox cannot be written; the aggregate waits");
                settled.refused.push((row, cause));
            }
            None => {}
        }
    }

    /// `None` once a stop has waited long enough for it.
    async fn flushed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let over = async {
            self.stop.cancelled().await;
            tokio::time::sleep(FLUSH_MAX).await;
        };
        tokio::select! {
            done = work => Some(done),
            () = over => None,
        }
    }

    async fn write_down(&mut self, session: &mut Session, settled: Settled) -> Result<(), StoreError> {
        let Settled { published, refused, parked, away } = settled;
        crash::point("relay_before_mark");
        if !published.is_empty() {
            let seqs: Vec<i64> = published.iter().map(|row| row.seq).collect();
            session.mark_published(&seqs).await?;
            self.relay
                .metrics
                .outbox_published(published.iter().map(|row| (row.destination, row.created_ms)));
            self.trouble = TROUBLE_PAUSE;
        }
        for row in &published {
            self.held.release(&row.lane());
        }
        for (row, cause) in &refused {
            session.mark_refused(row.seq, cause).await?;
        }
        for (row, cause) in &parked {
            session.mark_parked(row.seq, cause).await?;
            self.held.release(&row.lane());
            self.relay.metrics.outbox_parked();
            tracing::error!(
                seq = row.seq,
                aggregate.id = row.aggregate_id,
                event.r#type = row.event_type,
                cause,
                "message parked in the dead-letter topic; later ones of its aggregate go on"
            );
        }
        if let Some(cause) = away {
            self.relay.metrics.outbox_failed(OutboxFailure::Away);
            tracing::warn!(cause, wait = ?self.trouble, "nothing can be published now; it waits");
            self.pause().await;
        } else if refused.is_empty()
            && self.held.is_empty()
            && let Some(last) = published.iter().map(|row| row.seq).max()
        {
            self.floor.seen(last, Instant::now());
        }
        Ok(())
    }
}

enum WorkerError {
    Store(StoreError),
    Relay(RelayError),
}

impl From<StoreError> for WorkerError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RelayError> for WorkerError {
    fn from(error: RelayError) -> Self {
        Self::Relay(error)
    }
}
