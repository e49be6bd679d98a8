//! JSON to an Avro datum, field by field, by name.
//!
//! * A field that the schema does not know is left out: it was added for readers of JSON, or of a later version.
//! * A field that is missing takes its default; without one the message does not fit.
//! * Numbers are whole and in range, instants are RFC 3339 or an integer of the schema's unit: nothing is rounded.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::RecordSchema;
use apache_avro::types::Value;
use apache_avro::writer::datum::GenericDatumWriter;
use jiff::Timestamp;
use serde_json::Value as Json;

/// The datum, or what does not fit, by the field's path.
pub fn datum(schema: &Schema, json: &Json) -> Result<Vec<u8>, String> {
    let value = value(schema, json).map_err(|misfit| misfit.to_string())?;
    let writer = GenericDatumWriter::builder(schema).build().map_err(|error| error.to_string())?;
    writer.write_value_to_vec(value).map_err(|error| error.to_string())
}

/// What does not fit, and where; the path grows on the way out.
struct Misfit {
    path: Vec<String>,
    what: String,
}

impl Misfit {
    fn at(mut self, step: &str) -> Self {
        self.path.push(step.to_owned());
        self
    }
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path: Vec<&str> = self.path.iter().rev().map(String::as_str).collect();
        write!(f, "{}: {}", path.join("."), self.what)
    }
}

fn misfit(what: impl Into<String>) -> Misfit {
    Misfit { path: Vec::new(), what: what.into() }
}

fn value(schema: &Schema, json: &Json) -> Result<Value, Misfit> {
    let wanted = |word: &str| misfit(format!("must be {word}, is {}", kind(json)));
    Ok(match schema {
        Schema::Null if json.is_null() => Value::Null,
        Schema::Null => return Err(wanted("null")),
        Schema::Boolean => Value::Boolean(json.as_bool().ok_or_else(|| wanted("true or false"))?),
        Schema::Int => {
            let number = json.as_i64().and_then(|number| i32::try_from(number).ok());
            Value::Int(number.ok_or_else(|| wanted("a whole number of 32 bits"))?)
        }
        Schema::Long => Value::Long(json.as_i64().ok_or_else(|| wanted("a whole number of 64 bits"))?),
        Schema::Double => Value::Double(json.as_f64().ok_or_else(|| wanted("a number"))?),
        Schema::String => Value::String(json.as_str().ok_or_else(|| wanted("a text"))?.to_owned()),
        Schema::TimestampMicros => Value::TimestampMicros(instant(json, Timestamp::as_microsecond)?),
        Schema::TimestampMillis => Value::TimestampMillis(instant(json, Timestamp::as_millisecond)?),
        Schema::Array(array) => {
            let items = json.as_array().ok_or_else(|| wanted("a list"))?;
            let item = |(i, item): (usize, &Json)| {
                value(&array.items, item).map_err(|error| error.at(&i.to_string()))
            };
            Value::Array(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Schema::Map(map) => {
            let members = json.as_object().ok_or_else(|| wanted("an object"))?;
            let member = |(name, member): (&String, &Json)| {
                Ok((name.clone(), value(&map.types, member).map_err(|error| error.at(name))?))
            };
            Value::Map(members.iter().map(member).collect::<Result<HashMap<_, _>, Misfit>>()?)
        }
        Schema::Record(record) => self::record(record, json)?,
        Schema::Union(union) => {
            let fitting = union.variants().iter().enumerate().find_map(|(position, variant)| {
                Some((u32::try_from(position).ok()?, value(variant, json).ok()?))
            });
            let (position, value) = fitting.ok_or_else(|| wanted("one of its types"))?;
            Value::Union(position, Box::new(value))
        }
        _ => return Err(misfit("has a type that this program does not write")),
    })
}

fn record(record: &RecordSchema, json: &Json) -> Result<Value, Misfit> {
    let members = json.as_object().ok_or_else(|| misfit(format!("must be an object, is {}", kind(json))))?;
    let field = |field: &apache_avro::schema::RecordField| {
        let given = members.get(&field.name).or(field.default.as_ref());
        let given = given.ok_or_else(|| misfit("is missing").at(&field.name))?;
        let value = value(&field.schema, given).map_err(|error| error.at(&field.name))?;
        Ok((field.name.clone(), value))
    };
    Ok(Value::Record(record.fields.iter().map(field).collect::<Result<_, Misfit>>()?))
}

fn instant(json: &Json, unit: fn(Timestamp) -> i64) -> Result<i64, Misfit> {
    if let Some(number) = json.as_i64() {
        return Ok(number);
    }
    let parsed = json.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    parsed.map(unit).ok_or_else(|| misfit(format!("must be an instant (RFC 3339), is {}", kind(json))))
}

const fn kind(json: &Json) -> &'static str {
    match json {
        Json::Null => "null",
        Json::Bool(_) => "true or false",
        Json::Number(_) => "a number",
        Json::String(_) => "a text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
