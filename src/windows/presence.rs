//! Couriers that are not heard of: sessions of heartbeats, ended by a gap.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::{Clock, Rejected};

/// A heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beat {
    pub courier_id: String,
    pub tenant_id: String,
    pub at: Timestamp,
}

/// What the heartbeats of one courier say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub tenant_id: String,
    pub partition: i32,
    /// In order, each once.
    pub at: Vec<Timestamp>,
}

/// What a batch says, by courier.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub heard: BTreeMap<String, Heard>,
    pub rejected: Vec<Rejected>,
}

/// Ids are stored: they are bounded, and hold nothing that a text cannot.
const ID_MAX: usize = 200;

impl Batch {
    /// Takes the next heartbeat of a partition.
    pub fn add(
        &mut self,
        clock: &mut Clock,
        partition: i32,
        offset: i64,
        logged: Option<Timestamp>,
        value: &[u8],
    ) {
        match read(value) {
            Ok(beat) => {
                clock.passes(beat.at, logged, SignedDuration::ZERO);
                let Beat { courier_id, tenant_id, at } = beat;
                let heard = self.heard.entry(courier_id).or_insert_with(|| Heard {
                    tenant_id: String::new(),
                    partition,
                    at: Vec::new(),
                });
                heard.tenant_id = tenant_id;
                heard.partition = partition;
                if let Err(place) = heard.at.binary_search(&at) {
                    heard.at.insert(place, at);
                }
            }
            Err(reason) => self.rejected.push(Rejected { partition, offset, reason }),
        }
    }
}

fn read(value: &[u8]) -> Result<Beat, String> {
    let beat: Beat = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    for (field, id) in [("courierId", &beat.courier_id), ("tenantId", &beat.tenant_id)] {
        if id.is_empty() || id.len() > ID_MAX || id.contains(char::is_control) {
            return Err(format!("{field}: must be a text of 1 to {ID_MAX} bytes without control characters"));
        }
    }
    Ok(beat)
}

/// Silences longer than `offline_after` between `last_seen` and the heartbeats after it: since when, until when.
pub fn silences(
    last_seen: Option<Timestamp>,
    at: &[Timestamp],
    offline_after: SignedDuration,
) -> Vec<(Timestamp, Timestamp)> {
    let mut before = last_seen;
    let mut silences = Vec::new();
    for &beat in at {
        if before.is_some_and(|before| beat <= before) {
            continue;
        }
        if let Some(since) = before.filter(|since| beat.duration_since(*since) > offline_after) {
            silences.push((since, beat));
        }
        before = Some(beat);
    }
    silences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).expect("an instant")
    }

    #[test]
    fn a_gap_longer_than_allowed_is_a_silence_and_old_heartbeats_are_none() {
        let after = SignedDuration::from_secs(10);
        let beats = [at(1), at(5), at(16), at(26)];
        assert_eq!(silences(Some(at(4)), &beats, after), [(at(5), at(16))]);
        assert_eq!(silences(None, &beats, after), [(at(5), at(16))]);
        assert_eq!(silences(Some(at(30)), &beats, after), []);
    }

    #[test]
    fn heartbeats_are_put_in_order_and_what_is_none_is_named() {
        let (mut batch, mut clock) = (Batch::default(), Clock::default());
        let beat = |second: i64| format!(r#"{{"courierId":"k1","tenantId":"t1","at":"{}"}}"#, at(second));
        for (offset, second) in [(0, 5), (1, 3), (2, 5)] {
            batch.add(&mut clock, 0, offset, None, beat(second).as_bytes());
        }
        batch.add(&mut clock, 0, 3, None, br#"{"courierId":"","tenantId":"t1","at":"2026-01-01T00:00:00Z"}"#);
        assert_eq!(batch.heard["k1"].at, [at(3), at(5)]);
        assert_eq!(clock.watermark, Some(at(5)));
        assert_eq!(batch.rejected.len(), 1);
        assert!(batch.rejected[0].reason.starts_with("courierId: "), "{:?}", batch.rejected);
    }
}
