//! Which other owners are gone: two free looks at their session lock, at least a grace apart.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::pg::owner::GRACE;

/// How often a reservation of another process is looked at again. Short: its answer may be written any moment.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is known of other processes' session locks.
#[derive(Default)]
pub(super) struct Owners {
    free_since: HashMap<i64, Instant>,
    gone: HashSet<i64>,
}

impl Owners {
    /// `asked` owners were looked at; `free` of them had no session at that moment.
    pub fn observed(&mut self, asked: &[i64], free: &[i64], now: Instant) {
        for owner in asked {
            if !free.contains(owner) {
                self.free_since.remove(owner);
                self.gone.remove(owner);
                continue;
            }
            let since = *self.free_since.entry(*owner).or_insert(now);
            if now.duration_since(since) >= GRACE {
                self.gone.insert(*owner);
            }
        }
    }

    pub fn is_gone(&self, owner: Option<i64>) -> bool {
        owner.is_some_and(|owner| self.gone.contains(&owner))
    }

    /// When to look again at a reservation whose lease runs for `lease_left`.
    pub fn look_again_in(&self, owner: Option<i64>, lease_left: Duration, now: Instant) -> Duration {
        let usual = LOOK_EVERY.min(lease_left).max(Duration::from_millis(10));
        let Some(since) = owner.and_then(|owner| self.free_since.get(&owner)) else { return usual };
        let grace_left = (*since + GRACE).saturating_duration_since(now);
        usual.min(grace_left.max(Duration::from_millis(10)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_free_look_is_not_enough_and_a_taken_lock_starts_over() {
        let mut owners = Owners::default();
        let start = Instant::now();
        owners.observed(&[7], &[7], start);
        assert!(!owners.is_gone(Some(7)));
        owners.observed(&[7], &[], start + Duration::from_millis(500));
        owners.observed(&[7], &[7], start + Duration::from_millis(1100));
        assert!(!owners.is_gone(Some(7)), "it took its lock again in between");
        owners.observed(&[7], &[7], start + Duration::from_millis(2100));
        assert!(owners.is_gone(Some(7)));
    }
}
