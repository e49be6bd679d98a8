//! Order within an aggregate: what may go out together, and who waits for whom.
//!
//! A *lane* is an aggregate and a destination. Of a lane, one record at a time is on its way, so nothing can
//! overtake a record that is refused. A lane whose head was refused, or could not be acknowledged while others
//! were, is held until its next try is due; other lanes go on.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::pg::outbox::Row;

/// First pause of a held lane; doubled at every further try.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Lanes held at once. Beyond it the trouble is not theirs, and the worker waits as a whole.
pub const HELD_MAX: usize = 1_000;

/// Splits rows, which are in order, into waves: the first of every lane, then the second of every lane, ...
pub fn waves(rows: Vec<Row>) -> Vec<Vec<Row>> {
    let mut depth: HashMap<String, usize> = HashMap::new();
    let mut waves: Vec<Vec<Row>> = Vec::new();
    for row in rows {
        let next = depth.entry(row.lane()).or_default();
        if *next == waves.len() {
            waves.push(Vec::new());
        }
        waves[*next].push(row);
        *next += 1;
    }
    waves
}

/// Lanes whose head waits for its next try.
#[derive(Debug, Default)]
pub struct Held(HashMap<String, Hold>);

#[derive(Debug)]
struct Hold {
    due: Instant,
    pause: Duration,
}

impl Held {
    /// The head of this lane was tried in vain. Lanes stay known until they are [released](Self::release), so that
    /// pauses grow.
    pub fn hold(&mut self, lane: String, now: Instant) {
        let hold = self.0.entry(lane).or_insert(Hold { due: now, pause: PAUSE_FIRST });
        hold.due = now + hold.pause;
        hold.pause = (hold.pause * 2).min(PAUSE_MAX);
    }

    /// The head of this lane went out, or was parked.
    pub fn release(&mut self, lane: &str) {
        self.0.remove(lane);
    }

    /// Nothing is known any more: the buckets are somebody else's, or the connection is a new one.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.0.len() >= HELD_MAX
    }

    /// Lanes that must not be touched at `now`.
    pub fn waiting(&self, now: Instant) -> Vec<String> {
        self.0.iter().filter(|(_, hold)| hold.due > now).map(|(lane, _)| lane.clone()).collect()
    }

    /// When the next try of any lane is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.0.values().map(|hold| hold.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Destination;

    fn row(seq: i64, aggregate: &str, destination: Destination) -> Row {
        Row {
            seq,
            destination,
            aggregate_id: aggregate.to_owned(),
            event_type: "OrderPaid".to_owned(),
            payload: "{}".to_owned(),
            headers: std::collections::BTreeMap::new(),
            created_ms: 0,
            attempts: 0,
        }
    }

    #[test]
    fn a_wave_holds_one_record_of_a_lane_and_keeps_the_order() {
        use Destination::{Events, Paid};
        let rows = [
            row(1, "a", Events),
            row(2, "a", Events),
            row(3, "b", Events),
            row(4, "a", Paid),
            row(5, "a", Events),
        ];
        let seqs: Vec<Vec<i64>> =
            waves(rows.to_vec()).iter().map(|wave| wave.iter().map(|row| row.seq).collect()).collect();
        assert_eq!(seqs, [vec![1, 3, 4], vec![2], vec![5]]);
    }

    #[test]
    fn pauses_double_up_to_their_limit_and_start_over_after_a_success() {
        let (mut held, now) = (Held::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            held.hold("events:a".into(), now);
            pauses.push(held.next_due().expect("one is held").duration_since(now).as_millis());
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        assert_eq!(held.waiting(now), ["events:a"]);
        assert!(held.waiting(now + Duration::from_secs(10)).is_empty() && !held.is_empty());
        held.release("events:a");
        held.hold("events:a".into(), now);
        assert_eq!(held.next_due(), Some(now + Duration::from_millis(500)));
    }
}
