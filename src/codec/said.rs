//! What a record says of itself, read as far as possible: for the columns of the archive, beside its raw bytes.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::event::Event;
use crate::domain::record::Said;

/// Longest payload kept for queries; the raw bytes are kept whatever their size.
const PAYLOAD_MAX: usize = 64 * 1024;
/// Longest text kept of a field.
const TEXT_MAX: usize = 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Members<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    tipo: Option<&'a RawValue>,
    #[serde(borrow)]
    pedido_id: Option<&'a RawValue>,
    #[serde(borrow)]
    versao: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    ocorrido_em: Option<&'a RawValue>,
}

/// Of a JSON value: each field by itself, so that a bad one does not hide the others.
pub fn of_json(value: &[u8]) -> Said {
    let Ok(members) = serde_json::from_slice::<Members<'_>>(value) else { return Said::default() };
    let text = |raw: Option<&RawValue>| {
        let text: String = serde_json::from_str(raw?.get()).ok()?;
        (text.len() <= TEXT_MAX && !text.contains('\0')).then_some(text)
    };
    let payload = members.payload.map(RawValue::get);
    let payload = payload.filter(|text| text.starts_with('{') && text.len() <= PAYLOAD_MAX);
    Said {
        id: text(members.id),
        kind: text(members.tipo),
        order_id: text(members.pedido_id),
        version: members.versao.and_then(|raw| serde_json::from_str(raw.get()).ok()),
        payload: payload.filter(|text| !text.contains("\\u0000")).map(str::to_owned),
        occurred_at: text(members.ocorrido_em).and_then(|text| text.parse().ok()),
    }
}

/// Of a decoded event.
pub fn of_event(event: &Event) -> Said {
    let (mantissa, scale) = event.percent.normalized();
    Said {
        id: Some(event.id.clone()),
        kind: Some("pedido.pago".to_owned()),
        order_id: Some(event.order_id.clone()),
        version: Some(event.version),
        payload: Some(format!(r#"{{"valorCentavos":{},"percentual":{mantissa}e-{scale}}}"#, event.amount.0)),
        occurred_at: Some(event.occurred_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_read_by_itself() {
        let said = of_json(
            br#"{"id":"e1","tipo":7,"pedidoId":"p\u0000","versao":3,"payload":{"valorCentavos":1.50},"ocorridoEm":"2026-10-14T00:00:00-03:00"}"#,
        );
        assert_eq!(
            said,
            Said {
                id: Some("e1".into()),
                kind: None,
                order_id: None,
                version: Some(3),
                payload: Some(r#"{"valorCentavos":1.50}"#.into()),
                occurred_at: "2026-10-14T03:00:00Z".parse().ok(),
            }
        );
    }

    #[test]
    fn bytes_that_say_nothing_are_no_fault() {
        for value in [&b"nonsense"[..], b"", b"[1]", b"{\"payload\":{\"x\":\"\\u0000\"}}", b"\xff\xfe"] {
            assert_eq!(of_json(value), Said::default());
        }
    }
}
