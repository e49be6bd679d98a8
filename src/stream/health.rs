//! What is known of the partitions, once a second, from the client's own statistics.
//!
//! The stall watch compares position and end: a lane that lags, whose broker answers, and that yields nothing for
//! a minute although there is room, will not come back by itself. While the broker is away nothing is stalled.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// One partition of ours, as last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionFacts {
    pub partition: i32,
    /// First offset not yet handed to the applier.
    pub position: i64,
    /// First offset not yet committed, where one is known.
    pub committed: Option<i64>,
    /// End of the partition for a reader of committed records; absent until the broker told it.
    pub high_watermark: Option<i64>,
    /// Offsets between the committed position (the position, where none is known) and the end; never negative.
    pub lag: Option<i64>,
}

/// Told what happens on the log side. Called on the polling thread: must not block.
pub trait Observer: Send + Sync {
    /// The whole assignment after a change; empty where the group gives this member none.
    fn assigned(&self, partitions: &[i32]);
    /// About once a second, every partition of ours.
    fn facts(&self, facts: &[PartitionFacts]);
    /// No committed offset: this partition is read from its beginning.
    fn started_at_earliest(&self, partition: i32);
    /// Records `from..to` (exclusive) of this partition no longer exist and were passed over.
    fn offsets_lost(&self, partition: i32, from: i64, to: i64);
    fn commit_failed(&self);
}

/// What the statistics say about one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The next offset the client will fetch.
    pub next_fetch: i64,
    /// What the broker confirmed of our commits since this client began.
    pub committed: Option<i64>,
    /// Last stable offset.
    pub end: Option<i64>,
    /// Whether the partition's leader is connected.
    pub leader_up: bool,
}

/// What one report of the client says.
#[derive(Debug, Default)]
pub struct Report {
    pub partitions: HashMap<i32, Seen>,
    /// The coordinator has known us for a while and no partition ever came. (The classic protocol says so in a
    /// callback with no partitions; the newer one says nothing at all.)
    pub nothing_came: bool,
}

/// Takes the client's reports from its callback to the loop.
#[derive(Debug, Default)]
pub struct LatestStatistics(Mutex<Option<Report>>);

/// Some heartbeats of the newer protocol, after which an assignment would have come.
const NOTHING_CAME_MS: i64 = 6_000;

impl LatestStatistics {
    pub fn put(&self, json: &[u8], topic: &str) -> Result<(), serde_json::Error> {
        let report = parse(json, topic)?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        Ok(())
    }

    pub fn take(&self) -> Option<Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Deserialize)]
struct Statistics {
    #[serde(default)]
    brokers: HashMap<String, Broker>,
    #[serde(default)]
    topics: HashMap<String, Topic>,
    cgrp: Option<Group>,
}

#[derive(Deserialize)]
struct Group {
    state: String,
    #[serde(rename = "stateage")]
    state_age_ms: i64,
    join_state: String,
}

#[derive(Deserialize)]
struct Broker {
    nodeid: i32,
    state: String,
}

#[derive(Deserialize)]
struct Topic {
    partitions: HashMap<String, Partition>,
}

#[derive(Deserialize)]
struct Partition {
    #[serde(rename = "partition")]
    id: i32,
    leader: i32,
    next_offset: i64,
    committed_offset: i64,
    ls_offset: i64,
}

fn parse(json: &[u8], topic: &str) -> Result<Report, serde_json::Error> {
    let mut statistics: Statistics = serde_json::from_slice(json)?;
    let brokers = statistics.brokers;
    let up = |node: i32| brokers.values().any(|broker| broker.nodeid == node && broker.state == "UP");
    let partitions = statistics.topics.remove(topic).map(|topic| topic.partitions).unwrap_or_default();
    let nothing_came = statistics.cgrp.is_some_and(|group| {
        group.state == "up" && group.join_state == "init" && group.state_age_ms >= NOTHING_CAME_MS
    });
    // Partition -1 is the client's own bookkeeping.
    let partitions = partitions
        .into_values()
        .filter(|partition| partition.id >= 0)
        .map(|partition| {
            let known = |offset: i64| (offset >= 0).then_some(offset);
            let seen = Seen {
                next_fetch: partition.next_offset,
                committed: known(partition.committed_offset),
                end: known(partition.ls_offset),
                leader_up: up(partition.leader),
            };
            (partition.id, seen)
        })
        .collect();
    Ok(Report { partitions, nothing_came })
}

/// When a lane last showed life.
#[derive(Debug)]
pub struct Pulse {
    since: Instant,
    next_fetch: i64,
}

impl Pulse {
    pub fn new(now: Instant) -> Self {
        Self { since: now, next_fetch: -1 }
    }

    pub fn beat(&mut self, now: Instant) {
        self.since = now;
    }

    /// How long the lane has been silent although it has something to give.
    pub fn silent(&mut self, seen: Seen, position: i64, now: Instant) -> Duration {
        let caught_up = seen.end.is_none_or(|end| position >= end);
        if caught_up || !seen.leader_up || seen.next_fetch != self.next_fetch {
            self.next_fetch = seen.next_fetch;
            self.since = now;
        }
        now.saturating_duration_since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_give_the_last_stable_offset_and_whether_the_leader_is_up() {
        let json = br#"{"brokers":{"a":{"nodeid":1,"state":"UP"},"b":{"nodeid":2,"state":"DOWN"}},"topics":{"t":{"partitions":{
            "0":{"partition":0,"leader":1,"next_offset":7,"committed_offset":5,"ls_offset":9,"hi_offset":12},
            "1":{"partition":1,"leader":2,"next_offset":-1001,"committed_offset":-1001,"ls_offset":-1001},
            "-1":{"partition":-1,"leader":-1,"next_offset":0,"committed_offset":-1001,"ls_offset":0}}}}}"#;
        let seen = parse(json, "t").unwrap().partitions;
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[&0], Seen { next_fetch: 7, committed: Some(5), end: Some(9), leader_up: true });
        assert_eq!(seen[&1], Seen { next_fetch: -1001, committed: None, end: None, leader_up: false });
    }

    #[test]
    fn b46_a_lane_is_silent_only_while_it_lags_and_its_broker_answers() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let lagging = Seen { next_fetch: 5, committed: None, end: Some(9), leader_up: true };
        let mut pulse = Pulse::new(start);
        assert_eq!(pulse.silent(lagging, 5, later(1)), Duration::ZERO);
        assert_eq!(pulse.silent(lagging, 5, later(61)), Duration::from_mins(1));
        assert_eq!(pulse.silent(Seen { leader_up: false, ..lagging }, 5, later(70)), Duration::ZERO);
        assert_eq!(pulse.silent(lagging, 9, later(200)), Duration::ZERO);
        assert_eq!(pulse.silent(Seen { next_fetch: 6, ..lagging }, 5, later(300)), Duration::ZERO);
    }
}
