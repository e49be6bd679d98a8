//! Topics and records for the demo: made, written and acknowledged.

use std::time::Duration;

use futures::future::try_join_all;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::RDKafkaErrorCode;

/// How long the broker may take to acknowledge.
const LIMIT: Duration = Duration::from_secs(30);
/// Records in the air at once.
const TOGETHER: usize = 1000;

/// A record to write.
#[derive(Debug, Clone, Default)]
pub struct NewRecord {
    pub key: Option<String>,
    pub value: Option<Vec<u8>>,
    pub timestamp_ms: i64,
}

/// Makes topics that keep their records for ever: a demo's records lie in the past.
pub async fn create_topics(brokers: &str, topics: &[(&str, i32)]) -> Result<(), KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    let wanted: Vec<NewTopic<'_>> = topics
        .iter()
        .map(|(name, partitions)| {
            NewTopic::new(name, *partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1")
        })
        .collect();
    let options = AdminOptions::new().operation_timeout(Some(LIMIT));
    for made in admin.create_topics(&wanted, &options).await? {
        match made {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((_, code)) => return Err(KafkaError::AdminOp(code)),
        }
    }
    Ok(())
}

/// Removes topics; one that is not there is no error.
pub async fn delete_topics(brokers: &str, topics: &[&str]) -> Result<(), KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create()?;
    let options = AdminOptions::new().operation_timeout(Some(LIMIT));
    for gone in admin.delete_topics(topics, &options).await? {
        match gone {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
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

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("client.id", "reprise-demo");
    config
}
