//! A client's message to a [`RawRecord`], byte for byte.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers, Message};

use crate::applier::intake::RawRecord;

/// Stands for a header name that is not UTF-8, which the client library cannot give us.
const UNREADABLE_NAME: &str = "\u{FFFD}";

pub fn raw_record(message: &BorrowedMessage<'_>, topic: &Arc<str>) -> RawRecord {
    RawRecord {
        topic: Arc::clone(topic),
        partition: message.partition(),
        offset: message.offset(),
        timestamp_ms: message.timestamp().to_millis().filter(|ms| *ms != -1),
        key: message.key().map(Box::from),
        value: message.payload().map(Box::from),
        headers: message.headers().map(headers).unwrap_or_default(),
    }
}

fn headers(borrowed: &BorrowedHeaders) -> Vec<(String, Option<Vec<u8>>)> {
    (0..borrowed.count()).map(|index| header(borrowed, index)).collect()
}

/// The client library panics on a header name that is not UTF-8 (the protocol forbids one, a producer may write it
/// all the same). One record must not end the process, so this one header is caught and keeps a substitute.
fn header(borrowed: &BorrowedHeaders, index: usize) -> (String, Option<Vec<u8>>) {
    let read = catch_unwind(AssertUnwindSafe(|| {
        borrowed.try_get(index).map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
    }));
    match read {
        Ok(Some(header)) => header,
        Ok(None) | Err(_) => (UNREADABLE_NAME.to_owned(), None),
    }
}

/// Bytes a record holds, for limits.
pub fn weight(raw: &RawRecord) -> usize {
    let headers: usize =
        raw.headers.iter().map(|(name, value)| name.len() + value.as_ref().map_or(0, Vec::len)).sum();
    raw.key.as_ref().map_or(0, |key| key.len()) + raw.value.as_ref().map_or(0, |value| value.len()) + headers
}
