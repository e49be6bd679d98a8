//! What a stored row says about a plan: the two tables of the contract (version guard, ledger) as pure functions.
//!
//! [`judge_state`] is the version guard as the client sees it; the SQL statement holds the same guard, because a
//! row may change between the look and the write. [`judge_effect`] is the ledger's table 'what the applier finds'.
//! Live, replay, redrive, sweep and dry run all judge here and nowhere else.

use std::time::Duration;

use super::effect::{EffectPolicy, EffectState, Mode, OnFailure, Outcome, StateOutcome};
use super::event::Digest;
use super::money::Cents;
use super::plan::CommissionWrite;

/// A row of `comissao`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCommission {
    pub event_id: String,
    pub version: i64,
    pub amount: Cents,
    pub event_digest: Digest,
    /// Written by the run that is looking.
    pub by_this_run: bool,
}

/// What the version guard says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateVerdict {
    Write,
    /// The row already says so. Counted as [`StateOutcome::Written`] if this very run wrote it.
    Unchanged {
        by_this_run: bool,
    },
    IgnoredNewer,
    /// Another event id at the same version: first one wins.
    VersionConflict,
    /// The same event id with other content.
    ContentConflict,
}

impl StateVerdict {
    /// How the verdict is counted, once it is carried out.
    pub const fn outcome(self) -> Option<StateOutcome> {
        match self {
            Self::Write | Self::Unchanged { by_this_run: true } => Some(StateOutcome::Written),
            Self::Unchanged { by_this_run: false } => Some(StateOutcome::Unchanged),
            Self::IgnoredNewer => Some(StateOutcome::IgnoredNewer),
            Self::VersionConflict => Some(StateOutcome::VersionConflict),
            Self::ContentConflict => None,
        }
    }
}

/// The version guard: a newer version wins, and the same event repairs its own row.
pub fn judge_state(stored: Option<&StoredCommission>, write: &CommissionWrite) -> StateVerdict {
    let Some(row) = stored else { return StateVerdict::Write };
    if row.event_id == write.event_id {
        return if row.event_digest != write.event_digest {
            StateVerdict::ContentConflict
        } else if row.amount == write.amount {
            StateVerdict::Unchanged { by_this_run: row.by_this_run }
        } else {
            StateVerdict::Write
        };
    }
    match row.version.cmp(&write.version) {
        std::cmp::Ordering::Greater => StateVerdict::IgnoredNewer,
        std::cmp::Ordering::Equal => StateVerdict::VersionConflict,
        std::cmp::Ordering::Less => StateVerdict::Write,
    }
}

/// The token of one reservation; every later write about it is fenced by it.
pub type Token = uuid::Uuid;

/// A row of `efeito_aplicado`, with its times as distances by the database's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEffect {
    pub state: EffectState,
    pub request_digest: Digest,
    pub event_digest: Digest,
    pub by_this_run: bool,
    /// `ficha`: in flight if the state is reserved; of the last attempt otherwise.
    pub token: Option<Token>,
    /// `dono`: the session lock of the process that reserved it.
    pub owner: Option<i64>,
    /// Until the lease ends; zero when it is over.
    pub lease_left: Duration,
    /// Until `tentar_em`; zero when due.
    pub due_in: Duration,
    /// `talvez_enviado`: an earlier attempt may have reached the provider.
    pub maybe_sent: bool,
    pub attempts: u32,
    /// Since the first attempt that may have reached the provider.
    pub age: Duration,
}

/// How to address the row that is to be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// No row: insert it.
    New,
    /// Waiting, no token.
    Waiting,
    /// In flight under a token whose lease is over, or whose owner's session is gone.
    Abandoned(Token),
    /// Our own reservation, whose commit was not confirmed and whose call never began.
    Own(Token),
    /// Uncertain, and a redrive may ask a deduplicating provider again.
    Uncertain,
}

/// What is to be done about one effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectVerdict {
    /// Nothing is left to do.
    Settled(Outcome),
    /// The same event id with other content: the event is dead-lettered, no effect of it runs.
    ContentConflict,
    /// Reserve and call, not before `due_in`.
    Reserve { claim: Claim, due_in: Duration },
    /// Somebody may be calling now: look again after at most this long, and ask whether the owner lives.
    LookAgain { within: Duration, owner: Option<i64> },
    /// Nobody knows, and nobody may ask again: to review. `None`: it waits, without a token.
    ToUncertain { token: Option<Token>, exhausted: bool },
}

/// Who is looking: what may be done with an uncertain row, and what is known of the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looker {
    /// A redrive may send an uncertain effect again where the provider deduplicates.
    pub redrive: bool,
    /// The owner's session is known to be gone.
    pub owner_gone: bool,
    /// The token of a reservation of ours whose commit was not confirmed.
    pub own_token: Option<Token>,
    /// The looking process's own number: what it applied itself is no news when a record comes twice.
    pub own_number: Option<i64>,
}

/// The ledger's table: what the applier finds, and what it does then.
pub fn judge_effect(
    stored: Option<&StoredEffect>,
    request_digest: &Digest,
    event_digest: &Digest,
    mode: Mode,
    policy: &EffectPolicy,
    looker: Looker,
) -> EffectVerdict {
    let Some(row) = stored else {
        return match mode {
            Mode::Suppress => EffectVerdict::Settled(Outcome::Suppressed),
            Mode::Apply => EffectVerdict::Reserve { claim: Claim::New, due_in: Duration::ZERO },
        };
    };
    if row.event_digest != *event_digest {
        return EffectVerdict::ContentConflict;
    }
    let may_repeat = policy.on_failure == OnFailure::Release && row.age < policy.key_memory;
    match row.state {
        EffectState::Done if row.request_digest != *request_digest => {
            EffectVerdict::Settled(Outcome::Divergent)
        }
        // Applied before this process took over: after a resume the run's totals are as if nothing had happened.
        EffectState::Done if row.by_this_run && row.owner != looker.own_number => {
            EffectVerdict::Settled(Outcome::Applied)
        }
        EffectState::Done => EffectVerdict::Settled(Outcome::AlreadyRecorded),
        EffectState::Uncertain if looker.redrive && may_repeat && mode == Mode::Apply => {
            EffectVerdict::Reserve { claim: Claim::Uncertain, due_in: Duration::ZERO }
        }
        EffectState::Uncertain => EffectVerdict::Settled(Outcome::Uncertain),
        // A suppressed effect is never called and its row never touched; nobody knows yet how it ends.
        EffectState::Reserved if mode == Mode::Suppress => EffectVerdict::Settled(Outcome::Uncertain),
        EffectState::Reserved => judge_reserved(row, may_repeat, policy, looker),
    }
}

fn judge_reserved(
    row: &StoredEffect,
    may_repeat: bool,
    policy: &EffectPolicy,
    looker: Looker,
) -> EffectVerdict {
    let Some(token) = row.token else {
        return if !row.maybe_sent || (may_repeat && row.attempts < policy.max_attempts) {
            EffectVerdict::Reserve { claim: Claim::Waiting, due_in: row.due_in }
        } else {
            EffectVerdict::ToUncertain { token: None, exhausted: may_repeat }
        };
    };
    if looker.own_token == Some(token) {
        return EffectVerdict::Reserve { claim: Claim::Own(token), due_in: Duration::ZERO };
    }
    if !row.lease_left.is_zero() && !looker.owner_gone {
        return EffectVerdict::LookAgain { within: row.lease_left, owner: row.owner };
    }
    if may_repeat && row.attempts < policy.max_attempts {
        EffectVerdict::Reserve { claim: Claim::Abandoned(token), due_in: Duration::ZERO }
    } else {
        EffectVerdict::ToUncertain { token: Some(token), exhausted: may_repeat }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::plan::tests::policy;

    fn write(id: &str, version: i64, amount: i64) -> CommissionWrite {
        CommissionWrite {
            order_id: "p".into(),
            amount: Cents(amount),
            version,
            event_id: id.into(),
            event_digest: [1; 32],
        }
    }

    fn row(id: &str, version: i64, amount: i64) -> StoredCommission {
        StoredCommission {
            event_id: id.into(),
            version,
            amount: Cents(amount),
            event_digest: [1; 32],
            by_this_run: false,
        }
    }

    #[test]
    fn b29_the_guard_keeps_the_newest_and_reports_conflicts() {
        assert_eq!(judge_state(None, &write("a", 1, 5)), StateVerdict::Write);
        assert_eq!(judge_state(Some(&row("b", 7, 5)), &write("a", 5, 9)), StateVerdict::IgnoredNewer);
        assert_eq!(judge_state(Some(&row("b", 7, 5)), &write("a", 7, 9)), StateVerdict::VersionConflict);
        assert_eq!(judge_state(Some(&row("b", 7, 5)), &write("a", 8, 9)), StateVerdict::Write);
        let same = StateVerdict::Unchanged { by_this_run: false };
        assert_eq!(judge_state(Some(&row("a", 7, 5)), &write("a", 7, 5)), same);
        assert_eq!(judge_state(Some(&row("a", 7, 50)), &write("a", 7, 5)), StateVerdict::Write);
        let mut other = row("a", 7, 5);
        other.event_digest = [2; 32];
        assert_eq!(judge_state(Some(&other), &write("a", 7, 5)), StateVerdict::ContentConflict);
    }

    const HOUR: Duration = Duration::from_hours(1);

    fn reserved(token: Option<u128>) -> StoredEffect {
        StoredEffect {
            state: EffectState::Reserved,
            request_digest: [3; 32],
            event_digest: [1; 32],
            by_this_run: false,
            token: token.map(Token::from_u128),
            owner: Some(7),
            lease_left: Duration::ZERO,
            due_in: Duration::ZERO,
            maybe_sent: false,
            attempts: 1,
            age: Duration::ZERO,
        }
    }

    fn judge(row: &StoredEffect, on_failure: OnFailure, looker: Looker) -> EffectVerdict {
        let mut p = policy("notificar-vendedor");
        p.on_failure = on_failure;
        judge_effect(Some(row), &[3; 32], &[1; 32], Mode::Apply, &p, looker)
    }

    #[test]
    fn an_abandoned_reservation_is_taken_over_or_left_to_review() {
        use EffectVerdict::{LookAgain, Reserve, ToUncertain};
        use OnFailure::{Hold, Release};
        let abandoned = reserved(Some(9));
        let token = Token::from_u128(9);
        let nobody = Looker::default();
        let again = Reserve { claim: Claim::Abandoned(token), due_in: Duration::ZERO };
        assert_eq!(judge(&abandoned, Release, nobody), again);
        let review = ToUncertain { token: Some(token), exhausted: false };
        assert_eq!(judge(&abandoned, Hold, nobody), review);

        let running = StoredEffect { lease_left: HOUR, ..abandoned.clone() };
        let wait = LookAgain { within: HOUR, owner: Some(7) };
        assert_eq!(judge(&running, Release, nobody), wait);
        assert_eq!(judge(&running, Hold, nobody), wait);
        let gone = Looker { owner_gone: true, ..nobody };
        assert_eq!(judge(&running, Release, gone), again);
        assert_eq!(judge(&running, Hold, gone), review);

        let tried_up = StoredEffect { attempts: 5, ..abandoned.clone() };
        let exhausted = ToUncertain { token: Some(token), exhausted: true };
        assert_eq!(judge(&tried_up, Release, nobody), exhausted);
    }

    #[test]
    fn b13_beyond_the_providers_memory_release_is_hold() {
        let old = StoredEffect { age: 25 * HOUR, ..reserved(Some(9)) };
        let verdict = judge(&old, OnFailure::Release, Looker::default());
        let token = Some(Token::from_u128(9));
        assert_eq!(verdict, EffectVerdict::ToUncertain { token, exhausted: false });
    }

    #[test]
    fn a_row_never_forgets_that_a_call_may_have_happened() {
        let waiting = StoredEffect { due_in: HOUR, ..reserved(None) };
        let when_due = EffectVerdict::Reserve { claim: Claim::Waiting, due_in: HOUR };
        assert_eq!(judge(&waiting, OnFailure::Hold, Looker::default()), when_due);
        let sent = StoredEffect { maybe_sent: true, ..waiting };
        assert_eq!(judge(&sent, OnFailure::Release, Looker::default()), when_due);
        let review = EffectVerdict::ToUncertain { token: None, exhausted: false };
        assert_eq!(judge(&sent, OnFailure::Hold, Looker::default()), review);
    }

    #[test]
    fn b14_done_with_another_request_is_divergent_and_never_sent_again() {
        let done = StoredEffect { state: EffectState::Done, request_digest: [9; 32], ..reserved(Some(9)) };
        let verdict = judge(&done, OnFailure::Release, Looker::default());
        assert_eq!(verdict, EffectVerdict::Settled(Outcome::Divergent));
    }

    #[test]
    fn b79_after_a_resume_an_effect_of_this_run_counts_as_applied_and_a_repetition_does_not() {
        let done = StoredEffect { state: EffectState::Done, by_this_run: true, ..reserved(Some(9)) };
        let resumed = Looker { own_number: Some(8), ..Looker::default() };
        let same_process = Looker { own_number: Some(7), ..Looker::default() };
        let applied = EffectVerdict::Settled(Outcome::Applied);
        assert_eq!(judge(&done, OnFailure::Hold, resumed), applied);
        let recorded = EffectVerdict::Settled(Outcome::AlreadyRecorded);
        assert_eq!(judge(&done, OnFailure::Hold, same_process), recorded);
    }

    #[test]
    fn an_uncertain_effect_is_asked_again_only_by_a_redrive_of_a_deduplicating_provider() {
        let row = StoredEffect { state: EffectState::Uncertain, ..reserved(None) };
        let redrive = Looker { redrive: true, ..Looker::default() };
        let stays = EffectVerdict::Settled(Outcome::Uncertain);
        assert_eq!(judge(&row, OnFailure::Release, Looker::default()), stays);
        assert_eq!(judge(&row, OnFailure::Hold, redrive), stays);
        let again = EffectVerdict::Reserve { claim: Claim::Uncertain, due_in: Duration::ZERO };
        assert_eq!(judge(&row, OnFailure::Release, redrive), again);
    }
}
