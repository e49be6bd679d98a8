//! The ledger's state machine, explored exhaustively for small scopes.
//!
//! Two consumers and a sweeper, one or two effects; a look and its write are separate steps, so everything may
//! happen between them; any process may crash anywhere, lose the answer of a commit, be paused past its lease or
//! bring a late answer. The decisions are the product's own ([`judge_effect`], [`consequence`]); the ledger is
//! modelled as the compare-and-sets of `pg::wave` and `pg::moves` write it.
//!
//! Checked in every reachable state: under `manter` at most one attempt per effect may have been carried out (I2). Checked in
//! every state in which nothing more can happen by itself: the effect is done, uncertain or dead-lettered (I3).

use std::collections::HashSet;
use std::time::Duration;

use super::answers::{Attempt, Consequence, Next, consequence};
use crate::domain::effect::{EffectPolicy, EffectState, Mode, OnFailure};
use crate::domain::plan::tests::policy;
use crate::domain::verdict::{Claim, EffectVerdict, Looker, StoredEffect, Token, judge_effect};
use crate::gateway::{Answer, Evidence, Proof, Reached};
use crate::pg::wave::Destination;

const DIGEST: [u8; 32] = [7; 32];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Row {
    state: State,
    token: u8,
    owner: u8,
    lease_over: bool,
    maybe_sent: bool,
    attempts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Reserved,
    Done,
    Uncertain,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    /// Has the event, knows nothing.
    Idle,
    /// Looked, and is about to write.
    Judged(Plan),
    /// Its reservation has committed; it may call.
    Reserved {
        token: u8,
        maybe_sent: bool,
        attempts: u8,
    },
    /// The request is on its way or answered; the answer is in hand when the write comes.
    Answered {
        token: u8,
        maybe_sent: bool,
        attempts: u8,
        answer: Said,
    },
    /// Whether its reservation committed is not known to it.
    Unconfirmed {
        token: u8,
    },
    /// Knows that the effect is settled.
    Settled,
    Crashed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Plan {
    Reserve(Kind),
    Uncertain(Option<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    New,
    Waiting,
    Abandoned(u8),
    Own(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    Done,
    Refused,
    NotSent,
    Unknown,
}

/// One effect with all who work on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    row: Option<Row>,
    dead_letter: bool,
    /// Attempts that the provider may have carried out: done, or without an answer. A refusal proves the contrary.
    reached: u8,
    workers: [Phase; 3],
    /// Owner number of each worker's present life; a crash makes a new one.
    owners: [u8; 3],
    /// The worker's session is gone although it lives.
    cut_off: [bool; 3],
    next_token: u8,
    next_owner: u8,
    crashes_left: u8,
    lost_answers_left: u8,
    unsent_left: u8,
}

impl World {
    fn new() -> Self {
        Self {
            row: None,
            dead_letter: false,
            reached: 0,
            workers: [Phase::Idle, Phase::Idle, Phase::Idle],
            owners: [1, 2, 3],
            cut_off: [false; 3],
            next_token: 1,
            next_owner: 4,
            crashes_left: 2,
            lost_answers_left: 1,
            unsent_left: 1,
        }
    }

    fn alive(&self, owner: u8) -> bool {
        (0..3).any(|w| self.owners[w] == owner && !self.cut_off[w] && self.workers[w] != Phase::Crashed)
    }

    fn stored(&self) -> Option<StoredEffect> {
        let row = self.row.as_ref()?;
        let hour = Duration::from_hours(1);
        Some(StoredEffect {
            state: match row.state {
                State::Reserved => EffectState::Reserved,
                State::Done => EffectState::Done,
                State::Uncertain => EffectState::Uncertain,
            },
            request_digest: DIGEST,
            event_digest: DIGEST,
            by_this_run: false,
            token: (row.token > 0).then(|| token(row.token)),
            owner: Some(i64::from(row.owner)),
            lease_left: if row.lease_over { Duration::ZERO } else { hour },
            due_in: Duration::ZERO,
            maybe_sent: row.maybe_sent,
            attempts: u32::from(row.attempts),
            age: Duration::ZERO,
        })
    }

    /// Look: the verdict of the product's own table, or nothing to do yet.
    fn look(&self, w: usize, policy: &EffectPolicy, own: Option<u8>) -> Option<Phase> {
        let stored = self.stored();
        let looker = Looker {
            redrive: false,
            owner_gone: self
                .row
                .as_ref()
                .is_some_and(|row| row.owner != self.owners[w] && !self.alive(row.owner)),
            own_token: own.map(token),
            own_number: Some(i64::from(self.owners[w])),
        };
        Some(match judge_effect(stored.as_ref(), &DIGEST, &DIGEST, Mode::Apply, policy, looker) {
            EffectVerdict::Settled(_) => Phase::Settled,
            EffectVerdict::LookAgain { .. } => return None,
            EffectVerdict::Reserve { claim, .. } => Phase::Judged(Plan::Reserve(match claim {
                Claim::New => Kind::New,
                Claim::Waiting => Kind::Waiting,
                Claim::Abandoned(token) => Kind::Abandoned(number(token)),
                Claim::Own(token) => Kind::Own(number(token)),
                Claim::Uncertain => unreachable!("only a redrive claims uncertain rows"),
            })),
            EffectVerdict::ToUncertain { token, .. } => Phase::Judged(Plan::Uncertain(token.map(number))),
            EffectVerdict::ContentConflict => unreachable!("one content only"),
        })
    }

    /// The reservation's compare-and-set. `None`: it matched nothing.
    fn reserve(&mut self, w: usize, kind: Kind) -> Option<Phase> {
        let free = |row: &Row| row.lease_over || row.owner == self.owners[w] || !self.alive(row.owner);
        let (maybe_sent, attempts) = match (kind, &self.row) {
            (Kind::New, None) => (false, 1),
            (Kind::Waiting, Some(row)) if row.state == State::Reserved && row.token == 0 => {
                (row.maybe_sent, row.attempts + 1)
            }
            (Kind::Abandoned(t), Some(row))
                if row.state == State::Reserved && row.token == t && free(row) =>
            {
                (true, row.attempts + 1)
            }
            (Kind::Own(t), Some(row)) if row.state == State::Reserved && row.token == t => {
                (row.maybe_sent, row.attempts)
            }
            _ => return None,
        };
        let token = self.next_token;
        self.next_token += 1;
        let owner = self.owners[w];
        self.row =
            Some(Row { state: State::Reserved, token, owner, lease_over: false, maybe_sent, attempts });
        Some(Phase::Reserved { token, maybe_sent, attempts })
    }

    fn give_up(&mut self, w: usize, expected: Option<u8>) {
        let owner = self.owners[w];
        let alive = self.row.as_ref().is_some_and(|row| row.owner != owner && self.alive(row.owner));
        if let Some(row) = &mut self.row
            && row.state == State::Reserved
            && row.token == expected.unwrap_or(0)
            && (row.token == 0 || row.lease_over || !alive)
        {
            row.state = State::Uncertain;
            row.maybe_sent = true;
        }
    }

    /// What is written about an answer, fenced by its token; and what the worker does then.
    fn settle(&mut self, t: u8, to: Option<Destination>, next: Option<&Next>) -> Phase {
        let ours = self.row.as_ref().is_some_and(|row| row.state == State::Reserved && row.token == t);
        if !ours {
            // A late 'done' is proof for an undecided uncertain row; anything else is evidence only.
            if to.is_none()
                && let Some(row) = &mut self.row
                && row.state == State::Uncertain
            {
                row.state = State::Done;
            }
            return Phase::Idle;
        }
        match to {
            None => self.row.as_mut().expect("ours").state = State::Done,
            Some(Destination::Waiting { maybe_sent, counted, .. }) => {
                let row = self.row.as_mut().expect("ours");
                row.token = 0;
                row.maybe_sent |= maybe_sent;
                row.attempts -= u8::from(!counted);
            }
            Some(Destination::Uncertain) => {
                let row = self.row.as_mut().expect("ours");
                row.state = State::Uncertain;
                row.maybe_sent = true;
            }
            Some(Destination::Gone) => self.row = None,
            Some(Destination::LateAnswer { .. }) => unreachable!("never decided from an answer"),
        }
        match next {
            Some(Next::Retry { .. }) => Phase::Idle,
            Some(Next::DeadLetter { .. }) => {
                self.dead_letter = true;
                Phase::Settled
            }
            None | Some(Next::Settled(_)) => Phase::Settled,
        }
    }

    /// Every state that one step of one worker, or of the world, can lead to. `own`: steps the system takes by
    /// itself, as opposed to what is done to it.
    fn successors(&self, policy: &EffectPolicy) -> (Vec<Self>, Vec<Self>) {
        let (mut own, mut done_to_it) = (Vec::new(), Vec::new());
        for w in 0..3 {
            self.worker_steps(w, policy, &mut own, &mut done_to_it);
        }
        if let Some(row) = &self.row
            && row.state == State::Reserved
            && row.token > 0
            && !row.lease_over
        {
            // Time passes by itself.
            let mut next = self.clone();
            next.row.as_mut().expect("a row").lease_over = true;
            own.push(next);
        }
        (own, done_to_it)
    }

    fn worker_steps(&self, w: usize, policy: &EffectPolicy, own: &mut Vec<Self>, done_to_it: &mut Vec<Self>) {
        let with = |phase: Phase| {
            let mut next = self.clone();
            next.workers[w] = phase;
            next
        };
        match &self.workers[w] {
            Phase::Idle if self.dead_letter && self.row.is_none() => own.push(with(Phase::Settled)),
            Phase::Idle => own.extend(self.look(w, policy, None).map(with)),
            Phase::Unconfirmed { token } => {
                // The session lock is taken again before anything else.
                let mut again = self.clone();
                again.cut_off[w] = false;
                if let Some(phase) = again.look(w, policy, Some(*token)) {
                    again.workers[w] = phase;
                    own.push(again);
                }
            }
            Phase::Judged(Plan::Reserve(kind)) => {
                let mut next = self.clone();
                next.workers[w] = next.reserve(w, *kind).unwrap_or(Phase::Idle);
                if let Phase::Reserved { token, .. } = next.workers[w]
                    && self.lost_answers_left > 0
                {
                    let mut lost = next.clone();
                    lost.lost_answers_left -= 1;
                    lost.cut_off[w] = true;
                    lost.workers[w] = Phase::Unconfirmed { token };
                    done_to_it.push(lost);
                }
                own.push(next);
            }
            Phase::Judged(Plan::Uncertain(expected)) => {
                let mut next = with(Phase::Idle);
                next.give_up(w, *expected);
                own.push(next);
            }
            Phase::Reserved { token, maybe_sent, attempts } => {
                let (token, maybe_sent, attempts) = (*token, *maybe_sent, *attempts);
                for answer in [Said::Done, Said::Refused, Said::Unknown, Said::NotSent] {
                    let mut next = with(Phase::Answered { token, maybe_sent, attempts, answer });
                    match answer {
                        Said::NotSent if self.unsent_left == 0 => continue,
                        Said::NotSent => next.unsent_left -= 1,
                        Said::Refused => {}
                        Said::Done | Said::Unknown => next.reached += 1,
                    }
                    own.push(next);
                }
            }
            Phase::Answered { token, maybe_sent, attempts, answer } => {
                let attempt = Attempt {
                    policy,
                    attempts: u32::from(*attempts),
                    maybe_sent: *maybe_sent,
                    probe: false,
                    backoff: Duration::ZERO,
                };
                let mut next = self.clone();
                next.workers[w] = match consequence(said(*answer), attempt) {
                    Consequence::Done { .. } => next.settle(*token, None, None),
                    Consequence::Move { to, next: then, .. } => next.settle(*token, Some(to), Some(&then)),
                };
                own.push(next);
            }
            Phase::Settled => {}
            Phase::Crashed => {
                let mut next = with(Phase::Idle);
                next.owners[w] = next.next_owner;
                next.next_owner += 1;
                own.push(next);
            }
        }
        if self.crashes_left > 0 && !matches!(self.workers[w], Phase::Crashed | Phase::Idle | Phase::Settled)
        {
            let mut crashed = with(Phase::Crashed);
            crashed.crashes_left -= 1;
            crashed.cut_off[w] = false;
            done_to_it.push(crashed);
        }
    }

    fn settled(&self) -> bool {
        self.dead_letter
            || self.row.as_ref().is_some_and(|row| matches!(row.state, State::Done | State::Uncertain))
    }
}

fn token(number: u8) -> Token {
    Token::from_u128(u128::from(number))
}

fn number(token: Token) -> u8 {
    u8::try_from(token.as_u128()).expect("a small token")
}

fn said(answer: Said) -> Answer {
    let proof = match answer {
        Said::Done => Proof::Done { result: "null".to_owned() },
        Said::Refused => Proof::Refused,
        Said::NotSent => Proof::NotSent,
        Said::Unknown => Proof::Unknown,
    };
    let evidence =
        Evidence { reached: Reached::Sent, status: None, detail: String::new(), elapsed: Duration::ZERO };
    Answer { proof, evidence }
}

/// Walks every reachable state; returns how many there are.
fn explore(on_failure: OnFailure, check: impl Fn(&World)) -> usize {
    let mut policy = policy("notificar-vendedor");
    policy.on_failure = on_failure;
    policy.max_attempts = 2;
    let mut seen = HashSet::new();
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        check(&world);
        let (own, done_to_it) = world.successors(&policy);
        assert!(!own.is_empty() || world.settled(), "an effect is lost: {world:?}");
        open.extend(own);
        open.extend(done_to_it);
    }
    seen.len()
}

#[test]
fn i2_i3_under_hold_no_path_reaches_the_provider_twice_and_none_loses_the_effect() {
    let states = explore(OnFailure::Hold, |world| {
        assert!(world.reached <= 1, "reached twice: {world:?}");
    });
    assert!(states > 10_000, "the model is alive: {states} states");
}

#[test]
fn i3_under_release_no_path_loses_the_effect_and_attempts_are_bounded() {
    let states = explore(OnFailure::Release, |world| {
        if let Some(row) = &world.row {
            assert!(row.attempts <= 2, "{world:?}");
        }
    });
    assert!(states > 10_000, "the model is alive: {states} states");
}
