//! JSON text to [`Fields`]: borrowed slices of the record, found in one pass.
//!
//! What is not asked for is skipped without being read: `serde_json` skips and slices values iteratively, so
//! neither depth nor the spelling of a number in an unknown field can hurt. `payload` alone is walked again for its
//! two fields. Numbers stay text until [`Decimal`] reads them.
//!
//! A field of ours that stands there twice makes the record `json-invalido`: parsers disagree on which one counts,
//! and money must not depend on the parser. Unknown fields may repeat. A lone surrogate (`\ud800`) is no text:
//! `campo-invalido` in a field of ours, ignored elsewhere.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::fields::{Fields, Payload, Raw};
use super::number::Decimal;
use crate::domain::poison::{Poison, Reason};

pub(super) fn read(value: &[u8]) -> Result<Fields<'_>, Poison> {
    match value.trim_ascii_start().first() {
        Some(b'{') => {}
        Some(_) => return Err(not_json("must be one JSON object, or Avro framed with 0x00 and a schema id")),
        None => return Err(not_json("is empty; must be one JSON object (only a null value is a tombstone)")),
    }
    let text = std::str::from_utf8(value)
        .map_err(|err| not_json(format!("is not UTF-8 from byte {} on", err.valid_up_to())))?;
    let names = ["id", "tipo", "pedidoId", "versao", "payload", "ocorridoEm"];
    let mut members = object(text, &names)?;
    let [id, kind, order_id, version, payload, occurred_at] = members.found;
    let payload = match payload {
        None => Payload::Missing,
        Some(raw) if raw.get() == "null" => Payload::Missing,
        Some(raw) if raw.get().starts_with('{') => {
            let inner = object(raw.get(), &["valorCentavos", "percentual"])?;
            members.repeated = members.repeated.or(inner.repeated);
            let [amount, percent] = inner.found.map(classify);
            Payload::Object { amount, percent }
        }
        Some(raw) => Payload::Other(type_name(raw.get())),
    };
    Ok(Fields {
        id: classify(id),
        kind: classify(kind),
        order_id: classify(order_id),
        version: classify(version),
        payload,
        occurred_at: classify(occurred_at),
        repeated: members.repeated,
    })
}

fn not_json(message: impl fmt::Display) -> Poison {
    Poison::new(Reason::InvalidJson, format!("the value {message}"))
}

/// The members of one object that were asked for, in the order of the names.
struct Members<'a, const N: usize> {
    found: [Option<&'a RawValue>; N],
    repeated: Option<&'static str>,
}

/// Reads exactly one object, which must be all of `text`.
fn object<'a, const N: usize>(text: &'a str, names: &[&'static str; N]) -> Result<Members<'a, N>, Poison> {
    let mut json = serde_json::Deserializer::from_str(text);
    json.deserialize_map(Wanted(names))
        .and_then(|members| json.end().map(|()| members))
        // Only syntax can be wrong here, and messages about syntax never quote the text.
        .map_err(|err| not_json(format!("is not one well-formed JSON object: {err}")))
}

struct Wanted<'n, const N: usize>(&'n [&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for Wanted<'_, N> {
    type Value = Members<'de, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members { found: [None; N], repeated: None };
        // Keys as they stand, quotes included: an unknown key need not even be valid Unicode.
        while let Some(key) = map.next_key::<&RawValue>()? {
            let Some(at) = position(key.get(), self.0) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if members.found[at].replace(map.next_value()?).is_some() {
                members.repeated = Some(self.0[at]);
            }
        }
        Ok(members)
    }
}

fn position(quoted: &str, names: &[&'static str]) -> Option<usize> {
    let key = unquote(quoted)?;
    names.iter().position(|name| *name == key)
}

/// The text of a well-formed JSON string; `None` where its escapes are no Unicode text.
fn unquote(quoted: &str) -> Option<Cow<'_, str>> {
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str(quoted).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

fn classify(raw: Option<&RawValue>) -> Raw<'_> {
    let Some(text) = raw.map(RawValue::get) else {
        return Raw::Missing;
    };
    match text.as_bytes().first() {
        Some(b'"') => unquote(text).map_or(Raw::Other("a text with half a surrogate pair"), Raw::Text),
        Some(b'-' | b'0'..=b'9') => {
            Decimal::parse(text).map_or(Raw::Other("a malformed number"), Raw::Number)
        }
        Some(b'n') => Raw::Null,
        _ => Raw::Other(type_name(text)),
    }
}

fn type_name(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a text",
        Some(b't' | b'f') => "a boolean",
        _ => "a number",
    }
}
