//! The sections with fixed keys: Kafka, Postgres, HTTP, batches, sweeps, replays.

use std::net::SocketAddr;
use std::time::Duration;

use url::Url;

use super::properties;
use super::reader::{Reader, Section, shown};
use super::schema::keys_of;
use super::secret::Secret;
use super::{Archive, Batch, DEFAULT_ADDRESS, HOUR, Http, Kafka, LostOffset, Postgres, Replay, Sweep};

/// Groups of this beginning belong to replays.
pub const REPLAY_GROUP_PREFIX: &str = "replay-";

/// Kafka's own limit for topic names.
const TOPIC_NAME_MAX: usize = 249;
/// One for the session lock, one for the sweeper and one for batches: fewer and they wait for one another.
const CONNECTIONS_MIN: u32 = 3;
const CONNECTIONS_MAX: u32 = 1_000;
/// Beyond this a batch gains nothing and its statements grow too large to be retried in halves.
const BATCH_MAX: usize = 4_096;
const SLOTS_MAX: usize = 4_096;

/// `None` only where a problem was recorded.
pub(super) fn kafka(reader: &mut Reader<'_>) -> Option<Kafka> {
    let mut section = reader.section("kafka", keys_of("kafka"));
    let brokers = section.required_text("brokers", "127.0.0.1:9092");
    if let Some(what) = brokers.as_deref().and_then(broker_fault) {
        section.reject("brokers", what, "write host:port, several separated by commas");
    }
    let topic = topic(&mut section, "topico", "pedido.pago");
    let dlq_topic = dead_letter_topic(&mut section, "topico_dlq", &topic);
    let group = with_default(&mut section, "grupo", "comissao");
    if group.starts_with(REPLAY_GROUP_PREFIX) {
        let what = format!("{group:?} would be taken for a replay's group (invariant I5)");
        section.reject("grupo", what, format!("use a name that does not start with {REPLAY_GROUP_PREFIX}"));
    }
    let words = [LostOffset::Stop, LostOffset::Advance].map(|choice| (choice.as_str(), choice));
    let lost_offset = section.choice("offset_perdido", LostOffset::Stop, &words);
    let registry_url = section.text("registro_url").map(Secret::new);
    if let Some(url) = &registry_url
        && !Url::parse(url.expose()).is_ok_and(|url| matches!(url.scheme(), "http" | "https"))
    {
        section.reject("registro_url", "is not an http address", "use https://registry.example");
    }
    let instance = section.text("instancia");
    let properties = properties::read(&mut section);
    if instance.is_some() && properties.get("group.protocol").is_some_and(|protocol| protocol == "consumer") {
        let what = "after a kill, group.protocol = consumer refuses the same instance until its old session has \
                    ended: restarts fail until then";
        section.warn("instancia", what, "use group.protocol = classic with instancia, or remove instancia");
    }
    Some(Kafka {
        brokers: brokers?,
        topic,
        group,
        dlq_topic,
        instance,
        lost_offset,
        registry_url,
        properties,
    })
}

fn with_default(section: &mut Section<'_, '_>, key: &str, default: &str) -> String {
    section.text(key).unwrap_or_else(|| default.to_owned())
}

pub(super) fn topic(section: &mut Section<'_, '_>, key: &str, default: &str) -> String {
    let name = with_default(section, key, default);
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if name.len() > TOPIC_NAME_MAX || matches!(name.as_str(), "." | "..") || !name.bytes().all(legal) {
        let remedy = format!("use up to {TOPIC_NAME_MAX} letters, digits, dots, underscores and dashes");
        section.reject(key, "is not a topic name", remedy);
    }
    name
}

/// The dead-letter topic in `key`: by default the topic's own name and `.dlq`.
pub(super) fn dead_letter_topic(section: &mut Section<'_, '_>, key: &str, topic_name: &str) -> String {
    let derived = format!("{topic_name}.dlq");
    if section.get(key).is_none() {
        if topic_name.len() <= TOPIC_NAME_MAX && derived.len() > TOPIC_NAME_MAX {
            section.reject(key, "would be too long a name for a topic", "set it to a shorter one");
        }
        return derived;
    }
    let name = topic(section, key, &derived);
    if name == topic_name {
        section.reject(key, "is the topic itself: dead letters would be read again", "use another topic");
    }
    name
}

fn broker_fault(brokers: &str) -> Option<String> {
    brokers.split(',').map(str::trim).find_map(|broker| {
        // librdkafka takes PLAINTEXT://host:port too.
        let address = broker.split_once("://").map_or(broker, |(_, address)| address);
        let bare_ipv6 = address.ends_with(']');
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !bare_ipv6 => (host, Some(port)),
            _ => (address, None),
        };
        let good_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        let good = !host.is_empty() && !host.contains(['/', '@', ' ']) && good_port;
        (!good).then(|| format!("{broker:?} is not an address"))
    })
}

/// `None` only where a problem was recorded.
pub(super) fn postgres(reader: &mut Reader<'_>) -> Option<Postgres> {
    let mut section = reader.section("postgres", keys_of("postgres"));
    if section.get("url").is_none() && section.get("url_arquivo").is_none() {
        section.required_text("url", "postgres://user@host:5432/database");
    }
    let url = section.secret(Some("url"), "url_arquivo");
    let max_connections = connections(&mut section, 8);
    let url = url?;
    let remedy = "use postgres://user:password@host:5432/database";
    match Url::parse(url.expose()) {
        Err(error) => section.reject("url", format!("is not an address: {error}"), remedy),
        Ok(parsed) if !matches!(parsed.scheme(), "postgres" | "postgresql") => {
            section.reject("url", "is not the address of a Postgres", remedy);
        }
        Ok(_) => {}
    }
    Some(Postgres { url, max_connections })
}

fn connections(section: &mut Section<'_, '_>, default: u32) -> u32 {
    section.integer("max_conexoes", &(CONNECTIONS_MIN..=CONNECTIONS_MAX)).unwrap_or(default)
}

pub(super) fn http(reader: &mut Reader<'_>) -> Http {
    let mut section = reader.section("http", keys_of("http"));
    let address = address(&mut section);
    let token_given = section.get("token_arquivo").is_some();
    let token = section.secret(None, "token_arquivo");
    if !address.ip().is_loopback() && !token_given {
        let what = format!("{address} can be reached from other machines, and no token guards business data");
        section.reject("endereco", what, "set http.token_arquivo, or listen on 127.0.0.1");
    }
    let behind_proxy = section.flag("atras_de_proxy");
    if !address.ip().is_loopback() && token_given && !behind_proxy {
        let what = format!("{address} is served without encryption: the token can be read on the way");
        let remedy =
            "end TLS in a proxy or mesh before it and set http.atras_de_proxy = true, or listen on 127.0.0.1";
        section.warn("endereco", what, remedy);
    }
    Http { address, token, behind_proxy }
}

fn address(section: &mut Section<'_, '_>) -> SocketAddr {
    let Some(value) = section.get("endereco") else { return DEFAULT_ADDRESS };
    value.as_str().and_then(|text| text.trim().parse().ok()).unwrap_or_else(|| {
        let remedy = format!("write an IP address and a port, as \"{DEFAULT_ADDRESS}\"");
        section.reject("endereco", format!("{} cannot be used", shown(value)), remedy);
        DEFAULT_ADDRESS
    })
}

pub(super) fn batch(reader: &mut Reader<'_>) -> Batch {
    let mut section = reader.section("lote", keys_of("lote"));
    Batch { max_events: section.integer("max_eventos", &(1..=BATCH_MAX)).unwrap_or(512) }
}

/// `None` only where a problem was recorded.
pub(super) fn sweep(reader: &mut Reader<'_>) -> Option<Sweep> {
    let mut section = reader.section("varredura", keys_of("varredura"));
    let allowed = Duration::from_millis(100)..=HOUR;
    Some(Sweep { interval: section.duration("intervalo", Duration::from_secs(5), &allowed)? })
}

pub(super) fn replay(reader: &mut Reader<'_>, live_connections: u32) -> Replay {
    let mut section = reader.section("replay", keys_of("replay"));
    Replay {
        slots: section.integer("concorrencia", &(1..=SLOTS_MAX)),
        max_connections: connections(&mut section, live_connections),
    }
}

pub(super) fn archive(reader: &mut Reader<'_>, live_group: &str) -> Archive {
    let mut section = reader.section("arquivo", keys_of("arquivo"));
    // One made of live's name is as good as that, which is checked where it is given.
    let Some(group) = section.text("grupo") else {
        return Archive { group: format!("{live_group}-arquivo") };
    };
    if group == live_group {
        let what = format!("{group:?} is live's group: the two would divide the partitions between them");
        section.reject("grupo", what, "give the archive a group of its own");
    } else if section.get("grupo").is_some() && group.starts_with(REPLAY_GROUP_PREFIX) {
        // One that is derived from live's group is that group's problem, told there.
        let what = format!("{group:?} would be taken for a replay's group (invariant I5)");
        section.reject("grupo", what, "choose a name that does not begin so");
    }
    Archive { group }
}
