//! Topics and records for the demo: made, written and acknowledged, and cleared away by name.

use std::time::Duration;

use futures::future::try_join_all;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;

/// How long the broker may take to acknowledge.
const LIMIT: Duration = Duration::from_secs(30);
/// How long the first question may take: brokers that are not there are told soon.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// Records in the air at once.
const TOGETHER: usize = 1000;

/// A record to write.
#[derive(Debug, Clone, Default)]
pub struct NewRecord {
    pub key: Option<String>,
    pub value: Option<Vec<u8>>,
    pub timestamp_ms: i64,
}

/// Names of all topics. Blocks; call it where blocking is allowed.
pub fn topic_names(brokers: &str) -> Result<Vec<String>, KafkaError> {
    let consumer: BaseConsumer = client(brokers).create()?;
    let metadata = consumer.fetch_metadata(None, FIRST_ANSWER)?;
    Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
}

/// Makes topics that keep their records for ever: a demo's records lie in the past. One that exists already is an
/// error, for it is somebody else's.
pub async fn create_topics(brokers: &str, topics: &[(&str, i32)]) -> Result<(), KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    let wanted: Vec<NewTopic<'_>> = topics
        .iter()
        .map(|(name, partitions)| {
            NewTopic::new(name, *partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1")
        })
        .collect();
    for made in admin.create_topics(&wanted, &options()).await? {
        made.map_err(|(_, code)| KafkaError::AdminOp(code))?;
    }
    Ok(())
}

/// Removes topics; one that is not there is no error.
pub async fn delete_topics(brokers: &str, topics: &[&str]) -> Result<(), KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    for gone in admin.delete_topics(topics, &options()).await? {
        match gone {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err((_, code)) => return Err(KafkaError::AdminOp(code)),
        }
    }
    Ok(())
}

/// Removes consumer groups. One that is not there is no error; one whose killed member the broker still believes in
/// stays, and holds nothing but offsets of topics that are gone.
pub async fn delete_groups(brokers: &str, groups: &[&str]) -> Result<(), KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    for gone in admin.delete_groups(groups, &options()).await? {
        match gone {
            Ok(_) | Err((_, RDKafkaErrorCode::GroupIdNotFound | RDKafkaErrorCode::NonEmptyGroup)) => {}
            Err((_, code)) => return Err(KafkaError::AdminOp(code)),
        }
    }
    Ok(())
}

/// Writes the records, in order per key, and returns when every one is acknowledged.
pub async fn produce(brokers: &str, topic: &str, records: &[NewRecord]) -> Result<(), KafkaError> {
    let mut config = client(brokers);
    config.set("enable.idempotence", "true").set("linger.ms", "5");
    let producer: FutureProducer = config.create()?;
    for part in records.chunks(TOGETHER) {
        let sends = part.iter().map(|record| {
            let mut wanted: FutureRecord<'_, str, [u8]> =
                FutureRecord::to(topic).timestamp(record.timestamp_ms);
            wanted.key = record.key.as_deref();
            wanted.payload = record.value.as_deref();
            let sending = producer.send(wanted, LIMIT);
            async move { sending.await.map_err(|(error, _)| error) }
        });
        try_join_all(sends).await?;
    }
    Ok(())
}

fn options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(LIMIT))
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    // What cannot be reached is told by the answers, once.
    config.set_log_level(RDKafkaLogLevel::Critical);
    config.set("bootstrap.servers", brokers).set("client.id", "reprise-demo");
    config
}
