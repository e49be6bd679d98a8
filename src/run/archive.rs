//! The archiver: its own consumer group copies every record into the archive.
//!
//! Promises: an offset is committed only after its record is durable; a record twice makes one row; what cannot be
//! decoded is kept all the same, its bytes are what counts; a database that is away holds the partitions, and
//! polling goes on. It calls nobody and writes nothing but the archive.

mod verify;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::decode::{Schemas, Values};
use super::parts::{self, Parts, Watch};
use super::{CLOSE_WITHIN, RunError, Signals, beside, prepare_schema};
use crate::applier::intake::{Content, Control, Delivery, LaneId, RawRecord, ResumeAt, Skip, Watermarks};
use crate::codec::{Decoded, said};
use crate::config::Config;
use crate::domain::effect::{Run, RunKind};
use crate::domain::record::Said;
use crate::pg::archive::{self, Archived};
use crate::pg::connect;
use crate::pg::error::StoreError;
use crate::stream::starts::CommittedStarts;
use crate::stream::{self, ConsumerSettings, Decoding, Outlets};

pub use verify::{Compared, verify};

/// Records written in one statement.
const BATCH: usize = 2048;
/// Bytes of one statement, so that large records do not make it unbounded.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Batches between the polling thread and the database.
const DELIVERIES: usize = 2;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const SCHEMA_PAUSE: Duration = Duration::from_millis(200);

/// How the archiver is to run.
#[derive(Debug, Clone, Copy)]
pub struct ArchiveOptions {
    /// Where this process shows its metrics and health; without it nothing listens.
    pub http: Option<SocketAddr>,
    /// Apply missing migrations first.
    pub migrate: bool,
}

/// Copies until it is told to stop.
pub async fn run(config: &Config, options: ArchiveOptions) -> Result<(), RunError> {
    let mut signals = Signals::listen()?;
    let run = Run { kind: RunKind::Live, id: config.archive.group.clone() };
    let parts = Parts::build(config, run)?;
    let background = CancellationToken::new();
    let _stopped_last = background.clone().drop_guard();
    let mut beside = beside::start(options.http, config, &parts, &background)?;
    tokio::select! {
        ready = prepare_schema(&parts, options.migrate) => ready?,
        () = signals.next() => return Ok(()),
    }
    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(DELIVERIES);
    let watermarks = Watermarks::default();
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks: watermarks.clone(),
        observer: Arc::new(Watch::new(&parts)),
    };
    let starts = Box::new(CommittedStarts { on_lost: parts::lost_offset(config) });
    let consumer = stream::spawn(settings(config), starts, as_it_is, outlets)?;
    let values = Values::new(parts::registry(config)?.map(Schemas::start));
    let mut archiver = Archiver {
        parts: &parts,
        values,
        watermarks,
        lanes: HashMap::new(),
        pending: Vec::new(),
        reached: HashMap::new(),
        connection: None,
        pause: FIRST_PAUSE,
        not_before: Instant::now(),
    };
    let end = tokio::select! {
        ended = archiver.work(control, deliveries) => Err(ended),
        ended = consumer.ended() => Err(ended.map_or_else(RunError::from, |()| RunError::TaskLost("consumer"))),
        Some(ended) = beside.join_next() => Err(ended.map_or(RunError::TaskLost("admin listener"), |error| error)),
        () = signals.next() => Ok(()),
    };
    if let Err(error) = &end {
        parts.health.fatal(error);
    }
    parts.health.draining();
    consumer.stop();
    let closing = async {
        if let Err(error) = archiver.write().await {
            tracing::warn!(%error, "the last records are not written; they are read again");
        }
        let closed = consumer.close(archiver.positions(), CLOSE_WITHIN).await;
        tracing::info!(?closed, "stopped");
    };
    tokio::select! {
        () = closing => end,
        () = signals.next() => Err(RunError::StoppedTwice),
    }
}

fn settings(config: &Config) -> ConsumerSettings {
    let kafka = &config.kafka;
    let group = config.archive.group.clone();
    let mut settings = ConsumerSettings::new(kafka.brokers.clone(), kafka.topic.clone(), group);
    settings.properties.clone_from(&kafka.properties);
    settings.max_events = BATCH;
    settings
}

/// Nothing is decided about a record on the polling thread.
pub(super) fn as_it_is(_: LaneId, raw: Box<RawRecord>) -> Decoding {
    Decoding::Ready { content: Content::Skip(Skip::OtherType), raw, traceparent: None }
}

struct Archiver<'a> {
    parts: &'a Parts,
    values: Values,
    watermarks: Watermarks,
    /// Where each lane may be resumed.
    lanes: HashMap<LaneId, ResumeAt>,
    pending: Vec<Archived>,
    /// Where each lane may be resumed once `pending` is written.
    reached: HashMap<LaneId, ResumeAt>,
    connection: Option<PgConnection>,
    pause: Duration,
    not_before: Instant,
}

impl Archiver<'_> {
    /// Works until something ends it that no repetition cures.
    async fn work(
        &mut self,
        mut control: mpsc::UnboundedReceiver<Control>,
        mut deliveries: mpsc::Receiver<Delivery>,
    ) -> RunError {
        loop {
            let waiting = !self.reached.is_empty();
            let full = self.pending.len() >= BATCH || self.bytes() >= BATCH_BYTES;
            tokio::select! {
                biased;
                news = control.recv() => match news {
                    Some(news) => self.on_control(news),
                    None => return RunError::TaskLost("consumer"),
                },
                delivery = deliveries.recv(), if !full => match delivery {
                    Some(delivery) => {
                        while let Ok(news) = control.try_recv() {
                            self.on_control(news);
                        }
                        self.on_delivery(delivery).await;
                    }
                    None => return RunError::TaskLost("consumer"),
                },
                () = tokio::time::sleep_until(self.not_before.into()), if waiting => {
                    if let Err(error) = self.write().await {
                        self.parts.metrics.database_error(error.counted());
                        self.parts.health.database(Err(&error));
                        if !matches!(error, StoreError::Transient(_)) {
                            return RunError::Archive(error.to_string());
                        }
                        tracing::warn!(%error, "the archive cannot be written; its partitions wait");
                        self.not_before = Instant::now() + self.pause;
                        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                    }
                }
            }
        }
    }

    fn bytes(&self) -> usize {
        self.pending.iter().map(|record| record.raw.value.as_ref().map_or(0, |value| value.len())).sum()
    }

    fn on_control(&mut self, news: Control) {
        match news {
            Control::Assigned { lane, start, .. } => {
                self.lanes.insert(lane, start);
                self.parts.health.assigned([(lane.partition, start.0)]);
            }
            Control::Revoked { lanes, done, .. } => {
                // What is not written of them is read again by whoever has them next.
                self.pending
                    .retain(|record| !lanes.iter().any(|lane| lane.partition == record.raw.partition));
                self.reached.retain(|lane, _| !lanes.contains(lane));
                self.parts.health.revoked(lanes.iter().map(|lane| lane.partition));
                let positions =
                    lanes.iter().filter_map(|lane| Some((*lane, self.lanes.remove(lane)?))).collect();
                for lane in &lanes {
                    self.watermarks.forget(*lane);
                }
                if done.send(positions).is_err() {
                    tracing::debug!("nobody waits for the positions of lost lanes any more");
                }
            }
        }
    }

    async fn on_delivery(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Records(records) => {
                for record in records {
                    if self.lanes.contains_key(&record.lane) {
                        let said = self.said(record.raw.value.as_deref()).await;
                        self.reached.insert(record.lane, ResumeAt(record.offset.0 + 1));
                        self.pending.push(Archived { raw: record.raw, said });
                    }
                }
            }
            Delivery::Position { lane, next } => {
                if self.lanes.contains_key(&lane) {
                    self.reached.insert(lane, next);
                }
            }
        }
    }

    /// What its bytes say, waiting for a schema if need be.
    async fn said(&mut self, value: Option<&[u8]>) -> Said {
        let Some(bytes) = value else { return Said::default() };
        if bytes.first() != Some(&0) {
            return said::of_json(bytes);
        }
        loop {
            match self.values.decode(value) {
                Some(Ok(Decoded::Event(event))) => return said::of_event(&event),
                Some(_) => return Said::default(),
                None => tokio::time::sleep(SCHEMA_PAUSE).await,
            }
        }
    }

    /// Writes what is pending, and lets its offsets be committed.
    async fn write(&mut self) -> Result<(), StoreError> {
        if self.reached.is_empty() {
            return Ok(());
        }
        if !self.pending.is_empty() {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => self.parts.database.dedicated().await?,
            };
            let begun = Instant::now();
            let new = store(&mut connection, &self.pending).await?;
            // After a failure the state of a connection is unknown; it is not used again.
            self.connection = Some(connection);
            self.pending.clear();
            self.parts.metrics.transaction_seconds(begun.elapsed());
            self.parts.metrics.archived(new);
            crate::crash::point("after_archive");
        }
        self.parts.health.database(Ok::<(), StoreError>(()));
        self.pause = FIRST_PAUSE;
        for (lane, at) in self.reached.drain() {
            self.lanes.insert(lane, at);
            self.watermarks.set(lane, at);
            self.parts.health.position(lane.partition, at.0);
        }
        Ok(())
    }

    fn positions(&self) -> Vec<(LaneId, ResumeAt)> {
        self.lanes.iter().map(|(lane, at)| (*lane, *at)).collect()
    }
}

/// What bytes say is only for queries: where the database refuses it, the bytes are kept without.
async fn store(connection: &mut PgConnection, records: &[Archived]) -> Result<u64, StoreError> {
    match connect::within(archive::store(connection, records)).await {
        Err(StoreError::Data(error)) => {
            tracing::warn!(%error, "the database refuses what a record says of itself; kept without its payload");
        }
        result => return result,
    }
    let mut new = 0;
    for record in records {
        let attempt = |said: Said| Archived { raw: record.raw.clone(), said };
        let bare = Said { payload: None, ..record.said.clone() };
        for said in [record.said.clone(), bare, Said::default()] {
            match connect::within(archive::store(connection, &[attempt(said)])).await {
                Err(StoreError::Data(_)) => {}
                result => {
                    new += result?;
                    break;
                }
            }
        }
    }
    Ok(new)
}
