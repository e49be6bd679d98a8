//! Judging and laying over, without a database.

use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};

use super::*;
use crate::applier::intake::RawRecord;
use crate::domain::effect::{Mode, OnFailure, StateOutcome};
use crate::domain::money::Cents;
use crate::domain::plan::plan;
use crate::domain::plan::tests::{event, policy};

const NOTIFY: EffectTypeId = EffectTypeId(0);
const LANE: LaneId = LaneId { partition: 0, claim: 1 };

fn policies() -> Policies {
    Policies::new(vec![policy("notificar-vendedor")])
}

/// A record of an event whose commission is a twentieth of `amount`.
fn record(id: &str, order: &str, version: i64, amount: i64) -> Planned {
    record_under(id, order, version, amount, &policies())
}

fn record_under(id: &str, order: &str, version: i64, amount: i64, policies: &Policies) -> Planned {
    let raw = RawRecord {
        topic: Arc::from("t"),
        partition: 0,
        offset: 0,
        timestamp_ms: None,
        key: None,
        value: None,
        headers: Vec::new(),
    };
    Planned {
        lane: LANE,
        offset: RecordOffset(0),
        plan: Arc::new(plan(event(id, order, version, amount), policies)),
        raw: Box::new(raw),
        traceparent: None,
        read_at: Instant::now(),
    }
}

/// Neither the ledger nor the commissions know anything of it.
fn nothing() -> Answers {
    found(None, None)
}

fn found(commission: Option<StoredCommission>, effect: Option<StoredEffect>) -> Answers {
    let found = Found { question: 0, effect, commission, version_taken: false };
    Answers { found: smallvec![Some(Box::new(found))] }
}

/// Everything is as it should be.
fn silence() -> Answers {
    Answers { found: smallvec![None] }
}

fn stored(record: &Planned) -> StoredCommission {
    let state = &record.plan.commission;
    StoredCommission {
        event_id: state.event_id.clone(),
        version: state.version,
        amount: state.amount,
        event_digest: state.event_digest,
        by_this_run: false,
    }
}

fn done_for(record: &Planned) -> StoredEffect {
    draft::done(record.plan.effects[0].digest, record.plan.commission.event_digest)
}

fn judged(records: &[Planned], answers: &[Answers]) -> Judged {
    judge(records, answers, &policies(), &HashSet::new())
}

type Told = (Option<StateOutcome>, SmallVec<[(EffectTypeId, Outcome); 2]>);

fn outcomes(judged: &Judged) -> Vec<Told> {
    judged.tallies.iter().map(|tally| (tally.state, tally.effects.clone())).collect()
}

#[test]
fn two_events_of_one_order_make_one_row_before_the_first_after_the_last() {
    let records = [record("a", "p", 1, 10_000), record("b", "p", 2, 20_000)];
    let stood = StoredCommission { amount: Cents(50), ..stored(&records[0]) };
    let answers = [found(Some(stood.clone()), None), found(Some(stood), None)];
    let judged = judged(&records, &answers);
    let rows = states(&records, &answers, &judged);
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].before.map(|row| (row.amount, row.version)), Some((Cents(50), 1)));
    assert_eq!((rows[0].after.amount, rows[0].after.version), (Cents(1000), 2));
    let written = (Some(StateOutcome::Written), smallvec![(NOTIFY, Outcome::WouldApply)]);
    assert_eq!(outcomes(&judged), [written.clone(), written]);
}

#[test]
fn an_order_that_stays_as_it_is_makes_no_row() {
    let records = [record("a", "p", 1, 10_000)];
    let answers = [silence()];
    let judged = judged(&records, &answers);
    assert!(states(&records, &answers, &judged).is_empty());
    assert!(effects(&records, &judged, &policies()).is_empty());
    let same = (Some(StateOutcome::Unchanged), smallvec![(NOTIFY, Outcome::AlreadyRecorded)]);
    assert_eq!(outcomes(&judged), [same]);
}

#[test]
fn an_older_version_is_ignored_and_its_effect_still_told() {
    let records = [record("a", "p", 1, 10_000)];
    let newer = record("b", "p", 2, 20_000);
    let answers = [found(Some(stored(&newer)), None)];
    let judged = judged(&records, &answers);
    assert!(judged.writes.is_empty());
    let ignored = (Some(StateOutcome::IgnoredNewer), smallvec![(NOTIFY, Outcome::WouldApply)]);
    assert_eq!(outcomes(&judged), [ignored]);
}

#[test]
fn b14_an_effect_done_with_another_request_is_divergent() {
    let records = [record("a", "p", 1, 10_000)];
    let told_wrongly = StoredEffect { request_digest: [9; 32], ..done_for(&records[0]) };
    let answers = [found(Some(stored(&records[0])), Some(told_wrongly))];
    let judged = judged(&records, &answers);
    let divergent = (Some(StateOutcome::Unchanged), smallvec![(NOTIFY, Outcome::Divergent)]);
    assert_eq!(outcomes(&judged), [divergent]);
    let policies = policies();
    let rows = effects(&records, &judged, &policies);
    assert_eq!((rows[0].request.key.as_str(), rows[0].outcome), ("a:notificar-vendedor", Outcome::Divergent));
}

#[test]
fn a_suppressed_effect_is_suppressed_unless_the_ledger_knows_it() {
    let mut quiet = policy("notificar-vendedor");
    quiet.mode = Mode::Suppress;
    let quiet = Policies::new(vec![quiet]);
    let records = [record_under("a", "p", 1, 1, &quiet), record_under("b", "q", 1, 1, &quiet)];
    let answers = [nothing(), silence()];
    let judged = judge(&records, &answers, &quiet, &HashSet::new());
    let told: Vec<Outcome> = judged.tallies.iter().map(|tally| tally.effects[0].1).collect();
    assert_eq!(told, [Outcome::Suppressed, Outcome::AlreadyRecorded]);
}

/// A reservation in flight: the token and the owner of a process, the lease running.
fn running(record: &Planned) -> StoredEffect {
    StoredEffect {
        state: EffectState::Reserved,
        token: Some(uuid::Uuid::from_u128(9)),
        owner: Some(7),
        lease_left: Duration::from_secs(20),
        attempts: 1,
        ..done_for(record)
    }
}

fn told(effect: StoredEffect, on_failure: OnFailure, gone: &[i64]) -> Outcome {
    let mut notify = policy("notificar-vendedor");
    notify.on_failure = on_failure;
    let records = [record("a", "p", 1, 10_000)];
    let answers = [found(Some(stored(&records[0])), Some(effect))];
    let gone = gone.iter().copied().collect();
    judge(&records, &answers, &Policies::new(vec![notify]), &gone).tallies[0].effects[0].1
}

#[test]
fn a_reserved_effect_would_be_applied_where_the_road_would_call_and_is_uncertain_elsewhere() {
    use OnFailure::{Hold, Release};
    let record = record("a", "p", 1, 10_000);
    assert_eq!(told(running(&record), Release, &[]), Outcome::Uncertain, "somebody may be calling now");
    assert_eq!(told(running(&record), Release, &[7]), Outcome::WouldApply, "its owner is gone");
    assert_eq!(told(running(&record), Hold, &[7]), Outcome::Uncertain);
    let over = StoredEffect { lease_left: Duration::ZERO, ..running(&record) };
    assert_eq!(told(over.clone(), Release, &[]), Outcome::WouldApply);
    assert_eq!(told(over, Hold, &[]), Outcome::Uncertain);
    let waiting = StoredEffect { token: None, due_in: Duration::from_mins(1), ..running(&record) };
    assert_eq!(told(waiting.clone(), Hold, &[]), Outcome::WouldApply, "proven not sent");
    assert_eq!(told(StoredEffect { maybe_sent: true, ..waiting }, Hold, &[]), Outcome::Uncertain);
    let uncertain = StoredEffect { state: EffectState::Uncertain, ..running(&record) };
    assert_eq!(told(uncertain, Release, &[7]), Outcome::Uncertain);
}

#[test]
fn the_same_effect_twice_would_be_applied_once() {
    let records = [record("a", "p", 1, 10_000), record("a", "p", 1, 10_000)];
    let judged = judged(&records, &[nothing(), nothing()]);
    let effects: Vec<Outcome> = judged.tallies.iter().map(|tally| tally.effects[0].1).collect();
    assert_eq!(effects, [Outcome::WouldApply, Outcome::AlreadyRecorded]);
    assert_eq!(judged.effects, [(0, 0, Outcome::WouldApply)]);
}

#[test]
fn another_event_at_a_version_that_is_taken_is_a_dead_letter_and_no_effect() {
    // v3, v4, v2, and then another event at v2: the order has moved on, the version is taken all the same.
    let records = [
        record("c", "p", 3, 10_000),
        record("d", "p", 4, 20_000),
        record("b", "p", 2, 30_000),
        record("x", "p", 2, 40_000),
    ];
    let judged = judged(&records, &[nothing(), nothing(), nothing(), nothing()]);
    let results: Vec<_> = judged.tallies.iter().map(|tally| tally.result).collect();
    let (applied, dead) = (Some(EventResult::Applied), Some(EventResult::DeadLettered));
    assert_eq!(results, [applied, applied, applied, dead]);
    assert_eq!(judged.effects.len(), 3);
}

#[test]
fn conflicts_are_dead_letters_and_change_nothing() {
    let records = [record("b", "p", 1, 20_000), record("a", "q", 1, 20_000)];
    let first = record("a", "p", 1, 10_000);
    let other_content = StoredCommission { event_digest: [4; 32], ..stored(&records[1]) };
    let answers = [found(Some(stored(&first)), None), found(Some(other_content), None)];
    let judged = judged(&records, &answers);
    assert!(judged.writes.is_empty() && judged.effects.is_empty());
    assert_eq!(outcomes(&judged), [(Some(StateOutcome::VersionConflict), smallvec![]), (None, smallvec![])]);
    assert!(judged.tallies.iter().all(|tally| tally.result == Some(EventResult::DeadLettered)));
}

#[test]
fn what_earlier_batches_would_have_written_is_laid_over_what_was_found() {
    let earlier = record("a", "p", 1, 10_000);
    let records = [record("b", "p", 2, 20_000), record("a", "p", 1, 10_000)];
    let by_this_run = StoredCommission { by_this_run: true, ..stored(&earlier) };
    let mut answers = [nothing(), nothing()];
    let drafted = vec![
        Drafted { question: 0, commission: Some(by_this_run.clone()), ..Drafted::default() },
        Drafted {
            question: 1,
            commission: Some(by_this_run),
            effect: Some(done_for(&earlier)),
            version_taken: false,
        },
    ];
    lay_over(&records, &mut answers, drafted);
    let judged = judged(&records, &answers);
    assert_eq!(
        outcomes(&judged),
        [
            (Some(StateOutcome::Written), smallvec![(NOTIFY, Outcome::WouldApply)]),
            (Some(StateOutcome::IgnoredNewer), smallvec![(NOTIFY, Outcome::AlreadyRecorded)]),
        ]
    );
}

#[test]
fn a_newer_version_that_live_wrote_meanwhile_stands() {
    let records = [record("b", "p", 2, 20_000)];
    let live = record("c", "p", 3, 30_000);
    let mut answers = [found(Some(stored(&live)), None)];
    let drafted = Drafted { commission: Some(stored(&record("a", "p", 1, 1))), ..Drafted::default() };
    lay_over(&records, &mut answers, vec![drafted]);
    assert_eq!(judged(&records, &answers).tallies[0].state, Some(StateOutcome::IgnoredNewer));
}

#[test]
fn silence_stays_silence_under_an_older_draft() {
    // Live wrote exactly this event's row after an older one was drafted.
    let records = [record("b", "p", 2, 20_000)];
    let mut answers = [silence()];
    let drafted = Drafted { commission: Some(stored(&record("a", "p", 1, 1))), ..Drafted::default() };
    lay_over(&records, &mut answers, vec![drafted]);
    let same = (Some(StateOutcome::Unchanged), smallvec![(NOTIFY, Outcome::AlreadyRecorded)]);
    assert_eq!(outcomes(&judged(&records, &answers)), [same]);
}

#[test]
fn the_draft_knows_which_versions_are_taken() {
    let records = [record("x", "p", 1, 40_000)];
    let newer = record("b", "p", 2, 20_000);
    let mut answers = [found(Some(stored(&newer)), None)];
    lay_over(&records, &mut answers, vec![Drafted { version_taken: true, ..Drafted::default() }]);
    let judged = judged(&records, &answers);
    assert_eq!(judged.tallies[0].state, Some(StateOutcome::VersionConflict));
    assert_eq!(judged.tallies[0].result, Some(EventResult::DeadLettered));
}
