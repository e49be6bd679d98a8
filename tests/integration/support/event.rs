//! Events as the order side writes them.

use serde_json::{Value, json};

/// Midnight of 2026-10-14 in São Paulo, in ms: where the replays of the cases begin.
pub const MIDNIGHT_MS: i64 = 1_791_946_800_000;

/// The event that paid order `ped-<n>`: version 1, 100.00 at 5 %, so a commission of 500 cents.
/// A case changes what it needs: `e["versao"] = json!(2)`.
pub fn event(n: u32) -> Value {
    json!({
        "id": format!("evt-{n}-1"),
        "tipo": "pedido.pago",
        "pedidoId": format!("ped-{n}"),
        "versao": 1,
        "payload": { "valorCentavos": 10_000, "percentual": 5 },
        "ocorridoEm": "2026-10-14T12:00:00Z",
    })
}

/// [`event`] at another version, under that version's own id.
pub fn event_at(n: u32, version: u32) -> Value {
    let mut event = event(n);
    event["id"] = json!(format!("evt-{n}-{version}"));
    event["versao"] = json!(version);
    event
}
