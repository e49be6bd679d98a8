//! Avro datums in, verdicts out: encoded by the Avro library, an implementation other than the one under test.

use apache_avro::Decimal as AvroDecimal;
use apache_avro::types::Value as Avro;
use apache_avro::writer::datum::GenericDatumWriter;
use serde_json::Value;

use super::{decode, event, good, refused};
use crate::codec::{DecodeError, Decoded, Decoder, PEDIDO_PAGO_AVSC, Schema, schema_unknown};
use crate::domain::money::Cents;
use crate::domain::poison::Reason;

fn framed(id: u8, schema: &str, value: Avro) -> Vec<u8> {
    let schema = apache_avro::Schema::parse_str(schema).expect("a schema");
    let mut bytes = vec![0, 0, 0, 0, id];
    let writer = GenericDatumWriter::builder(&schema).build().expect("a writer");
    bytes.extend(writer.write_value_to_vec(value).expect("a datum"));
    bytes
}

pub(super) fn decode_as(schema: &str, bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut decoder = Decoder::new();
    decoder.learn(7, Schema::parse(schema, &[]));
    decoder.decode(Some(bytes))
}

fn text(value: &str) -> Avro {
    Avro::String(value.to_owned())
}

fn record(version: i64, payload: Vec<(String, Avro)>, occurred_at: Avro) -> Avro {
    Avro::Record(vec![
        ("id".to_owned(), text("evt-p")),
        ("tipo".to_owned(), text("pedido.pago")),
        ("pedidoId".to_owned(), text("ped-p")),
        ("versao".to_owned(), Avro::Long(version)),
        ("payload".to_owned(), Avro::Record(payload)),
        ("ocorridoEm".to_owned(), occurred_at),
    ])
}

fn payment(amount: Avro, percent: Avro) -> Vec<(String, Avro)> {
    vec![("valorCentavos".to_owned(), amount), ("percentual".to_owned(), percent)]
}

const NOON_MICROS: i64 = 1_791_979_200_000_000;

pub(super) fn published(percent: &str) -> Vec<u8> {
    let occurred_at = Avro::TimestampMicros(NOON_MICROS);
    framed(7, PEDIDO_PAGO_AVSC, record(1, payment(Avro::Long(10_000), text(percent)), occurred_at))
}

/// The published schema with other types for the fields that have a choice.
fn writer(amount: &str, percent: &str, occurred_at: &str) -> String {
    let mut schema: Value = serde_json::from_str(PEDIDO_PAGO_AVSC).expect("json");
    let json = |text: &str| serde_json::from_str::<Value>(text).expect("json");
    schema["fields"][4]["type"]["fields"][0]["type"] = json(amount);
    schema["fields"][4]["type"]["fields"][1]["type"] = json(percent);
    schema["fields"][5]["type"] = json(occurred_at);
    schema.to_string()
}

#[test]
fn the_same_fact_is_the_same_event_in_avro_and_in_json() {
    let json = event(good().to_string().as_bytes());
    assert_eq!(decode_as(PEDIDO_PAGO_AVSC, &published("5.0")), Ok(Decoded::Event(json)));
}

#[test]
fn avro_asks_for_the_schema_it_needs() {
    assert_eq!(decode(&[0, 0, 1, 0, 2, 9]), Err(DecodeError::SchemaNeeded(65_538)));
    for short in [&[0][..], &[0, 0], &[0, 0, 0, 0]] {
        refused(short, Reason::InvalidAvro, "starts like framed Avro");
    }
}

#[test]
fn avro_that_does_not_follow_its_schema_is_invalid_at_every_length() {
    let whole = published("5");
    let reason = |bytes: &[u8]| match decode_as(PEDIDO_PAGO_AVSC, bytes) {
        Err(DecodeError::Poison { poison, .. }) => poison.reason,
        other => panic!("{bytes:?}: {other:?}"),
    };
    for end in 5..whole.len() {
        assert_eq!(reason(&whole[..end]), Reason::InvalidAvro, "cut at {end}");
    }
    assert_eq!(reason(&[&whole[..], &[0]].concat()), Reason::InvalidAvro);
    // A string that claims 2^62 bytes, an integer of eleven bytes, a string that is not UTF-8.
    assert_eq!(
        reason(&[0, 0, 0, 0, 7, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        Reason::InvalidAvro
    );
    assert_eq!(reason(&[&[0, 0, 0, 0, 7][..], &[0xff; 20]].concat()), Reason::InvalidAvro);
    assert_eq!(reason(&[0, 0, 0, 0, 7, 2, 0xff]), Reason::InvalidAvro);
}

#[test]
fn avro_fields_meet_the_same_checks() {
    let long = r#""long""#;
    let micros = r#"{"type":"long","logicalType":"timestamp-micros"}"#;
    let check = |schema: &str, value: Avro| match decode_as(schema, &framed(7, schema, value)) {
        Err(DecodeError::Poison { poison, .. }) => (poison.reason.code(), poison.message),
        other => panic!("{schema}: {other:?}"),
    };
    let noon = || Avro::TimestampMicros(NOON_MICROS);
    let cases = [
        (
            writer(long, r#""double""#, micros),
            record(1, payment(Avro::Long(1), Avro::Double(5.0)), noon()),
            "campo-invalido",
            "payload.percentual",
        ),
        (
            writer(long, r#"["null","string"]"#, micros),
            record(1, payment(Avro::Long(1), Avro::Union(0, Box::new(Avro::Null))), noon()),
            "campo-ausente",
            "payload.percentual",
        ),
        (
            writer(long, r#""string""#, micros),
            record(1, payment(Avro::Long(1), text("100.01")), noon()),
            "valor-fora-do-limite",
            "payload.percentual",
        ),
        (
            writer(r#""string""#, r#""string""#, micros),
            record(1, payment(text("1"), text("5")), noon()),
            "campo-invalido",
            "payload.valorCentavos",
        ),
        (
            writer(long, r#""string""#, micros),
            record(0, payment(Avro::Long(1), text("5")), noon()),
            "valor-fora-do-limite",
            "versao",
        ),
        (
            writer(long, r#""string""#, micros),
            record(1, payment(Avro::Long(1), text("5")), Avro::TimestampMicros(i64::MAX)),
            "valor-fora-do-limite",
            "ocorridoEm",
        ),
        (
            writer(long, r#""string""#, long),
            record(1, payment(Avro::Long(1), text("5")), Avro::Long(NOON_MICROS)),
            "campo-invalido",
            "ocorridoEm",
        ),
        (
            writer(long, r#""string""#, r#"{"type":"long","logicalType":"local-timestamp-micros"}"#),
            record(1, payment(Avro::Long(1), text("5")), Avro::LocalTimestampMicros(NOON_MICROS)),
            "campo-invalido",
            "ocorridoEm",
        ),
    ];
    for (schema, value, reason, field) in cases {
        let (got, message) = check(&schema, value);
        assert_eq!(got, reason, "{message}");
        assert!(message.starts_with(&format!("{field}: ")), "{message}");
    }
}

#[test]
fn b69_scales_and_units_keep_the_meaning_their_writer_gave_them() {
    let json = event(good().to_string().as_bytes());
    let decimal =
        |scale: u32| format!(r#"{{"type":"bytes","logicalType":"decimal","precision":9,"scale":{scale}}}"#);
    let fixed =
        r#"["null",{"type":"fixed","name":"D","size":4,"logicalType":"decimal","precision":9,"scale":4}]"#;
    let bytes = |unscaled: i32| Avro::Decimal(AvroDecimal::from(unscaled.to_be_bytes()));
    let millis = r#"{"type":"long","logicalType":"timestamp-millis"}"#;
    let nanos = r#"{"type":"long","logicalType":"timestamp-nanos"}"#;
    let written = [
        (
            writer("\"int\"", &decimal(2), millis),
            payment(Avro::Int(10_000), bytes(500)),
            Avro::TimestampMillis(NOON_MICROS / 1000),
        ),
        (
            writer(&decimal(2), &decimal(4), nanos),
            payment(bytes(1_000_000), bytes(50_000)),
            Avro::TimestampNanos(NOON_MICROS * 1000),
        ),
        (
            writer("\"long\"", fixed, "\"string\""),
            payment(Avro::Long(10_000), Avro::Union(1, Box::new(bytes(50_000)))),
            text("2026-10-14T09:00:00-03:00"),
        ),
        (
            writer("\"long\"", "\"int\"", "\"string\""),
            payment(Avro::Long(10_000), Avro::Int(5)),
            text("2026-10-14T12:00:00Z"),
        ),
    ];
    for (schema, payload, occurred_at) in written {
        let got = decode_as(&schema, &framed(7, &schema, record(1, payload, occurred_at)));
        assert_eq!(got, Ok(Decoded::Event(json.clone())), "{schema}");
    }
    let schema = writer(&decimal(2), "\"string\"", millis);
    let minus = record(1, payment(bytes(-100), text("5")), Avro::TimestampMillis(0));
    let Ok(Decoded::Event(event)) = decode_as(&schema, &framed(7, &schema, minus)) else {
        panic!("an event")
    };
    assert_eq!(event.amount, Cents(-1));
}

#[test]
fn b69_plain_json_and_unframed_avro_say_what_they_are() {
    // JSON on an Avro topic is simply JSON.
    let mut decoder = Decoder::new();
    decoder.learn(7, Schema::parse(PEDIDO_PAGO_AVSC, &[]));
    assert!(matches!(decoder.decode(Some(good().to_string().as_bytes())), Ok(Decoded::Event(_))));
    refused(&published("5")[5..], Reason::InvalidJson, "the value must be one JSON object, or Avro framed");
    let unknown = schema_unknown(9);
    assert_eq!(
        (unknown.reason, unknown.message.as_str()),
        (Reason::InvalidAvro, "the schema registry has no schema with id 9")
    );
}

#[test]
fn unknown_avro_fields_and_other_types_cannot_hurt() {
    let list = r#"{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}"#;
    let schema = format!(
        r#"{{"type":"record","name":"Other","fields":[{{"name":"list","type":{list}}},{{"name":"tags","type":{{"type":"array","items":"null"}}}},{{"name":"map","type":{{"type":"map","values":"double"}}}},{{"name":"tipo","type":{{"type":"enum","name":"T","symbols":["criado"]}}}}]}}"#
    );
    // Two nodes; 2^62 nulls that cost no byte; a sized block of one map entry; the only symbol.
    let head = [0, 0, 0, 0, 7];
    let nulls = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0];
    let map = [1, 20, 2, b'k', 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let bytes = [&head[..], &[2, 0], &nulls, &map, &[0]].concat();
    assert_eq!(decode_as(&schema, &bytes), Ok(Decoded::OtherType));
    let endless = [&head[..], &vec![2; 1 << 20]].concat();
    let Err(DecodeError::Poison { poison, .. }) = decode_as(&schema, &endless) else { panic!("too deep") };
    assert_eq!(poison.message, "with its schema (id 7): datum nests deeper than 128 levels");
    for (schema, why) in [("\"string\"", "schema is not a record"), ("{", "schema cannot be parsed")] {
        let Err(DecodeError::Poison { poison, .. }) = decode_as(schema, &head) else { panic!("unusable") };
        assert!(poison.message.contains(why), "{}", poison.message);
    }
}
