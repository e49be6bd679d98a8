//! A message on its way out, as its producer made it.

use std::collections::BTreeMap;

use serde_json::Value;
use uuid::Uuid;

/// Which topic a message is for. The topics' names are configuration, and so are not in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Destination {
    /// `[orders] topic`: every event.
    Events,
    /// `[kafka] topico`: what the applier consumes.
    Paid,
    /// `[windows] status_topic`: couriers that fell silent, and that are back.
    CourierStatus,
}

impl Destination {
    pub const ALL: [Self; 3] = [Self::Events, Self::Paid, Self::CourierStatus];

    /// Column `destination`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Paid => "paid",
            Self::CourierStatus => "courier-status",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|destination| destination.as_str() == word)
    }
}

/// Header names that consumers rest on.
pub mod header {
    pub const MESSAGE_ID: &str = "message_id";
    pub const EVENT_TYPE: &str = "event_type";
    pub const SCHEMA_VERSION: &str = "schema_version";
    pub const TRACEPARENT: &str = "traceparent";
    pub const TENANT_ID: &str = "tenant_id";
}

/// One message. Within an aggregate and destination, messages go out in the order in which they were added.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The `message_id`, a `UUIDv7`: made by the producer, the same on every repetition.
    pub id: Uuid,
    pub destination: Destination,
    pub aggregate_type: &'static str,
    /// The message key.
    pub aggregate_id: String,
    pub event_type: String,
    pub payload: Value,
    /// `message_id`, `event_type`, `schema_version`, `traceparent`, `tenant_id`.
    pub headers: BTreeMap<String, String>,
}
