//! Windows by event time: what a record means for them, and when it is too late. Pure.
//!
//! * [`Clock`]: the watermark of a partition: the newest event time in it, in the order of its log, so that reading it
//!   again judges every record as before
//! * [`kpi`]: orders per minute and per hour
//! * [`presence`]: couriers that are not heard of
//!
//! Promises: what is late is listed, what cannot be read is listed, nothing is dropped in silence; the same log gives the
//! same rows, however it is cut into batches. (tests `however_a_log_is_cut_its_clock_says_the_same`,
//! `killed_anywhere_the_windows_hold_what_was_placed`)
//!
//! Not here: counting itself, which is one statement in `pg::windows`, and the offsets, which stand beside the counts.

pub mod kpi;
pub mod presence;

use jiff::{SignedDuration, Timestamp};

/// An event time may run so far ahead of its record's time in the log; more is a wrong clock, and moves nothing.
const AHEAD_MAX: SignedDuration = SignedDuration::from_mins(1);

/// The event-time clock of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    pub watermark: Option<Timestamp>,
}

impl Clock {
    /// Judges an event of time `at` whose record was written at `logged`, and moves on: whether it is late by more
    /// than `allowed`.
    pub fn passes(&mut self, at: Timestamp, logged: Option<Timestamp>, allowed: SignedDuration) -> bool {
        let late = self.watermark.is_some_and(|watermark| watermark.duration_since(at) > allowed);
        let most = logged.and_then(|logged| logged.checked_add(AHEAD_MAX).ok());
        let reached = most.map_or(at, |most| at.min(most));
        self.watermark = Some(self.watermark.map_or(reached, |watermark| watermark.max(reached)));
        late
    }
}

/// Ids are stored: they are bounded, and hold nothing that a text cannot.
const ID_MAX: usize = 200;

fn storable(field: &str, id: &str) -> Result<(), String> {
    if id.is_empty() || id.len() > ID_MAX || id.contains(char::is_control) {
        return Err(format!("{field}: must be a text of 1 to {ID_MAX} bytes without control characters"));
    }
    Ok(())
}

/// A time that a clock could have shown when the record was written: not before 2000, not far ahead of the log.
fn plausible(at: Timestamp, logged: Option<Timestamp>) -> Result<(), String> {
    const BEGIN: Timestamp = Timestamp::constant(946_684_800, 0);
    let end = logged.and_then(|logged| logged.checked_add(AHEAD_MAX).ok()).unwrap_or(Timestamp::MAX);
    if at < BEGIN {
        return Err(format!("at: {at} lies before the year 2000"));
    }
    if at > end {
        return Err(format!("at: {at} lies more than a minute ahead of its record's time in the log"));
    }
    Ok(())
}

/// A message that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    pub partition: i32,
    pub offset: i64,
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).expect("an instant")
    }

    #[test]
    fn what_is_later_than_allowed_is_late_and_the_clock_never_goes_back() {
        let mut clock = Clock::default();
        let allowed = SignedDuration::from_secs(120);
        let judged = [0, 300, 180, 179, 301].map(|second| clock.passes(at(second), Some(at(301)), allowed));
        assert_eq!(judged, [false, false, false, true, false]);
        assert_eq!(clock.watermark, Some(at(301)));
    }

    #[test]
    fn an_event_from_a_wrong_clock_moves_it_no_further_than_the_log() {
        let mut clock = Clock::default();
        clock.passes(at(1_000_000), Some(at(10)), SignedDuration::ZERO);
        assert_eq!(clock.watermark, Some(at(70)));
    }

    proptest! {
        #[test]
        fn however_a_log_is_cut_its_clock_says_the_same(
            times in proptest::collection::vec(0_i64..1_000, 1..60), cut in 0_usize..60,
        ) {
            let allowed = SignedDuration::from_secs(100);
            let judge = |clock: &mut Clock, times: &[i64]| -> Vec<bool> {
                times.iter().map(|second| clock.passes(at(*second), Some(at(*second)), allowed)).collect()
            };
            let whole = judge(&mut Clock::default(), &times);
            let (left, right) = times.split_at(cut.min(times.len()));
            let mut clock = Clock::default();
            let mut parts = judge(&mut clock, left);
            let mut stored = Clock { watermark: clock.watermark };
            parts.extend(judge(&mut stored, right));
            prop_assert_eq!(whole, parts);
        }
    }
}
