//! Record headers as `jsonb`: `[[name, base64 or null], ...]`; order, duplicates and nulls stay.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub(super) fn to_json(headers: &[(String, Option<Vec<u8>>)]) -> String {
    let one = |(name, value): &(String, Option<Vec<u8>>)| {
        json!([name.replace('\0', "\u{fffd}"), value.as_ref().map(|bytes| STANDARD.encode(bytes))])
    };
    Value::Array(headers.iter().map(one).collect()).to_string()
}

pub(super) fn of_json(json: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let kept: Vec<(String, Option<String>)> = serde_json::from_str(json).unwrap_or_default();
    kept.into_iter()
        .map(|(name, value)| (name, value.map(|text| STANDARD.decode(text).unwrap_or_default())))
        .collect()
}
