//! How far a lane is settled.
//!
//! INVARIANT: every record below [`Lane::resume_at`] is settled, and it never goes backwards. Offsets have gaps
//! (markers, compaction), so a lane tracks the records it was given, not a range.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::intake::{RecordOffset, ResumeAt};
use crate::domain::effect::{EffectTypeId, Outcome, StateOutcome};
use crate::metrics::EventResult;

/// What became of one record, for runs that report totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    pub result: Option<EventResult>,
    pub state: Option<StateOutcome>,
    pub effects: SmallVec<[(EffectTypeId, Outcome); 2]>,
    /// The event's own time lies before, or after, the period that was asked for.
    pub before_period: bool,
    pub after_period: bool,
}

/// Sums of tallies below a position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    pub read: u64,
    pub results: BTreeMap<EventResult, u64>,
    pub states: BTreeMap<StateOutcome, u64>,
    pub effects: BTreeMap<(EffectTypeId, Outcome), u64>,
    pub before_period: u64,
    pub after_period: u64,
}

impl Counts {
    pub fn add(&mut self, tally: &Tally) {
        self.read += 1;
        if let Some(result) = tally.result {
            *self.results.entry(result).or_default() += 1;
        }
        if let Some(state) = tally.state {
            *self.states.entry(state).or_default() += 1;
        }
        for effect in &tally.effects {
            *self.effects.entry(*effect).or_default() += 1;
        }
        self.before_period += u64::from(tally.before_period);
        self.after_period += u64::from(tally.after_period);
    }

    pub fn is_empty(&self) -> bool {
        self.read == 0
    }
}

#[derive(Debug)]
struct Entry {
    offset: RecordOffset,
    settled: Option<Tally>,
}

/// One claimed partition.
#[derive(Debug)]
pub struct Lane {
    open: VecDeque<Entry>,
    /// Where reading goes on when nothing is open.
    next: ResumeAt,
    /// Counted below `resume_at` since [`Lane::take_moved`]; none where nobody asks.
    counts: Option<Counts>,
    /// What [`Lane::take_moved`] said last.
    told: ResumeAt,
    /// No new work is begun.
    pub revoked: bool,
    pub end: Option<ResumeAt>,
}

impl Lane {
    pub fn new(start: ResumeAt, end: Option<ResumeAt>, counted: bool) -> Self {
        let counts = counted.then(Counts::default);
        Self { open: VecDeque::new(), next: start, counts, told: start, revoked: false, end }
    }

    /// A record was taken in. Records come in the order of their offsets; one that was seen before is refused.
    pub fn received(&mut self, offset: RecordOffset) -> bool {
        if offset.0 < self.next.0 {
            return false;
        }
        self.open.push_back(Entry { offset, settled: None });
        self.next = ResumeAt(offset.0 + 1);
        true
    }

    /// A record is settled; out of order as it may be.
    pub fn settled(&mut self, offset: RecordOffset, tally: Tally) {
        let at = self.open.partition_point(|entry| entry.offset < offset);
        if let Some(entry) = self.open.get_mut(at).filter(|entry| entry.offset == offset) {
            entry.settled = Some(tally);
        }
        while let Some(entry) = self.open.front()
            && let Some(tally) = &entry.settled
        {
            if let Some(counts) = &mut self.counts {
                counts.add(tally);
            }
            self.open.pop_front();
        }
    }

    /// Nothing below `next` is still to come.
    pub fn position(&mut self, next: ResumeAt) {
        self.next = self.next.max(next);
    }

    /// The first offset that is not settled: what may be committed.
    pub fn resume_at(&self) -> ResumeAt {
        self.open.front().map_or(self.next, |entry| ResumeAt(entry.offset.0))
    }

    pub fn unsettled(&self) -> usize {
        self.open.len()
    }

    pub fn at_end(&self) -> bool {
        self.end.is_some_and(|end| self.resume_at() >= end)
    }

    /// Where it is, and what was counted since the last time; `None` if it has not moved. Nothing is counted
    /// without a move.
    pub fn take_moved(&mut self) -> Option<(ResumeAt, Counts)> {
        let at = self.resume_at();
        if at == self.told {
            return None;
        }
        self.told = at;
        Some((at, self.counts.as_mut().map(std::mem::take).unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane() -> Lane {
        Lane::new(ResumeAt(10), None, true)
    }

    #[test]
    fn b11_a_later_record_never_carries_the_position_past_an_open_one() {
        let mut lane = lane();
        for offset in 10..16 {
            assert!(lane.received(RecordOffset(offset)));
        }
        for offset in 11..16 {
            lane.settled(RecordOffset(offset), Tally::default());
        }
        assert_eq!(lane.resume_at(), ResumeAt(10));
        lane.settled(RecordOffset(10), Tally::default());
        assert_eq!(lane.resume_at(), ResumeAt(16));
        let (at, counts) = lane.take_moved().expect("it has moved");
        assert_eq!((at, counts.read), (ResumeAt(16), 6));
    }

    #[test]
    fn a_lane_that_stands_still_has_no_checkpoint_and_nothing_is_told_twice() {
        let mut lane = lane();
        assert_eq!(lane.take_moved(), None, "its start is stored already");
        assert!(lane.received(RecordOffset(10)) && lane.received(RecordOffset(11)));
        lane.settled(RecordOffset(11), Tally::default());
        assert_eq!(lane.take_moved(), None, "the first record is still open");
        lane.settled(RecordOffset(10), Tally::default());
        assert_eq!(lane.take_moved().map(|(at, counts)| (at, counts.read)), Some((ResumeAt(12), 2)));
        assert_eq!(lane.take_moved(), None);
        lane.position(ResumeAt(20));
        assert_eq!(lane.take_moved().map(|(at, counts)| (at, counts.read)), Some((ResumeAt(20), 0)));
    }

    #[test]
    fn b42_the_position_is_the_next_offset_and_holes_are_passed() {
        let mut lane = lane();
        assert!(lane.received(RecordOffset(12)));
        assert!(!lane.received(RecordOffset(12)), "a record is taken once");
        lane.settled(RecordOffset(12), Tally::default());
        assert_eq!(lane.resume_at(), ResumeAt(13));
        lane.position(ResumeAt(20));
        assert_eq!(lane.resume_at(), ResumeAt(20));
    }

    proptest! {
        #[test]
        fn the_position_never_passes_an_open_record_and_never_goes_back(
            gaps in proptest::collection::vec(1_i64..4, 1..40), order in any::<u64>()
        ) {
            let mut lane = Lane::new(ResumeAt(0), None, false);
            let mut offsets: Vec<i64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            for offset in &offsets { lane.received(RecordOffset(*offset)); }
            let mut seed = order;
            let mut before = lane.resume_at();
            while !offsets.is_empty() {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pick = usize::try_from(seed >> 33).unwrap_or(0) % offsets.len();
                lane.settled(RecordOffset(offsets.remove(pick)), Tally::default());
                let now = lane.resume_at();
                prop_assert!(now >= before);
                prop_assert!(offsets.first().is_none_or(|open| now.0 <= *open));
                before = now;
            }
            prop_assert_eq!(lane.unsettled(), 0);
        }
    }
}
