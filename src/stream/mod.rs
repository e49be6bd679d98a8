//! The log: the only room that knows Kafka.
//!
//! * [`consumer`]: a thread that reads partitions into the applier's channels and commits what it settled
//! * [`settings`]: what that thread is told, and which client properties nobody may override
//! * [`starts`]: where each partition begins, and what happens when that place is gone
//! * [`dead_letter`]: the dead-letter topic, byte for byte
//! * [`outbox`]: the relay's broker
//! * [`health`]: what is known of partitions, for metrics and for the stall watch
//! * [`produce`]: topics and records for the demo
//! * [`range`]: the range of a replay, captured once
//! * [`rewind`]: the topic of orders read again by a group of its own
//!
//! Promises: a record is handed over once per claim and in offset order per partition; nothing is committed that
//! the applier did not settle, nothing backwards, nothing of a partition that is not ours; the client is polled
//! whatever the back-pressure; every wait has a limit. Not here: what a record means, and when it is settled.

pub mod admin;
mod assignment;
mod commits;
pub mod consumer;
mod convert;
pub mod dead_letter;
mod driver;
pub mod health;
mod lanes;
pub mod outbox;
pub mod produce;
pub mod range;
pub mod rewind;
pub mod settings;
pub mod starts;
mod wake;

pub use consumer::{Closed, ConsumerHandle, Decoding, Outlets, StreamFailure, spawn};
pub use dead_letter::KafkaDeadLetters;
pub use health::{Observer, PartitionFacts};
pub use outbox::KafkaOutbox;
pub use settings::{Commits, ConsumerSettings, Membership};
pub use starts::{LostOffset, Start, Starts};

#[cfg(test)]
mod tests;
