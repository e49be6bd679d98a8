//! A morning of `pedido.pago`: orders, corrections, repetitions, and what goes wrong on every topic.
//!
//! Deterministic: the same number of events gives the same morning, and the expected commissions are added up
//! here, from the list, by nothing that the service uses.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

use crate::stream::produce::NewRecord;

/// Midnight of 14 October 2026 in São Paulo, in ms: when the bug of the story was deployed.
pub const BUG_FROM_MS: i64 = 1_791_946_800_000;
/// The same instant as people write it.
pub const BUG_FROM: &str = "2026-10-14T00:00:00-03:00";
/// The morning begins six hours earlier.
const BEGINS_MS: i64 = BUG_FROM_MS - 6 * 3_600_000;
const LASTS_MS: i64 = 15 * 3_600_000;
const SEED: u64 = 20_261_014;
/// The commission of the story.
const PERCENT: i64 = 5;

/// What is written to the topic, and what must come of it.
#[derive(Debug, Default)]
pub struct Morning {
    pub records: Vec<NewRecord>,
    /// Commission by order, in cents, of the newest version.
    pub commissions: BTreeMap<String, i64>,
    /// Different events that can be applied.
    pub events: usize,
    pub repeated: usize,
    pub poison: usize,
    pub others: usize,
}

/// Makes a morning of about `events` events.
pub fn morning(events: usize) -> Morning {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut morning = Morning::default();
    let mut versions: BTreeMap<String, i64> = BTreeMap::new();
    let step = LASTS_MS / i64::try_from(events.max(1)).unwrap_or(i64::MAX);
    for n in 0..events {
        let at = BEGINS_MS + step * i64::try_from(n).unwrap_or(0);
        let order = if n > 10 && rng.random_bool(0.12) {
            format!("ped-{:05}", rng.random_range(0..n))
        } else {
            format!("ped-{n:05}")
        };
        let version = versions.entry(order.clone()).or_insert(0);
        *version += 1;
        // Multiples of 20 cents: 5 % of them are whole cents, added up here without rounding.
        let cents = rng.random_range(100..40_000) * 20;
        let (order_of_it, version_of_it) = (order.clone(), *version);
        let record = event(&order, *version, cents, at);
        morning.events += 1;
        morning.commissions.insert(order, cents * PERCENT / 100);
        if rng.random_bool(0.03) {
            morning.repeated += 1;
            morning.records.push(record.clone());
        }
        morning.records.push(record);
        if rng.random_bool(0.01) {
            morning.others += 1;
            morning.records.push(another(n, at));
        }
        if rng.random_bool(0.004) {
            morning.poison += 1;
            morning.records.push(poison(morning.poison, at, &order_of_it, version_of_it));
        }
    }
    morning
}

fn event(order: &str, version: i64, cents: i64, at: i64) -> NewRecord {
    let instant = jiff::Timestamp::from_millisecond(at).unwrap_or_default();
    let value = json!({
        "id": format!("evt-{order}-{version}"),
        "tipo": "pedido.pago",
        "pedidoId": order,
        "versao": version,
        "payload": { "valorCentavos": cents, "percentual": PERCENT },
        "ocorridoEm": instant.to_string(),
    });
    NewRecord { key: Some(order.to_owned()), value: Some(value.to_string().into_bytes()), timestamp_ms: at }
}

/// What the topic holds besides: events of other kinds, and a tombstone now and then.
fn another(n: usize, at: i64) -> NewRecord {
    let key = format!("ped-{n:05}");
    let value = json!({ "id": format!("criado-{n}"), "tipo": "pedido.criado", "pedidoId": key });
    let value = (!n.is_multiple_of(3)).then(|| value.to_string().into_bytes());
    NewRecord { key: Some(key), value, timestamp_ms: at }
}

/// Six ways to be wrong, in turn; the last contradicts the event that was written just before.
fn poison(n: usize, at: i64, order: &str, version: i64) -> NewRecord {
    let id = format!("torto-{n}");
    let whole = |valor: serde_json::Value, percent: serde_json::Value| {
        json!({"id": id, "tipo": "pedido.pago", "pedidoId": format!("ped-{id}"), "versao": 1,
               "payload": {"valorCentavos": valor, "percentual": percent}, "ocorridoEm": "2026-10-14T12:00:00Z"})
        .to_string()
        .into_bytes()
    };
    if n % 6 == 5 {
        let mut other = event(order, version, 20, at);
        other.value = other
            .value
            .map(|value| String::from_utf8_lossy(&value).replacen("\"evt-", "\"outro-", 1).into_bytes());
        return other;
    }
    let value = match n % 6 {
        0 => b"{\"id\": \"cortado".to_vec(),
        1 => whole(json!("dez reais"), json!(5)),
        2 => whole(json!(1000), json!(250)),
        3 => whole(json!(1000), json!(null)),
        _ => whole(json!(10.5), json!(5)),
    };
    NewRecord { key: Some(id), value: Some(value), timestamp_ms: at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_morning_twice_with_everything_in_it() {
        let (a, b) = (morning(1000), morning(1000));
        assert_eq!(a.commissions, b.commissions);
        assert_eq!(a.events, 1000);
        assert_eq!(a.records.len(), 1000 + a.repeated + a.others + a.poison);
        assert!(a.repeated > 0 && a.poison > 0 && a.others > 0);
        assert!(a.commissions.len() < 1000, "some orders have several versions");
    }
}
