//! The log: the only room that knows Kafka's client.

pub mod admin;
