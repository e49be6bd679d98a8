//! Whole records in, verdicts out: the poison table, exact money, and inputs made to hurt.

mod avro;

use proptest::prelude::*;
use serde_json::{Value, json};

use self::avro::{decode_as, published};
use super::*;
use crate::domain::money::{Cents, Percent, commission};

fn good() -> Value {
    json!({ "id": "evt-p", "tipo": "pedido.pago", "pedidoId": "ped-p", "versao": 1,
        "payload": { "valorCentavos": 10000, "percentual": 5 }, "ocorridoEm": "2026-10-14T12:00:00Z" })
}

fn with(field: &str, value: Value) -> Vec<u8> {
    let mut record = good();
    record[field] = value;
    record.to_string().into_bytes()
}

fn paid(field: &str, value: Value) -> Vec<u8> {
    let mut record = good();
    record["payload"][field] = value;
    record.to_string().into_bytes()
}

fn without(field: &str) -> Vec<u8> {
    let mut record = good();
    record.as_object_mut().expect("an object").remove(field);
    record.to_string().into_bytes()
}

/// A record whose two numbers and version are spelt exactly as given.
fn spelt(version: &str, amount: &str, percent: &str) -> Vec<u8> {
    format!(
        r#"{{"id":"e","tipo":"pedido.pago","pedidoId":"p","versao":{version},"extra":123456789012345678901234567890.5e300,"payload":{{"valorCentavos":{amount},"percentual":{percent},"nota":1e308}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
    )
    .into_bytes()
}

fn decode(value: &[u8]) -> Result<Decoded, DecodeError> {
    Decoder::new().decode(Some(value))
}

fn event(value: &[u8]) -> Event {
    match decode(value) {
        Ok(Decoded::Event(event)) => event,
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(&value[..value.len().min(200)])),
    }
}

#[track_caller]
fn poison(value: &[u8]) -> (Reason, String, Option<String>) {
    match decode(value) {
        Err(DecodeError::Poison { poison, order_id }) => (poison.reason, poison.message, order_id),
        other => panic!("{:?}: {other:?}", String::from_utf8_lossy(&value[..value.len().min(200)])),
    }
}

#[track_caller]
fn refused(value: &[u8], reason: Reason, field: &str) {
    let (got, message, _) = poison(value);
    assert_eq!(got, reason, "{message}: {:?}", String::from_utf8_lossy(&value[..value.len().min(200)]));
    assert!(message.starts_with(field) && message.len() < 250, "{message}");
}

#[test]
fn a_good_record_is_an_event() {
    let want = Event {
        id: "evt-p".to_owned(),
        order_id: "ped-p".to_owned(),
        version: 1,
        amount: Cents(10_000),
        percent: Percent::new(5, 0).expect("5 %"),
        occurred_at: jiff::Timestamp::from_second(1_791_979_200).expect("2026-10-14T12:00:00Z"),
    };
    assert_eq!(event(good().to_string().as_bytes()), want);
    assert_eq!(event(format!(" \r\n\t{:#}\n ", good()).as_bytes()), want);
    let escaped = good()
        .to_string()
        .replace("\"pedidoId\"", r#""pedido\u0049d""#)
        .replace("pedido.pago", r"pedido\u002epago");
    assert_eq!(event(escaped.as_bytes()), want);
}

#[test]
fn what_is_not_one_json_object_is_invalid_json() {
    let twice = good().to_string().repeat(2);
    let deep = "[".repeat(100_000);
    let deep_object = "{\"a\":".repeat(100_000);
    let cases: [&[u8]; 16] = [
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"12",
        b"\"x\"",
        b"{}{}",
        deep.as_bytes(),
        deep_object.as_bytes(),
        twice.as_bytes(),
        b"",
        b"  ",
        b"{\"a\":01}",
        b"{\"a\":1,}",
        b"{\"a\nb\":1}",
        b"\xef\xbb\xbf{}",
    ];
    for case in cases {
        refused(case, Reason::InvalidJson, "the value ");
        assert_eq!(poison(case).2, None);
    }
}

#[test]
fn a_missing_or_null_field_is_named() {
    for field in ["id", "tipo", "pedidoId", "versao", "payload", "ocorridoEm"] {
        refused(&without(field), Reason::MissingField, &format!("{field}: "));
        refused(&with(field, Value::Null), Reason::MissingField, &format!("{field}: "));
    }
    refused(&with("payload", json!({ "valorCentavos": 1 })), Reason::MissingField, "payload.percentual: ");
    refused(&with("payload", json!({ "percentual": 1 })), Reason::MissingField, "payload.valorCentavos: ");
    refused(&paid("percentual", Value::Null), Reason::MissingField, "payload.percentual: ");
    refused(b"{}", Reason::MissingField, "tipo: ");
}

#[test]
fn a_field_of_another_type_or_form_is_invalid() {
    let invalid = |value: &[u8], field: &str| refused(value, Reason::InvalidField, field);
    for id in [
        json!(""),
        json!(7),
        json!(true),
        json!([]),
        json!({}),
        json!("a\tb"),
        json!("a\u{7f}"),
        json!("a\u{85}"),
    ] {
        invalid(&with("id", id.clone()), "id: ");
        invalid(&with("pedidoId", id), "pedidoId: ");
    }
    for version in [json!("1"), json!(1.5), json!(-1.5), json!(true), json!([1])] {
        invalid(&with("versao", version), "versao: ");
    }
    for payload in [json!([]), json!("x"), json!(1), json!(false)] {
        invalid(&with("payload", payload), "payload: ");
    }
    for amount in [json!("x"), json!("100.00"), json!(1.5), json!(true), json!({})] {
        invalid(&paid("valorCentavos", amount), "payload.valorCentavos: ");
    }
    for percent in ["cinco", "", " 5", "5,5", "+5", "NaN", "Infinity", "5%", "0x5", "5\u{0}"] {
        invalid(&paid("percentual", json!(percent)), "payload.percentual: ");
    }
    for percent in [json!(true), json!([]), json!({})] {
        invalid(&paid("percentual", percent), "payload.percentual: ");
    }
    for instant in [
        json!("ontem"),
        json!("2026-10-14T12:00:00"),
        json!(""),
        json!(1_791_979_200),
        json!("2026-02-30T00:00:00Z"),
    ] {
        invalid(&with("ocorridoEm", instant), "ocorridoEm: ");
    }
    for kind in [json!(7), json!(""), json!(["pedido.pago"])] {
        invalid(&with("tipo", kind), "tipo: ");
    }
}

#[test]
fn a_value_of_the_right_form_outside_what_may_be_is_out_of_range() {
    let beyond = |value: &[u8], field: &str| refused(value, Reason::OutOfRange, field);
    for percent in ["-1", "100.01", "1e999999999", "1e-999999999", "\"1e999999999\"", "\"-0.5\"", "1e-31"] {
        beyond(&spelt("1", "1", percent), "payload.percentual: ");
    }
    for amount in ["9223372036854775808", "-9223372036854775809", "1e400", "1e99999999999999999999"] {
        beyond(&spelt("1", amount, "5"), "payload.valorCentavos: ");
    }
    for version in ["9223372036854775808", "-1", "0", "1e400"] {
        beyond(&spelt(version, "1", "5"), "versao: ");
    }
    beyond(&with("id", json!("x".repeat(513))), "id: ");
    beyond(&with("pedidoId", json!("é".repeat(257))), "pedidoId: ");
    assert_eq!(event(&with("id", json!("x".repeat(512)))).id.len(), 512);
}

#[test]
fn b66_instants_that_nobody_can_store_are_dead_letters() {
    for instant in
        ["300000-01-01T00:00:00Z", "+300000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z"]
    {
        refused(&with("ocorridoEm", json!(instant)), Reason::OutOfRange, "ocorridoEm: ");
    }
}

#[test]
fn b21_a_nul_in_an_id_is_invalid_text_and_elsewhere_nobody_asks() {
    refused(&with("id", json!("a\u{0}b")), Reason::InvalidText, "id: ");
    refused(&with("pedidoId", json!("ped\u{0}")), Reason::InvalidText, "pedidoId: ");
    let noted = event(&with("observacao", json!("a\u{0}b")));
    assert_eq!(noted.digest(), event(good().to_string().as_bytes()).digest());
}

#[test]
fn b20_null_is_a_tombstone_and_empty_is_not() {
    assert_eq!(Decoder::new().decode(None), Ok(Decoded::Tombstone));
    refused(b"", Reason::InvalidJson, "the value is empty");
}

#[test]
fn another_type_is_skipped_whatever_else_it_holds() {
    for text in [
        r#"{"tipo":"pedido.criado"}"#,
        r#"{"tipo":"pedido.criado","id":7,"versao":"x","payload":null,"ocorridoEm":[]}"#,
        r#"{"id":"a","id":"b","tipo":"PEDIDO.PAGO"}"#,
        r#"{"tipo":"a\u0000"}"#,
    ] {
        assert_eq!(decode(text.as_bytes()), Ok(Decoded::OtherType), "{text}");
    }
    refused(br#"{"tipo":"pedido.criado""#, Reason::InvalidJson, "the value ");
}

#[test]
fn a_field_that_stands_there_twice_is_invalid_json() {
    let text = good().to_string();
    for (field, twice) in [
        ("versao", text.replace("\"versao\":1", "\"versao\":1,\"versao\":1")),
        (
            "valorCentavos",
            text.replace("\"valorCentavos\":10000", "\"valorCentavos\":10000,\"valor\\u0043entavos\":1"),
        ),
        ("tipo", text.replace("\"tipo\"", "\"tipo\":\"pedido.pago\",\"tipo\"")),
    ] {
        refused(twice.as_bytes(), Reason::InvalidJson, field);
    }
    event(text.replacen('{', r#"{"x":1,"x":2,"#, 1).as_bytes());
}

#[test]
fn a_dead_letter_is_filed_under_its_order_where_that_can_be_read() {
    let order_of = |value: Vec<u8>| poison(&value).2;
    assert_eq!(order_of(with("id", json!(7))).as_deref(), Some("ped-p"));
    assert_eq!(order_of(without("tipo")).as_deref(), Some("ped-p"));
    assert_eq!(order_of(paid("percentual", json!("cinco"))).as_deref(), Some("ped-p"));
    assert_eq!(order_of(with("pedidoId", json!("ped\u{0}"))), None);
    assert_eq!(order_of(with("pedidoId", json!(7))), None);
}

#[test]
fn half_a_surrogate_pair_is_refused_in_our_fields_and_ignored_elsewhere() {
    let text = good().to_string();
    refused(text.replace("evt-p", r"evt-\ud800").as_bytes(), Reason::InvalidField, "id: ");
    refused(text.replace("\"pedido.pago\"", r#""\udc00""#).as_bytes(), Reason::InvalidField, "tipo: ");
    event(text.replacen('{', r#"{"x":"\ud800","\ud800":1,"#, 1).as_bytes());
    assert_eq!(event(text.replace("evt-p", r"evt-\ud83d\ude00").as_bytes()).id, "evt-😀");
}

#[test]
fn money_is_exact() {
    let cases = [
        ("10000", "5", 500),
        ("10000", "\"5\"", 500),
        ("10000", "5.00", 500),
        ("5000", "0.57", 29),
        ("7000", "\"1.15\"", 81),
        ("0", "5", 0),
        ("1", "50", 1),
        ("9007199254740993", "100", 9_007_199_254_740_993),
        ("10000", "0", 0),
        ("333", "33.333333333333333333", 111),
        ("1e4", "5", 500),
        ("10000.0", "5e0", 500),
        ("-10050", "\"2.5e1\"", -2513),
    ];
    for (amount, percent, want) in cases {
        let event = event(&spelt("1", amount, percent));
        assert_eq!(commission(event.amount, event.percent), Cents(want), "{amount} x {percent}");
    }
}

#[test]
fn b67_unknown_numbers_cannot_hurt_and_known_ones_are_exact() {
    assert_eq!(event(&spelt("1", "1e2", "5")).amount, Cents(100));
    assert_eq!(event(&spelt("1.0", "9007199254740993", "5.0")).amount, Cents(9_007_199_254_740_993));
    assert_eq!(event(&spelt("1e0", "9223372036854775807", "\"5\"")).amount, Cents(i64::MAX));
    assert_eq!(event(&spelt("9223372036854775807", "-9223372036854775808", "5")).version, i64::MAX);
    let digests: Vec<_> =
        ["5", "5.0", "\"5\"", "50e-1"].map(|percent| event(&spelt("1", "1", percent)).digest()).into();
    assert!(digests.windows(2).all(|pair| pair[0] == pair[1]));
    event(
        good()
            .to_string()
            .replacen('{', r#"{"w":123456789012345678901,"x":-1e-99999999999,"y":1e99999999999,"#, 1)
            .as_bytes(),
    );
}

#[test]
fn b68_numbers_outside_our_fields_are_never_touched() {
    let plain = event(&spelt("1", "1", "1.10"));
    assert_eq!(plain.percent.normalized(), (11, 1));
    let noted =
        String::from_utf8(spelt("1", "1", "1.10")).expect("text").replace("1e308", "1.7976931348623157e308");
    assert_eq!(event(noted.as_bytes()).digest(), plain.digest());
}

#[test]
fn nesting_costs_neither_the_stack_nor_the_record() {
    let brackets = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(200_000), "}".repeat(200_000));
    // A small stack makes recursion fail at once, whatever the machine's default is.
    let run = move || {
        for deep in [brackets, objects] {
            let text = good().to_string();
            event(text.replacen('{', &format!(r#"{{"x":{deep},"#), 1).as_bytes());
            event(text.replacen(r#"{"p"#, &format!(r#"{{"x":{deep},"p"#), 1).as_bytes());
            event(text.replace(r#""valorCentavos""#, &format!(r#""x":{deep},"valorCentavos""#)).as_bytes());
            let (reason, message, _) = poison(text.replace("\"evt-p\"", &deep).as_bytes());
            assert_eq!(reason, Reason::InvalidField, "{message}");
        }
    };
    std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(run)
        .expect("a thread")
        .join()
        .expect("no overflow");
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), datum in proptest::collection::vec(any::<u8>(), 0..100)) {
        let framed = [&[0, 0, 0, 0, 7][..], &datum].concat();
        for value in [&bytes, &framed] {
            let answer = decode_as(PEDIDO_PAGO_AVSC, value);
            prop_assert!(!matches!(answer, Ok(Decoded::Tombstone)));
        }
    }

    #[test]
    fn a_damaged_record_is_an_answer_and_never_a_panic(at in 0_usize..140, byte in any::<u8>(), cut in 0_usize..140) {
        for whole in [good().to_string().into_bytes(), published("5")] {
            let mut value = whole;
            let (at, cut) = (at % value.len(), cut % value.len());
            value[at] = byte;
            for value in [&value[..], &value[..cut], &value[cut..]] {
                let answer = decode_as(PEDIDO_PAGO_AVSC, value);
                prop_assert!(!matches!(answer, Ok(Decoded::Tombstone)));
            }
        }
    }

    #[test]
    fn any_text_is_kept_or_refused_as_an_id(id in "\\PC{0,20}|[\\x00-\\x1f\\x7fa]{1,5}") {
        match decode(&with("id", json!(id))) {
            Ok(Decoded::Event(event)) => prop_assert_eq!(event.id, id),
            Err(DecodeError::Poison { poison, .. }) if id.contains('\0') => prop_assert_eq!(poison.reason, Reason::InvalidText),
            Err(DecodeError::Poison { poison, .. }) => prop_assert_eq!(poison.reason, Reason::InvalidField),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn any_spelling_of_a_sum_is_the_same_sum(amount in -1_000_000_i64..1_000_000, percent in 0_u32..=10_000, zeros in 0_usize..6) {
        // amount = amount followed by zeros, taken back by the exponent; percent in hundredths.
        let amount_text = format!("{amount}{}e-{zeros}", "0".repeat(zeros));
        let percent_text = format!("\"{}.{:02}{}\"", percent / 100, percent % 100, "0".repeat(zeros));
        let event = event(&spelt("1", &amount_text, &percent_text));
        prop_assert_eq!(event.amount, Cents(amount));
        prop_assert_eq!(Ok(event.percent), Percent::new(i128::from(percent), 2));
    }
}
