//! What the relay needs of a broker. The one that speaks Kafka is `stream::outbox`.

use std::sync::Arc;

use futures::future::BoxFuture;

/// A record as it goes to the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub topic: Arc<str>,
    pub key: String,
    pub value: Vec<u8>,
    pub headers: Vec<(String, String)>,
    /// When the message was made: the same on every repetition.
    pub timestamp_ms: i64,
}

/// Why a record was not acknowledged, by what is to be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// No to this one record. It may become a yes later (a limit was raised, a schema was deployed), or never.
    #[error("refused: {cause}")]
    Refused { by: RefusedBy, cause: String },
    /// Broker, topic or right is missing, whatever the record: wait. It may have been written all the same.
    #[error("not acknowledged: {0}")]
    Away(String),
    /// This client can send nothing any more; a new one can.
    #[error("the producer has failed for good: {0}")]
    Fatal(String),
}

/// Who says no to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedBy {
    Broker,
    /// It does not fit its schema, and so has no bytes; what is parked is its JSON.
    Schema,
}

impl RefusedBy {
    /// Header `reprise-dlq-motivo`.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Broker => "recusado-pelo-broker",
            Self::Schema => "fora-do-esquema",
        }
    }
}

/// Why a record is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    pub by: RefusedBy,
    pub cause: String,
    pub attempts: u32,
}

pub trait Broker: Send + Sync {
    /// Resolves with the acknowledgement of all in-sync replicas. Of one key, the caller sends one record at a time.
    fn send(&self, record: Arc<Record>) -> BoxFuture<'static, Result<(), SendError>>;

    /// Writes the record, cut if it must be, to the dead-letter topic; resolves as [`Broker::send`] does.
    fn park(&self, record: Arc<Record>, parting: Parting) -> BoxFuture<'static, Result<(), SendError>>;

    /// Forgets what was sent and is not acknowledged: it is somebody else's now.
    fn forget(&self);
}
