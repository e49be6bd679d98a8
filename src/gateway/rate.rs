//! `limite_por_segundo`: calls a second by effect type, of this process, whoever makes them.
//!
//! One budget for the consumer and the sweeper of a process: a limit that one of them did not know would be none.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::domain::effect::EffectTypeId;
use crate::domain::plan::Policies;

/// The budgets of all effect types. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Rates(Arc<[Option<DefaultDirectRateLimiter>]>);

impl Rates {
    pub fn new(policies: &Policies) -> Self {
        let limiter = |per_second: u32| {
            NonZeroU32::new(per_second).map(|rate| RateLimiter::direct(Quota::per_second(rate)))
        };
        Self(policies.iter().map(|(_, policy)| policy.per_second.and_then(limiter)).collect())
    }

    /// Takes one call of the budget, if one is left now.
    pub fn try_take(&self, id: EffectTypeId) -> bool {
        self.of(id).is_none_or(|limiter| limiter.check().is_ok())
    }

    /// Takes one call of the budget, as soon as there is one.
    pub async fn take(&self, id: EffectTypeId) {
        if let Some(limiter) = self.of(id) {
            limiter.until_ready().await;
        }
    }

    fn of(&self, id: EffectTypeId) -> Option<&DefaultDirectRateLimiter> {
        self.0.get(usize::from(id.0)).and_then(Option::as_ref)
    }
}
