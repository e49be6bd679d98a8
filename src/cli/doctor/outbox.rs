//! The outbox: what its publisher needs, and a replication slot that nobody reads.

use std::time::Duration;

use super::Check;
use crate::config::{Config, Publisher};
use crate::pg::doctor::{OUTBOX_PUBLICATION, OUTBOX_SLOT, OutboxFacts, outbox_facts};

const WHAT: &str = "outbox cdc";
/// Log held back by a slot; the alert has the same limit.
const LAG_MAX: i64 = 500 * 1024 * 1024;

pub(super) async fn check(config: &Config, limit: Duration) -> Vec<Check> {
    // A database that is away has its own line.
    match outbox_facts(config.postgres.url.expose(), limit).await {
        Ok(facts) => vec![judge(&facts, config.outbox.publisher)],
        Err(_) => Vec::new(),
    }
}

fn judge(facts: &OutboxFacts, publisher: Publisher) -> Check {
    let lag = facts.slot_lag_bytes.unwrap_or(0);
    let lagging = format!("slot {OUTBOX_SLOT} holds back {} MB of the log", lag / 1024 / 1024);
    if publisher == Publisher::Relay {
        if facts.slot_lag_bytes.is_some() && lag > LAG_MAX {
            let remedy = "drop the slot, if the relay is to publish: select pg_drop_replication_slot('reprise_outbox')";
            return Check::warn(WHAT, lagging, remedy);
        }
        return Check::ok(WHAT, "not used: the relay publishes");
    }
    if facts.wal_level != "logical" {
        let detail = format!("wal_level is {}", facts.wal_level);
        return Check::fail(WHAT, detail, "set wal_level = logical and restart the server");
    }
    match facts.publication_fits {
        None => {
            let detail = format!("there is no publication {OUTBOX_PUBLICATION}");
            return Check::fail(WHAT, detail, "run deploy/debezium/publication.sql");
        }
        Some(false) => {
            let detail = format!(
                "publication {OUTBOX_PUBLICATION} is not for inserts under the name of the whole table"
            );
            return Check::fail(WHAT, detail, "drop it and run deploy/debezium/publication.sql");
        }
        Some(true) => {}
    }
    let Some(active) = facts.slot_active else {
        let detail = format!("there is no replication slot {OUTBOX_SLOT}");
        return Check::fail(WHAT, detail, "start the connector of deploy/debezium: it makes the slot");
    };
    if lag > LAG_MAX {
        return Check::warn(WHAT, lagging, "look after the connector before the log fills the disk");
    }
    if !active {
        return Check::warn(WHAT, format!("nobody reads slot {OUTBOX_SLOT}"), "start the connector");
    }
    Check::ok(WHAT, format!("{lagging}, and is read"))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn healthy() -> OutboxFacts {
        OutboxFacts {
            wal_level: "logical".to_owned(),
            publication_fits: Some(true),
            slot_active: Some(true),
            slot_lag_bytes: Some(1_048_576),
        }
    }

    #[test]
    fn what_cdc_needs_is_asked_for_only_where_cdc_publishes() {
        let found = judge(&healthy(), Publisher::Cdc);
        let detail = "slot reprise_outbox holds back 1 MB of the log, and is read";
        assert_eq!((found.status, found.detail.as_str()), (Status::Ok, detail));
        let bare = OutboxFacts {
            wal_level: "replica".into(),
            publication_fits: None,
            slot_active: None,
            slot_lag_bytes: None,
        };
        assert_eq!(judge(&bare, Publisher::Relay).status, Status::Ok);
        assert_eq!(judge(&bare, Publisher::Cdc).detail, "wal_level is replica");
    }

    #[test]
    fn a_slot_that_holds_back_more_than_500_mb_is_warned_of_whoever_publishes() {
        let lagging = OutboxFacts { slot_lag_bytes: Some(524_288_001), ..healthy() };
        for publisher in [Publisher::Relay, Publisher::Cdc] {
            let found = judge(&lagging, publisher);
            let detail = "slot reprise_outbox holds back 500 MB of the log";
            assert_eq!((found.status, found.detail.as_str()), (Status::Warn, detail));
        }
    }
}
