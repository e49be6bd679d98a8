//! The ledger's state machine, explored exhaustively for small scopes.
//!
//! Two consumers and a sweeper work on one effect, or on those of two events; a look and its write are separate
//! steps, so everything may happen between them; any process may crash anywhere, lose the answer of a commit, be
//! paused past its lease or bring a late answer. The decisions are the product's own ([`judge_effect`],
//! [`consequence`]); the ledger is modelled as the compare-and-sets of `pg::wave` and `pg::moves` write it.
//! `explore` walks all of it and checks I2 and I3.
//!
//! Why two events of one order and one effect type: these block each other, in every consumer, so what happens to
//! the first decides when the second begins. Events of different orders share no row, and every statement names the
//! rows it touches; all they have in common is the life of their process (crash, lost answer, lost session), which
//! is free to happen anywhere already when one of them is explored alone. So whatever can happen to an event beside
//! one of another order is a path of the exploration of one event.
//!
//! Why it stays small: what matters of a token is whether it is still the row's, and of an owner whether it is one
//! of the three or gone. States that differ in names only are one state.

mod explore;

use std::time::Duration;

use super::answers::{Attempt, Consequence, Next, consequence};
use crate::domain::effect::{EffectPolicy, EffectState, Mode};
use crate::domain::verdict::{Claim, EffectVerdict, Looker, StoredEffect, Token, judge_effect};
use crate::gateway::{Answer, Evidence, Proof, Reached};
use crate::pg::wave::Destination;

const DIGEST: [u8; 32] = [7; 32];
const WORKERS: usize = 3;
/// The last of the workers: it has the ledger only, no events.
const SWEEPER: usize = 2;

/// Tokens, by name: the row's own, and any that no row has any more.
const CURRENT: u8 = 1;
const STALE: u8 = 2;
/// The owner of a row whose process has crashed; worker `w` lives under number `w + 1`.
const GONE: u8 = 0;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Row {
    state: State,
    /// Reserved and in flight, under the token [`CURRENT`]; otherwise it waits, or is settled.
    in_flight: bool,
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

/// The effect of one event, and what the world has seen of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Effect {
    row: Option<Row>,
    dead_letter: bool,
    /// Attempts that the provider may have carried out: done, or without an answer. A refusal proves the contrary.
    reached: u8,
}

impl Effect {
    fn is_settled(&self) -> bool {
        self.dead_letter
            || self.row.as_ref().is_some_and(|row| matches!(row.state, State::Done | State::Uncertain))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Worker {
    /// The event it is at.
    at: usize,
    phase: Phase,
    /// Its session is gone although it lives.
    cut_off: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Knows nothing of the effect.
    Idle,
    /// Looked, and is about to write.
    Judged(Plan),
    /// Its reservation has committed; it may call.
    Reserved(Held),
    /// The request is on its way or answered; the answer is in hand when the write comes.
    Answered(Held, Said),
    /// Whether its reservation committed is not known to it.
    Unconfirmed {
        token: u8,
    },
    /// Knows that the effect is settled.
    Settled,
    Crashed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    token: u8,
    maybe_sent: bool,
    attempts: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Plan {
    Reserve(Kind),
    /// The token it saw; 0 for a row that waits.
    Uncertain(u8),
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

impl Phase {
    /// The token it holds or aims at is no row's any more.
    fn outdate(&mut self) {
        let (Self::Judged(Plan::Reserve(Kind::Abandoned(token) | Kind::Own(token)) | Plan::Uncertain(token))
        | Self::Reserved(Held { token, .. })
        | Self::Answered(Held { token, .. }, _)
        | Self::Unconfirmed { token }) = self
        else {
            return;
        };
        if *token == CURRENT {
            *token = STALE;
        }
    }
}

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Trouble {
    crashes: u8,
    lost_answers: u8,
    unsent: u8,
}

/// All who work on the effects, and the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    /// In the order of their events.
    effects: Vec<Effect>,
    workers: [Worker; WORKERS],
    left: Trouble,
}

/// Steps the system takes by itself, and what is done to it.
#[derive(Default)]
struct Steps {
    own: Vec<World>,
    suffered: Vec<World>,
}

impl World {
    fn new(events: usize, left: Trouble) -> Self {
        let worker = || Worker { at: 0, phase: Phase::Idle, cut_off: false };
        Self { effects: vec![Effect::default(); events], workers: [worker(), worker(), worker()], left }
    }

    fn is_settled(&self) -> bool {
        self.effects.iter().all(Effect::is_settled)
    }

    fn is_alive(&self, owner: u8) -> bool {
        let worker = usize::from(owner).checked_sub(1).map(|w| &self.workers[w]);
        worker.is_some_and(|worker| !worker.cut_off && worker.phase != Phase::Crashed)
    }

    fn row(&self, w: usize) -> Option<&Row> {
        self.effects[self.workers[w].at].row.as_ref()
    }

    /// Writes the row of effect `at`; whoever held its former token holds a stale one.
    fn write(&mut self, at: usize, row: Option<Row>) {
        for worker in self.workers.iter_mut().filter(|worker| worker.at == at) {
            worker.phase.outdate();
        }
        self.effects[at].row = row;
    }

    /// Look: the verdict of the product's own table, or nothing to do yet.
    fn look(&self, w: usize, policy: &EffectPolicy, own: Option<u8>) -> Option<Phase> {
        let mine = number_of(w);
        let stored = self.row(w).map(stored);
        let looker = Looker {
            redrive: false,
            owner_gone: self.row(w).is_some_and(|row| row.owner != mine && !self.is_alive(row.owner)),
            own_token: own.map(token),
            own_number: Some(i64::from(mine)),
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
            EffectVerdict::ToUncertain { token, .. } => {
                Phase::Judged(Plan::Uncertain(token.map_or(0, number)))
            }
            EffectVerdict::ContentConflict => unreachable!("one content only"),
        })
    }

    /// The reservation's compare-and-set. `None`: it matched nothing.
    fn reserve(&mut self, w: usize, kind: Kind) -> Option<Held> {
        let mine = number_of(w);
        let (maybe_sent, attempts) = match (kind, self.row(w)) {
            (Kind::New, None) => (false, 1),
            (Kind::Waiting, Some(row)) if row.state == State::Reserved && !row.in_flight => {
                (row.maybe_sent, row.attempts + 1)
            }
            (Kind::Abandoned(CURRENT), Some(row))
                if row.in_flight && (row.lease_over || row.owner == mine || !self.is_alive(row.owner)) =>
            {
                (true, row.attempts + 1)
            }
            (Kind::Own(CURRENT), Some(row)) if row.in_flight => (row.maybe_sent, row.attempts),
            _ => return None,
        };
        let row = Row {
            state: State::Reserved,
            in_flight: true,
            owner: mine,
            lease_over: false,
            maybe_sent,
            attempts,
        };
        self.write(self.workers[w].at, Some(row));
        Some(Held { token: CURRENT, maybe_sent, attempts })
    }

    fn give_up(&mut self, w: usize, expected: u8) {
        let mine = number_of(w);
        let Some(row) = self.row(w) else { return };
        let free = row.lease_over || row.owner == mine || !self.is_alive(row.owner);
        let matches = if row.in_flight { expected == CURRENT && free } else { expected == 0 };
        if row.state == State::Reserved && matches {
            let row = settled(State::Uncertain, row);
            self.write(self.workers[w].at, Some(row));
        }
    }

    /// What is written about an answer, fenced by its token; and what the worker does then.
    fn settle(&mut self, w: usize, held: Held, to: Option<Destination>, next: Option<&Next>) -> Phase {
        let at = self.workers[w].at;
        let Some(row) = self.row(w).filter(|row| row.in_flight && held.token == CURRENT).cloned() else {
            // A late 'done' is proof for an undecided uncertain row; anything else is evidence only.
            if to.is_none()
                && let Some(row) = &mut self.effects[at].row
                && row.state == State::Uncertain
            {
                row.state = State::Done;
            }
            return Phase::Idle;
        };
        let after = match to {
            None => Some(settled(State::Done, &row)),
            Some(Destination::Waiting { maybe_sent, counted, .. }) => Some(Row {
                maybe_sent: row.maybe_sent | maybe_sent,
                attempts: row.attempts - u8::from(!counted),
                ..settled(State::Reserved, &row)
            }),
            Some(Destination::Uncertain) => Some(settled(State::Uncertain, &row)),
            Some(Destination::Gone) => None,
            Some(Destination::LateAnswer { .. }) => unreachable!("never decided from an answer"),
        };
        self.write(at, after);
        match next {
            Some(Next::Retry { .. }) => Phase::Idle,
            Some(Next::DeadLetter { .. }) => {
                self.effects[at].dead_letter = true;
                Phase::Settled
            }
            None | Some(Next::Settled(_)) => Phase::Settled,
        }
    }

    /// Every state that one step of one worker, or of the world, can lead to.
    fn steps(&self, policy: &EffectPolicy) -> Steps {
        let mut steps = Steps::default();
        for w in 0..WORKERS {
            self.worker_steps(w, policy, &mut steps);
        }
        for at in 0..self.effects.len() {
            let mut next = self.clone();
            // Time passes by itself.
            if let Some(row) = &mut next.effects[at].row
                && row.in_flight
                && !row.lease_over
            {
                row.lease_over = true;
                steps.own.push(next);
            }
        }
        steps
    }

    fn with(&self, w: usize, phase: Phase) -> Self {
        let mut next = self.clone();
        next.workers[w].phase = phase;
        next
    }

    fn worker_steps(&self, w: usize, policy: &EffectPolicy, steps: &mut Steps) {
        match self.workers[w].phase {
            Phase::Idle | Phase::Settled if w == SWEEPER => self.sweeper_looks(policy, steps),
            Phase::Idle => steps.own.extend(self.look(w, policy, None).map(|phase| self.with(w, phase))),
            Phase::Settled if self.workers[w].at + 1 < self.effects.len() => {
                let mut next = self.with(w, Phase::Idle);
                next.workers[w].at += 1;
                steps.own.push(next);
            }
            Phase::Settled => {}
            Phase::Unconfirmed { token } => {
                // The session lock is taken again before anything else.
                let mut again = self.clone();
                again.workers[w].cut_off = false;
                if let Some(phase) = again.look(w, policy, Some(token)) {
                    again.workers[w].phase = phase;
                    steps.own.push(again);
                }
            }
            Phase::Judged(Plan::Reserve(kind)) => self.reserving(w, kind, steps),
            Phase::Judged(Plan::Uncertain(expected)) => {
                let mut next = self.with(w, Phase::Idle);
                next.give_up(w, expected);
                steps.own.push(next);
            }
            Phase::Reserved(held) => self.calling(w, held, steps),
            Phase::Answered(held, answer) => {
                let attempt = Attempt {
                    policy,
                    attempts: u32::from(held.attempts),
                    maybe_sent: held.maybe_sent,
                    probe: false,
                    backoff: Duration::ZERO,
                };
                let mut next = self.clone();
                next.workers[w].phase = match consequence(said(answer), attempt) {
                    Consequence::Done { .. } => next.settle(w, held, None, None),
                    Consequence::Move { to, next: then, .. } => next.settle(w, held, Some(to), Some(&then)),
                };
                steps.own.push(next);
            }
            Phase::Crashed => {
                // A consumer reads on from what is committed; here always from the first event.
                let mut next = self.with(w, Phase::Idle);
                next.workers[w].at = 0;
                steps.own.push(next);
            }
        }
        if self.left.crashes > 0
            && !matches!(self.workers[w].phase, Phase::Crashed | Phase::Idle | Phase::Settled)
        {
            steps.suffered.push(self.crashed(w));
        }
    }

    /// It finds rows that are there, in any order, and does not know of others.
    fn sweeper_looks(&self, policy: &EffectPolicy, steps: &mut Steps) {
        for (at, effect) in self.effects.iter().enumerate() {
            if effect.row.as_ref().is_some_and(|row| row.state == State::Reserved) {
                let mut next = self.clone();
                next.workers[SWEEPER].at = at;
                if let Some(phase) = next.look(SWEEPER, policy, None) {
                    next.workers[SWEEPER].phase = phase;
                    steps.own.push(next);
                }
            }
        }
    }

    fn reserving(&self, w: usize, kind: Kind, steps: &mut Steps) {
        let mut next = self.with(w, Phase::Idle);
        let Some(held) = next.reserve(w, kind) else {
            steps.own.push(next);
            return;
        };
        if self.left.lost_answers > 0 {
            let mut lost = next.with(w, Phase::Unconfirmed { token: held.token });
            lost.left.lost_answers -= 1;
            lost.workers[w].cut_off = true;
            steps.suffered.push(lost);
        }
        steps.own.push(next.with(w, Phase::Reserved(held)));
    }

    fn calling(&self, w: usize, held: Held, steps: &mut Steps) {
        for answer in [Said::Done, Said::Refused, Said::Unknown, Said::NotSent] {
            let mut next = self.with(w, Phase::Answered(held, answer));
            match answer {
                Said::NotSent if self.left.unsent == 0 => continue,
                Said::NotSent => next.left.unsent -= 1,
                Said::Refused => {}
                Said::Done | Said::Unknown => next.effects[self.workers[w].at].reached += 1,
            }
            steps.own.push(next);
        }
    }

    fn crashed(&self, w: usize) -> Self {
        let mut next = self.with(w, Phase::Crashed);
        next.workers[w].cut_off = false;
        next.left.crashes -= 1;
        for row in next.effects.iter_mut().filter_map(|effect| effect.row.as_mut()) {
            if row.owner == number_of(w) {
                row.owner = GONE;
            }
        }
        next
    }
}

/// A row that nobody holds.
fn settled(state: State, row: &Row) -> Row {
    let maybe_sent = row.maybe_sent || state == State::Uncertain;
    Row { state, in_flight: false, owner: GONE, lease_over: false, maybe_sent, attempts: row.attempts }
}

fn stored(row: &Row) -> StoredEffect {
    let hour = Duration::from_hours(1);
    StoredEffect {
        state: match row.state {
            State::Reserved => EffectState::Reserved,
            State::Done => EffectState::Done,
            State::Uncertain => EffectState::Uncertain,
        },
        request_digest: DIGEST,
        event_digest: DIGEST,
        by_this_run: false,
        token: row.in_flight.then(|| token(CURRENT)),
        owner: Some(i64::from(row.owner)),
        lease_left: if row.lease_over { Duration::ZERO } else { hour },
        due_in: Duration::ZERO,
        maybe_sent: row.maybe_sent,
        attempts: u32::from(row.attempts),
        age: Duration::ZERO,
    }
}

fn number_of(worker: usize) -> u8 {
    u8::try_from(worker + 1).expect("three workers")
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
