//! The dead-letter topic: the original record byte for byte, with one set of headers of ours.
//!
//! `publish` resolves with the broker's acknowledgement of all in-sync replicas, or says that nothing durable is
//! known. No partition is chosen for it: a topic with one partition serves a source of twelve. Each record travels
//! alone, so a refusal for size is about that record and never hits a neighbour.
//!
//! Too large for the broker: the value is halved until it fits, then large headers go, then all original headers,
//! then the key; size and digest of the whole value stay. Not here: the index row, and when to try again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::assignment::log_line;
use super::consumer::StreamFailure;
use super::settings::concerns_connection;
use crate::applier::intake::{DeadLetter, DeadLetterTopic, PublishError};

/// Every header of ours begins with it; an earlier trip's are replaced.
pub const PREFIX: &str = "reprise-dlq-";

/// Until the record is given up and the caller decides; the client retries inside.
const DELIVERY_LIMIT: &str = "10000";
/// While the producer's own queue is full.
const QUEUE_LIMIT: Duration = Duration::from_secs(10);
/// Headers above this go first when a record does not fit.
const LARGE_HEADER: usize = 1024;
/// `mensagem` is for people; a provider's answer in it may be long.
const MESSAGE_CHARS: usize = 1000;

#[derive(Clone)]
pub struct KafkaDeadLetters {
    producer: FutureProducer<Quiet>,
    topic: Arc<str>,
    /// Header `reprise-dlq-grupo`.
    group: Arc<str>,
}

impl KafkaDeadLetters {
    /// `properties` are `kafka.propriedades`; only those about the connection count here.
    pub fn new(
        brokers: &str,
        topic: &str,
        group: &str,
        properties: &BTreeMap<String, String>,
    ) -> Result<Self, StreamFailure> {
        let mut config = ClientConfig::new();
        config.set("client.id", "reprise-dlq");
        for (key, value) in properties.iter().filter(|(key, _)| concerns_connection(key)) {
            config.set(key, value);
        }
        config
            .set("bootstrap.servers", brokers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // The broker's limit decides, not ours.
            .set("message.max.bytes", "67108864")
            // Alone in its batch: a batch is refused as a whole.
            .set("batch.num.messages", "1")
            .set("linger.ms", "0")
            .set("compression.type", "none")
            .set("delivery.timeout.ms", DELIVERY_LIMIT)
            // A topic that was away is noticed again within this time.
            .set("topic.metadata.refresh.interval.ms", "2000")
            .set("topic.metadata.propagation.max.ms", "5000");
        let producer = FutureProducer::from_config_and_context(&config, Quiet)
            .map_err(|error| StreamFailure::Client { cause: error.to_string() })?;
        Ok(Self { producer, topic: Arc::from(topic), group: Arc::from(group) })
    }

    async fn publish_fitting(&self, letter: &DeadLetter) -> Result<(), PublishError> {
        let mut cut = Cut::whole(letter);
        loop {
            let Err(error) = self.send(letter, &cut).await else { return Ok(()) };
            let next = if is_too_large(&error) { cut.smaller(letter) } else { None };
            let Some(smaller) = next else { return Err(self.failure(&error)) };
            cut = smaller;
        }
    }

    async fn send(&self, letter: &DeadLetter, cut: &Cut) -> Result<(), KafkaError> {
        let mut headers = OwnedHeaders::new_with_capacity(letter.raw.headers.len() + 14);
        for (key, value) in all_headers(letter, &self.group, cut) {
            headers = headers.insert(Header { key: &key, value: value.as_deref() });
        }
        let payload = letter.raw.value.as_ref().map(|value| &value[..cut.value.min(value.len())]);
        let key = if cut.extras == Extras::NoKey { None } else { letter.raw.key.as_deref() };
        let mut record: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(&self.topic).headers(headers);
        record.payload = payload;
        record.key = key;
        match self.producer.send(record, QUEUE_LIMIT).await {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error),
        }
    }

    fn failure(&self, error: &KafkaError) -> PublishError {
        if let Some((code, reason)) = self.producer.client().fatal_error() {
            return PublishError::Fatal { cause: format!("{code}: {reason}") };
        }
        let cause = error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string());
        PublishError::Away { topic: self.topic.to_string(), cause }
    }
}

impl DeadLetterTopic for KafkaDeadLetters {
    fn publish(&self, letter: Arc<DeadLetter>) -> BoxFuture<'static, Result<(), PublishError>> {
        let this = self.clone();
        async move { this.publish_fitting(&letter).await }.boxed()
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::MessageBatchTooLarge)
    )
}

/// What is left of the original beside its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extras {
    All,
    SmallHeaders,
    NoHeaders,
    NoKey,
}

/// How much of a record is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Bytes of the value.
    value: usize,
    extras: Extras,
    truncated: bool,
}

impl Cut {
    fn whole(letter: &DeadLetter) -> Self {
        Self {
            value: letter.raw.value.as_ref().map_or(0, |value| value.len()),
            extras: Extras::All,
            truncated: false,
        }
    }

    /// The next smaller form, or nothing where nothing is left to cut.
    fn smaller(self, letter: &DeadLetter) -> Option<Self> {
        if self.value > 0 {
            // Below a kilobyte the value is not what makes it too large.
            let value = if self.value > 1024 { self.value / 2 } else { 0 };
            return Some(Self { value, truncated: true, ..self });
        }
        let extras = match self.extras {
            Extras::All => Extras::SmallHeaders,
            Extras::SmallHeaders => Extras::NoHeaders,
            Extras::NoHeaders if letter.raw.key.is_some() => Extras::NoKey,
            Extras::NoHeaders | Extras::NoKey => return None,
        };
        Some(Self { extras, truncated: true, ..self })
    }

    fn keeps(self, value: Option<&[u8]>) -> bool {
        match self.extras {
            Extras::All => true,
            Extras::SmallHeaders => value.is_none_or(|value| value.len() <= LARGE_HEADER),
            Extras::NoHeaders | Extras::NoKey => false,
        }
    }
}

/// The original headers in their order, then ours.
fn all_headers(letter: &DeadLetter, group: &str, cut: &Cut) -> Vec<(String, Option<Vec<u8>>)> {
    let original = letter
        .raw
        .headers
        .iter()
        .filter(|(name, value)| !name.starts_with(PREFIX) && cut.keeps(value.as_deref()));
    let mut headers: Vec<(String, Option<Vec<u8>>)> = original.cloned().collect();
    let mut ours =
        |name: &str, value: String| headers.push((format!("{PREFIX}{name}"), Some(value.into_bytes())));
    ours("motivo", letter.reason.code().to_owned());
    ours("mensagem", letter.message.chars().take(MESSAGE_CHARS).collect());
    ours("topico", letter.raw.topic.to_string());
    ours("particao", letter.raw.partition.to_string());
    ours("offset", letter.raw.offset.to_string());
    if let Some(timestamp) = letter.raw.timestamp_ms {
        ours("timestamp", timestamp.to_string());
    }
    ours("grupo", group.to_owned());
    ours("execucao", letter.run.id.clone());
    ours("tentativas", letter.attempts.to_string());
    if let Some(effect) = &letter.effect_type {
        ours("efeito", effect.clone());
    }
    ours("primeira-falha-em", letter.first_failed_at.to_string());
    if cut.truncated {
        ours("truncado", "true".to_owned());
        if let Some(value) = &letter.raw.value {
            ours("tamanho", value.len().to_string());
            ours("sha256", hex(&Sha256::digest(value)));
        }
    }
    headers
}

pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").unwrap_or_default();
    }
    text
}

/// The producer's own lines go to the log; its errors reach the caller with the record they belong to.
#[derive(Clone, Debug)]
struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        warn!(%error, reason, "dead-letter producer is in trouble; its records wait");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::applier::intake::RawRecord;
    use crate::domain::effect::Run;
    use crate::domain::poison::Reason;

    fn letter(value: Option<&[u8]>, headers: Vec<(&str, Option<&[u8]>)>) -> DeadLetter {
        let headers =
            headers.into_iter().map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))).collect();
        let raw = RawRecord {
            topic: Arc::from("pedido.pago"),
            partition: 7,
            offset: 42,
            timestamp_ms: Some(1_700_000_000_000),
            key: Some(Box::from(&b"k"[..])),
            value: value.map(Box::from),
            headers,
        };
        DeadLetter {
            raw,
            reason: Reason::InvalidJson,
            message: "not an object".into(),
            event_id: None,
            order_id: None,
            effect_type: Some("notificar-vendedor".into()),
            attempts: 3,
            run: Run::live(),
            first_failed_at: "2026-10-14T03:00:00Z".parse().unwrap(),
        }
    }

    fn text(headers: &[(String, Option<Vec<u8>>)]) -> Vec<String> {
        let value = |value: &Option<Vec<u8>>| {
            value.as_ref().map_or("null".to_owned(), |value| String::from_utf8_lossy(value).into_owned())
        };
        headers.iter().map(|(name, bytes)| format!("{name}={}", value(bytes))).collect()
    }

    #[test]
    fn one_set_of_our_headers_follows_the_originals_in_their_order() {
        let letter = letter(
            Some(b"x"),
            vec![
                ("b", None),
                ("a", Some(b"1")),
                ("reprise-dlq-motivo", Some(b"old")),
                ("a", Some(b"1")),
                ("e", Some(b"")),
            ],
        );
        let headers = all_headers(&letter, "comissao", &Cut::whole(&letter));
        assert_eq!(
            text(&headers),
            vec![
                "b=null",
                "a=1",
                "a=1",
                "e=",
                "reprise-dlq-motivo=json-invalido",
                "reprise-dlq-mensagem=not an object",
                "reprise-dlq-topico=pedido.pago",
                "reprise-dlq-particao=7",
                "reprise-dlq-offset=42",
                "reprise-dlq-timestamp=1700000000000",
                "reprise-dlq-grupo=comissao",
                "reprise-dlq-execucao=ao-vivo",
                "reprise-dlq-tentativas=3",
                "reprise-dlq-efeito=notificar-vendedor",
                "reprise-dlq-primeira-falha-em=2026-10-14T03:00:00Z",
            ]
        );
    }

    #[test]
    fn a_cut_record_keeps_size_and_digest_of_the_whole() {
        let letter = letter(Some(b"abc"), vec![]);
        let cut = Cut::whole(&letter).smaller(&letter).unwrap();
        let headers = text(&all_headers(&letter, "g", &cut));
        assert_eq!(
            headers[headers.len() - 3..],
            [
                "reprise-dlq-truncado=true",
                "reprise-dlq-tamanho=3",
                "reprise-dlq-sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            ]
        );
    }

    #[test]
    fn cutting_takes_the_value_by_halves_then_headers_then_the_key_and_ends() {
        let value = vec![0; 4096];
        let letter = letter(Some(&value), vec![]);
        let steps: Vec<_> = std::iter::successors(Some(Cut::whole(&letter)), |cut| cut.smaller(&letter))
            .map(|cut| (cut.value, cut.extras))
            .collect();
        assert_eq!(
            steps,
            vec![
                (4096, Extras::All),
                (2048, Extras::All),
                (1024, Extras::All),
                (0, Extras::All),
                (0, Extras::SmallHeaders),
                (0, Extras::NoHeaders),
                (0, Extras::NoKey),
            ]
        );
    }
}
