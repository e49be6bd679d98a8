//! Kafka from outside: what stands in a topic, and what a group has committed.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, FromClientConfig};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};

const LIMIT: Duration = Duration::from_secs(20);

/// A record to be written. What is `None` is left to Kafka.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub partition: Option<i32>,
    pub timestamp_ms: Option<i64>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Outgoing {
    /// An event under its order's key, as a well-behaved producer writes it.
    pub fn event(event: &serde_json::Value) -> Self {
        let key = event["pedidoId"].as_str().map(|k| k.as_bytes().to_vec());
        Self { key, value: Some(event.to_string().into_bytes()), ..Self::default() }
    }

    /// Bytes that need not be an event.
    pub fn raw(key: &str, value: &[u8]) -> Self {
        Self { key: Some(key.as_bytes().to_vec()), value: Some(value.to_vec()), ..Self::default() }
    }

    pub fn at(self, timestamp_ms: i64) -> Self {
        Self { timestamp_ms: Some(timestamp_ms), ..self }
    }

    pub fn on(self, partition: i32) -> Self {
        Self { partition: Some(partition), ..self }
    }
}

pub struct Kafka {
    servers: String,
    producer: FutureProducer,
}

impl Kafka {
    pub fn connect(servers: &str) -> Self {
        let producer = client(servers, &[("linger.ms", "2"), ("message.max.bytes", "4000000")]);
        Self { servers: servers.to_owned(), producer }
    }

    pub async fn create_topic(&self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let admin: AdminClient<DefaultClientContext> = client(&self.servers, &[]);
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let results = admin.create_topics([&topic], &options).await;
        let results = results.unwrap_or_else(|e| panic!("no Kafka at {} (make up): {e}", self.servers));
        for result in results {
            result.unwrap_or_else(|(topic, code)| panic!("topic {topic} cannot be made: {code}"));
        }
    }

    /// Makes a topic again under a name whose deletion may still be on its way.
    pub async fn recreate_topic(&self, name: &str, partitions: i32) {
        let admin: AdminClient<DefaultClientContext> = client(&self.servers, &[]);
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1");
        super::until("the topic can be made anew", LIMIT, async || {
            let results = admin.create_topics([&topic], &options).await;
            results.is_ok_and(|results| results.iter().all(Result::is_ok))
        })
        .await;
    }

    /// Deletes a group that everybody has left, and with it its offsets.
    pub async fn forget_group(&self, group: &str) {
        let admin: AdminClient<DefaultClientContext> = client(&self.servers, &[]);
        let options = AdminOptions::new().request_timeout(Some(LIMIT));
        super::until("the group can be deleted", LIMIT, async || {
            let results = admin.delete_groups(&[group], &options).await;
            results.is_ok_and(|results| results.iter().all(Result::is_ok))
        })
        .await;
    }

    pub async fn add_partitions(&self, topic: &str, total: usize) {
        let admin: AdminClient<DefaultClientContext> = client(&self.servers, &[]);
        let wanted = rdkafka::admin::NewPartitions::new(topic, total);
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        let results = admin.create_partitions([&wanted], &options).await.expect("a broker");
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }

    /// Everything below these offsets of the partitions is gone, as after retention.
    pub async fn delete_below(&self, topic: &str, offsets: &BTreeMap<i32, i64>) {
        let admin: AdminClient<DefaultClientContext> = client(&self.servers, &[]);
        let mut list = TopicPartitionList::new();
        for (partition, offset) in offsets {
            list.add_partition_offset(topic, *partition, Offset::Offset(*offset)).expect("an offset");
        }
        let options = AdminOptions::new().operation_timeout(Some(LIMIT)).request_timeout(Some(LIMIT));
        admin.delete_records(&list, &options).await.expect("records can be deleted");
    }

    /// Writes one record and waits for the broker: its partition and offset.
    pub async fn produce(&self, topic: &str, record: &Outgoing) -> (i32, i64) {
        delivered(self.enqueue(topic, record)).await
    }

    /// Writes many records at once, in their order.
    pub async fn produce_all(&self, topic: &str, records: impl IntoIterator<Item = Outgoing>) {
        let records: Vec<Outgoing> = records.into_iter().collect();
        // The client's own queue holds 100,000.
        for chunk in records.chunks(10_000) {
            let on_their_way: Vec<_> = chunk.iter().map(|record| self.enqueue(topic, record)).collect();
            for delivery in on_their_way {
                delivered(delivery).await;
            }
        }
    }

    fn enqueue(&self, topic: &str, record: &Outgoing) -> DeliveryFuture {
        let mut headers = OwnedHeaders::new();
        for (key, value) in &record.headers {
            headers = headers.insert(Header { key, value: value.as_ref() });
        }
        let future = FutureRecord {
            topic,
            partition: record.partition,
            payload: record.value.as_ref(),
            key: record.key.as_ref(),
            timestamp: record.timestamp_ms,
            headers: (!record.headers.is_empty()).then_some(headers),
        };
        self.producer.send_result(future).unwrap_or_else(|(e, _)| panic!("{topic}: {e}"))
    }

    /// Per partition, the offset after the last record.
    pub async fn ends(&self, topic: &str) -> BTreeMap<i32, i64> {
        let topic = topic.to_owned();
        self.blocking(move |consumer: BaseConsumer| {
            let metadata = consumer.fetch_metadata(Some(&topic), LIMIT)?;
            let partitions = metadata.topics().iter().flat_map(MetadataTopic::partitions);
            partitions
                .map(|p| Ok((p.id(), consumer.fetch_watermarks(&topic, p.id(), LIMIT)?.1)))
                .collect::<Result<_, KafkaError>>()
        })
        .await
    }

    /// Per partition, what the group has committed; `None` where it never did.
    pub async fn committed(&self, group: &str, topic: &str, partitions: i32) -> BTreeMap<i32, Option<i64>> {
        let servers = self.servers.clone();
        let (group, topic) = (group.to_owned(), topic.to_owned());
        on_a_thread(move || {
            let consumer: BaseConsumer = client(&servers, &[("group.id", &group)]);
            let mut wanted = TopicPartitionList::new();
            wanted.add_partition_range(&topic, 0, partitions - 1);
            let found = consumer.committed_offsets(wanted, LIMIT)?;
            let offset = |o| if let Offset::Offset(n) = o { Some(n) } else { None };
            Ok(found.elements().iter().map(|e| (e.partition(), offset(e.offset()))).collect())
        })
        .await
    }

    /// How many members a group has.
    pub async fn members(&self, group: &str) -> usize {
        let group = group.to_owned();
        self.blocking(move |consumer: BaseConsumer| {
            let found = consumer.fetch_group_list(Some(&group), LIMIT)?;
            Ok(found.groups().iter().map(|g| g.members().len()).sum())
        })
        .await
    }

    /// Everything that stands in a topic, partition by partition.
    pub async fn read(&self, topic: &str) -> Vec<OwnedMessage> {
        let ends = self.ends(topic).await;
        let topic = topic.to_owned();
        self.blocking(move |consumer: BaseConsumer| {
            let mut assignment = TopicPartitionList::new();
            for partition in ends.keys() {
                assignment.add_partition_offset(&topic, *partition, Offset::Beginning)?;
            }
            consumer.assign(&assignment)?;
            let (mut found, mut open) = (Vec::new(), ends.len());
            while open > 0 {
                match consumer.poll(LIMIT) {
                    Some(Ok(message)) => found.push(message.detach()),
                    Some(Err(KafkaError::PartitionEOF(_))) => open -= 1,
                    Some(Err(e)) => return Err(e),
                    None => panic!("{topic} cannot be read to its end"),
                }
            }
            found.sort_by_key(|m| (m.partition(), m.offset()));
            Ok(found)
        })
        .await
    }

    async fn blocking<T: Send + 'static>(
        &self,
        ask: impl FnOnce(BaseConsumer) -> Result<T, KafkaError> + Send + 'static,
    ) -> T {
        let servers = self.servers.clone();
        on_a_thread(move || {
            let settings = [
                ("group.id", "probe"),
                ("enable.auto.commit", "false"),
                ("enable.partition.eof", "true"),
                ("isolation.level", "read_committed"),
                ("fetch.message.max.bytes", "4000000"),
            ];
            ask(client(&servers, &settings))
        })
        .await
    }
}

/// Removes what a test made. Says what it could not do; a test has its verdict by then.
pub async fn remove(servers: &str, topics: &[&str], groups: &[&str]) {
    let admin: AdminClient<DefaultClientContext> = client(servers, &[]);
    let options = AdminOptions::new().request_timeout(Some(LIMIT));
    if let Err(e) = admin.delete_topics(topics, &options).await {
        eprintln!("topics {topics:?} stay: {e}");
    }
    if let Err(e) = admin.delete_groups(groups, &options).await {
        eprintln!("groups {groups:?} stay: {e}");
    }
}

/// The value of a header that must be there exactly once, as text.
pub fn header(message: &OwnedMessage, name: &str) -> String {
    let values: Vec<_> =
        message.headers().into_iter().flat_map(Headers::iter).filter(|h| h.key == name).collect();
    assert_eq!(values.len(), 1, "header {name} in {:?}", message.headers());
    String::from_utf8(values[0].value.expect("a header with a value").to_vec()).expect("a header of text")
}

/// The whole payload, which must be there.
pub fn payload(message: &OwnedMessage) -> &[u8] {
    message.payload().expect("a record with a value")
}

fn client<T: FromClientConfig>(servers: &str, settings: &[(&str, &str)]) -> T {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers);
    for (key, value) in settings {
        config.set(*key, *value);
    }
    config.create().expect("a Kafka client of the test can be made")
}

async fn delivered(delivery: DeliveryFuture) -> (i32, i64) {
    let outcome = delivery.await.expect("the producer outlives its records");
    let delivery = outcome.unwrap_or_else(|(e, _)| panic!("a record was not written: {e}"));
    (delivery.partition, delivery.offset)
}

/// librdkafka's queries block.
async fn on_a_thread<T: Send + 'static>(ask: impl FnOnce() -> Result<T, KafkaError> + Send + 'static) -> T {
    tokio::task::spawn_blocking(ask)
        .await
        .expect("a query of the test does not panic")
        .expect("Kafka answers")
}
