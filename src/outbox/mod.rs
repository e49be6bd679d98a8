//! The outbox: what was decided is told, once it is decided, and in order.
//!
//! * [`message`](crate::domain::message): what a producer hands over; `pg::outbox::add` writes it in the transaction of the append
//! * [`relay`]: workers that publish what is there, the hint that wakes them, the care of the tables
//! * [`lanes`]: what may go out together, and who waits for whom
//! * [`floor`]: where a scan of the table begins
//! * [`broker`]: what the relay needs of a broker
//!
//! Promises:
//! * A message is published if and only if the transaction that added it was committed, at least once, under one
//!   `message_id`. (test `a_relay_killed_before_its_mark_repeats_and_loses_nothing`)
//! * Per aggregate and destination the first copies stand in the topic in the order in which they were added; nothing
//!   overtakes a message that waits. (test `b60_nothing_overtakes_a_refused_message_of_its_aggregate`)
//! * Only what the broker refuses for itself, again and again, is parked: in the dead-letter topic first, then in
//!   its row. An outage is waited out. (test `b50_...`)
//!
//! Not here: exactly-once publishing. A kill between acknowledgement and mark repeats a message; consumers that
//! only touch a database recognise it by the [`inbox`](crate::pg::inbox), the applier by its ledger.

pub mod broker;
pub mod floor;
pub mod lanes;
pub mod relay;
mod worker;

pub use crate::domain::message::{Destination, Message};
