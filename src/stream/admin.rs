//! Questions to the brokers: who is there, what a topic is like, where a group stands.
//!
//! Only reads: nothing here joins a group, commits an offset or creates a topic. Every function blocks, up to the
//! time limit given to [`Admin::connect`]; call them where blocking is allowed.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::TopicPartitionList;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::topic_partition_list::Offset;
use rdkafka::types::RDKafkaErrorCode;

use crate::config::Kafka;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// A property that librdkafka does not know, or a value that it does not take. Never holds the value.
    #[error("kafka.propriedades.{property}: {what}")]
    Property { property: String, what: String },
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error("the broker refused to describe topic {topic}: {code}")]
    Describe { topic: String, code: RDKafkaErrorCode },
}

/// A connection that asks and changes nothing.
pub struct Admin {
    consumer: BaseConsumer,
    client: AdminClient<DefaultClientContext>,
    limit: Duration,
}

/// A partition of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    pub id: i32,
    /// Without a leader nothing can be read or written.
    pub has_leader: bool,
}

/// What a topic keeps and takes. `None` where the broker did not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopicSettings {
    /// `retention.ms`; -1 is without end.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`, per partition; -1 is without end.
    pub retention_bytes: Option<i64>,
    /// `max.message.bytes`
    pub max_message_bytes: Option<i64>,
    /// `cleanup.policy` contains `compact`
    pub compacted: bool,
}

/// A group as its coordinator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupState {
    /// The coordinator's word: `Stable`, `Empty`, `Dead`, ...
    pub state: String,
    pub members: usize,
}

/// Where a partition begins and ends, and where the group stands in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub partition: i32,
    /// The oldest record that is still there.
    pub low: i64,
    /// One after the newest record.
    pub high: i64,
    /// The offset that the group would resume at.
    pub committed: Option<i64>,
}

impl Position {
    /// Where the group would go on: at what it committed, else at the oldest record.
    pub fn resumes_at(&self) -> i64 {
        self.committed.unwrap_or(self.low).clamp(self.low.min(self.high), self.high)
    }

    /// Records between what is committed and the end.
    pub fn lag(&self) -> i64 {
        self.high - self.resumes_at()
    }
}

impl Admin {
    /// Checks the properties; the brokers are not asked yet.
    pub fn connect(kafka: &Kafka, limit: Duration) -> Result<Self, AdminError> {
        let mut config = ClientConfig::new();
        // What cannot be reached is told by the answers, once.
        config.set_log_level(RDKafkaLogLevel::Critical);
        for (name, value) in &kafka.properties {
            config.set(name, value);
        }
        config
            .set("bootstrap.servers", &kafka.brokers)
            .set("group.id", &kafka.group)
            .set("enable.auto.commit", "false")
            .set("allow.auto.create.topics", "false");
        let client = config.create().map_err(without_value)?;
        Ok(Self { consumer: config.create().map_err(without_value)?, client, limit })
    }

    /// Addresses of the brokers, as they advertise themselves.
    pub fn brokers(&self) -> Result<Vec<String>, AdminError> {
        let metadata = self.consumer.fetch_metadata(None, self.limit)?;
        Ok(metadata.brokers().iter().map(|broker| format!("{}:{}", broker.host(), broker.port())).collect())
    }

    /// The partitions of a topic; `None` if there is no such topic.
    pub fn partitions(&self, topic: &str) -> Result<Option<Vec<Partition>>, AdminError> {
        let metadata = self.consumer.fetch_metadata(Some(topic), self.limit)?;
        let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
            return Ok(None);
        };
        if let Some(code) = found.error().map(RDKafkaErrorCode::from) {
            return match code {
                RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => Ok(None),
                _ => Err(KafkaError::MetadataFetch(code).into()),
            };
        }
        let partitions = found
            .partitions()
            .iter()
            .map(|p| Partition { id: p.id(), has_leader: p.leader() >= 0 })
            .collect();
        Ok(Some(partitions))
    }

    /// What the topic keeps and takes.
    pub fn topic_settings(&self, topic: &str) -> Result<TopicSettings, AdminError> {
        let options = AdminOptions::new().request_timeout(Some(self.limit));
        let answers = futures::executor::block_on(
            self.client.describe_configs([&ResourceSpecifier::Topic(topic)], &options),
        )?;
        let mut settings = TopicSettings::default();
        for answer in answers {
            let resource = answer.map_err(|code| AdminError::Describe { topic: topic.to_owned(), code })?;
            settings = TopicSettings {
                retention_ms: number(&resource, "retention.ms"),
                retention_bytes: number(&resource, "retention.bytes"),
                max_message_bytes: number(&resource, "max.message.bytes"),
                compacted: text(&resource, "cleanup.policy").is_some_and(|policy| policy.contains("compact")),
            };
        }
        Ok(settings)
    }

    /// The state of a group; `None` if the coordinator does not know it. Groups of the new protocol
    /// (`group.protocol = consumer`) are told without their members.
    pub fn group(&self, group: &str) -> Result<Option<GroupState>, AdminError> {
        let list = self.consumer.fetch_group_list(Some(group), self.limit)?;
        let found = list.groups().iter().find(|found| found.name() == group);
        Ok(found.map(|found| GroupState { state: found.state().to_owned(), members: found.members().len() }))
    }

    /// Begin, end and committed offset of each partition, for the group of the configuration.
    pub fn positions(&self, topic: &str, partitions: &[Partition]) -> Result<Vec<Position>, AdminError> {
        let mut wanted = TopicPartitionList::with_capacity(partitions.len());
        for partition in partitions {
            wanted.add_partition(topic, partition.id);
        }
        let committed = self.consumer.committed_offsets(wanted, self.limit)?;
        let position = |partition: &Partition| {
            let (low, high) = self.consumer.fetch_watermarks(topic, partition.id, self.limit)?;
            let committed =
                committed.find_partition(topic, partition.id).and_then(|found| match found.offset() {
                    Offset::Offset(offset) => Some(offset),
                    _ => None,
                });
            Ok(Position { partition: partition.id, low, high, committed })
        };
        partitions.iter().map(position).collect()
    }
}

/// librdkafka repeats the value it does not take, which may be a password.
fn without_value(error: KafkaError) -> AdminError {
    match error {
        KafkaError::ClientConfig(_, what, property, value) => {
            let what = if value.is_empty() { what } else { what.replace(&value, "(value)") };
            AdminError::Property { property, what }
        }
        other => other.into(),
    }
}

fn text<'a>(resource: &'a ConfigResource, name: &str) -> Option<&'a str> {
    resource.get(name)?.value.as_deref()
}

fn number(resource: &ConfigResource, name: &str) -> Option<i64> {
    text(resource, name)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn kafka(property: &str, value: &str) -> Kafka {
        let text = format!(
            "[kafka]\nbrokers = \"127.0.0.1:1\"\n[kafka.propriedades]\n\"{property}\" = \"{value}\"\n\
             [postgres]\nurl = \"postgres://127.0.0.1/x\"\n"
        );
        Config::from_text(&text, std::iter::empty()).expect("valid").0.kafka
    }

    fn refusal(property: &str, value: &str) -> String {
        let admin = Admin::connect(&kafka(property, value), Duration::from_millis(100));
        admin.err().expect("refused").to_string()
    }

    #[test]
    fn a_property_that_the_client_does_not_know_is_named_without_its_value() {
        assert_eq!(
            refusal("sesion.timeout.ms", "s3nha"),
            "kafka.propriedades.sesion.timeout.ms: No such configuration property: \"sesion.timeout.ms\""
        );
        let message = refusal("security.protocol", "s3nha");
        assert!(
            message.starts_with("kafka.propriedades.security.protocol: ") && !message.contains("s3nha"),
            "{message}"
        );
    }

    #[test]
    fn a_group_that_never_committed_has_everything_that_is_left_before_it() {
        let position = |committed| Position { partition: 0, low: 10, high: 50, committed };
        assert_eq!(
            [None, Some(45), Some(3), Some(99)].map(|committed| position(committed).lag()),
            [40, 5, 40, 0]
        );
    }
}
