//! A record as it was read, and a record that cannot be applied: plain values, kept byte for byte.

use std::sync::Arc;

use super::effect::Run;
use super::poison::Reason;

/// A record exactly as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawRecord {
    pub topic: Arc<str>,
    pub partition: i32,
    pub offset: i64,
    /// The record's own time in ms; absent where the producer gave none. May be absurd.
    pub timestamp_ms: Option<i64>,
    pub key: Option<Box<[u8]>>,
    pub value: Option<Box<[u8]>>,
    /// In their order, duplicates and nulls included.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// What a record says of itself, as far as its bytes could be read. For queries only: nothing is decided by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    pub id: Option<String>,
    /// `tipo`
    pub kind: Option<String>,
    pub order_id: Option<String>,
    pub version: Option<i64>,
    /// JSON text.
    pub payload: Option<String>,
    pub occurred_at: Option<jiff::Timestamp>,
}

/// A record, or one effect of it, that cannot be applied.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub raw: RawRecord,
    pub reason: Reason,
    pub message: String,
    /// Known where the record could be decoded.
    pub event_id: Option<String>,
    /// Known where the record could be decoded.
    pub order_id: Option<String>,
    /// `tipo_efeito`, where one effect failed.
    pub effect_type: Option<String>,
    pub attempts: u32,
    pub run: Run,
    pub first_failed_at: jiff::Timestamp,
}
