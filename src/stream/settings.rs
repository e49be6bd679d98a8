//! What the consumer is told, as typed values, and the client configuration that follows from them.
//!
//! Three layers, later ones win: our defaults, `[kafka.propriedades]`, and what the invariants need. A property of
//! the last layer can be given only with the value it would have anyway; [`refused_properties`] names the others.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;

/// How partitions come to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Subscribes in the group; the group decides.
    Group,
    /// Takes exactly these partitions and joins nothing (dry run).
    Fixed(Vec<i32>),
}

/// Whether settled positions are committed to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    ToGroup,
    /// A dry run leaves no trace.
    Never,
}

#[derive(Debug, Clone)]
pub struct ConsumerSettings {
    /// `kafka.brokers`
    pub brokers: String,
    /// `kafka.topico`
    pub topic: String,
    /// `kafka.grupo`, or the replay's id.
    pub group: String,
    /// `kafka.instancia`: static membership.
    pub instance: Option<String>,
    /// `kafka.propriedades`
    pub properties: BTreeMap<String, String>,
    pub membership: Membership,
    pub commits: Commits,
    /// `lote.max_eventos`: records of one delivery.
    pub max_events: usize,
    /// A lane that lags and yields nothing for so long, with room to deliver, has stalled.
    pub stalled_after: Duration,
}

impl ConsumerSettings {
    /// A group member with the usual limits.
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            brokers: brokers.into(),
            topic: topic.into(),
            group: group.into(),
            instance: None,
            properties: BTreeMap::new(),
            membership: Membership::Group,
            commits: Commits::ToGroup,
            max_events: 512,
            stalled_after: Duration::from_mins(1),
        }
    }

    /// The session timeout the group will apply to us (the broker's own setting under `group.protocol=consumer`,
    /// where this is only a guess).
    pub fn session_timeout(&self) -> Duration {
        let given = self.properties.get("session.timeout.ms").and_then(|value| value.trim().parse().ok());
        Duration::from_millis(given.unwrap_or(SESSION_TIMEOUT_MS))
    }

    /// KIP-848: `group.protocol = "consumer"`.
    pub(super) fn uses_new_protocol(&self) -> bool {
        self.properties.get("group.protocol").map(String::as_str) == Some("consumer")
    }

    /// How long a revocation may wait for calls in flight: the group waits for us meanwhile.
    pub(super) fn revocation_limit(&self) -> Duration {
        (self.session_timeout() / 3).min(Duration::from_secs(3))
    }

    /// How long one look-up of starting offsets may hold the polling thread.
    pub(super) fn lookup_limit(&self) -> Duration {
        (self.session_timeout() / 2).min(Duration::from_secs(3))
    }

    pub(super) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in DEFAULTS {
            config.set(*key, *value);
        }
        config.set("session.timeout.ms", SESSION_TIMEOUT_MS.to_string());
        for (key, value) in &self.properties {
            config.set(key, value);
        }
        for (key, value) in FORCED {
            config.set(*key, *value);
        }
        if self.uses_new_protocol() {
            // KIP-848: the broker assigns, and refuses both keys.
            config.remove("partition.assignment.strategy");
            config.remove("session.timeout.ms");
        } else {
            config.set("partition.assignment.strategy", "cooperative-sticky");
        }
        config.set("bootstrap.servers", &self.brokers).set("group.id", &self.group);
        if let Some(instance) = &self.instance {
            config.set("group.instance.id", instance);
        }
        config
    }
}

/// Small queues keep memory bounded (they count per partition); the short back-off makes them fast all the same:
/// with the default of a second a full queue stops the partition for that second.
const DEFAULTS: &[(&str, &str)] = &[
    ("client.id", "reprise"),
    ("fetch.queue.backoff.ms", "5"),
    ("queued.min.messages", "20000"),
    ("queued.max.messages.kbytes", "1024"),
    ("max.partition.fetch.bytes", "262144"),
    // A look-up of starting offsets waits behind a fetch on the same connection.
    ("fetch.wait.max.ms", "100"),
    // Partitions added to the topic are found within this time.
    ("topic.metadata.refresh.interval.ms", "10000"),
    ("reconnect.backoff.max.ms", "2000"),
    ("socket.keepalive.enable", "true"),
];

/// After a kill the group waits so long for the dead member before its partitions go on (librdkafka: 45 s). Heartbeats
/// come from a thread of the client's own every 3 s, so a busy service is not taken for a dead one.
const SESSION_TIMEOUT_MS: u64 = 9_000;

/// What our invariants rest on.
const FORCED: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),       // only settled positions are committed
    ("enable.auto.offset.store", "false"), // the same
    ("isolation.level", "read_committed"), // aborted records are not events
    ("auto.offset.reset", "error"),        // a lost offset is never jumped over silently
    ("enable.partition.eof", "true"),      // bounded reading ends by position
    ("statistics.interval.ms", "1000"),    // lag and the stall watch
];

/// Owned by other settings, and therefore not free in `[kafka.propriedades]`.
const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "kafka.brokers"),
    ("metadata.broker.list", "kafka.brokers"),
    ("group.id", "kafka.grupo"),
    ("group.instance.id", "kafka.instancia"),
];

/// Every property that would break an invariant, each with its remedy.
pub fn refused_properties(properties: &BTreeMap<String, String>) -> Vec<String> {
    let forced = FORCED.iter().filter_map(|(key, needed)| {
        let given = properties.get(*key)?;
        (given != needed).then(|| {
            format!(
                "kafka.propriedades: {key} = \"{given}\" is refused, reprise needs \"{needed}\"; remove it"
            )
        })
    });
    let owned = OWNED
        .iter()
        .filter(|(key, _)| properties.contains_key(*key))
        .map(|(key, home)| format!("kafka.propriedades: {key} is refused, set {home} instead"));
    let strategy =
        properties.get("partition.assignment.strategy").filter(|given| *given != "cooperative-sticky");
    let strategy = strategy.map(|given| {
        format!(
            "kafka.propriedades: partition.assignment.strategy = \"{given}\" is refused, reprise needs \"cooperative-sticky\"; remove it"
        )
    });
    forced.chain(owned).chain(strategy).collect()
}

/// Whether a property is about the connection, and so holds for the dead-letter producer as well.
pub(super) fn concerns_connection(key: &str) -> bool {
    const PREFIXES: &[&str] = &[
        "security.",
        "sasl.",
        "ssl.",
        "enable.ssl.",
        "enable.sasl.",
        "socket.",
        "broker.",
        "client.",
        "reconnect.",
        "https.",
        "api.version.",
    ];
    PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, value: &str) -> ConsumerSettings {
        let mut settings = ConsumerSettings::new("127.0.0.1:1", "t", "g");
        settings.properties.insert(key.into(), value.into());
        settings
    }

    #[test]
    fn a_property_overrides_a_default_but_never_an_invariant() {
        let config = with("queued.max.messages.kbytes", "64").client_config();
        assert_eq!(config.get("queued.max.messages.kbytes"), Some("64"));
        let config = with("enable.auto.commit", "true").client_config();
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(config.get("partition.assignment.strategy"), Some("cooperative-sticky"));
    }

    #[test]
    fn the_new_group_protocol_gets_no_assignment_strategy() {
        let config = with("group.protocol", "consumer").client_config();
        assert_eq!(config.get("partition.assignment.strategy"), None);
        assert_eq!(config.get("group.protocol"), Some("consumer"));
    }

    #[test]
    fn every_property_that_breaks_an_invariant_is_refused_by_name() {
        let mut properties = BTreeMap::new();
        properties.insert("enable.auto.commit".to_owned(), "true".to_owned());
        properties.insert("isolation.level".to_owned(), "read_committed".to_owned());
        properties.insert("group.id".to_owned(), "other".to_owned());
        properties.insert("session.timeout.ms".to_owned(), "6000".to_owned());
        assert_eq!(
            refused_properties(&properties),
            vec![
                "kafka.propriedades: enable.auto.commit = \"true\" is refused, reprise needs \"false\"; remove it",
                "kafka.propriedades: group.id is refused, set kafka.grupo instead",
            ]
        );
    }

    #[test]
    fn waits_stay_well_inside_the_session() {
        assert_eq!(with("session.timeout.ms", "6000").revocation_limit(), Duration::from_secs(2));
        assert_eq!(with("x", "y").revocation_limit(), Duration::from_secs(3));
        assert_eq!(with("session.timeout.ms", "4000").lookup_limit(), Duration::from_secs(2));
    }
}
