//! What may be committed, by claim: only forward, only of open claims, again when it is not confirmed, and once in
//! a while although nothing changed, so that the broker does not forget a quiet group.
//!
//! The client answers an asynchronous commit with nothing; its statistics say what the broker has confirmed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::applier::intake::{LaneId, ResumeAt};

/// Far below the broker's shortest usual `offsets.retention.minutes` (a day).
const REPEAT_UNCHANGED: Duration = Duration::from_hours(4);
/// A commit not confirmed after so long counts as failed. Statistics come every second.
const CONFIRM_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Claim {
    /// The broker confirmed it.
    known: Option<ResumeAt>,
    /// Sent, or where the claim began: only what lies above is sent.
    floor: ResumeAt,
    /// Nothing at or below it needs a commit.
    began: ResumeAt,
    sent_at: Instant,
}

impl Claim {
    fn is_confirmed(&self) -> bool {
        self.floor == self.began || self.known == Some(self.floor)
    }
}

/// What to commit now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Due {
    pub positions: Vec<(LaneId, ResumeAt)>,
    /// How many of them were sent before and never confirmed.
    pub repeated: usize,
}

#[derive(Debug, Default)]
pub struct CommitBook {
    claims: HashMap<LaneId, Claim>,
}

impl CommitBook {
    pub fn open(&mut self, lane: LaneId, start: ResumeAt, committed: Option<ResumeAt>, now: Instant) {
        // A start above the commit (records are gone) is news to the broker; one below it (a topic made anew) too.
        let began = committed.map_or(start, |committed| committed.min(start));
        let known = committed.filter(|committed| *committed == start);
        self.claims.insert(lane, Claim { known, floor: began, began, sent_at: now });
    }

    pub fn close(&mut self, lane: LaneId) {
        self.claims.remove(&lane);
    }

    pub fn known(&self, lane: LaneId) -> Option<ResumeAt> {
        self.claims.get(&lane).and_then(|claim| claim.known)
    }

    /// What to commit, out of what is settled; taken as sent.
    pub fn due(&mut self, settled: &[(LaneId, ResumeAt)], now: Instant) -> Due {
        let mut due = Due::default();
        for &(lane, at) in settled {
            let Some(claim) = self.claims.get_mut(&lane) else { continue };
            let age = now.saturating_duration_since(claim.sent_at);
            let forward = at > claim.floor;
            let unconfirmed = at == claim.floor && !claim.is_confirmed() && age >= CONFIRM_LIMIT;
            let quiet = claim.known == Some(at) && at == claim.floor && age >= REPEAT_UNCHANGED;
            if forward || unconfirmed || quiet {
                claim.floor = at;
                claim.sent_at = now;
                due.positions.push((lane, at));
                due.repeated += usize::from(unconfirmed);
            }
        }
        due
    }

    /// The last commits of all: whatever is settled and not confirmed, never below what was sent.
    pub fn last(&self, settled: &[(LaneId, ResumeAt)]) -> Vec<(LaneId, ResumeAt)> {
        let last = settled.iter().copied().filter(|(lane, at)| {
            let claim = self.claims.get(lane);
            claim.is_some_and(|claim| *at >= claim.floor && *at > claim.began && claim.known != Some(*at))
        });
        last.collect()
    }

    /// The broker has this position, as far as the client knows. What an earlier claim left is passed over.
    pub fn confirmed(&mut self, lane: LaneId, at: ResumeAt) {
        if let Some(claim) = self.claims.get_mut(&lane)
            && at > claim.began
            && at <= claim.floor
        {
            claim.known = Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: LaneId = LaneId { partition: 3, claim: 7 };

    fn book(start: i64, committed: Option<i64>) -> (CommitBook, Instant) {
        let now = Instant::now();
        let mut book = CommitBook::default();
        book.open(LANE, ResumeAt(start), committed.map(ResumeAt), now);
        (book, now)
    }

    fn positions(lane: LaneId, at: i64) -> Due {
        Due { positions: vec![(lane, ResumeAt(at))], repeated: 0 }
    }

    #[test]
    fn i4_only_forward_and_only_once() {
        let (mut book, now) = book(10, Some(10));
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], now), Due::default());
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), positions(LANE, 12));
        assert_eq!(book.due(&[(LANE, ResumeAt(11))], now), Due::default());
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), Due::default());
    }

    #[test]
    fn b41_a_claim_that_ended_commits_nothing() {
        let (mut book, now) = book(10, None);
        let late = LaneId { partition: 3, claim: 6 };
        assert_eq!(book.due(&[(late, ResumeAt(99))], now), Due::default());
        book.close(LANE);
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), Due::default());
        assert_eq!(book.last(&[(LANE, ResumeAt(12))]), vec![]);
    }

    #[test]
    fn a_commit_that_is_not_confirmed_is_sent_again_and_counted() {
        let (mut book, now) = book(0, None);
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], now), positions(LANE, 5));
        let later = now + Duration::from_secs(5);
        let again = Due { positions: vec![(LANE, ResumeAt(5))], repeated: 1 };
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], later), again);
        book.confirmed(LANE, ResumeAt(5));
        assert_eq!(book.known(LANE), Some(ResumeAt(5)));
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], later + Duration::from_secs(5)), Due::default());
    }

    #[test]
    fn what_an_earlier_claim_committed_confirms_nothing_of_this_one() {
        let (mut book, now) = book(0, Some(200));
        book.confirmed(LANE, ResumeAt(200));
        assert_eq!(book.known(LANE), None);
        assert_eq!(book.due(&[(LANE, ResumeAt(1))], now), positions(LANE, 1));
    }

    #[test]
    fn b80_an_unchanged_position_is_committed_again_after_hours() {
        let (mut book, now) = book(10, Some(10));
        let later = now + Duration::from_hours(4);
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], later), positions(LANE, 10));
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], later), Due::default());
    }

    #[test]
    fn b36_after_a_loss_the_new_start_itself_is_committed() {
        let (mut advanced, now) = book(500, Some(200));
        assert_eq!(advanced.due(&[(LANE, ResumeAt(500))], now), positions(LANE, 500));
    }

    #[test]
    fn b42_the_last_commits_are_those_settled_and_not_confirmed() {
        let (mut book, now) = book(10, Some(10));
        assert_eq!(book.last(&[(LANE, ResumeAt(10))]), vec![]);
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), positions(LANE, 12));
        assert_eq!(book.last(&[(LANE, ResumeAt(11))]), vec![]);
        assert_eq!(book.last(&[(LANE, ResumeAt(12))]), vec![(LANE, ResumeAt(12))]);
        book.confirmed(LANE, ResumeAt(12));
        assert_eq!(book.last(&[(LANE, ResumeAt(12))]), vec![]);
        assert_eq!(book.last(&[(LANE, ResumeAt(13))]), vec![(LANE, ResumeAt(13))]);
    }
}
