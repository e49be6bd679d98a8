//! What is kept of an answer's body: bounded, and always storable as `jsonb`.
//!
//! `jsonb` refuses more than bad syntax: `\u0000`, lone surrogates, deep nesting, and numbers beyond `numeric`.
//! One such answer inside a settle-out would fail the whole batch, so anything doubtful is kept as a JSON string.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Bytes of an answer's body that are kept; the rest is read and dropped. Below 16,384 by more than an exponent of
/// two digits, so that no number in it has more decimal places than `numeric` holds (16,383).
pub(super) const BODY_MAX: usize = 16_000;

/// Bytes of the sentence in [`Evidence::detail`](super::Evidence::detail).
pub(super) const DETAIL_MAX: usize = 2_048;

/// An answer's body as far as it was kept, and how long it was in all.
#[derive(Debug, Default)]
pub(super) struct KeptBody {
    bytes: Vec<u8>,
    length: u64,
}

/// How a body that is longer than [`BODY_MAX`] stands in `resultado`.
#[derive(serde::Serialize)]
struct Truncated<'a> {
    truncado: bool,
    tamanho: u64,
    inicio: &'a str,
}

impl KeptBody {
    pub(super) fn push(&mut self, data: &[u8]) {
        self.length += data.len() as u64;
        let room = BODY_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// JSON text for `resultado`: the body itself where it is storable JSON, `null` for no body, else its text as a
    /// JSON string; `{"truncado":true,"tamanho":bytes,"inicio":text}` where it was longer than what is kept.
    pub(super) fn into_result(self) -> String {
        if self.length > BODY_MAX as u64 {
            let inicio = storable_text(&self.bytes);
            return json(&Truncated { truncado: true, tamanho: self.length, inicio: &inicio });
        }
        if self.bytes.iter().all(u8::is_ascii_whitespace) {
            return "null".to_owned();
        }
        match String::from_utf8(self.bytes) {
            Ok(text) if is_storable_json(&text) => text,
            Ok(text) => json(&storable_text(text.as_bytes())),
            Err(not_utf8) => json(&storable_text(not_utf8.as_bytes())),
        }
    }

    /// A sentence that starts with `summary` and ends with what the provider wrote.
    pub(super) fn describe(&self, summary: &str) -> String {
        let excerpt = &self.bytes[..self.bytes.len().min(DETAIL_MAX)];
        if excerpt.is_empty() {
            return sentence(summary);
        }
        sentence(&format!("{summary}: {}", String::from_utf8_lossy(excerpt)))
    }
}

/// `text` on one line: no control characters (a terminal would obey them), at most [`DETAIL_MAX`] bytes.
pub(super) fn sentence(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(DETAIL_MAX));
    for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if line.len() + c.len_utf8() > DETAIL_MAX {
            break;
        }
        line.push(c);
    }
    line
}

/// Text of foreign bytes, without what `jsonb` refuses.
fn storable_text(bytes: &[u8]) -> String {
    let unwelcome = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    String::from_utf8_lossy(bytes).chars().map(|c| if unwelcome(c) { '\u{FFFD}' } else { c }).collect()
}

fn json(value: &impl serde::Serialize) -> String {
    // Strings and integers: serialization has no way to fail.
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

fn is_storable_json(text: &str) -> bool {
    // serde_json bounds nesting at 128 and refuses lone surrogates; the visitor refuses NUL.
    serde_json::from_str::<Storable>(text).is_ok() && !has_long_exponent(text.as_bytes())
}

/// Whether valid JSON has a number with an exponent of three digits or more, which `numeric` may not hold.
fn has_long_exponent(json: &[u8]) -> bool {
    let (mut in_string, mut escaped) = (false, false);
    for (at, &byte) in json.iter().enumerate() {
        if in_string {
            (in_string, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
        } else if byte == b'"' {
            in_string = true;
        } else if matches!(byte, b'e' | b'E') && at > 0 && json[at - 1].is_ascii_digit() {
            let exponent = json[at + 1..].iter().skip_while(|b| matches!(b, b'+' | b'-'));
            if exponent.take_while(|b| b.is_ascii_digit()).count() > 2 {
                return true;
            }
        }
    }
    false
}

/// Accepts what `jsonb` accepts, and builds nothing.
struct Storable;

impl<'de> Deserialize<'de> for Storable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StorableVisitor)
    }
}

struct StorableVisitor;

impl<'de> Visitor<'de> for StorableVisitor {
    type Value = Storable;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON that jsonb can hold")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Storable, E> {
        Ok(Storable)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Storable, E> {
        Ok(Storable)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Storable, E> {
        Ok(Storable)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Storable, E> {
        Ok(Storable)
    }

    fn visit_unit<E>(self) -> Result<Storable, E> {
        Ok(Storable)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Storable, E> {
        if text.contains('\0') { Err(E::custom("NUL")) } else { Ok(Storable) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Storable, A::Error> {
        while let Some(Storable) = items.next_element()? {}
        Ok(Storable)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Storable, A::Error> {
        while let Some(Storable) = entries.next_key()? {
            let Storable = entries.next_value()?;
        }
        Ok(Storable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(body: &[u8]) -> String {
        let mut kept = KeptBody::default();
        kept.push(body);
        kept.into_result()
    }

    #[test]
    fn a_json_answer_is_kept_as_it_is() {
        assert_eq!(
            result(br#"{"id":"a\u00e9","n":[1,-2.5e3,null,true]}"#),
            r#"{"id":"a\u00e9","n":[1,-2.5e3,null,true]}"#
        );
        assert_eq!(result(br#"{"hex":"1e999","quote":"\"1e999"}"#), r#"{"hex":"1e999","quote":"\"1e999"}"#);
        assert_eq!(result(b""), "null");
        assert_eq!(result(b" \r\n"), "null");
    }

    #[test]
    fn what_jsonb_would_refuse_is_kept_as_text() {
        for (body, kept) in [
            (&b"ok"[..], r#""ok""#),
            (br#"{"a":"\u0000"}"#, r#""{\"a\":\"\\u0000\"}""#),
            (br#"{"\u0000":1}"#, r#""{\"\\u0000\":1}""#),
            (br#"["\ud800"]"#, r#""[\"\\ud800\"]""#),
            (b"[1e999999]", r#""[1e999999]""#),
            (b"[1e-20000]", r#""[1e-20000]""#),
            (b"[0e99999999999]", r#""[0e99999999999]""#),
            (b"{\"half\":", r#""{\"half\":""#),
            (b"a\0b\x07\xff", "\"a\u{FFFD}b\u{FFFD}\u{FFFD}\""),
        ] {
            assert_eq!(result(body), kept);
        }
        let deep = result("[".repeat(200).as_bytes());
        assert!(deep.starts_with("\"[["), "{deep}");
    }

    #[test]
    fn a_long_answer_is_cut_and_says_so() {
        let mut kept = KeptBody::default();
        kept.push(&[b'x'; 15_999]);
        kept.push("é".as_bytes());
        kept.push(&[b'y'; 100]);
        let value: serde_json::Value = serde_json::from_str(&kept.into_result()).expect("valid JSON");
        assert_eq!(value["truncado"], true);
        assert_eq!(value["tamanho"], 16_101);
        let start = value["inicio"].as_str().expect("text");
        assert_eq!((start.chars().count(), start.ends_with("x\u{FFFD}")), (16_000, true));
    }

    #[test]
    fn a_sentence_is_bounded_and_harmless_on_a_terminal() {
        let mut kept = KeptBody::default();
        kept.push(b"no\x1b[2J\0 money");
        assert_eq!(kept.describe("HTTP 422"), "HTTP 422: no [2J  money");
        kept.push("é".repeat(4_000).as_bytes());
        assert!(kept.describe("HTTP 422").len() <= 2_048);
        assert_eq!(KeptBody::default().describe("HTTP 404"), "HTTP 404");
    }
}
