//! The topic of orders read back: a message to the fact that it tells, JSON or Avro.
//!
//! An Avro datum is read by the schema that this program published for its `event_type` and `schema_version`, so no
//! registry is asked. A message that no form of this program fits is refused, with what does not fit.

use std::borrow::Cow;
use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::reader::datum::GenericDatumReader;
use jiff::Timestamp;
use serde::Deserialize;
use uuid::Uuid;

use super::order_schemas::{ORDER_EVENTS, find};
use crate::domain::read_model::Fact;

/// Magic byte and schema id before an Avro datum.
const AVRO_HEAD: usize = 5;

/// Why a message tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum NotAFact {
    #[error("{event_type:?} in form {form} is not known; it needs a newer program")]
    Form { event_type: String, form: u32 },
    #[error("{0}")]
    Payload(String),
}

/// The part that all events have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    order_id: Uuid,
    #[serde(borrow)]
    tenant_id: Cow<'a, str>,
    version: u32,
    occurred_at: Instant,
}

/// RFC 3339 in JSON, microseconds in Avro.
#[derive(Deserialize)]
#[serde(untagged)]
enum Instant {
    Text(Timestamp),
    Micros(i64),
}

/// Reads messages; remembers parsed schemas.
#[derive(Default)]
pub struct OrderEvents {
    schemas: HashMap<(String, u32), Schema>,
}

impl OrderEvents {
    /// Hands the fact of a message to `with`.
    pub fn read<T>(
        &mut self,
        event_type: &str,
        form: u32,
        value: &[u8],
        with: impl FnOnce(&Fact<'_>) -> T,
    ) -> Result<T, NotAFact> {
        let text = if value.first() == Some(&0) {
            Cow::Owned(self.avro(event_type, form, value)?)
        } else {
            Cow::Borrowed(std::str::from_utf8(value).map_err(payload)?)
        };
        let envelope: Envelope<'_> = serde_json::from_str(&text).map_err(payload)?;
        let at = match envelope.occurred_at {
            Instant::Text(at) => at,
            Instant::Micros(micros) => Timestamp::from_microsecond(micros).map_err(payload)?,
        };
        Ok(with(&Fact {
            order_id: envelope.order_id,
            version: envelope.version,
            tenant_id: &envelope.tenant_id,
            at,
            name: event_type,
            form,
            payload: &text,
        }))
    }

    /// The datum as JSON.
    fn avro(&mut self, event_type: &str, form: u32, value: &[u8]) -> Result<String, NotAFact> {
        let key = (event_type.to_owned(), form);
        if !self.schemas.contains_key(&key) {
            let published = find(ORDER_EVENTS, event_type, Some(form))
                .ok_or_else(|| NotAFact::Form { event_type: event_type.to_owned(), form })?;
            let schema = Schema::parse_str(published.text).map_err(payload)?;
            self.schemas.insert(key.clone(), schema);
        }
        let schema = &self.schemas[&key];
        let mut datum = value.get(AVRO_HEAD..).ok_or_else(|| NotAFact::Payload("is cut off".to_owned()))?;
        let reader = GenericDatumReader::builder(schema).build().map_err(payload)?;
        let value = reader.read_value(&mut datum).map_err(payload)?;
        let json: serde_json::Value = value.try_into().map_err(payload)?;
        Ok(json.to_string())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "fits map_err")]
fn payload(cause: impl ToString) -> NotAFact {
    NotAFact::Payload(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::to_avro::datum;
    use serde_json::json;

    const ORDER: Uuid = Uuid::from_u128(7);

    fn told(
        reader: &mut OrderEvents,
        form: u32,
        value: &[u8],
    ) -> Result<(Uuid, u32, String, String), NotAFact> {
        reader.read("CourierAssigned", form, value, |fact| {
            let said: serde_json::Value = serde_json::from_str(fact.payload).expect("JSON");
            let vehicle = said["vehicleType"].as_str().unwrap_or("none").to_owned();
            (fact.order_id, fact.version, fact.at.to_string(), format!("{} {vehicle}", fact.tenant_id))
        })
    }

    #[test]
    fn json_and_avro_tell_the_same_fact() {
        let said = json!({ "orderId": ORDER, "tenantId": "t 1", "version": 3, "occurredAt": "2026-10-14T03:00:00.000001Z",
                           "courierId": "k", "vehicleType": "bike" });
        let expected = (ORDER, 3, "2026-10-14T03:00:00.000001Z".to_owned(), "t 1 bike".to_owned());
        let mut reader = OrderEvents::default();
        assert_eq!(told(&mut reader, 2, said.to_string().as_bytes()).expect("JSON"), expected);
        let published = find(ORDER_EVENTS, "CourierAssigned", Some(2)).expect("published");
        let schema = Schema::parse_str(published.text).expect("a schema");
        let mut avro = vec![0, 0, 0, 0, 9];
        avro.extend(datum(&schema, &said).expect("fits"));
        assert_eq!(told(&mut reader, 2, &avro).expect("Avro"), expected);
    }

    #[test]
    fn what_is_no_fact_is_refused_and_never_a_panic() {
        let mut reader = OrderEvents::default();
        let values: [&[u8]; 6] =
            [b"", b"{}", b"\xff", &[0], &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 1, 255, 255, 255]];
        for value in values {
            assert!(told(&mut reader, 2, value).is_err(), "{value:?}");
        }
        assert!(matches!(told(&mut reader, 9, &[0, 0, 0, 0, 1]), Err(NotAFact::Form { form: 9, .. })));
    }
}
