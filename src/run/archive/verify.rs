//! Compares the archive with what the topic still has, record by record and byte by byte.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::mpsc;

use super::{DELIVERIES, as_it_is, settings};
use crate::applier::intake::{Control, Delivery, Record, ResumeAt, Watermarks};
use crate::config::Config;
use crate::domain::record::RawRecord;
use crate::pg::archive;
use crate::pg::connect::{self, Database};
use crate::run::RunError;
use crate::stream::admin::{Admin, Position};
use crate::stream::starts::{StoredRanges, StoredStarts};
use crate::stream::{self, Commits, Membership, Observer, Outlets, PartitionFacts};

/// How long one question to the broker may take.
const LIMIT: Duration = Duration::from_secs(15);
const CLOSE_WITHIN: Duration = Duration::from_secs(4);

/// One partition, compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compared {
    /// Offsets compared: from the oldest record of the topic to the newest of the archive; `end` exclusive.
    pub start: i64,
    pub end: i64,
    /// Records of the topic that are kept byte for byte.
    pub equal: u64,
    /// Records of the topic, older than the newest of the archive, that are not kept.
    pub missing: u64,
    /// Records that are kept with other bytes or another time.
    pub different: u64,
    /// Offsets of the topic beyond the newest record of the archive.
    pub to_come: i64,
    /// Records in the archive, those that the topic no longer has included.
    pub kept: i64,
}

/// Compares all partitions; `progress` is told how many records were read.
pub async fn verify(
    config: &Config,
    mut progress: impl FnMut(u64, u64),
) -> Result<BTreeMap<i32, Compared>, RunError> {
    let refused = |error: String| RunError::Configuration(error);
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| refused(format!("postgres.url: {error}")))?;
    let read = |error: crate::pg::error::StoreError| RunError::Archive(error.to_string());
    let extent = archive::extent(database.pool(), &config.kafka.topic).await.map_err(read)?;
    let kafka = config.kafka.clone();
    let positions = tokio::task::spawn_blocking(move || bounds(&kafka)).await;
    let positions =
        positions.map_err(|_| RunError::TaskLost("broker look-up"))?.map_err(RunError::Archive)?;
    let mut compared: BTreeMap<i32, Compared> = BTreeMap::new();
    for position in positions {
        let of = extent.iter().find(|(partition, ..)| *partition == position.partition);
        let (kept, end) = of.map_or((0, position.low), |(_, kept, end)| (*kept, *end));
        let end = end.clamp(position.low, position.high);
        let one =
            Compared { start: position.low, end, to_come: position.high - end, kept, ..Compared::default() };
        compared.insert(position.partition, one);
    }
    let total: i64 = compared.values().map(|one| one.end - one.start).sum();
    if total == 0 {
        return Ok(compared);
    }
    let mut connection = database.plain().await.map_err(read)?;
    read_topic(config, &mut connection, &mut compared, |done| {
        progress(done, u64::try_from(total).unwrap_or(0));
    })
    .await?;
    Ok(compared)
}

fn bounds(kafka: &crate::config::Kafka) -> Result<Vec<Position>, String> {
    let told = |error: crate::stream::admin::AdminError| error.to_string();
    let admin = Admin::connect(kafka, LIMIT).map_err(told)?;
    let partitions = admin.partitions(&kafka.topic).map_err(told)?;
    let partitions = partitions.ok_or_else(|| format!("topic {} does not exist", kafka.topic))?;
    admin.positions(&kafka.topic, &partitions).map_err(told)
}

async fn read_topic(
    config: &Config,
    connection: &mut PgConnection,
    compared: &mut BTreeMap<i32, Compared>,
    mut progress: impl FnMut(u64),
) -> Result<(), RunError> {
    let ranges: StoredRanges = compared
        .iter()
        .filter(|(_, one)| one.start < one.end)
        .map(|(partition, one)| (*partition, (ResumeAt(one.start), Some(ResumeAt(one.end)))))
        .collect();
    let mut open: HashMap<i32, i64> =
        ranges.keys().map(|partition| (*partition, compared[partition].end)).collect();
    let mut settings = settings(config);
    settings.membership = Membership::Fixed(ranges.keys().copied().collect());
    settings.commits = Commits::Never;
    let (control_out, mut control) = mpsc::unbounded_channel::<Control>();
    let (deliveries_out, mut deliveries) = mpsc::channel(DELIVERIES);
    let outlets = Outlets {
        control: control_out,
        deliveries: deliveries_out,
        watermarks: Watermarks::default(),
        observer: Arc::new(Nobody),
    };
    let lookup = move |_: &[i32]| Ok(ranges.clone());
    let consumer = stream::spawn(settings, Box::new(StoredStarts { lookup }), as_it_is, outlets)?;
    let mut done = 0;
    while !open.is_empty() {
        tokio::select! {
            Some(_) = control.recv() => {}
            Some(delivery) = deliveries.recv() => match delivery {
                Delivery::Position { lane, next } => {
                    if open.get(&lane.partition).is_some_and(|end| next.0 >= *end) {
                        open.remove(&lane.partition);
                    }
                }
                Delivery::Records(records) => {
                    done += records.len() as u64;
                    for record in &records {
                        if open.get(&record.lane.partition).is_some_and(|end| record.offset.0 + 1 >= *end) {
                            open.remove(&record.lane.partition);
                        }
                    }
                    compare(connection, &config.kafka.topic, records, compared).await?;
                    progress(done);
                }
            },
            end = consumer.ended() => {
                return Err(end.map_or_else(RunError::from, |()| RunError::TaskLost("consumer")));
            }
        }
    }
    consumer.close(Vec::new(), CLOSE_WITHIN).await;
    Ok(())
}

async fn compare(
    connection: &mut PgConnection,
    topic: &str,
    records: Vec<Record>,
    compared: &mut BTreeMap<i32, Compared>,
) -> Result<(), RunError> {
    let mut by_partition: BTreeMap<i32, Vec<RawRecord>> = BTreeMap::new();
    for record in records {
        by_partition.entry(record.lane.partition).or_default().push(*record.raw);
    }
    for (partition, records) in by_partition {
        let (Some(first), Some(last)) = (records.first(), records.last()) else { continue };
        let (from, to) = (first.offset, last.offset + 1);
        let kept = connect::within(archive::kept(connection, topic, partition, from, to)).await;
        let mut kept_by: HashMap<i64, Vec<RawRecord>> = HashMap::new();
        for one in kept.map_err(|error| RunError::Archive(error.to_string()))? {
            kept_by.entry(one.offset).or_default().push(one);
        }
        let Some(counts) = compared.get_mut(&partition) else { continue };
        for record in records {
            match kept_by.get(&record.offset) {
                None => counts.missing += 1,
                Some(kept) if kept.contains(&record) => counts.equal += 1,
                Some(_) => counts.different += 1,
            }
        }
    }
    Ok(())
}

/// Nothing is shown while it compares.
struct Nobody;

impl Observer for Nobody {
    fn assigned(&self, _: &[i32]) {}
    fn facts(&self, _: &[PartitionFacts]) {}
    fn started_at_earliest(&self, _: i32) {}
    fn offsets_lost(&self, _: i32, _: i64, _: i64) {}
    fn commit_failed(&self) {}
}
