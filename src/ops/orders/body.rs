//! Bodies of commands, field by field: whatever is wrong is said with the field's name, and nothing is guessed.
//!
//! A field that is not known is refused: a misspelt `expectedVersion` must not be taken for none.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::codec::percent;
use crate::ops::problem::Problem;
use crate::orders::event::Item;
use crate::orders::order::total;

const ID_MAX: usize = 200;
const REASON_MAX: usize = 2_000;
/// Lines of an order: an event must stay far below what a broker takes in one message.
const ITEMS_MAX: usize = 500;
const QUANTITY_MAX: i64 = 1_000_000;
const PRICE_MAX: i64 = 1_000_000_000_000;
/// Characters of a percentage; the exact value has at most 33 digits.
const PERCENT_MAX: usize = 40;

/// 400, naming the field.
pub fn bad(field: &str, what: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "bad-request", format!("{field}: {what}"))
}

/// The fields of a body that nobody has taken yet.
pub struct Fields(Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Fields {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-large", error.body_text())
        })?;
        Self::read(&bytes)
    }
}

impl Fields {
    /// No body at all is one without fields.
    pub fn read(bytes: &[u8]) -> Result<Self, Problem> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(bad("body", "must be a JSON object")),
            Err(error) => Err(bad("body", &format!("is not JSON: {error}"))),
        }
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    fn needed(&mut self, name: &str) -> Result<Value, Problem> {
        self.take(name).ok_or_else(|| bad(name, "is missing"))
    }

    pub fn id(&mut self, name: &str) -> Result<String, Problem> {
        text(name, &self.needed(name)?, ID_MAX)
    }

    pub fn optional_id(&mut self, name: &str) -> Result<Option<String>, Problem> {
        self.take(name).map(|value| text(name, &value, ID_MAX)).transpose()
    }

    pub fn reason(&mut self, name: &str) -> Result<String, Problem> {
        text(name, &self.needed(name)?, REASON_MAX)
    }

    pub fn optional_reason(&mut self, name: &str) -> Result<Option<String>, Problem> {
        self.take(name).map(|value| text(name, &value, REASON_MAX)).transpose()
    }

    pub fn cents(&mut self, name: &str) -> Result<i64, Problem> {
        whole(name, &self.needed(name)?, 0..=i64::MAX)
    }

    pub fn optional_version(&mut self, name: &str) -> Result<Option<u32>, Problem> {
        let read = |value: Value| whole(name, &value, 0..=i64::from(i32::MAX));
        let version = self.take(name).map(read).transpose()?;
        Ok(version.and_then(|version| u32::try_from(version).ok()))
    }

    /// An exact decimal from 0 to 100, as text: a JSON number with a fraction has lost it already.
    pub fn percent(&mut self, name: &str) -> Result<String, Problem> {
        let what = "must be a decimal from 0 to 100 as text, such as \"5\" or \"33.333\"";
        let text = match self.needed(name)? {
            Value::String(text) => text,
            Value::Number(number) if number.is_u64() => number.to_string(),
            _ => return Err(bad(name, what)),
        };
        let plain =
            text.len() <= PERCENT_MAX && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !plain || percent(&text).is_none() {
            return Err(bad(name, what));
        }
        Ok(text)
    }

    pub fn items(&mut self, name: &str) -> Result<Vec<Item>, Problem> {
        let Value::Array(values) = self.needed(name)? else {
            return Err(bad(name, "must be a list"));
        };
        if values.is_empty() || values.len() > ITEMS_MAX {
            return Err(bad(name, &format!("must have 1 to {ITEMS_MAX} items, has {}", values.len())));
        }
        let items = values
            .into_iter()
            .enumerate()
            .map(|(index, value)| item(&format!("{name}[{index}]"), value))
            .collect::<Result<Vec<_>, Problem>>()?;
        if total(&items).is_none() {
            return Err(bad(name, "cost more than 64 bits of cents together"));
        }
        Ok(items)
    }

    /// Everything was taken.
    pub fn nothing_else(self) -> Result<(), Problem> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(bad(name, "is not known here; leave it out")),
        }
    }
}

fn item(path: &str, value: Value) -> Result<Item, Problem> {
    let Value::Object(fields) = value else { return Err(bad(path, "must be an object")) };
    let mut fields = Fields(fields);
    let at = |field: &str| format!("{path}.{field}");
    let mut needed = |field: &str| fields.take(field).ok_or_else(|| bad(&at(field), "is missing"));
    let item = Item {
        sku: text(&at("sku"), &needed("sku")?, ID_MAX)?,
        quantity: whole(&at("quantity"), &needed("quantity")?, 1..=QUANTITY_MAX)?,
        unit_price_cents: whole(&at("unitPriceCents"), &needed("unitPriceCents")?, 0..=PRICE_MAX)?,
    };
    match fields.0.keys().next() {
        None => Ok(item),
        Some(name) => Err(bad(&at(name), "is not known here; leave it out")),
    }
}

fn text(name: &str, value: &Value, bytes_max: usize) -> Result<String, Problem> {
    let Some(text) = value.as_str().map(str::trim) else { return Err(bad(name, "must be a text")) };
    if text.is_empty() || text.len() > bytes_max || text.contains(char::is_control) {
        let what = format!("must have 1 to {bytes_max} bytes, without control characters");
        return Err(bad(name, &what));
    }
    Ok(text.to_owned())
}

fn whole(name: &str, value: &Value, range: std::ops::RangeInclusive<i64>) -> Result<i64, Problem> {
    let number = value.as_i64().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        bad(name, &format!("must be a whole number from {} to {}", range.start(), range.end()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &str, take: impl FnOnce(&mut Fields) -> Result<(), Problem>) -> String {
        let fields = Fields::read(body.as_bytes());
        let problem = fields.and_then(|mut fields| take(&mut fields).and_then(|()| fields.nothing_else()));
        problem.expect_err("refused").detail.into_owned()
    }

    fn items(body: &str) -> String {
        said(body, |fields| fields.items("items").map(drop))
    }

    #[test]
    fn what_is_wrong_is_said_with_the_name_of_the_field() {
        assert_eq!(said("[]", |_| Ok(())), "body: must be a JSON object");
        assert_eq!(
            said(r#"{"expectedversion":1}"#, |_| Ok(())),
            "expectedversion: is not known here; leave it out"
        );
        assert_eq!(said("{}", |fields| fields.cents("amountCents").map(drop)), "amountCents: is missing");
        for bad in ["1.5", "-1", "\"1\"", "1e400", "true"] {
            let body = format!(r#"{{"amountCents":{bad}}}"#);
            let detail = said(&body, |fields| fields.cents("amountCents").map(drop));
            assert!(detail.starts_with("amountCents: ") || detail.starts_with("body: "), "{bad}: {detail}");
        }
        assert_eq!(
            said(r#"{"sellerId":"a\u0000b"}"#, |fields| fields.id("sellerId").map(drop)),
            "sellerId: must have 1 to 200 bytes, without control characters"
        );
    }

    #[test]
    fn items_are_bounded_and_named_by_their_place() {
        assert_eq!(items(r#"{"items":[]}"#), "items: must have 1 to 500 items, has 0");
        assert_eq!(
            items(
                r#"{"items":[{"sku":"a","quantity":1,"unitPriceCents":1},{"sku":"b","quantity":0,"unitPriceCents":1}]}"#
            ),
            "items[1].quantity: must be a whole number from 1 to 1000000"
        );
        assert_eq!(items(r#"{"items":[{"sku":"a","quantity":1}]}"#), "items[0].unitPriceCents: is missing");
        assert_eq!(
            items(r#"{"items":[{"sku":"a","quantity":1,"unitPriceCents":1,"price":1}]}"#),
            "items[0].price: is not known here; leave it out"
        );
    }

    #[test]
    fn a_percentage_keeps_its_text() {
        let percent = |json: &str| {
            Fields::read(format!(r#"{{"p":{json}}}"#).as_bytes())
                .and_then(|mut fields| fields.percent("p"))
                .ok()
        };
        assert_eq!(percent(r#""33.330""#).as_deref(), Some("33.330"));
        assert_eq!(percent("5").as_deref(), Some("5"));
        assert_eq!(percent(r#""100""#).as_deref(), Some("100"));
        for bad in ["5.5", r#""100.1""#, r#""-1""#, r#""1e1""#, r#""""#, r#""5%""#, r#""05""#, "null"] {
            assert_eq!(percent(bad), None, "{bad}");
        }
    }
}
