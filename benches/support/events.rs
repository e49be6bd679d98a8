//! Records of `pedido.pago`, made as they are taken.

use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use reprise::stream::produce::NewRecord;

/// How ids are spelt. It decides how scattered the ledger's index is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Rising numbers: neighbours in the log are neighbours in the index.
    Sequential,
    /// Like uuid v4: every look-up touches another page.
    Random,
}

impl Ids {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential ids",
            Self::Random => "random ids",
        }
    }
}

/// 14 October 2026, 12:00 UTC, in ms.
const MORNING: i64 = 1_791_979_200_000;

/// `count` events of as many orders, of about 170 bytes each.
pub fn orders(count: usize, ids: Ids) -> impl Iterator<Item = NewRecord> {
    orders_from(0, count, ids)
}

/// The same, from number `first` on.
pub fn orders_from(first: usize, count: usize, ids: Ids) -> impl Iterator<Item = NewRecord> {
    let mut random = StdRng::seed_from_u64(first as u64);
    (first..first + count).map(move |n| {
        let (event, order) = match ids {
            Ids::Sequential => (format!("evt-{n:09}"), format!("ped-{n:09}")),
            Ids::Random => (uuid(&mut random), uuid(&mut random)),
        };
        record(&event, &order, 10_000)
    })
}

pub fn record(event: &str, order: &str, cents: i64) -> NewRecord {
    let value = format!(
        r#"{{"id":"{event}","tipo":"pedido.pago","pedidoId":"{order}","versao":1,"payload":{{"valorCentavos":{cents},"percentual":5}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
    );
    NewRecord { key: Some(order.to_owned()), value: Some(value.into_bytes()), timestamp_ms: MORNING }
}

fn uuid(random: &mut StdRng) -> String {
    let mut bytes = [0; 16];
    random.fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}
