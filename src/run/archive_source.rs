//! The archive as a source of records: partitions, positions and pages, in place of group, offsets and polls.
//!
//! ```text
//!   free partition ──advisory lock──► claimed ──pages, in order──► read ──position stored──► given back
//!                                       └── session lost: its lanes are lost, claimed anew
//! ```
//!
//! * A position is `evento_arquivado.posicao`: within a partition it has the order of the log.
//! * A partition of a real run is read by one process at a time, by a lock of its session; a process that dies
//!   gives it back with its session. Each takes a few at a time, so that those who share a run find work.
//! * A database that is away is waited for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::RunError;
use super::replay_books::Books;
use super::selection::Period;
use crate::applier::WaitPoint;
use crate::applier::intake::{Control, Delivery, LaneId, RawRecord, Record, RecordOffset, ResumeAt};
use crate::pg::archive::{self, Page, Within};
use crate::pg::connect::{self, Database};
use crate::pg::error::StoreError;
use crate::stream::Decoding;
use crate::stream::starts::StoredRanges;

/// Partitions of a shared run that one process reads at a time.
const TOGETHER: usize = 4;
/// How often it is looked for partitions that have become free, and for positions that were reached.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// After a failure of the database, and while a schema is being fetched.
const PAUSE: Duration = Duration::from_millis(500);

/// What is to be read.
pub struct ArchiveReading {
    pub database: Database,
    pub topic: String,
    pub period: Period,
    /// Records of one page.
    pub page: usize,
    pub claims: Claims,
}

/// Which partitions.
pub enum Claims {
    /// These, from where they stand, and nobody else reads them.
    Fixed(Arc<Mutex<StoredRanges>>),
    /// Those of a run that nobody reads now.
    Shared { books: Box<Books>, journal: WaitPoint },
}

/// A running reading.
pub struct ArchiveHandle {
    stop: CancellationToken,
    ended: watch::Receiver<Option<Result<(), String>>>,
}

impl ArchiveHandle {
    pub async fn ended(&self) -> Result<(), RunError> {
        let mut ended = self.ended.clone();
        let told = ended.wait_for(Option::is_some).await.map(|end| end.clone());
        match told {
            Ok(Some(Ok(()))) => Ok(()),
            Ok(Some(Err(cause))) => Err(RunError::Archive(cause)),
            Ok(None) | Err(_) => Err(RunError::TaskLost("archive reader")),
        }
    }

    pub fn stop(&self) {
        self.stop.cancel();
    }

    pub async fn close(self, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, self.ended()).await.is_err() {
            tracing::warn!("the archive reader did not end in time");
        }
    }
}

/// Begins to read.
pub fn spawn(
    reading: ArchiveReading,
    decode: impl FnMut(LaneId, Box<RawRecord>) -> Decoding + Send + 'static,
    control: mpsc::UnboundedSender<Control>,
    deliveries: mpsc::Sender<Delivery>,
) -> ArchiveHandle {
    let stop = CancellationToken::new();
    let (say, ended) = watch::channel(None);
    let mut reader = ArchiveReader {
        reading,
        decode,
        control,
        deliveries,
        lanes: Vec::new(),
        claims: 0,
        stop: stop.clone(),
    };
    tokio::spawn(async move {
        let end = reader.run().await.map_err(|error| error.to_string());
        say.send_replace(Some(end));
    });
    ArchiveHandle { stop, ended }
}

struct OpenLane {
    id: LaneId,
    at: i64,
    end: i64,
}

impl OpenLane {
    const fn is_read(&self) -> bool {
        self.at >= self.end
    }
}

struct ArchiveReader<D> {
    reading: ArchiveReading,
    decode: D,
    control: mpsc::UnboundedSender<Control>,
    deliveries: mpsc::Sender<Delivery>,
    lanes: Vec<OpenLane>,
    claims: u64,
    stop: CancellationToken,
}

/// Nobody receives any more: the end of the run.
struct Gone;

impl<D: FnMut(LaneId, Box<RawRecord>) -> Decoding> ArchiveReader<D> {
    /// Reads until it is told to stop. What the database refuses for good ends it.
    async fn run(&mut self) -> Result<(), StoreError> {
        while !self.stop.is_cancelled() {
            match self.session().await {
                Ok(()) => return Ok(()),
                Err(error @ StoreError::Transient(_)) => {
                    tracing::warn!(%error, "the archive cannot be read now; waiting");
                    self.lose_lanes();
                    self.pause(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The locks lived in a session that is gone: others may have the partitions now.
    fn lose_lanes(&mut self) {
        let lanes: Vec<LaneId> = self.lanes.drain(..).map(|lane| lane.id).collect();
        if lanes.is_empty() {
            return;
        }
        let (done, _) = std::sync::mpsc::channel();
        let lost = Control::Revoked { lanes, lost: true, deadline: Instant::now(), done };
        if self.control.send(lost).is_err() {
            tracing::debug!("nobody hears of the lost lanes any more");
        }
    }

    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }

    async fn session(&mut self) -> Result<(), StoreError> {
        let mut connection = self.reading.database.plain().await?;
        let mut looked: Option<Instant> = None;
        while !self.stop.is_cancelled() {
            if looked.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
                self.claim(&mut connection).await?;
                looked = Some(Instant::now());
            }
            let mut some = false;
            for index in 0..self.lanes.len() {
                some |= !self.lanes[index].is_read();
                if !self.lanes[index].is_read() && self.read_page(&mut connection, index).await?.is_err() {
                    return Ok(());
                }
            }
            if !some {
                self.pause(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Takes partitions that are free, gives back those whose end is stored.
    async fn claim(&mut self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let ranges = match &self.reading.claims {
            Claims::Fixed(ranges) => {
                let ranges = ranges.lock().unwrap_or_else(PoisonError::into_inner);
                let unread = |(partition, (at, end)): &(&i32, &(ResumeAt, Option<ResumeAt>))| {
                    !self.holds(**partition) && end.is_none_or(|end| *at < end)
                };
                ranges.iter().filter(unread).map(|(partition, range)| (*partition, *range)).collect()
            }
            Claims::Shared { books, journal } => {
                let (books, journal) = (books.clone(), journal.clone());
                self.claim_shared(connection, &books, &journal).await?
            }
        };
        let mut sorted: Vec<_> = ranges.into_iter().collect();
        sorted.sort_unstable_by_key(|(partition, _)| *partition);
        for (partition, (at, end)) in sorted {
            self.claims += 1;
            let lane = LaneId { partition, claim: self.claims };
            let news = Control::Assigned { lane, start: at, end };
            if self.control.send(news).is_err() {
                self.stop.cancel();
                return Ok(());
            }
            let end = end.map_or(i64::MAX, |end| end.0);
            self.lanes.push(OpenLane { id: lane, at: at.0, end });
        }
        Ok(())
    }

    async fn claim_shared(
        &mut self,
        connection: &mut PgConnection,
        books: &Books,
        journal: &WaitPoint,
    ) -> Result<StoredRanges, StoreError> {
        let open = connect::within(archive::open_partitions(connection, &books.id)).await?;
        let done: Vec<i32> =
            self.lanes.iter().map(|lane| lane.id.partition).filter(|p| !open.contains(p)).collect();
        for partition in done {
            connect::within(archive::give_back(connection, &books.id, partition)).await?;
            self.lanes.retain(|lane| lane.id.partition != partition);
        }
        let mut taken = Vec::new();
        for partition in open {
            let reading = self.lanes.iter().filter(|lane| !lane.is_read()).count() + taken.len();
            if reading >= TOGETHER {
                break;
            }
            if !self.holds(partition)
                && connect::within(archive::take(connection, &books.id, partition)).await?
            {
                taken.push(partition);
            }
        }
        if taken.is_empty() {
            return Ok(StoredRanges::new());
        }
        // What was told of an earlier claim must be written before the position is read.
        journal.written().await;
        books.claim(&taken).await
    }

    fn holds(&self, partition: i32) -> bool {
        self.lanes.iter().any(|lane| lane.id.partition == partition)
    }

    async fn read_page(
        &mut self,
        connection: &mut PgConnection,
        index: usize,
    ) -> Result<Result<(), Gone>, StoreError> {
        let OpenLane { id, at, end } = self.lanes[index];
        let Period { from, to } = self.reading.period;
        let limit = i64::try_from(self.reading.page).unwrap_or(i64::MAX);
        let page = Page { partition: id.partition, at, end, limit };
        let rows = connect::within(archive::page(connection, &self.reading.topic, Within { from, to }, page))
            .await?;
        let last = rows.len() < self.reading.page;
        let mut records = Vec::with_capacity(rows.len());
        for (position, raw) in rows {
            let Some(record) = self.decoded(id, position, raw).await else { return Ok(Err(Gone)) };
            self.lanes[index].at = position + 1;
            records.push(record);
        }
        if !records.is_empty() && self.hand_on(Delivery::Records(records)).await.is_err() {
            return Ok(Err(Gone));
        }
        if last {
            self.lanes[index].at = end;
            let position = Delivery::Position { lane: id, next: ResumeAt(end) };
            return Ok(self.hand_on(position).await);
        }
        Ok(Ok(()))
    }

    /// `None`: told to stop while its schema was being fetched.
    async fn decoded(&mut self, lane: LaneId, position: i64, raw: Box<RawRecord>) -> Option<Record> {
        let mut raw = raw;
        loop {
            match (self.decode)(lane, raw) {
                Decoding::Ready { content, raw, traceparent } => {
                    let offset = RecordOffset(position);
                    return Some(Record { lane, offset, content, raw, traceparent, read_at: Instant::now() });
                }
                Decoding::Wait(again) => raw = again,
            }
            self.pause(PAUSE).await;
            if self.stop.is_cancelled() {
                return None;
            }
        }
    }

    async fn hand_on(&mut self, delivery: Delivery) -> Result<(), Gone> {
        tokio::select! {
            () = self.stop.cancelled() => Err(Gone),
            sent = self.deliveries.send(delivery) => sent.map_err(|_| Gone),
        }
    }
}
