//! What must hold for every input. Shared by the cargo-fuzz targets and by `make fuzz`, which needs no nightly.

use reprise::codec::{Decoded, Decoder, PEDIDO_PAGO_AVSC, Schema, said, traceparent};

/// A record's value: an answer, the same each time, and an event only with fields that are not empty.
pub fn record(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.learn(7, Schema::parse(PEDIDO_PAGO_AVSC, &[]));
    let first = decoder.decode(Some(bytes));
    assert_eq!(first, decoder.decode(Some(bytes)), "the same bytes, another answer");
    match first {
        Ok(Decoded::Tombstone) => panic!("bytes that are there are no tombstone"),
        Ok(Decoded::Event(event)) => {
            let said = said::of_event(&event);
            assert!(
                said.id.is_some_and(|id| !id.is_empty()) && said.version.is_some_and(|version| version >= 1)
            );
        }
        Ok(Decoded::OtherType) | Err(_) => {}
    }
    said::of_json(bytes);
}

/// A schema from a registry that means harm, up to its first zero byte; behind it a datum.
pub fn schema(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (text, datum) = bytes.split_at(end);
    let mut decoder = Decoder::new();
    decoder.learn(7, Schema::parse(&String::from_utf8_lossy(text), &[]));
    let framed = [&[0, 0, 0, 0, 7], datum.get(1..).unwrap_or_default()].concat();
    assert_eq!(decoder.decode(Some(&framed)), decoder.decode(Some(&framed)));
}

/// A `traceparent` header: what is passed on is short and plain.
pub fn trace(bytes: &[u8]) {
    if let Some(text) = traceparent(Some(bytes)) {
        assert!(text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_graphic()), "{text:?}");
    }
}
