//! A shard of a rebuild that reads the topic of orders.
//!
//! A batch is read and folded first, on a thread that may block; then, in one transaction, the cursor is taken, the
//! places are compared with those where the batch began, and rows and places move. Where another was there in
//! between, the batch is thrown away and read again from what is stored.

use std::time::Duration;

use sqlx::{Connection as _, PgConnection};

use super::{Pace, RebuildError, Topic, WAIT, waits};
use crate::codec::order_events::OrderEvents;
use crate::domain::read_model::Shard;
use crate::pg::connect::Database;
use crate::pg::projection_offsets::{self as offsets, Place};
use crate::pg::projections::{self as store, FedBy};
use crate::projections::change::Fold;
use crate::stream::range::PartitionRange;
use crate::stream::rewind::{OrderRecord, Rewind};

/// Records of a transaction.
const BATCH: u32 = 50_000;
/// The longest that a batch is collected.
const COLLECT: Duration = Duration::from_secs(1);

pub(super) async fn read(
    database: Database,
    topic: Topic,
    shard: Shard,
    mut pace: Pace,
) -> Result<(), RebuildError> {
    loop {
        match to_the_end(&database, &topic, shard, &mut pace).await {
            Err(error) if error.is_away() => waits(&error).await,
            ended => return ended,
        }
    }
}

struct Reader {
    rewind: Rewind,
    events: OrderEvents,
}

async fn to_the_end(
    database: &Database,
    topic: &Topic,
    shard: Shard,
    pace: &mut Pace,
) -> Result<(), RebuildError> {
    let mut connection = database.plain().await?;
    let mut reader: Option<Reader> = None;
    loop {
        let stored = offsets::places(&mut connection, shard).await?;
        if stored.iter().all(|place| place.next >= place.end) {
            return Ok(());
        }
        let begin: Vec<PartitionRange> = stored.iter().map(range).collect();
        let mut at = match reader.take() {
            Some(reader) if reader.rewind.places() == begin => reader,
            _ => Reader {
                rewind: Rewind::open(&topic.kafka, &topic.name, &group(shard), &begin)
                    .map_err(crate::stream::rewind::RewindError::from)?,
                events: OrderEvents::default(),
            },
        };
        let limit = pace.at_most(BATCH);
        let (at, fold, count) = tokio::task::spawn_blocking(move || {
            let mut fold = Fold::default();
            let events = &mut at.events;
            let read = at.rewind.read(limit, COLLECT, |record| add(&mut fold, events, record));
            read.map(|count| (at, fold, count))
        })
        .await??;
        if keep(&mut connection, shard, &stored, &at.rewind.places(), fold).await? {
            at.rewind.tell_group();
            reader = Some(at);
            pace.keep(count).await;
        } else {
            tokio::time::sleep(WAIT).await;
        }
    }
}

/// Its own, so that no other group moves; named so that it can be found.
fn group(shard: Shard) -> String {
    format!("reprise-rebuild-{}-g{}", shard.name.as_str(), shard.generation)
}

const fn range(place: &Place) -> PartitionRange {
    PartitionRange { partition: place.partition, start: place.next, end: place.end }
}

fn add(fold: &mut Fold, events: &mut OrderEvents, record: &OrderRecord<'_>) -> Result<(), RebuildError> {
    // A tombstone tells nothing of an order.
    let Some(value) = record.value else { return Ok(()) };
    let refused =
        |cause: String| RebuildError::Record { partition: record.partition, offset: record.offset, cause };
    events
        .read(record.event_type, record.form, value, |fact| fold.add(fact))
        .map_err(|cause| refused(cause.to_string()))?
        .map_err(|cause| refused(cause.to_string()))
}

/// Rows and places in one transaction; `false` where another was there since.
async fn keep(
    connection: &mut PgConnection,
    shard: Shard,
    begin: &[Place],
    reached: &[PartitionRange],
    fold: Fold,
) -> Result<bool, RebuildError> {
    let mut transaction = connection.begin().await?;
    let Some(cursor) = store::take(&mut transaction, shard).await? else {
        let cursors = store::cursors(&mut transaction).await?;
        let there = cursors.iter().any(|cursor| cursor.shard == shard);
        return if there { Ok(false) } else { Err(RebuildError::Dropped) };
    };
    if cursor.fed_by != FedBy::Kafka || offsets::places(&mut transaction, shard).await? != begin {
        return Ok(false);
    }
    if let Some((order_id, version)) = fold.hole() {
        return Err(RebuildError::Hole { order_id, version });
    }
    let changes = fold.changes();
    if let Some((order_id, version)) = offsets::hole(&mut transaction, shard, &changes).await? {
        return Err(RebuildError::Hole { order_id, version });
    }
    if !changes.is_empty() {
        store::apply(&mut transaction, shard, &changes).await?;
    }
    let places: Vec<Place> = reached
        .iter()
        .map(|range| Place { partition: range.partition, next: range.start, end: range.end })
        .collect();
    offsets::reach(&mut transaction, shard, &places).await?;
    crate::crash::point("rebuild_before_commit");
    transaction.commit().await?;
    Ok(true)
}
