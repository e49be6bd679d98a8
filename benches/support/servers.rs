//! The servers of a bench, and what it made on them: cleared away at its end.

use std::path::PathBuf;
use std::time::Duration;

use futures::future::try_join_all;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};
use reprise::pg::demo::fresh_database;
use reprise::stream::produce::{NewRecord, create_topics, delete_topics, produce};

use super::Failure;
use super::provider::Provider;
use super::service::Settings;

pub const PARTITIONS: i32 = 6;

/// Servers, a provider, and a directory for configurations.
pub struct Bench {
    pub kafka: String,
    pub postgres: String,
    pub provider: Provider,
    pub dir: PathBuf,
    /// For single records.
    producer: FutureProducer,
    made: Vec<String>,
}

impl Bench {
    /// `REPRISE_TEST_KAFKA` and `REPRISE_TEST_PG`, else the servers of `make up`.
    pub fn start() -> Result<Self, Failure> {
        let server = |name, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
        let dir = std::env::temp_dir().join(format!("reprise-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let kafka = server("REPRISE_TEST_KAFKA", "127.0.0.1:29092");
        Ok(Self {
            producer: ClientConfig::new().set("bootstrap.servers", &kafka).set("linger.ms", "0").create()?,
            kafka,
            postgres: server("REPRISE_TEST_PG", "postgres://postgres@127.0.0.1:25432"),
            provider: Provider::start()?,
            dir,
            made: Vec::new(),
        })
    }

    /// An empty topic with its dead-letter topic.
    pub async fn empty_topic(&mut self, name: &str) -> Result<String, Failure> {
        let topic = format!("bench.{name}.{}", std::process::id());
        create_topics(&self.kafka, &[(&topic, PARTITIONS), (&format!("{topic}.dlq"), 1)]).await?;
        self.made.extend([topic.clone(), format!("{topic}.dlq")]);
        Ok(topic)
    }

    /// A topic that holds these records. They are made part by part: millions need not stand in memory.
    pub async fn topic(
        &mut self,
        name: &str,
        records: impl Iterator<Item = NewRecord>,
    ) -> Result<String, Failure> {
        let topic = self.empty_topic(name).await?;
        self.produce(&topic, records).await?;
        Ok(topic)
    }

    pub async fn produce(
        &self,
        topic: &str,
        records: impl Iterator<Item = NewRecord>,
    ) -> Result<(), Failure> {
        let mut records = records.peekable();
        while records.peek().is_some() {
            let part: Vec<NewRecord> = records.by_ref().take(100_000).collect();
            produce(&self.kafka, topic, &part).await?;
        }
        Ok(())
    }

    /// Few records at once, by a producer that is kept.
    pub async fn produce_together(&self, topic: &str, records: &[NewRecord]) -> Result<(), Failure> {
        try_join_all(records.iter().map(|record| self.produce_one(topic, record))).await?;
        Ok(())
    }

    pub async fn produce_one(&self, topic: &str, record: &NewRecord) -> Result<(), Failure> {
        let mut wanted: FutureRecord<'_, str, [u8]> = FutureRecord::to(topic).timestamp(record.timestamp_ms);
        wanted.key = record.key.as_deref();
        wanted.payload = record.value.as_deref();
        self.producer.send(wanted, Duration::from_secs(10)).await.map_err(|(error, _)| error)?;
        Ok(())
    }

    /// An empty database with the product's schema.
    pub async fn database(&self, name: &str) -> Result<String, Failure> {
        let url = fresh_database(&format!("{}/postgres", self.postgres), name).await?;
        let settings = Settings::new("none", "migrate", &url, 1);
        let status = super::service::start(self, &settings, &["migrate"])?.wait()?;
        if status.success() { Ok(url) } else { Err("migrate failed".into()) }
    }

    /// An empty database without any schema.
    pub async fn bare_database(&self, name: &str) -> Result<String, Failure> {
        Ok(fresh_database(&format!("{}/postgres", self.postgres), name).await?)
    }

    pub async fn clear(self) -> Result<(), Failure> {
        let made: Vec<&str> = self.made.iter().map(String::as_str).collect();
        if !made.is_empty() {
            delete_topics(&self.kafka, &made).await?;
        }
        std::fs::remove_dir_all(&self.dir)?;
        Ok(())
    }
}
