//! The database: reachable, writable, durable, and with room for our connections.

use std::time::Duration;

use super::Check;
use crate::config::{Postgres, redacted_url};
use crate::pg::doctor::{Facts, facts};

/// The oldest major version that the statements are tested with.
const VERSION_MIN: i32 = 15;

pub(super) async fn check(postgres: &Postgres, limit: Duration) -> Vec<Check> {
    match facts(postgres.url.expose(), limit).await {
        Ok(facts) => judge(&facts, postgres.max_connections),
        Err(error) => {
            let address = redacted_url(postgres.url.expose());
            vec![Check::fail("postgres", format!("{address}: {error}"), "check postgres.url and the network")]
        }
    }
}

fn judge(facts: &Facts, wanted: u32) -> Vec<Check> {
    vec![
        Check::ok("postgres", format!("{} as {}", facts.database, facts.role)),
        version(facts),
        writable(facts),
        durable(facts),
        connections(facts, wanted),
        rights(facts),
    ]
}

fn version(facts: &Facts) -> Check {
    if facts.version_number / 10_000 < VERSION_MIN {
        let remedy = format!("use Postgres {VERSION_MIN} or newer");
        return Check::warn(
            "postgres version",
            format!("{} is older than what is tested", facts.version),
            remedy,
        );
    }
    Check::ok("postgres version", &facts.version)
}

fn writable(facts: &Facts) -> Check {
    let what = "postgres writes";
    if facts.in_recovery {
        return Check::fail(what, "this server is a standby", "point postgres.url at the primary");
    }
    if facts.read_only {
        let remedy = "set default_transaction_read_only = off for the role or the database";
        return Check::fail(what, "transactions are read only by default", remedy);
    }
    Check::ok(what, "accepted")
}

/// A reservation that the database forgets is a call made twice.
fn durable(facts: &Facts) -> Check {
    let what = "postgres durability";
    if !facts.fsync {
        let detail = "fsync is off: a crash can forget that a provider was called";
        return Check::fail(what, detail, "set fsync = on");
    }
    if facts.synchronous_commit == "off" {
        let detail = "synchronous_commit is off: a crash can forget that a provider was called";
        return Check::fail(what, detail, "set synchronous_commit = on for the role or the database");
    }
    if !facts.full_page_writes {
        let detail = "full_page_writes is off: a crash can tear pages";
        return Check::warn(what, detail, "set full_page_writes = on, unless the file system rules that out");
    }
    Check::ok(what, format!("fsync on, synchronous_commit {}", facts.synchronous_commit))
}

fn connections(facts: &Facts, wanted: u32) -> Check {
    let what = "postgres connections";
    let wanted = i64::from(wanted);
    let room = i64::from(facts.max_connections) - i64::from(facts.reserved_connections);
    let detail =
        format!("postgres.max_conexoes {wanted}, the server takes {room}, {} in use", facts.used_connections);
    let remedy = "lower postgres.max_conexoes or raise the server's max_connections";
    if wanted > room {
        Check::fail(what, detail, remedy)
    } else if wanted + facts.used_connections > room {
        Check::warn(what, detail, remedy)
    } else {
        Check::ok(what, detail)
    }
}

fn rights(facts: &Facts) -> Check {
    if facts.may_create {
        return Check::ok("postgres rights", "may create tables");
    }
    let detail = format!("{} may not create tables in its schema", facts.role);
    Check::warn(
        "postgres rights",
        detail,
        "run reprise migrate as another role, or grant create on the schema",
    )
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    fn healthy() -> Facts {
        Facts {
            version: "16.3".to_owned(),
            version_number: 160_003,
            database: "reprise".to_owned(),
            role: "app".to_owned(),
            in_recovery: false,
            read_only: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            max_connections: 100,
            reserved_connections: 3,
            used_connections: 10,
            may_create: true,
        }
    }

    fn statuses(facts: &Facts, wanted: u32) -> Vec<(String, Status)> {
        judge(facts, wanted)
            .into_iter()
            .filter(|c| c.status != Status::Ok)
            .map(|c| (c.subject, c.status))
            .collect()
    }

    fn only(check: &str, status: Status) -> Vec<(String, Status)> {
        vec![(check.to_owned(), status)]
    }

    #[test]
    fn a_healthy_server_passes() {
        assert_eq!(statuses(&healthy(), 8), []);
    }

    #[test]
    fn what_makes_reservations_forgettable_fails() {
        let lazy = Facts { synchronous_commit: "off".to_owned(), ..healthy() };
        assert_eq!(statuses(&lazy, 8), only("postgres durability", Status::Fail));
        assert_eq!(
            statuses(&Facts { fsync: false, ..healthy() }, 8),
            only("postgres durability", Status::Fail)
        );
        let torn = Facts { full_page_writes: false, ..healthy() };
        assert_eq!(statuses(&torn, 8), only("postgres durability", Status::Warn));
    }

    #[test]
    fn what_cannot_be_written_fails() {
        assert_eq!(
            statuses(&Facts { in_recovery: true, ..healthy() }, 8),
            only("postgres writes", Status::Fail)
        );
        assert_eq!(
            statuses(&Facts { read_only: true, ..healthy() }, 8),
            only("postgres writes", Status::Fail)
        );
    }

    #[test]
    fn our_connections_must_fit() {
        assert_eq!(statuses(&healthy(), 87), []);
        assert_eq!(statuses(&healthy(), 88), only("postgres connections", Status::Warn));
        assert_eq!(statuses(&healthy(), 98), only("postgres connections", Status::Fail));
    }

    #[test]
    fn old_versions_and_missing_rights_are_warnings() {
        let old = Facts { version_number: 140_011, ..healthy() };
        assert_eq!(statuses(&old, 8), only("postgres version", Status::Warn));
        assert_eq!(
            statuses(&Facts { may_create: false, ..healthy() }, 8),
            only("postgres rights", Status::Warn)
        );
    }
}
