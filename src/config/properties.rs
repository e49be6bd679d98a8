//! `[kafka.propriedades]`: what may be passed to librdkafka, and what would break an invariant.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::reader::Section;
use super::schema::PROPERTIES;

/// Set by the program itself, with the reason that a person who tries to set them is told. `except` is the one
/// value that changes nothing.
struct Refused {
    name: &'static str,
    except: &'static [&'static str],
    why: &'static str,
}

const fn never(name: &'static str, why: &'static str) -> Refused {
    Refused { name, except: &[], why }
}

const COMMITS: &str = "offsets are committed only below the oldest unsettled event (invariant I4)";
const READS: &str = "only committed records are read (an aborted order must have no effect)";
const FROM_START: &str =
    "a group without offsets starts at the earliest record, or events would be lost (invariant I3)";
const ENDS: &str = "the end of a range is found by it (invariant I5)";
const LANES: &str =
    "partitions move one by one, with cooperative-sticky, so that those that stay are not interrupted";
const ACKS: &str = "an offset passes only when all replicas have its dead letter (invariant I3)";
const REPORTS: &str = "a dead letter counts as written when its delivery is reported (invariant I3)";

const REFUSED: [Refused; 20] = [
    never("bootstrap.servers", "use kafka.brokers"),
    never("metadata.broker.list", "use kafka.brokers"),
    never("group.id", "use kafka.grupo"),
    never("group.instance.id", "use kafka.instancia"),
    Refused { name: "enable.auto.commit", except: &["false"], why: COMMITS },
    Refused { name: "auto.commit.enable", except: &["false"], why: COMMITS },
    Refused { name: "enable.auto.offset.store", except: &["false"], why: COMMITS },
    never("auto.commit.interval.ms", COMMITS),
    never("offset.store.method", COMMITS),
    never("offset.store.path", COMMITS),
    Refused { name: "isolation.level", except: &["read_committed"], why: READS },
    Refused { name: "auto.offset.reset", except: &["earliest"], why: FROM_START },
    never("enable.partition.eof", ENDS),
    Refused { name: "partition.assignment.strategy", except: &["cooperative-sticky"], why: LANES },
    Refused { name: "acks", except: &["all", "-1"], why: ACKS },
    Refused { name: "request.required.acks", except: &["all", "-1"], why: ACKS },
    never("delivery.report.only.error", REPORTS),
    never("transactional.id", REPORTS),
    never("enabled_events", "the client's events are served by the program"),
    never("test.mock.num.brokers", "kafka.brokers would not be used"),
];

/// With `group.protocol = consumer` these belong to the group on the broker, and the client refuses to start.
const CLASSIC_ONLY: [&str; 4] =
    ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy", "group.protocol.type"];

/// Reads the properties and reports each that is refused.
pub(super) fn read(kafka: &mut Section<'_, '_>) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    match kafka.get(PROPERTIES) {
        None => return properties,
        Some(Value::Table(table)) => flatten(table, "", &mut properties, kafka),
        Some(_) => kafka.reject(PROPERTIES, "is not a section", "write it as [kafka.propriedades]"),
    }
    for refused in &REFUSED {
        if let Some(value) = properties.get(refused.name)
            && !refused.except.contains(&value.as_str())
        {
            kafka.reject(&key(refused.name), refused.why, "remove it");
        }
    }
    match properties.get("group.protocol").map(String::as_str) {
        None | Some("classic") => {}
        Some("consumer") => {
            for name in CLASSIC_ONLY.into_iter().filter(|name| properties.contains_key(*name)) {
                let what = "is a setting of the group on the broker with group.protocol = consumer";
                kafka.reject(&key(name), what, "remove it, or use group.protocol = classic");
            }
        }
        Some(_) => kafka.reject(&key("group.protocol"), "is no protocol", "use one of: classic, consumer"),
    }
    properties
}

fn key(property: &str) -> String {
    format!("{PROPERTIES}.{property}")
}

/// `session.timeout.ms = 6000` without quotes is nested tables in TOML; it is meant as one name all the same.
fn flatten(table: &Table, prefix: &str, into: &mut BTreeMap<String, String>, kafka: &mut Section<'_, '_>) {
    for (part, value) in table {
        let name = if prefix.is_empty() { part.clone() } else { format!("{prefix}.{part}") };
        match value {
            Value::Table(inner) => flatten(inner, &name, into, kafka),
            Value::String(text) => {
                into.insert(name, text.clone());
            }
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => {
                into.insert(name, value.to_string());
            }
            Value::Array(_) | Value::Datetime(_) => {
                kafka.reject(&key(&name), "is not a text, a number or a boolean", "write it in quotes");
            }
        }
    }
}
