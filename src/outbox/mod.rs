//! The outbox: what was decided is told, once decided, and in order.
//!
//! * [`message`]: what a producer hands over; `pg::outbox::add` writes it in the transaction of the append

pub mod message;

pub use message::{Destination, Message};
