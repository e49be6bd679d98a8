//! The circuit of one effect type: stop asking a provider that answers nobody. Pure; time comes in as `Instant`s.
//!
//! ```text
//!             `threshold` different events in a row without a definite answer
//!   CLOSED ────────────────────────────────────────────────────────────────► OPEN, waiting
//!     ▲                                                                        │      ▲
//!     │ any definite answer                                         wait over  │      │ probe unanswered:
//!     └───────────────────────────────────────────────────────────  OPEN, one probe ──┘ the wait doubles
//! ```
//!
//! One bad event, however often it fails, never opens it: failures are counted by event. Answers of calls that began
//! before it opened may still come in: a definite one closes it, the others change nothing, so that they neither
//! lengthen the wait nor let a second probe out beside the first.

use std::time::{Duration, Instant};

/// Whether an event may begin a call now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permit {
    /// Closed: go on.
    Free,
    /// Open, and this event is the probe: begin it, or give it back with [`Circuit::probe_abandoned`].
    Probe,
    /// Open: begin nothing. Ask again at this instant, and after every answer.
    Wait(Instant),
}

/// Waits are cut to this, so that adding one to an instant cannot overflow whatever is configured.
const WAIT_LIMIT: Duration = Duration::from_hours(24);

/// Circuit of one effect type. Events are named by a number of the caller's choice (a hash of the event's id); an
/// event has at most one call of this effect type in flight.
#[derive(Debug, Clone)]
pub struct Circuit {
    threshold: usize,
    first_wait: Duration,
    wait_max: Duration,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Events without a definite answer since the last definite one, each once; shorter than `threshold`.
    Closed {
        unanswered: Vec<u64>,
    },
    Open {
        wait: Duration,
        until: Instant,
        probe: Option<u64>,
    },
}

impl State {
    const fn closed() -> Self {
        Self::Closed { unanswered: Vec::new() }
    }
}

impl Circuit {
    /// `threshold` = `circuito_limite` (0 means 1), `wait` = `circuito_espera`, `wait_max` = `recuo_maximo`
    /// (a first wait above it stays as it is).
    pub fn new(threshold: u32, wait: Duration, wait_max: Duration) -> Self {
        let threshold = usize::try_from(threshold.max(1)).unwrap_or(usize::MAX);
        let first_wait = wait.min(WAIT_LIMIT);
        let wait_max = wait_max.clamp(first_wait, WAIT_LIMIT);
        Self { threshold, first_wait, wait_max, state: State::closed() }
    }

    pub const fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// How long until the next probe may go out; zero where nothing is waited for.
    pub fn next_probe_in(&self, now: Instant) -> Duration {
        match &self.state {
            State::Open { until, .. } => until.saturating_duration_since(now),
            State::Closed { .. } => Duration::ZERO,
        }
    }

    /// May `event` begin? `Probe` is given to one event at a time and makes it the probe. While a probe is out,
    /// `Wait` names a moment to look again that is only a fallback: its answer changes everything.
    pub fn permit(&mut self, event: u64, now: Instant) -> Permit {
        match &mut self.state {
            State::Closed { .. } => Permit::Free,
            State::Open { wait, probe: Some(_), .. } => Permit::Wait(now + *wait),
            State::Open { until, .. } if now < *until => Permit::Wait(*until),
            State::Open { probe, .. } => {
                *probe = Some(event);
                Permit::Probe
            }
        }
    }

    /// A call of `event` ended; `definite` as [`Proof::is_definite`](super::Proof::is_definite) says.
    pub fn on_answer(&mut self, event: u64, definite: bool, now: Instant) {
        if definite {
            self.state = State::closed();
            return;
        }
        match &mut self.state {
            State::Closed { unanswered } => {
                if !unanswered.contains(&event) {
                    unanswered.push(event);
                }
                if unanswered.len() >= self.threshold {
                    self.state =
                        State::Open { wait: self.first_wait, until: now + self.first_wait, probe: None };
                }
            }
            State::Open { wait, until, probe } if *probe == Some(event) => {
                *wait = wait.saturating_mul(2).min(self.wait_max);
                *until = now + *wait;
                *probe = None;
            }
            // Begun before the circuit opened.
            State::Open { .. } => {}
        }
    }

    /// `event` was given back without having begun (partition lost, replay paused, process stopping): if it was the
    /// probe, another event may be it at once. For every other event this does nothing.
    pub fn probe_abandoned(&mut self, event: u64) {
        if let State::Open { probe, .. } = &mut self.state
            && *probe == Some(event)
        {
            *probe = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn opened(now: Instant) -> Circuit {
        let mut circuit = Circuit::new(3, SECOND, 5 * SECOND);
        for event in 1..=3 {
            assert!(!circuit.is_open());
            circuit.on_answer(event, false, now);
        }
        assert!(circuit.is_open());
        circuit
    }

    #[test]
    fn b54_different_events_without_an_answer_open_it() {
        let now = Instant::now();
        let mut circuit = opened(now);
        assert_eq!(circuit.permit(9, now), Permit::Wait(now + SECOND));
    }

    #[test]
    fn one_bad_event_never_opens_it() {
        let now = Instant::now();
        let mut circuit = Circuit::new(3, SECOND, 5 * SECOND);
        for _ in 0..100 {
            circuit.on_answer(7, false, now);
            circuit.on_answer(8, false, now);
            assert_eq!(circuit.permit(7, now), Permit::Free);
        }
    }

    #[test]
    fn an_answer_in_between_starts_the_count_again() {
        let now = Instant::now();
        let mut circuit = Circuit::new(2, SECOND, 5 * SECOND);
        for event in 0..100 {
            circuit.on_answer(event, false, now);
            circuit.on_answer(1_000 + event, true, now);
            assert!(!circuit.is_open());
        }
    }

    #[test]
    fn one_probe_at_a_time_and_the_wait_doubles_up_to_its_limit() {
        let mut now = Instant::now();
        let mut circuit = opened(now);
        for wait in [1, 2, 4, 5, 5] {
            let due = now + wait * SECOND;
            assert_eq!(circuit.permit(4, now), Permit::Wait(due));
            assert_eq!(circuit.permit(4, due), Permit::Probe);
            assert_eq!(circuit.permit(5, due), Permit::Wait(due + wait * SECOND));
            now = due + SECOND;
            circuit.on_answer(4, false, now);
        }
        assert_eq!(circuit.permit(6, now + 5 * SECOND), Permit::Probe);
        circuit.on_answer(6, true, now + 6 * SECOND);
        assert_eq!(circuit.permit(7, now + 6 * SECOND), Permit::Free);
    }

    #[test]
    fn after_it_closed_the_next_opening_waits_as_long_as_the_first() {
        let now = Instant::now();
        let mut circuit = opened(now);
        assert_eq!(circuit.permit(4, now + SECOND), Permit::Probe);
        circuit.on_answer(4, false, now + SECOND);
        circuit.on_answer(1, true, now + SECOND);
        for event in 1..=3 {
            circuit.on_answer(event, false, now + SECOND);
        }
        assert_eq!(circuit.permit(9, now + SECOND), Permit::Wait(now + 2 * SECOND));
    }

    #[test]
    fn late_failures_of_earlier_calls_neither_lengthen_the_wait_nor_free_the_probe() {
        let now = Instant::now();
        let mut circuit = opened(now);
        circuit.on_answer(50, false, now);
        assert_eq!(circuit.permit(9, now + SECOND), Permit::Probe);
        circuit.on_answer(51, false, now + SECOND);
        assert_eq!(circuit.permit(10, now + SECOND), Permit::Wait(now + 2 * SECOND));
    }

    #[test]
    fn a_late_answer_of_an_earlier_call_closes_it() {
        let now = Instant::now();
        let mut circuit = opened(now);
        circuit.on_answer(50, true, now);
        assert_eq!(circuit.permit(9, now), Permit::Free);
    }

    #[test]
    fn an_endless_wait_is_cut_to_a_day() {
        let now = Instant::now();
        let mut circuit = Circuit::new(0, Duration::MAX, Duration::MAX);
        circuit.on_answer(1, false, now);
        assert_eq!(circuit.permit(2, now), Permit::Wait(now + Duration::from_hours(24)));
    }

    #[test]
    fn an_abandoned_probe_lets_the_next_event_probe() {
        let now = Instant::now();
        let mut circuit = opened(now);
        let due = now + SECOND;
        assert_eq!(circuit.permit(4, due), Permit::Probe);
        circuit.probe_abandoned(5);
        assert_eq!(circuit.permit(5, due), Permit::Wait(due + SECOND));
        circuit.probe_abandoned(4);
        assert_eq!(circuit.permit(5, due), Permit::Probe);
    }

    proptest! {
        /// Whatever happens: never two probes out, never open before `threshold` different events failed, never
        /// stuck open: it always gives a probe once its longest wait is over.
        #[test]
        fn it_never_lets_two_probes_out_and_never_sticks(steps in prop::collection::vec((0_u64..8, 0_u8..4, 0_u64..3_000), 1..200)) {
            let mut circuit = Circuit::new(3, SECOND, 5 * SECOND);
            let mut now = Instant::now();
            let mut probe: Option<u64> = None;
            let mut failed: Vec<u64> = Vec::new();
            for (event, action, pause) in steps {
                now += Duration::from_millis(pause);
                match action {
                    0 => match circuit.permit(event, now) {
                        Permit::Probe => {
                            prop_assert!(probe.is_none());
                            probe = Some(event);
                        }
                        Permit::Free => prop_assert!(!circuit.is_open()),
                        Permit::Wait(until) => prop_assert!(until > now && until <= now + 5 * SECOND),
                    },
                    1 => {
                        circuit.on_answer(event, true, now);
                        prop_assert!(!circuit.is_open());
                        (probe, failed) = (None, Vec::new());
                    }
                    2 => {
                        circuit.on_answer(event, false, now);
                        if probe == Some(event) { probe = None; }
                        if !failed.contains(&event) { failed.push(event); }
                    }
                    _ => {
                        circuit.probe_abandoned(event);
                        if probe == Some(event) { probe = None; }
                    }
                }
                prop_assert_eq!(circuit.is_open(), failed.len() >= 3);
            }
            if circuit.is_open() && probe.is_none() {
                prop_assert_eq!(circuit.permit(99, now + 5 * SECOND), Permit::Probe);
            }
        }
    }
}
