//! Sagas on orders, by orchestration: a durable state machine that calls the outside world through the effect ledger.
//!
//! * [`machine`]: the steps of `assign-order-to-courier`, what follows on what, and what is undone in which order; pure
//! * [`runner`]: workers that claim what is due, take one step, and write its outcome with the next step at once
//!
//! Promises:
//! * A step's outcome, its effect's ledger row and the next step stand in one transaction; a worker whose claim is over
//!   writes nothing. (test `sagas_killed_between_any_two_steps_end_as_if_nothing_had_happened`)
//! * An effect of which nobody knows whether it happened holds the saga: it neither goes on nor undoes on a guess.
//!   (test `b73_the_undo_waits_for_the_true_outcome_of_a_slow_step`)
//! * Undoing is in reverse order, never reported as done unless it is, and tried without end.
//!
//! Not here: what an answer proves (`gateway`), what may be called again (`domain::verdict`).

pub mod machine;
pub mod runner;

pub use machine::{Position, Step};
