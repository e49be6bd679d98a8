//! Couriers that are not heard of: sessions of heartbeats, ended by a gap.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::{Clock, Rejected, plausible, storable};

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
    /// In the order of the log: what is judged must not depend on where batches are cut.
    pub at: Vec<Timestamp>,
}

/// What a batch says, by courier.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub heard: BTreeMap<String, Heard>,
    pub rejected: Vec<Rejected>,
}

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
        match read(value).and_then(|beat| plausible(beat.at, logged).map(|()| beat)) {
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
                heard.at.push(at);
            }
            Err(reason) => self.rejected.push(Rejected { partition, offset, reason }),
        }
    }
}

fn read(value: &[u8]) -> Result<Beat, String> {
    let beat: Beat = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    storable("courierId", &beat.courier_id)?;
    storable("tenantId", &beat.tenant_id)?;
    Ok(beat)
}

/// Silences longer than `offline_after` between `last_seen` and the heartbeats after it, taken as they came: since when,
/// until when. One that is older than another before it says nothing new.
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
    fn heartbeats_are_judged_alike_however_they_are_cut() {
        let after = SignedDuration::from_secs(10);
        let beats = [at(0), at(18), at(9), at(19), at(40)];
        let whole = silences(None, &beats, after);
        assert_eq!(whole, [(at(0), at(18)), (at(19), at(40))]);
        for cut in 0..beats.len() {
            let (left, right) = beats.split_at(cut);
            let mut parts = silences(None, left, after);
            parts.extend(silences(left.iter().max().copied(), right, after));
            assert_eq!(parts, whole, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_heartbeat_is_named_and_moves_nothing() {
        let logged = Some(at(100));
        let beat = |courier: &str, time: &str| {
            format!(r#"{{"courierId":"{courier}","tenantId":"t1","at":"{time}"}}"#)
        };
        let cases = [
            (beat("", "2026-10-14T12:00:00Z"), "courierId: "),
            (beat("k\\u0000", "2026-10-14T12:00:00Z"), "courierId: "),
            (beat("k1", "-009999-06-01T00:00:00Z"), "at: "),
            (beat("k1", "2099-01-01T00:00:00Z"), "at: "),
            ("{}".to_owned(), "missing field"),
        ];
        let (mut batch, mut clock) = (Batch::default(), Clock::default());
        for (offset, (value, _)) in (0..).zip(&cases) {
            batch.add(&mut clock, 0, offset, logged, value.as_bytes());
        }
        assert_eq!((batch.heard.len(), clock.watermark), (0, None));
        assert_eq!(batch.rejected.len(), cases.len());
        for (rejected, (value, reason)) in batch.rejected.iter().zip(&cases) {
            assert!(rejected.reason.starts_with(reason), "{value}: {}", rejected.reason);
        }
    }
}
