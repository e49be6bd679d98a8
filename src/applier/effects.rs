//! What is in flight: events with something unsettled, their effects, and the order among them.
//!
//! Effects of one order and one effect type form a chain: only its first member may begin, the others wait behind
//! it. Orders never wait for one another, and neither do effect types.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use tokio_util::time::delay_queue;

use super::intake::{LaneId, RawRecord, RecordOffset};
use super::progress::Tally;
use crate::domain::effect::{EffectRequest, EffectTypeId};
use crate::domain::plan::Plan;
use crate::domain::verdict::{Claim, Token};
use crate::telemetry::Open;

/// An event with something unsettled.
pub(super) struct Pending {
    pub lane: LaneId,
    pub offset: RecordOffset,
    pub raw: Box<RawRecord>,
    pub plan: Option<Arc<Plan>>,
    pub traceparent: Option<String>,
    /// Open until the record is settled.
    pub trace: Open,
    pub read_at: Instant,
    /// Effects and dead letters that are not settled yet.
    pub open: usize,
    /// Dead letters among them.
    pub letters: usize,
    pub tally: Tally,
    /// Work on it was given up (its lane is gone): its record is not settled by us.
    pub abandoned: bool,
}

/// Where an effect stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Behind another of the same order and type.
    Behind,
    /// Waiting for a timer.
    Timed,
    /// The ledger is being asked about it.
    Looking,
    /// May begin as soon as a slot is free.
    Ready,
    /// In a wave that reserves it.
    Reserving,
    /// Being called.
    Calling,
    /// Answered, or to be moved; waiting for a wave, or in it.
    Finished,
}

/// One effect in flight.
pub(super) struct Effect {
    pub event: usize,
    /// Index in the plan.
    pub index: usize,
    pub effect_type: EffectTypeId,
    pub plan: Arc<Plan>,
    pub stage: Stage,
    /// How to reserve it; `None`: ask the ledger first.
    pub claim: Option<Claim>,
    /// Holds a call slot.
    pub holds_slot: bool,
    /// A reservation of ours whose commit was not confirmed.
    pub unconfirmed: Option<Token>,
    /// What the ledger said when it was reserved.
    pub attempts: u32,
    pub maybe_sent: bool,
    /// The body that an earlier attempt may have sent.
    pub stored_body: Option<String>,
    pub retries: u32,
    /// Probes an open circuit.
    pub probe: bool,
    /// The other process that holds it.
    pub owner: Option<i64>,
    pub timer: Option<delay_queue::Key>,
    /// Tells it apart from another that has its place later; given by [`InFlight::add`].
    pub serial: u64,
}

impl Effect {
    /// Nothing about it is reserved, called or being written by us: it can be dropped without a trace.
    pub const fn not_begun(&self) -> bool {
        matches!(self.stage, Stage::Behind | Stage::Timed | Stage::Looking | Stage::Ready)
            && self.unconfirmed.is_none()
    }

    pub fn request(&self) -> &EffectRequest {
        &self.plan.effects[self.index]
    }
}

type ChainKey = (Box<str>, EffectTypeId);

/// Events and effects in flight, with the chains among them.
#[derive(Default)]
pub(super) struct InFlight {
    pub events: Slab<Pending>,
    pub effects: Slab<Effect>,
    chains: HashMap<ChainKey, VecDeque<usize>>,
    serials: u64,
}

impl InFlight {
    /// Adds an effect at the end of its chain; says whether it is first.
    pub fn add(&mut self, mut effect: Effect) -> (usize, bool) {
        self.serials += 1;
        effect.serial = self.serials;
        let key = chain_key(&effect);
        let at = self.effects.insert(effect);
        let chain = self.chains.entry(key).or_default();
        chain.push_back(at);
        (at, chain.len() == 1)
    }

    /// Whether this effect is in flight already, for another record of the same event.
    pub fn has(&self, order_id: &str, request: &EffectRequest) -> bool {
        let key = (order_id.into(), request.effect_type);
        let same = |at: &usize| {
            let Some(effect) = self.effects.get(*at) else { return false };
            let kept = self.events.get(effect.event).is_some_and(|event| !event.abandoned);
            kept && effect.request().key == request.key
        };
        self.chains.get(&key).is_some_and(|chain| chain.iter().any(same))
    }

    /// Whether this very effect still waits for the ledger's answer.
    pub fn is_looking(&self, at: usize, serial: u64) -> bool {
        self.effects.get(at).is_some_and(|effect| effect.serial == serial && effect.stage == Stage::Looking)
    }

    /// Takes an effect out; says who is first in its chain now, if that changed.
    pub fn remove(&mut self, at: usize) -> (Effect, Option<usize>) {
        let effect = self.effects.remove(at);
        let key = chain_key(&effect);
        let mut next = None;
        if let Some(chain) = self.chains.get_mut(&key) {
            let was_first = chain.front() == Some(&at);
            if was_first {
                chain.pop_front();
                next = chain.front().copied();
            } else {
                chain.retain(|member| *member != at);
            }
            if chain.is_empty() {
                self.chains.remove(&key);
            }
        }
        (effect, next)
    }
}

fn chain_key(effect: &Effect) -> ChainKey {
    (effect.plan.commission.order_id.as_str().into(), effect.effect_type)
}
