//! Pure values and decisions: what an order-paid event means, and what should be true because of it.
//!
//! No async, no clock, no I/O, no wire format. Everything here can be tested with a value in and a value out.
//!
//! * [`event`]: one immutable fact, [`Event`](event::Event), with its digest
//! * [`money`]: exact percentages and the commission formula
//! * [`effect`]: effect keys, policies, ledger states and outcomes, with their boundary words
//! * [`message`]: what a producer hands over to be published
//! * [`plan`]: [`plan`](plan::plan()), from an event and the policies to what should be true
//! * [`read_model`]: names, facts and changes of read models
//! * [`verdict`]: what a stored commission or ledger row says about a plan

pub mod effect;
pub mod event;
pub mod message;
pub mod money;
pub mod plan;
pub mod poison;
pub mod read_model;
pub mod record;
pub mod verdict;
