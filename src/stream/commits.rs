//! What may be committed, by claim: only forward, only of open claims, again after a failure, and once in a while
//! although nothing changed, so that the broker does not forget a quiet group.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::applier::intake::{LaneId, ResumeAt};

/// Far below the broker's shortest usual `offsets.retention.minutes` (a day).
const REPEAT_UNCHANGED: Duration = Duration::from_secs(4 * 3600);
/// After so long without an answer a commit counts as failed.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug)]
struct Claim {
    /// The broker confirmed it.
    known: Option<ResumeAt>,
    /// Sent, or where the claim began: only what lies above is sent.
    floor: ResumeAt,
    /// What `floor` falls back to when a commit fails.
    began: ResumeAt,
    confirmed_at: Instant,
}

#[derive(Debug, Default)]
pub struct CommitBook {
    claims: HashMap<LaneId, Claim>,
    in_flight: Option<Instant>,
}

impl CommitBook {
    pub fn open(&mut self, lane: LaneId, start: ResumeAt, committed: Option<ResumeAt>, now: Instant) {
        // A start above the commit (records are gone) is news to the broker; one below it (a topic made anew) too.
        let began = committed.map_or(start, |committed| committed.min(start));
        let known = committed.filter(|committed| *committed == start);
        self.claims.insert(lane, Claim { known, floor: began, began, confirmed_at: now });
    }

    pub fn close(&mut self, lane: LaneId) {
        self.claims.remove(&lane);
    }

    pub fn known(&self, lane: LaneId) -> Option<ResumeAt> {
        self.claims.get(&lane).and_then(|claim| claim.known)
    }

    /// Whether a commit waits for its answer.
    pub fn is_waiting(&self, now: Instant) -> bool {
        self.in_flight.is_some_and(|since| now.saturating_duration_since(since) < ANSWER_LIMIT)
    }

    /// What to commit now, out of what is settled; taken as sent.
    pub fn due(&mut self, settled: &[(LaneId, ResumeAt)], now: Instant) -> Vec<(LaneId, ResumeAt)> {
        let due: Vec<_> = settled.iter().copied().filter(|(lane, at)| self.take(*lane, *at, now)).collect();
        if !due.is_empty() {
            self.in_flight = Some(now);
        }
        due
    }

    fn take(&mut self, lane: LaneId, at: ResumeAt, now: Instant) -> bool {
        let Some(claim) = self.claims.get_mut(&lane) else { return false };
        let forward = at > claim.floor;
        let quiet =
            claim.known == Some(at) && now.saturating_duration_since(claim.confirmed_at) >= REPEAT_UNCHANGED;
        if forward {
            claim.floor = at;
        }
        forward || quiet
    }

    /// Every answer, whatever it says, ends the wait.
    pub fn answered(&mut self) {
        self.in_flight = None;
    }

    pub fn confirmed(&mut self, partition: i32, at: ResumeAt, now: Instant) {
        if let Some(claim) = self.claim_of(partition) {
            claim.known = Some(at);
            claim.confirmed_at = now;
        }
    }

    pub fn failed(&mut self, partition: i32, at: ResumeAt) {
        if let Some(claim) = self.claim_of(partition)
            && claim.floor == at
        {
            claim.floor = claim.known.unwrap_or(claim.began);
        }
    }

    /// A partition has at most one open claim.
    fn claim_of(&mut self, partition: i32) -> Option<&mut Claim> {
        self.claims.iter_mut().find(|(lane, _)| lane.partition == partition).map(|(_, claim)| claim)
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

    #[test]
    fn i4_only_forward_and_only_once() {
        let (mut book, now) = book(10, Some(10));
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], now), vec![]);
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), vec![(LANE, ResumeAt(12))]);
        assert_eq!(book.due(&[(LANE, ResumeAt(11))], now), vec![]);
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), vec![]);
    }

    #[test]
    fn b41_a_claim_that_ended_commits_nothing() {
        let (mut book, now) = book(10, None);
        let late = LaneId { partition: 3, claim: 6 };
        assert_eq!(book.due(&[(late, ResumeAt(99))], now), vec![]);
        book.close(LANE);
        assert_eq!(book.due(&[(LANE, ResumeAt(12))], now), vec![]);
    }

    #[test]
    fn a_failed_commit_is_sent_again() {
        let (mut book, now) = book(0, None);
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], now), vec![(LANE, ResumeAt(5))]);
        assert!(book.is_waiting(now));
        book.answered();
        book.failed(3, ResumeAt(5));
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], now), vec![(LANE, ResumeAt(5))]);
        book.answered();
        book.confirmed(3, ResumeAt(5), now);
        assert!(!book.is_waiting(now));
        assert_eq!(book.known(LANE), Some(ResumeAt(5)));
        assert_eq!(book.due(&[(LANE, ResumeAt(5))], now), vec![]);
    }

    #[test]
    fn b80_an_unchanged_position_is_committed_again_after_hours() {
        let (mut book, now) = book(10, Some(10));
        let later = now + Duration::from_secs(4 * 3600);
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], later), vec![(LANE, ResumeAt(10))]);
        book.confirmed(3, ResumeAt(10), later);
        assert_eq!(book.due(&[(LANE, ResumeAt(10))], later), vec![]);
    }

    #[test]
    fn after_a_loss_the_new_start_itself_is_committed() {
        let (mut advanced, now) = book(500, Some(200));
        assert_eq!(advanced.due(&[(LANE, ResumeAt(500))], now), vec![(LANE, ResumeAt(500))]);
        let (mut anew, now) = book(0, Some(200));
        assert_eq!(anew.due(&[(LANE, ResumeAt(1))], now), vec![(LANE, ResumeAt(1))]);
    }
}
