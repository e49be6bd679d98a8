//! What is to be done about a due effect: the ledger's table, for a row that stands for its own event. Pure.

use crate::applier::recall::Recalled;
use crate::domain::effect::{EffectPolicy, Mode};
use crate::domain::verdict::{Claim, EffectVerdict, Looker, Token, judge_effect};
use crate::pg::wave::Evidence;

/// What is to be done about one due effect.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Call(Claim),
    Review { token: Option<Token>, why: &'static str },
    Leave,
}

/// The ledger's table, for a row that stands for its own event.
pub(super) fn step(effect: &Recalled, policy: &EffectPolicy) -> Step {
    let request = effect.target.request();
    let (digest, content) = (&effect.stored.request_digest, &effect.stored.event_digest);
    let verdict =
        judge_effect(Some(&effect.stored), digest, content, request.mode, policy, Looker::default());
    match verdict {
        EffectVerdict::Reserve { claim, .. } if effect.sendable => Step::Call(claim),
        EffectVerdict::Reserve { .. } if request.mode == Mode::Apply => {
            Step::Review { token: effect.stored.token, why: "the stored request is not one that can be sent" }
        }
        EffectVerdict::ToUncertain { token: Some(token), .. } => Step::Review {
            token: Some(token),
            why: "the process that reserved it is gone, or its lease is over; the call may have happened",
        },
        EffectVerdict::ToUncertain { token: None, exhausted: true } => {
            Step::Review { token: None, why: "no definite answer in all its attempts" }
        }
        EffectVerdict::ToUncertain { token: None, exhausted: false } => Step::Review {
            token: None,
            why: "an earlier attempt may have arrived, and the provider does not, or no longer, know the key",
        },
        EffectVerdict::Reserve { .. }
        | EffectVerdict::Settled(_)
        | EffectVerdict::ContentConflict
        | EffectVerdict::LookAgain { .. } => Step::Leave,
    }
}

pub(in crate::applier) fn abandoned(why: &str) -> Evidence {
    Evidence {
        answer: "abandonado",
        reached: "desconhecido",
        status: None,
        detail: why.to_owned(),
        elapsed: None,
    }
}

/// In parts of at most `size` that belong to one run each, the order within a run kept.
pub(super) fn by_run<T>(items: Vec<T>, run_of: impl Fn(&T) -> &String, size: usize) -> Vec<(String, Vec<T>)> {
    let mut parts: Vec<(String, Vec<T>)> = Vec::new();
    for item in items {
        let run = run_of(&item);
        match parts.iter_mut().rev().find(|(of, _)| of == run) {
            Some((_, part)) if part.len() < size => part.push(item),
            _ => parts.push((run.clone(), vec![item])),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::effect::EffectTypeId;
    use crate::domain::effect::{EffectState, OnFailure};
    use crate::domain::plan::tests::policy;
    use crate::domain::verdict::StoredEffect;
    use crate::pg::stored::StoredRow;

    const REQUEST: &str = r#"{"chave":"e:t","eventoId":"e","tipoEfeito":"t","pedidoId":"p","valorCentavos":5,"ocorridoEm":"2026-10-14T12:00:00Z"}"#;

    fn row(token: Option<u128>, maybe_sent: bool) -> StoredRow {
        StoredRow {
            key: "e:t".into(),
            effect_type: "t".into(),
            event_id: "e".into(),
            order_id: "p".into(),
            version: 1,
            run_id: "ao-vivo".into(),
            request: REQUEST.into(),
            effect: StoredEffect {
                state: EffectState::Reserved,
                request_digest: [3; 32],
                event_digest: [1; 32],
                by_this_run: false,
                token: token.map(Token::from_u128),
                owner: Some(7),
                lease_left: Duration::ZERO,
                due_in: Duration::ZERO,
                maybe_sent,
                attempts: 1,
                age: Duration::ZERO,
            },
        }
    }

    fn judged(row: StoredRow, change: impl FnOnce(&mut EffectPolicy)) -> Step {
        let mut p = policy("t");
        change(&mut p);
        step(&Recalled::of(row, EffectTypeId(0), &p), &p)
    }

    fn release(p: &mut EffectPolicy) {
        p.on_failure = OnFailure::Release;
    }

    #[test]
    fn b03_an_abandoned_effect_is_called_again_only_where_the_provider_deduplicates() {
        assert_eq!(judged(row(Some(9), false), release), Step::Call(Claim::Abandoned(Token::from_u128(9))));
        let Step::Review { token, .. } = judged(row(Some(9), false), |_| {}) else { panic!("review") };
        assert_eq!(token, Some(Token::from_u128(9)));
    }

    #[test]
    fn b13_beyond_the_providers_memory_it_goes_to_review() {
        let mut old = row(Some(9), true);
        old.effect.age = Duration::from_hours(25);
        assert!(matches!(judged(old, release), Step::Review { .. }));
    }

    #[test]
    fn what_is_proven_not_done_is_called_whatever_the_policy() {
        assert_eq!(judged(row(None, false), release), Step::Call(Claim::Waiting));
        assert_eq!(judged(row(None, false), |_| {}), Step::Call(Claim::Waiting));
        assert!(matches!(judged(row(None, true), |_| {}), Step::Review { token: None, .. }));
    }

    #[test]
    fn a_suppressed_effect_and_a_running_lease_are_left_alone() {
        assert_eq!(judged(row(Some(9), false), |p| p.mode = Mode::Suppress), Step::Leave);
        let mut running = row(Some(9), false);
        running.effect.lease_left = Duration::from_secs(1);
        assert_eq!(judged(running, release), Step::Leave);
    }

    #[test]
    fn a_request_that_cannot_be_sent_goes_to_review() {
        let broken = StoredRow { request: r#"{"x":1}"#.into(), ..row(Some(9), false) };
        let Step::Review { token, why } = judged(broken, release) else { panic!("review") };
        assert_eq!(
            (token, why),
            (Some(Token::from_u128(9)), "the stored request is not one that can be sent")
        );
    }

    #[test]
    fn parts_are_small_and_belong_to_one_run() {
        let items = ["a", "b", "a", "a", "b"].map(str::to_owned).to_vec();
        let parts = by_run(items, |item| item, 2);
        let sizes: Vec<(&str, usize)> = parts.iter().map(|(run, part)| (run.as_str(), part.len())).collect();
        assert_eq!(sizes, [("a", 2), ("b", 2), ("a", 1)]);
    }
}
