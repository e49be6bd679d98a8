//! The relay's broker: an idempotent producer, and one that sends records alone.
//!
//! A batch is refused as a whole when it is too large for the topic, whichever of its records is to blame, so what
//! comes back as too large goes once more, alone: only then the refusal is about that record. Large records go alone
//! at once. Keys meet the partitions that a Java client would choose, so that CDC and relay can take turns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer, PurgeConfig};
use sha2::{Digest, Sha256};

use super::assignment::log_line;
use super::consumer::StreamFailure;
use super::dead_letter::PREFIX;
use super::settings::concerns_connection;
use crate::outbox::broker::{Broker, Parting, Record, RefusedBy, SendError};

/// Until a record counts as not acknowledged and is sent anew; the client retries inside.
const DELIVERY_LIMIT: &str = "10000";
/// While the producer's own queue is full.
const QUEUE_LIMIT: Duration = Duration::from_secs(10);
/// Half of a batch: such a record gains nothing from company.
const ALONE_FROM: usize = 400_000;
/// `mensagem` is for people.
const MESSAGE_CHARS: usize = 1_000;

/// What holds for both producers.
const COMMON: &[(&str, &str)] = &[
    ("client.id", "reprise-relay"),
    ("delivery.timeout.ms", DELIVERY_LIMIT),
    // A topic that was away is noticed again within this time.
    ("topic.metadata.refresh.interval.ms", "2000"),
    ("topic.metadata.propagation.max.ms", "5000"),
    ("reconnect.backoff.max.ms", "2000"),
    ("socket.keepalive.enable", "true"),
];

/// Not to be overridden.
const FORCED: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("partitioner", "murmur2_random"),
    // The broker's limit decides, not ours.
    ("message.max.bytes", "67108864"),
];

const TOGETHER: &[(&str, &str)] =
    &[("linger.ms", "1"), ("batch.num.messages", "2000"), ("compression.type", "lz4")];
const ALONE: &[(&str, &str)] =
    &[("linger.ms", "0"), ("batch.num.messages", "1"), ("compression.type", "none")];

/// One worker's producers. Cheap to clone.
#[derive(Clone)]
pub struct KafkaOutbox {
    together: FutureProducer<Quiet>,
    alone: FutureProducer<Quiet>,
    dlq_topic: Arc<str>,
}

impl KafkaOutbox {
    /// `properties` are `kafka.propriedades`; only those about the connection count here.
    pub fn new(
        brokers: &str,
        dlq_topic: &str,
        properties: &BTreeMap<String, String>,
    ) -> Result<Self, StreamFailure> {
        let producer = |settings: &[(&str, &str)]| {
            let mut config = ClientConfig::new();
            for (key, value) in COMMON {
                config.set(*key, *value);
            }
            for (key, value) in properties.iter().filter(|(key, _)| concerns_connection(key)) {
                config.set(key, value);
            }
            for (key, value) in FORCED.iter().chain(settings) {
                config.set(*key, *value);
            }
            config.set("bootstrap.servers", brokers);
            FutureProducer::from_config_and_context(&config, Quiet)
                .map_err(|error| StreamFailure::Client { cause: error.to_string() })
        };
        Ok(Self { together: producer(TOGETHER)?, alone: producer(ALONE)?, dlq_topic: Arc::from(dlq_topic) })
    }

    async fn deliver(&self, record: &Record) -> Result<(), SendError> {
        if record.value.len() < ALONE_FROM {
            match self.write(&self.together, &record.topic, record, &record.value).await {
                Err(error) if is_too_large(&error) => {}
                outcome => return outcome.map_err(|error| verdict(&self.together, &error)),
            }
        }
        let alone = self.write(&self.alone, &record.topic, record, &record.value).await;
        alone.map_err(|error| verdict(&self.alone, &error))
    }

    async fn write(
        &self,
        producer: &FutureProducer<Quiet>,
        topic: &str,
        record: &Record,
        value: &[u8],
    ) -> Result<(), KafkaError> {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (key, value) in &record.headers {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let sending: FutureRecord<'_, str, [u8]> = FutureRecord::to(topic)
            .key(record.key.as_str())
            .payload(value)
            .timestamp(record.timestamp_ms)
            .headers(headers);
        producer.send(sending, QUEUE_LIMIT).await.map(|_| ()).map_err(|(error, _)| error)
    }

    /// Halves the value until the dead-letter topic takes it.
    async fn bury(&self, record: &Record, parting: &Parting) -> Result<(), SendError> {
        let mut kept = record.value.len();
        loop {
            let letter = letter(record, parting, kept);
            match self.write(&self.alone, &self.dlq_topic, &letter, &record.value[..kept]).await {
                Err(error) if is_too_large(&error) && kept > 0 => {
                    // Below a kilobyte the value is not what makes it too large.
                    kept = if kept > 1_024 { kept / 2 } else { 0 };
                }
                outcome => return outcome.map_err(|error| verdict(&self.alone, &error)),
            }
        }
    }
}

/// The record without its value, with headers that say why it is here.
fn letter(record: &Record, parting: &Parting, kept: usize) -> Record {
    let mut headers = record.headers.clone();
    let mut ours = |name: &str, value: String| headers.push((format!("{PREFIX}{name}"), value));
    ours("motivo", parting.by.code().to_owned());
    ours("mensagem", parting.cause.chars().take(MESSAGE_CHARS).collect());
    ours("topico", record.topic.to_string());
    ours("timestamp", record.timestamp_ms.to_string());
    ours("tentativas", parting.attempts.to_string());
    if kept < record.value.len() {
        ours("truncado", "true".to_owned());
        ours("tamanho", record.value.len().to_string());
        ours("sha256", super::dead_letter::hex(&Sha256::digest(&record.value)));
    }
    Record { headers, value: Vec::new(), key: record.key.clone(), ..record.clone() }
}

impl Broker for KafkaOutbox {
    fn send(&self, record: Arc<Record>) -> BoxFuture<'static, Result<(), SendError>> {
        let this = self.clone();
        async move { this.deliver(&record).await }.boxed()
    }

    fn park(&self, record: Arc<Record>, parting: Parting) -> BoxFuture<'static, Result<(), SendError>> {
        let this = self.clone();
        async move { this.bury(&record, &parting).await }.boxed()
    }

    fn forget(&self) {
        for producer in [&self.together, &self.alone] {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge)
    )
}

/// Only what speaks about the record itself is a refusal; everything else may pass, and is waited for.
fn verdict(producer: &FutureProducer<Quiet>, error: &KafkaError) -> SendError {
    use RDKafkaErrorCode as Code;
    if let Some((code, reason)) = producer.client().fatal_error() {
        return SendError::Fatal(format!("{code}: {reason}"));
    }
    let code = error.rdkafka_error_code();
    let cause = code.map_or_else(|| error.to_string(), |code| code.to_string());
    match code {
        Some(
            Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidRecord
            | Code::InvalidTimestamp
            | Code::InvalidMessageSize
            | Code::PolicyViolation,
        ) => SendError::Refused { by: RefusedBy::Broker, cause },
        _ => SendError::Away(cause),
    }
}

/// The producers' own lines go to the log; their errors reach the relay with the record they belong to.
#[derive(Clone, Debug)]
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the relay's producer is in trouble; its records wait");
    }
}
