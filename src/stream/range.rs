//! The range of a replay, captured once: where each partition begins and ends.
//!
//! The beginning is the first offset whose timestamp is at or after `from`; where there is none, there is nothing to
//! do on that partition, and never 'from the beginning'. The end is the first offset at or after `to`, or the last
//! stable offset at this moment: what arrives later is live's. Everything here blocks, within its limit.
//! Log times are the producers', and may be anything: they are compared in milliseconds, and never decide alone
//! where a range ends.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use super::admin::{Admin, AdminError};
use crate::config::Kafka;

/// How long one question may take.
const LIMIT: Duration = Duration::from_secs(15);
/// Offsets at the end of a partition among which its newest record is looked for; some may be markers.
const TAIL: i64 = 64;

/// One partition's part: `start` inclusive, `end` exclusive; equal where there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionRange {
    pub partition: i32,
    pub start: i64,
    pub end: i64,
}

/// What was captured, and what a person should know about it.
#[derive(Debug, Clone, Default)]
pub struct CapturedRange {
    pub partitions: Vec<PartitionRange>,
    /// Partitions whose records of the period are (partly) gone.
    pub history_missing: Vec<i32>,
    /// The topic is compacted: superseded records are gone.
    pub compacted: bool,
    /// Partitions with an open transaction: the range ends at the last stable offset.
    pub open_transactions: Vec<i32>,
    /// Log time in ms of the newest record; looked for only where there is nothing to do.
    pub newest_ms: Option<i64>,
}

/// Why no range could be captured.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("topic {0} does not exist")]
    NoTopic(String),
    #[error("partition {0} did not tell where it begins and ends; try again")]
    NoAnswer(i32),
}

/// Captures the range of a period by log time.
pub fn capture(kafka: &Kafka, from: Timestamp, to: Option<Timestamp>) -> Result<CapturedRange, RangeError> {
    let admin = Admin::connect(kafka, LIMIT)?;
    let partitions =
        admin.partitions(&kafka.topic)?.ok_or_else(|| RangeError::NoTopic(kafka.topic.clone()))?;
    let compacted = admin.topic_settings(&kafka.topic)?.compacted;
    let mut ids: Vec<i32> = partitions.iter().map(|partition| partition.id).collect();
    ids.sort_unstable();
    let stable = consumer(kafka, "read_committed")?;
    let raw = consumer(kafka, "read_uncommitted")?;
    let at = |consumer: &BaseConsumer, offset: Offset| look_up(consumer, &kafka.topic, &ids, offset);
    let (low, end) = (at(&stable, Offset::Beginning)?, at(&stable, Offset::End)?);
    let (high, starts) = (at(&raw, Offset::End)?, at(&stable, Offset::Offset(log_time(from)))?);
    let ends = to.map(|to| at(&stable, Offset::Offset(log_time(to)))).transpose()?;
    let mut captured = CapturedRange { compacted, ..CapturedRange::default() };
    let mut edges = Vec::with_capacity(ids.len());
    for id in ids {
        let known = |of: &HashMap<i32, i64>| of.get(&id).copied().ok_or(RangeError::NoAnswer(id));
        let (low, last) = (known(&low)?, known(&end)?);
        let end = ends.as_ref().and_then(|ends| ends.get(&id)).map_or(last, |found| (*found).min(last));
        let start = starts.get(&id).copied().unwrap_or(end).min(end);
        if known(&high)? > last {
            captured.open_transactions.push(id);
        }
        // Also where nothing is left of the period (then its end is the first record that is left), and where
        // nothing is left at all: what was dropped may have been of the period.
        let emptied = low == last;
        if low > 0
            && (emptied || (starts.contains_key(&id) && is_younger(&stable, &kafka.topic, id, low, from)?))
        {
            captured.history_missing.push(id);
        }
        captured.partitions.push(PartitionRange { partition: id, start, end });
        edges.push((id, low, last));
    }
    if captured.partitions.iter().all(|partition| partition.start == partition.end) {
        captured.newest_ms = newest(&stable, &kafka.topic, &edges)?;
    }
    Ok(captured)
}

/// All that a topic holds now, up to what is committed: where a rebuild begins and ends.
pub fn whole(kafka: &Kafka, topic: &str) -> Result<Vec<PartitionRange>, RangeError> {
    let admin = Admin::connect(kafka, LIMIT)?;
    let partitions = admin.partitions(topic)?.ok_or_else(|| RangeError::NoTopic(topic.to_owned()))?;
    let mut ids: Vec<i32> = partitions.iter().map(|partition| partition.id).collect();
    ids.sort_unstable();
    let stable = consumer(kafka, "read_committed")?;
    let (starts, ends) =
        (look_up(&stable, topic, &ids, Offset::Beginning)?, look_up(&stable, topic, &ids, Offset::End)?);
    let range = |partition: i32| {
        let (start, end) = (starts.get(&partition).copied()?, ends.get(&partition).copied()?);
        Some(PartitionRange { partition, start, end })
    };
    ids.into_iter().map(|id| range(id).ok_or(RangeError::NoAnswer(id))).collect()
}

/// How many offsets of the topic lie between each two of these instants, by log time; the last one is open.
///
/// Offsets have gaps (markers, compaction), so that the numbers say how much there is, not exactly how many records.
pub fn histogram(kafka: &Kafka, edges: &[Timestamp]) -> Result<Vec<i64>, RangeError> {
    let admin = Admin::connect(kafka, LIMIT)?;
    let partitions =
        admin.partitions(&kafka.topic)?.ok_or_else(|| RangeError::NoTopic(kafka.topic.clone()))?;
    let ids: Vec<i32> = partitions.iter().map(|partition| partition.id).collect();
    let stable = consumer(kafka, "read_committed")?;
    let ends = look_up(&stable, &kafka.topic, &ids, Offset::End)?;
    let mut at_edges = Vec::with_capacity(edges.len() + 1);
    for edge in edges {
        let found = look_up(&stable, &kafka.topic, &ids, Offset::Offset(log_time(*edge)))?;
        // No record at or after it: the edge lies at the end.
        let at = |(id, end): (&i32, &i64)| found.get(id).map_or(*end, |at| (*at).min(*end));
        at_edges.push(ends.iter().map(at).sum::<i64>());
    }
    at_edges.push(ends.values().sum());
    Ok(at_edges.windows(2).map(|pair| (pair[1] - pair[0]).max(0)).collect())
}

/// The first millisecond at or after an instant: the unit of log times. None lies before 1970, where the protocol
/// would take a number for 'the end' or 'the beginning'.
fn log_time(at: Timestamp) -> i64 {
    let whole = at.as_millisecond();
    let later = Timestamp::from_millisecond(whole).is_ok_and(|floor| floor < at);
    whole.saturating_add(i64::from(later)).max(0)
}

fn consumer(kafka: &Kafka, isolation: &str) -> Result<BaseConsumer, KafkaError> {
    let mut config = ClientConfig::new();
    for (name, value) in &kafka.properties {
        config.set(name, value);
    }
    config
        .set("bootstrap.servers", &kafka.brokers)
        .set("group.id", "reprise-plan")
        .set("enable.auto.commit", "false")
        .set("isolation.level", isolation)
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error");
    config.remove("group.protocol");
    config.create()
}

/// By partition, the offset of an edge, or of the first record at or after a time in ms. Partitions that have none
/// are absent; one that could not be asked (its leader is away) is an error: 'nothing to do' must be an answer.
fn look_up(
    consumer: &BaseConsumer,
    topic: &str,
    ids: &[i32],
    offset: Offset,
) -> Result<HashMap<i32, i64>, RangeError> {
    let mut wanted = TopicPartitionList::with_capacity(ids.len());
    for id in ids {
        wanted.add_partition_offset(topic, *id, offset)?;
    }
    let answer = consumer.offsets_for_times(wanted, LIMIT)?;
    let mut found = HashMap::new();
    for element in answer.elements() {
        element.error().map_err(|_| RangeError::NoAnswer(element.partition()))?;
        if let Offset::Offset(at) = element.offset() {
            found.insert(element.partition(), at);
        }
    }
    Ok(found)
}

/// Whether the oldest record that is left is younger than the beginning of the period.
fn is_younger(
    consumer: &BaseConsumer,
    topic: &str,
    id: i32,
    low: i64,
    from: Timestamp,
) -> Result<bool, RangeError> {
    let mut oldest = TopicPartitionList::new();
    oldest.add_partition_offset(topic, id, Offset::Offset(low))?;
    consumer.assign(&oldest)?;
    let until = Instant::now() + LIMIT;
    let younger = loop {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => {
                break message.timestamp().to_millis().is_none_or(|ms| ms > from.as_millisecond());
            }
            Some(Err(KafkaError::PartitionEOF(_))) => break true,
            Some(Err(error)) => return Err(error.into()),
            None if Instant::now() > until => return Err(RangeError::NoAnswer(id)),
            None => {}
        }
    };
    consumer.unassign()?;
    Ok(younger)
}

/// Log time of the newest of the last records of the partitions (`id`, low, end). It is told to people, so that a
/// partition that does not answer in time is passed over.
fn newest(
    consumer: &BaseConsumer,
    topic: &str,
    edges: &[(i32, i64, i64)],
) -> Result<Option<i64>, KafkaError> {
    let mut tails = TopicPartitionList::new();
    let filled = edges.iter().filter(|(_, low, end)| low < end);
    for (id, low, end) in filled {
        tails.add_partition_offset(topic, *id, Offset::Offset((end - TAIL).max(*low)))?;
    }
    let mut unread = tails.count();
    if unread == 0 {
        return Ok(None);
    }
    consumer.assign(&tails)?;
    let until = Instant::now() + LIMIT;
    let mut newest = None;
    while unread > 0 && Instant::now() < until {
        match consumer.poll(Duration::from_millis(200)) {
            Some(Ok(message)) => newest = newest.max(message.timestamp().to_millis()),
            Some(Err(KafkaError::PartitionEOF(_))) => unread -= 1,
            Some(Err(error)) => return Err(error),
            None => {}
        }
    }
    consumer.unassign()?;
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b35_no_time_becomes_a_special_offset_or_an_earlier_millisecond() {
        let times = [
            ("2026-10-14T03:00:00Z", 1_791_946_800_000),
            ("2026-10-14T03:00:00.0001Z", 1_791_946_800_001),
            ("2026-10-14T03:00:00.000999999Z", 1_791_946_800_001),
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999Z", 0),
            ("-009998-01-01T00:00:00Z", 0),
            ("9999-12-30T21:59:59.999999999Z", 253_402_207_200_000),
        ];
        for (text, ms) in times {
            assert_eq!(log_time(text.parse().expect("an instant")), ms, "{text}");
        }
    }
}
