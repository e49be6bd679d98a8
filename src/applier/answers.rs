//! From what an answer proves to what becomes of the effect: the table of answers, as a pure function.

use std::time::Duration;

use crate::domain::effect::{EffectPolicy, OnFailure, Outcome};
use crate::domain::poison::Reason;
use crate::gateway::{Answer, Proof};
use crate::pg::wave::{Destination, Evidence};

/// Longest wait that a provider's Retry-After may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// What the applier knows of the attempt that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub policy: &'a EffectPolicy,
    /// This one included.
    pub attempts: u32,
    /// An *earlier* attempt may have reached the provider.
    pub maybe_sent: bool,
    /// It probed an open circuit: nothing is counted.
    pub probe: bool,
    /// How long to wait before the next attempt.
    pub backoff: Duration,
}

/// What happens after the ledger says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    Settled(Outcome),
    DeadLetter { reason: Reason, message: String, outcome: Outcome },
    Retry { due_in: Duration },
}

/// What must be written, and what follows.
#[derive(Debug)]
pub(super) enum Consequence {
    Done { result: String },
    Move { to: Destination, evidence: Evidence, next: Next },
}

/// Whether the provider answered at all, for the circuit: a 'no' or a 'not now' is an answer.
pub(super) const fn is_definite(proof: &Proof) -> bool {
    !matches!(proof, Proof::NotSent | Proof::Unknown)
}

/// The table of what each answer proves, with the policy of the effect type.
pub(super) fn consequence(answer: Answer, attempt: Attempt<'_>) -> Consequence {
    let release = attempt.policy.on_failure == OnFailure::Release;
    let name = &attempt.policy.name;
    let seen = answer.evidence;
    let said = format!("{name}: {}", seen.detail);
    let evidence = |what: &'static str| Evidence {
        answer: what,
        reached: seen.reached.as_str(),
        status: seen.status,
        detail: seen.detail.clone(),
        elapsed: Some(seen.elapsed),
    };
    let wait = |what, due_in, maybe_sent, counted| Consequence::Move {
        to: Destination::Waiting { due_in, maybe_sent, counted },
        evidence: evidence(what),
        next: Next::Retry { due_in },
    };
    let review =
        |what, next| Consequence::Move { to: Destination::Uncertain, evidence: evidence(what), next };
    match answer.proof {
        Proof::Done { result } => Consequence::Done { result },
        Proof::NotSent => wait("nao-enviado", attempt.backoff, false, false),
        Proof::Credentials => wait("credencial", attempt.backoff, false, false),
        Proof::NotNow { retry_after } => {
            let due_in = retry_after.map_or(attempt.backoff, |asked| asked.min(RETRY_AFTER_MAX));
            wait("agora-nao", due_in, false, false)
        }
        Proof::InProgress | Proof::Unknown if release => {
            let what =
                if matches!(answer.proof, Proof::InProgress) { "em-andamento" } else { "desconhecido" };
            if attempt.attempts >= attempt.policy.max_attempts && !attempt.probe {
                let message = format!("{said}; no definite answer in {} attempts", attempt.attempts);
                let outcome = Outcome::Failed;
                review(what, Next::DeadLetter { reason: Reason::EffectExhausted, message, outcome })
            } else {
                wait(what, attempt.backoff, true, !attempt.probe)
            }
        }
        Proof::Unknown => review("desconhecido", Next::Settled(Outcome::Uncertain)),
        // Without deduplication by our key, 'in progress' is a refusal like any other 4xx.
        Proof::InProgress | Proof::Refused => {
            let reason = Reason::EffectRefused;
            let next = Next::DeadLetter { reason, message: said, outcome: Outcome::Refused };
            // An earlier attempt may have been sent: this refusal says nothing about that one.
            let to = if attempt.maybe_sent { Destination::Uncertain } else { Destination::Gone };
            Consequence::Move { to, evidence: evidence("recusado"), next }
        }
    }
}

/// Exponential backoff with jitter: `initial * 2^n`, at most `max`, of which a random half is taken off.
pub(super) fn backoff(policy: &EffectPolicy, retries: u32) -> Duration {
    let grown = policy.backoff_initial.saturating_mul(2_u32.saturating_pow(retries.min(20)));
    let capped = grown.min(policy.backoff_max.max(policy.backoff_initial));
    capped.mul_f64(rand::random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::plan::tests::policy;
    use crate::gateway::{Evidence as Seen, Reached};

    fn answered(proof: Proof, on_failure: OnFailure, attempts: u32, maybe_sent: bool) -> Consequence {
        let mut p = policy("notificar-vendedor");
        p.on_failure = on_failure;
        let evidence = Seen {
            reached: Reached::Sent,
            status: None,
            detail: "seen".into(),
            elapsed: Duration::from_millis(3),
        };
        let backoff = Duration::from_secs(2);
        let attempt = Attempt { policy: &p, attempts, maybe_sent, probe: false, backoff };
        consequence(Answer { proof, evidence }, attempt)
    }

    fn destination(c: &Consequence) -> Option<Destination> {
        match c {
            Consequence::Done { .. } => None,
            Consequence::Move { to, .. } => Some(*to),
        }
    }

    #[test]
    fn b37_an_unknown_answer_is_uncertain_under_hold_and_asked_again_under_release() {
        let hold = answered(Proof::Unknown, OnFailure::Hold, 1, false);
        assert_eq!(destination(&hold), Some(Destination::Uncertain));
        let release = answered(Proof::Unknown, OnFailure::Release, 1, false);
        let due_in = Duration::from_secs(2);
        let waiting = Destination::Waiting { due_in, maybe_sent: true, counted: true };
        assert_eq!(destination(&release), Some(waiting));
    }

    #[test]
    fn b53_the_last_attempt_is_given_up_to_review_and_dead_letter() {
        let c = answered(Proof::Unknown, OnFailure::Release, 5, true);
        assert_eq!(destination(&c), Some(Destination::Uncertain));
        assert!(matches!(
            c,
            Consequence::Move { next: Next::DeadLetter { reason: Reason::EffectExhausted, .. }, .. }
        ));
    }

    #[test]
    fn b54_what_was_never_sent_waits_and_counts_nothing() {
        for on_failure in [OnFailure::Hold, OnFailure::Release] {
            let c = answered(Proof::NotSent, on_failure, 99, false);
            let due_in = Duration::from_secs(2);
            let waiting = Destination::Waiting { due_in, maybe_sent: false, counted: false };
            assert_eq!(destination(&c), Some(waiting));
        }
    }

    #[test]
    fn b52_in_progress_is_asked_again_where_the_provider_deduplicates_and_refused_elsewhere() {
        let release = answered(Proof::InProgress, OnFailure::Release, 1, false);
        assert!(matches!(
            destination(&release),
            Some(Destination::Waiting { maybe_sent: true, counted: true, .. })
        ));
        let hold = answered(Proof::InProgress, OnFailure::Hold, 1, false);
        assert_eq!(destination(&hold), Some(Destination::Gone));
    }

    #[test]
    fn a_refusal_after_an_attempt_that_may_have_arrived_keeps_the_row_for_review() {
        let c = answered(Proof::Refused, OnFailure::Release, 2, true);
        assert_eq!(destination(&c), Some(Destination::Uncertain));
        let c = answered(Proof::Refused, OnFailure::Hold, 1, false);
        assert_eq!(destination(&c), Some(Destination::Gone));
    }

    #[test]
    fn b51_retry_after_is_honoured_up_to_an_hour() {
        let asked = Proof::NotNow { retry_after: Some(Duration::from_hours(25)) };
        let c = answered(asked, OnFailure::Hold, 1, false);
        let due_in = Duration::from_hours(1);
        let waiting = Destination::Waiting { due_in, maybe_sent: false, counted: false };
        assert_eq!(destination(&c), Some(waiting));
    }
}
