//! One immutable fact: an order was paid.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::money::{Cents, Percent};

/// A SHA-256 over length-prefixed fields: equal digests mean equal fields, however they were spelt.
pub type Digest = [u8; 32];

/// `pedido.pago`, decoded and checked. A value of this type is never poison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `id`: business identity of the fact; effect keys are made of it, never of Kafka coordinates.
    pub id: String,
    /// `pedidoId`
    pub order_id: String,
    /// `versao`: version of the order at this event, from 1.
    pub version: i64,
    /// `payload.valorCentavos`; negative for a reversal.
    pub amount: Cents,
    /// `payload.percentual`, 0 to 100.
    pub percent: Percent,
    /// `ocorridoEm`
    pub occurred_at: Timestamp,
}

impl Event {
    /// Digest over the decoded business fields (`resumo_evento`): the same fact spelt otherwise
    /// (`5` or `"5.0"`, other key order, another offset of the same instant) has the same digest.
    pub fn digest(&self) -> Digest {
        let mut hash = FieldHash::new();
        hash.text(&self.id);
        hash.text(&self.order_id);
        hash.number(self.version);
        hash.number(self.amount.0);
        let (mantissa, scale) = self.percent.normalized();
        hash.bytes(&mantissa.to_be_bytes());
        hash.bytes(&scale.to_be_bytes());
        hash.bytes(&self.occurred_at.as_nanosecond().to_be_bytes());
        hash.finish()
    }
}

/// Length-prefixed field hashing, so that no two field lists share an input.
pub(super) struct FieldHash(Sha256);

impl FieldHash {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(super) fn number(&mut self, number: i64) {
        self.bytes(&number.to_be_bytes());
    }

    pub(super) fn finish(self) -> Digest {
        self.0.finalize().into()
    }
}

/// SHA-256 of some bytes, as kept beside requests and truncated dead letters.
pub fn digest_of(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}
