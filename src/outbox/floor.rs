//! Where a scan of the outbox begins.
//!
//! Rows that are published leave the index, but not at once: while any old transaction is open anywhere, they stay
//! as dead entries that every scan would walk over. So a scan begins behind what this worker saw some time ago.
//! Numbers are given at the insert and seen at the commit: the time is the longest that an append usually takes,
//! and a scan from the beginning, every few seconds, finds what took longer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const SEEN_FOR: Duration = Duration::from_secs(2);
const WHOLE_EVERY: Duration = Duration::from_secs(5);
/// Readings this close together are one.
const GRAIN: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub struct Floor {
    seen: VecDeque<(Instant, i64)>,
    floor: i64,
    whole_at: Option<Instant>,
}

impl Floor {
    /// Rows up to `seq` have been seen, and are settled.
    pub fn seen(&mut self, seq: i64, now: Instant) {
        match self.seen.back_mut() {
            Some((at, last)) if now.duration_since(*at) < GRAIN => *last = seq.max(*last),
            _ => self.seen.push_back((now, seq)),
        }
    }

    /// Forget everything: rows may lie anywhere.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Only rows above this need to be looked at now.
    pub fn at(&mut self, now: Instant) -> i64 {
        while let Some((at, seq)) = self.seen.front().copied()
            && now.duration_since(at) >= SEEN_FOR
        {
            self.floor = seq.max(self.floor);
            self.seen.pop_front();
        }
        if self.whole_at.is_none_or(|at| now >= at) {
            self.whole_at = Some(now + WHOLE_EVERY);
            return 0;
        }
        self.floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_follows_two_seconds_behind_and_a_whole_scan_comes_every_five() {
        let (mut floor, start) = (Floor::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(floor.at(at(0)), 0);
        floor.seen(70, at(10));
        floor.seen(90, at(1_000));
        assert_eq!(floor.at(at(2_000)), 0);
        assert_eq!(floor.at(at(2_050)), 70);
        assert_eq!(floor.at(at(4_000)), 90);
        assert_eq!(floor.at(at(5_000)), 0, "the whole");
        assert_eq!(floor.at(at(5_010)), 90);
        floor.reset();
        assert_eq!(floor.at(at(5_020)), 0);
    }
}
