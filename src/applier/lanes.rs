//! The lanes of this process: claims on partitions, how far each is settled, and how they are handed back.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Instant;

use super::Checkpoint;
use super::intake::{LaneId, RecordOffset, ResumeAt, Watermarks};
use super::progress::{Lane, Tally};
use crate::health::Health;

/// Lanes that are being taken away, and who waits for their final positions.
pub(super) struct Leaving {
    pub lanes: Vec<LaneId>,
    pub deadline: Instant,
    pub done: mpsc::Sender<Vec<(LaneId, ResumeAt)>>,
}

/// All lanes, with the board that tells others how far they are.
pub(super) struct Lanes {
    /// Ordered: a few comparisons find a lane, and it is looked for several times per record.
    lanes: BTreeMap<LaneId, Lane>,
    board: Watermarks,
    health: Health,
    counted: bool,
    pub leaving: Vec<Leaving>,
}

impl Lanes {
    pub fn new(board: Watermarks, health: Health, counted: bool) -> Self {
        Self { lanes: BTreeMap::new(), board, health, counted, leaving: Vec::new() }
    }

    pub fn assigned(&mut self, lane: LaneId, start: ResumeAt, end: Option<ResumeAt>) {
        self.lanes.insert(lane, Lane::new(start, end, self.counted));
        self.board.set(lane, start);
    }

    /// Whether work for this lane may be begun.
    pub fn is_open(&self, lane: LaneId) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| !lane.revoked)
    }

    /// Takes a record in, unless its lane is gone or it was seen before.
    pub fn received(&mut self, lane: LaneId, offset: RecordOffset) -> bool {
        self.lanes.get_mut(&lane).is_some_and(|lane| !lane.revoked && lane.received(offset))
    }

    pub fn settled(&mut self, lane: LaneId, offset: RecordOffset, tally: Tally) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.settled(offset, tally);
        }
    }

    pub fn position(&mut self, lane: LaneId, next: ResumeAt) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.position(next);
        }
    }

    /// No new work on these lanes.
    pub fn close(&mut self, closing: &[LaneId]) {
        for lane in closing {
            if let Some(lane) = self.lanes.get_mut(lane) {
                lane.revoked = true;
            }
        }
    }

    /// Forgets these lanes and gives their last positions.
    pub fn take(&mut self, leaving: &[LaneId]) -> Vec<(LaneId, ResumeAt)> {
        let mut positions = Vec::new();
        for id in leaving {
            if let Some(lane) = self.lanes.remove(id) {
                positions.push((*id, lane.resume_at()));
                self.board.forget(*id);
            }
        }
        positions
    }

    pub fn ids(&self) -> Vec<LaneId> {
        self.lanes.keys().copied().collect()
    }

    /// Tells whoever commits, and whoever looks, how far the lanes are.
    pub fn publish(&self) {
        for (id, lane) in &self.lanes {
            let at = lane.resume_at();
            self.board.set(*id, at);
            self.health.position(id.partition, at.0);
        }
    }

    /// What was counted since the last time, with the positions that cover it, of the lanes that have moved.
    pub fn checkpoints(&mut self) -> Vec<Checkpoint> {
        let moved = |(lane, state): (&LaneId, &mut Lane)| {
            let (at, counts) = state.take_checkpoint()?;
            Some(Checkpoint { lane: *lane, at, counts })
        };
        self.lanes.iter_mut().filter_map(moved).collect()
    }
}
