//! The sections of the order side: `[orders]`, `[outbox]`, `[inbox]`, `[projections]`, `[saga]`, `[windows]`.

use std::time::Duration;

use url::Url;

use super::reader::Reader;
use super::schema::keys_of;
use super::secret::Secret;
use super::sections::{dead_letter_topic, topic};
use super::{DAY, HOUR, Kafka};

/// More relay workers than this gain nothing: they share one broker and 64 buckets.
const WORKERS_MAX: usize = 32;
/// Beyond this a batch only makes repeats after a kill longer.
const BATCH_MAX: usize = 10_000;
/// A transaction of a projection holds so many events in memory.
const EVENTS_MAX: u32 = 10_000;
const ATTEMPTS_MAX: u32 = 1_000;
const SNAPSHOT_MAX: u32 = 100_000;
/// A million, in cents.
const FEE_MAX: i64 = 100_000_000;

/// `[orders]`
#[derive(Debug, Clone)]
pub struct Orders {
    pub topic: String,
    pub dlq_topic: String,
    pub format: Format,
    /// `registry_url`, else `kafka.registro_url`. Always there when the section is and `format` is Avro.
    pub registry_url: Option<Secret>,
    /// A snapshot after so many events.
    pub snapshot_every: u32,
    /// `CourierAssigned` is published in its first form too, for consumers that are not ready for the second.
    pub courier_assigned_v1: bool,
    /// Messages `pedido.*` of other systems, taken as commands; absent: none are.
    pub foreign_topic: Option<String>,
    pub foreign_group: String,
}

/// `orders.format`: how the order side writes its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Avro,
    Json,
}

impl Format {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Avro => "avro",
            Self::Json => "json",
        }
    }
}

/// `[outbox]`
#[derive(Debug, Clone)]
pub struct Outbox {
    pub publisher: Publisher,
    pub workers: usize,
    /// Behind the hint: the longest a message waits whose hint was lost.
    pub poll_interval: Duration,
    /// Rows read, sent and marked together.
    pub batch: usize,
    /// Refusals of one message by the broker until it is parked.
    pub max_attempts: u32,
    /// Published rows are kept so long, and then until their day is over.
    pub retention: Duration,
}

/// `outbox.publisher`: who reads the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publisher {
    /// Our own relay.
    Relay,
    /// Debezium, by logical replication; the relay then only looks after the table.
    Cdc,
}

impl Publisher {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Cdc => "cdc",
        }
    }
}

/// `[inbox]`
#[derive(Debug, Clone)]
pub struct Inbox {
    /// A repetition is recognised for so long after the message was handled.
    pub retention: Duration,
}

/// `[windows]`
#[derive(Debug, Clone)]
pub struct Windows {
    pub heartbeats_topic: String,
    pub status_topic: String,
    /// What is later is in no window, and listed.
    pub allowed_lateness: Duration,
    pub courier_offline_after: Duration,
    /// Consumer groups: this name with `-kpi` and `-couriers` behind it.
    pub group: String,
    /// Windows, and what recognises repetitions, are kept so long.
    pub retention: Duration,
}

/// `[saga]`
#[derive(Debug, Clone)]
pub struct Saga {
    /// Sagas that this process takes a step of at the same time.
    pub workers: usize,
    pub poll_interval: Duration,
    /// A step that has not come to an end within it is not begun any more; what it did is undone.
    pub step_deadline: Duration,
    pub backoff_initial: Duration,
    pub backoff_max: Duration,
    /// What a courier is charged for an order.
    pub fee_cents: i64,
}

/// `[projections]`
#[derive(Debug, Clone)]
pub struct Projections {
    /// Events of one transaction.
    pub batch: u32,
    /// Behind the hint: the longest an event waits whose hint was lost.
    pub poll_interval: Duration,
}

pub(super) fn orders(reader: &mut Reader<'_>, kafka: Option<&Kafka>) -> Orders {
    let present = reader.layers.root.contains_key("orders");
    let mut section = reader.section("orders", keys_of("orders"));
    let name = topic(&mut section, "topic", "orders.events");
    if kafka.is_some_and(|kafka| kafka.topic == name) {
        section.reject("topic", "is the applier's topic (kafka.topico)", "use a topic of its own");
    }
    let dlq_topic = dead_letter_topic(&mut section, "dlq_topic", &name);
    let words = [Format::Avro, Format::Json].map(|format| (format.as_str(), format));
    let format = section.choice("format", Format::Avro, &words);
    let own = section.text("registry_url").map(Secret::new);
    if let Some(url) = &own
        && !Url::parse(url.expose()).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
    {
        section.reject("registry_url", "is not an http address", "use https://registry.example");
    }
    let registry_url = own.or_else(|| kafka.and_then(|kafka| kafka.registry_url.clone()));
    if present && format == Format::Avro && registry_url.is_none() {
        let remedy = "set orders.registry_url (or kafka.registro_url), or orders.format = \"json\"";
        section.reject("registry_url", "is missing: Avro needs a schema registry", remedy);
    }
    let snapshot_every = section.integer("snapshot_every", &(1..=SNAPSHOT_MAX)).unwrap_or(50);
    let courier_assigned_v1 =
        section.choice("courier_assigned_v1", false, &[("omit", false), ("publish", true)]);
    let foreign_topic = section.text("foreign_topic").and_then(|foreign| {
        let ours = [Some(name.as_str()), kafka.map(|kafka| kafka.topic.as_str())];
        if ours.contains(&Some(foreign.as_str())) {
            let remedy = "use the topic of the other system; ours would come back as commands";
            section.reject("foreign_topic", "is a topic that the order side itself writes", remedy);
            return None;
        }
        Some(foreign)
    });
    let foreign_group = section.text("foreign_group").unwrap_or_else(|| "orders-foreign".to_owned());
    Orders {
        topic: name,
        dlq_topic,
        format,
        registry_url,
        snapshot_every,
        courier_assigned_v1,
        foreign_topic,
        foreign_group,
    }
}

/// `None` only where a problem was recorded.
pub(super) fn outbox(reader: &mut Reader<'_>) -> Option<Outbox> {
    let mut section = reader.section("outbox", keys_of("outbox"));
    let words = [Publisher::Relay, Publisher::Cdc].map(|publisher| (publisher.as_str(), publisher));
    let publisher = section.choice("publisher", Publisher::Relay, &words);
    let workers = section.integer("workers", &(1..=WORKERS_MAX)).unwrap_or(2);
    let batch = section.integer("batch", &(1..=BATCH_MAX)).unwrap_or(500);
    let max_attempts = section.integer("max_attempts", &(1..=ATTEMPTS_MAX)).unwrap_or(8);
    let polls = Duration::from_millis(10)..=Duration::from_mins(1);
    let poll_interval = section.duration("poll_interval", Duration::from_millis(200), &polls);
    let retention = section.duration("retention", 2 * DAY, &(HOUR..=365 * DAY));
    Some(Outbox {
        publisher,
        workers,
        poll_interval: poll_interval?,
        batch,
        max_attempts,
        retention: retention?,
    })
}

/// `None` only where a problem was recorded.
pub(super) fn inbox(reader: &mut Reader<'_>) -> Option<Inbox> {
    let mut section = reader.section("inbox", keys_of("inbox"));
    Some(Inbox { retention: section.duration("retention", 2 * DAY, &(HOUR..=365 * DAY))? })
}

/// `None` only where a problem was recorded.
pub(super) fn windows(reader: &mut Reader<'_>) -> Option<Windows> {
    let mut section = reader.section("windows", keys_of("windows"));
    let heartbeats_topic = topic(&mut section, "heartbeats_topic", "courier.heartbeats");
    let status_topic = topic(&mut section, "status_topic", "courier.status");
    if heartbeats_topic == status_topic {
        section.reject("status_topic", "is the topic of heartbeats too", "use a topic of its own");
    }
    let group = section.text("group").unwrap_or_else(|| "reprise-windows".to_owned());
    let allowed_lateness =
        section.duration("allowed_lateness", Duration::from_mins(2), &(Duration::ZERO..=7 * DAY));
    let silences = Duration::from_secs(1)..=DAY;
    let offline = section.duration("courier_offline_after", Duration::from_mins(10), &silences);
    let retention = section.duration("retention", 90 * DAY, &(DAY..=3_650 * DAY));
    Some(Windows {
        heartbeats_topic,
        status_topic,
        allowed_lateness: allowed_lateness?,
        courier_offline_after: offline?,
        group,
        retention: retention?,
    })
}

/// `None` only where a problem was recorded.
pub(super) fn saga(reader: &mut Reader<'_>) -> Option<Saga> {
    let mut section = reader.section("saga", keys_of("saga"));
    let workers = section.integer("workers", &(1..=WORKERS_MAX)).unwrap_or(4);
    let fee_cents = section.integer("fee_cents", &(0..=FEE_MAX)).unwrap_or(500);
    let polls = Duration::from_millis(10)..=Duration::from_mins(1);
    let poll_interval = section.duration("poll_interval", Duration::from_millis(100), &polls);
    let deadlines = Duration::from_millis(100)..=30 * DAY;
    let step_deadline = section.duration("step_deadline", Duration::from_mins(15), &deadlines);
    let backoffs = Duration::from_millis(10)..=HOUR;
    let backoff_initial = section.duration("backoff_initial", Duration::from_millis(200), &backoffs);
    let backoff_max = section.duration("backoff_max", Duration::from_mins(1), &backoffs);
    Some(Saga {
        workers,
        poll_interval: poll_interval?,
        step_deadline: step_deadline?,
        backoff_initial: backoff_initial?,
        backoff_max: backoff_max?,
        fee_cents,
    })
}

/// `None` only where a problem was recorded.
pub(super) fn projections(reader: &mut Reader<'_>) -> Option<Projections> {
    let mut section = reader.section("projections", keys_of("projections"));
    let batch = section.integer("batch", &(1..=EVENTS_MAX)).unwrap_or(1_000);
    let polls = Duration::from_millis(10)..=Duration::from_mins(1);
    let poll_interval = section.duration("poll_interval", Duration::from_millis(100), &polls)?;
    Some(Projections { batch, poll_interval })
}
