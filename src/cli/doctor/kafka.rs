//! The log: brokers, topics and the group.

use std::time::Duration;

use super::Check;
use crate::config::{Kafka, LostOffset};
use crate::stream::admin::{Admin, AdminError, GroupState, Partition, Position, TopicSettings};

const DAY_MS: i64 = 86_400_000;
/// What people usually want to rewind over: a month and its closing.
const RETENTION_DAYS_MIN: i64 = 30;

/// An answer, or what was said instead.
type Answer<T> = Result<T, String>;

/// What the brokers answered. Nothing is asked of them once they are known to be away, or with properties that the
/// client does not take.
#[derive(Default)]
pub(super) struct Facts {
    /// What the client says of a property that it does not take.
    property_refused: Option<String>,
    brokers: Option<Answer<Vec<String>>>,
    topic: Option<Answer<Option<Topic>>>,
    dlq: Option<Answer<Option<Topic>>>,
    group: Option<Answer<Option<GroupState>>>,
    positions: Option<Answer<Vec<Position>>>,
}

struct Topic {
    partitions: Vec<Partition>,
    settings: Answer<TopicSettings>,
}

impl Facts {
    /// Blocks for up to a few times `limit`.
    pub fn gather(kafka: &Kafka, limit: Duration) -> Self {
        let mut facts = Self::default();
        let admin = match Admin::connect(kafka, limit) {
            Ok(admin) => admin,
            Err(error) => return Self { property_refused: Some(error.to_string()), ..facts },
        };
        let brokers = said(admin.brokers());
        let away = brokers.is_err();
        facts.brokers = Some(brokers);
        if away {
            return facts;
        }
        let topic = topic(&admin, &kafka.topic);
        if let Ok(Some(found)) = &topic {
            facts.positions = Some(said(admin.positions(&kafka.topic, &found.partitions)));
        }
        facts.topic = Some(topic);
        facts.dlq = Some(self::topic(&admin, &kafka.dlq_topic));
        facts.group = Some(said(admin.group(&kafka.group)));
        facts
    }
}

fn topic(admin: &Admin, name: &str) -> Answer<Option<Topic>> {
    let Some(partitions) = said(admin.partitions(name))? else { return Ok(None) };
    Ok(Some(Topic { partitions, settings: said(admin.topic_settings(name)) }))
}

fn said<T>(answer: Result<T, AdminError>) -> Answer<T> {
    answer.map_err(|error| error.to_string())
}

pub(super) fn judge(facts: &Facts, kafka: &Kafka) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(facts.property_refused.as_ref().map(|error| {
        Check::fail("kafka properties", error, "correct [kafka.propriedades]; the brokers were not asked")
    }));
    checks.extend(facts.brokers.as_ref().map(|answer| match answer {
        Ok(brokers) => Check::ok("kafka brokers", brokers.join(", ")),
        Err(error) => Check::fail(
            "kafka brokers",
            format!("{}: {error}", kafka.brokers),
            "check kafka.brokers, the network, and security.protocol in [kafka.propriedades]",
        ),
    }));
    if let Some(answer) = &facts.topic {
        checks.extend(existence("topic", &kafka.topic, answer));
    }
    if let Some(answer) = &facts.dlq {
        checks.extend(existence("dead-letter topic", &kafka.dlq_topic, answer));
    }
    if let Some(Ok(Some(Topic { settings: Ok(settings), .. }))) = &facts.topic {
        checks.push(retention(settings));
        checks.push(compaction(settings));
        if let Some(Ok(Some(Topic { settings: Ok(dlq), .. }))) = &facts.dlq {
            checks.push(message_size(settings, dlq));
        }
    }
    checks.extend(facts.group.as_ref().map(|answer| group(&kafka.group, answer)));
    checks.extend(facts.positions.as_ref().map(|answer| offsets(answer, kafka.lost_offset)));
    checks
}

fn existence(what: &str, name: &str, answer: &Answer<Option<Topic>>) -> Vec<Check> {
    let create = format!("create it: kafka-topics.sh --create --topic {name}");
    let rights = "let the client describe the topic (ACLs)";
    let topic = match answer {
        Err(error) => return vec![Check::fail(what, format!("{name}: {error}"), rights)],
        Ok(None) => return vec![Check::fail(what, format!("{name} does not exist"), create)],
        Ok(Some(topic)) => topic,
    };
    let without: Vec<String> =
        topic.partitions.iter().filter(|p| !p.has_leader).map(|p| p.id.to_string()).collect();
    let mut checks = vec![if without.is_empty() {
        Check::ok(what, format!("{name}: {} partition(s)", topic.partitions.len()))
    } else {
        let detail = format!("{name}: no leader for partition(s) {}", without.join(", "));
        Check::fail(what, detail, "bring the brokers of these partitions back")
    }];
    if let Err(error) = &topic.settings {
        checks.push(Check::warn(format!("{what} settings"), format!("{name}: {error}"), rights));
    }
    checks
}

fn retention(settings: &TopicSettings) -> Check {
    let what = "topic retention";
    let remedy = "raise retention.ms and retention.bytes, or run reprise archive beside the service";
    if let Some(ms) = settings.retention_ms.filter(|ms| (0..RETENTION_DAYS_MIN * DAY_MS).contains(ms)) {
        let days = ms / DAY_MS;
        return Check::warn(what, format!("{days} day(s): nothing older can be rewound to"), remedy);
    }
    if let Some(bytes) = settings.retention_bytes.filter(|bytes| *bytes >= 0) {
        let detail = format!("{bytes} bytes per partition: records may go before their time");
        return Check::warn(what, detail, remedy);
    }
    let kept = match settings.retention_ms {
        None => "the broker does not say".to_owned(),
        Some(ms) if ms < 0 => "without end".to_owned(),
        Some(ms) => format!("{} day(s)", ms / DAY_MS),
    };
    Check::ok(what, kept)
}

fn compaction(settings: &TopicSettings) -> Check {
    if settings.compacted {
        let detail = "compacted: earlier events of an order vanish, and a replay would not see them";
        return Check::warn(
            "topic compaction",
            detail,
            "use cleanup.policy=delete (replays need --accept-compacted)",
        );
    }
    Check::ok("topic compaction", "none")
}

fn message_size(topic: &TopicSettings, dlq: &TopicSettings) -> Check {
    let what = "dead-letter size";
    match (topic.max_message_bytes, dlq.max_message_bytes) {
        (Some(most), Some(dlq_most)) if most > dlq_most => Check::warn(
            what,
            format!("the topic takes {most} bytes, the dead-letter topic {dlq_most}: larger ones are cut"),
            format!("set max.message.bytes of the dead-letter topic to {most} or more"),
        ),
        (Some(most), Some(dlq_most)) => {
            Check::ok(what, format!("topic {most} bytes, dead letters {dlq_most}"))
        }
        _ => Check::ok(what, "the broker does not say"),
    }
}

fn group(name: &str, answer: &Answer<Option<GroupState>>) -> Check {
    match answer {
        Err(error) => {
            Check::warn("group", format!("{name}: {error}"), "let the client describe the group (ACLs)")
        }
        Ok(None) => Check::ok("group", format!("{name}: not known yet")),
        Ok(Some(group)) => {
            Check::ok("group", format!("{name}: {}, {} member(s)", group.state, group.members))
        }
    }
}

fn offsets(answer: &Answer<Vec<Position>>, lost_offset: LostOffset) -> Check {
    let what = "committed offsets";
    let positions = match answer {
        Err(error) => return Check::fail(what, error, "let the client read the group's offsets (ACLs)"),
        Ok(positions) => positions,
    };
    let lost: Vec<String> = positions
        .iter()
        .filter_map(|p| {
            let committed = p.committed?;
            let gone = if committed < p.low { committed..p.low } else { p.high..committed };
            (!gone.is_empty()).then(|| format!("partition {}: {}-{}", p.partition, gone.start, gone.end - 1))
        })
        .collect();
    if !lost.is_empty() {
        let detail = format!("no longer there: {}", lost.join("; "));
        let remedy =
            "the service stops there: find out what was lost, then set kafka.offset_perdido = \"avancar\"";
        return match lost_offset {
            LostOffset::Stop => Check::fail(what, detail, remedy),
            LostOffset::Advance => {
                Check::warn(what, detail, "these events are passed over (offset_perdido = avancar)")
            }
        };
    }
    let lag: i64 = positions.iter().map(|p| p.high - p.committed.unwrap_or(p.low)).sum();
    match positions.iter().filter(|p| p.committed.is_none()).count() {
        0 => Check::ok(what, format!("{lag} record(s) behind")),
        all if all == positions.len() => {
            Check::ok(what, format!("none: the group starts at the earliest of {lag} record(s)"))
        }
        some => Check::ok(what, format!("{lag} record(s) behind; {some} partition(s) start at the earliest")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn judged(low: i64, high: i64, committed: Option<i64>, on_loss: LostOffset) -> Check {
        offsets(&Ok(vec![Position { partition: 0, low, high, committed }]), on_loss)
    }

    #[test]
    fn a_month_of_records_is_enough_and_less_is_a_warning() {
        let kept = |ms| retention(&TopicSettings { retention_ms: Some(ms), ..TopicSettings::default() });
        assert_eq!(kept(-1), Check::ok("topic retention", "without end"));
        assert_eq!(kept(2_592_000_000), Check::ok("topic retention", "30 day(s)"));
        let week = kept(604_800_000);
        assert_eq!(
            (week.status, week.detail.as_str()),
            (Status::Warn, "7 day(s): nothing older can be rewound to")
        );
        let bounded = TopicSettings {
            retention_ms: Some(-1),
            retention_bytes: Some(1_000),
            ..TopicSettings::default()
        };
        assert_eq!(retention(&bounded).status, Status::Warn);
    }

    #[test]
    fn a_dead_letter_topic_that_takes_less_is_a_warning() {
        let size = |most| TopicSettings { max_message_bytes: Some(most), ..TopicSettings::default() };
        assert_eq!(message_size(&size(2_000_000), &size(1_048_588)).status, Status::Warn);
        assert_eq!(message_size(&size(1_048_588), &size(2_000_000)).status, Status::Ok);
    }

    #[test]
    fn b36_a_committed_offset_that_no_longer_exists_is_named() {
        let stopped = judged(500, 900, Some(200), LostOffset::Stop);
        assert_eq!(
            (stopped.status, stopped.detail.as_str()),
            (Status::Fail, "no longer there: partition 0: 200-499")
        );
        assert_eq!(judged(500, 900, Some(200), LostOffset::Advance).status, Status::Warn);
        let made_anew = judged(0, 10, Some(12), LostOffset::Stop);
        assert_eq!(made_anew.detail, "no longer there: partition 0: 10-11");
        assert_eq!(judged(500, 900, Some(500), LostOffset::Stop).detail, "400 record(s) behind");
        assert_eq!(
            judged(5, 9, None, LostOffset::Stop).detail,
            "none: the group starts at the earliest of 4 record(s)"
        );
    }

    #[test]
    fn a_missing_topic_fails_with_the_command_that_makes_it() {
        let checks = existence("topic", "pedido.pago", &Ok(None));
        let [check] = checks.as_slice() else { panic!("one check") };
        assert_eq!((check.status, check.detail.as_str()), (Status::Fail, "pedido.pago does not exist"));
        assert_eq!(check.remedy, "create it: kafka-topics.sh --create --topic pedido.pago");
    }
}
