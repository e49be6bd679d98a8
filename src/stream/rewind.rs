//! A topic read again from stored places to stored ends, by a group of its own, without being a member of it.
//!
//! Partitions are assigned, never subscribed; what was read is kept by whoever reads, and told to the group only so
//! that the usual tools can see it. A partition is done at its end, or where the log ends before it (the rest were
//! markers). Records of transactions that were not committed are not seen.
//! Everything here blocks, within its limit.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::range::PartitionRange;
use crate::config::Kafka;
use crate::domain::message::header;

/// One poll. A partition that is silent for longer is asked again.
const POLL: Duration = Duration::from_millis(100);

/// A record of the topic of orders.
#[derive(Debug)]
pub struct OrderRecord<'a> {
    pub partition: i32,
    pub offset: i64,
    pub event_type: &'a str,
    /// Header `schema_version`, 1 where it is absent.
    pub form: u32,
    /// `None`: a tombstone.
    pub value: Option<&'a [u8]>,
}

#[derive(Debug, thiserror::Error)]
pub enum RewindError {
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error(
        "partition {partition} no longer holds offset {offset}: retention was faster than the rebuild; drop the \
         generation and begin anew"
    )]
    Gone { partition: i32, offset: i64 },
}

pub struct Rewind {
    consumer: BaseConsumer,
    topic: String,
    /// Next and end, by partition.
    places: BTreeMap<i32, PartitionRange>,
}

impl Rewind {
    pub fn open(
        kafka: &Kafka,
        topic: &str,
        group: &str,
        places: &[PartitionRange],
    ) -> Result<Self, KafkaError> {
        let mut config = ClientConfig::new();
        for (name, value) in &kafka.properties {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &kafka.brokers)
            .set("group.id", group)
            .set("client.id", "reprise-rebuild")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            // What is read ahead; the memory of a rebuild is bounded.
            .set("queued.max.messages.kbytes", "16384")
            .set("queued.min.messages", "20000");
        config.remove("group.protocol");
        let consumer: BaseConsumer = config.create()?;
        let mut assigned = TopicPartitionList::new();
        for place in places.iter().filter(|place| place.start < place.end) {
            assigned.add_partition_offset(topic, place.partition, Offset::Offset(place.start))?;
        }
        consumer.assign(&assigned)?;
        let places = places.iter().map(|place| (place.partition, *place)).collect();
        Ok(Self { consumer, topic: topic.to_owned(), places })
    }

    /// Where the next read begins.
    pub fn places(&self) -> Vec<PartitionRange> {
        self.places.values().copied().collect()
    }

    fn is_done(&self) -> bool {
        self.places.values().all(|place| place.start >= place.end)
    }

    /// Hands on up to `limit` records, for at most `within`; stops at the first that is refused.
    pub fn read<E: From<RewindError>>(
        &mut self,
        limit: u32,
        within: Duration,
        mut each: impl FnMut(&OrderRecord<'_>) -> Result<(), E>,
    ) -> Result<u32, E> {
        let until = Instant::now() + within;
        let mut count = 0;
        while count < limit && !self.is_done() && Instant::now() < until {
            match self.consumer.poll(POLL) {
                None => {}
                Some(Ok(message)) => {
                    let (partition, offset) = (message.partition(), message.offset());
                    let Some(place) = self.places.get_mut(&partition) else { continue };
                    if offset >= place.end {
                        place.start = place.end;
                        self.leave(partition)?;
                        continue;
                    }
                    let said = |name: &str| {
                        let headers = message.headers()?;
                        let found = headers.iter().find(|header| header.key == name)?;
                        std::str::from_utf8(found.value?).ok()
                    };
                    let form = said(header::SCHEMA_VERSION).and_then(|form| form.parse().ok()).unwrap_or(1);
                    let event_type = said(header::EVENT_TYPE).unwrap_or_default();
                    each(&OrderRecord { partition, offset, event_type, form, value: message.payload() })?;
                    place.start = offset + 1;
                    count += 1;
                }
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    if let Some(place) = self.places.get_mut(&partition) {
                        place.start = place.end;
                    }
                }
                Some(Err(error)) => {
                    let code = error.rdkafka_error_code();
                    if code == Some(RDKafkaErrorCode::AutoOffsetReset)
                        || code == Some(RDKafkaErrorCode::OffsetOutOfRange)
                    {
                        return Err(self.gone().into());
                    }
                    // The client goes on trying by itself.
                    tracing::warn!(%error, "the topic of orders cannot be read now");
                }
            }
        }
        Ok(count)
    }

    /// Which place it was, as far as the client says: the lowest that is open.
    fn gone(&self) -> RewindError {
        let open = self.places.values().find(|place| place.start < place.end);
        RewindError::Gone {
            partition: open.map_or(-1, |place| place.partition),
            offset: open.map_or(-1, |place| place.start),
        }
    }

    fn leave(&self, partition: i32) -> Result<(), RewindError> {
        let mut done = TopicPartitionList::new();
        done.add_partition(&self.topic, partition);
        Ok(self.consumer.pause(&done)?)
    }

    /// Tells the group what was kept. It is for looking only: whether it arrives does not matter.
    pub fn tell_group(&self) {
        let mut kept = TopicPartitionList::new();
        for place in self.places.values() {
            if kept.add_partition_offset(&self.topic, place.partition, Offset::Offset(place.start)).is_err() {
                return;
            }
        }
        if let Err(error) = self.consumer.commit(&kept, CommitMode::Async) {
            tracing::debug!(%error, "the group was not told how far a rebuild is");
        }
    }
}
