//! Bytes to domain: what a record of `pedido.pago` says, or exactly why it can never be applied.
//!
//! ```text
//!   null ───────────────────────────────► Tombstone
//!   0x00, schema id, datum ──► avro ──┐
//!   anything else ───────────► json ──┴─► fields ──► Event | OtherType | Poison
//! ```
//!
//! Promises:
//! * No input panics, overflows the stack, loops or allocates beyond its own size.
//!   (tests `any_bytes_are_an_answer_and_never_a_panic`, `nesting_costs_neither_the_stack_nor_the_record`)
//! * No number passes through a float: every spelling is read exactly or refused, never rounded.
//!   (test `every_exact_spelling_of_an_amount_is_its_value`)
//! * JSON and Avro meet the same checks, so one fact is one [`Event`] whichever way it was written.
//! * `tipo` is looked at first: a record that names another type is skipped whatever else it holds.
//! * Fields nobody asked for cannot hurt, whatever their size, depth or spelling.
//!
//! Not here: fetching schemas while decoding ([`Decoder`] asks for them with [`DecodeError::SchemaNeeded`];
//! [`registry`] fetches them), and anything about Kafka.

mod avro;
mod fields;
mod instant;
mod json;
mod number;
pub mod order_events;
pub mod order_schemas;
pub mod outgoing;
pub mod registry;
pub mod said;
#[cfg(test)]
mod tests;
mod to_avro;
mod trace;

use std::collections::HashMap;

pub use avro::{PEDIDO_PAGO_AVSC, Schema};
pub use trace::traceparent;

use crate::domain::event::Event;
use crate::domain::poison::{Poison, Reason};

/// What a record turned out to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    Event(Event),
    /// A null value.
    Tombstone,
    /// Its `tipo` is not `pedido.pago`.
    OtherType,
}

/// Why a record could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It never will be. `order_id` is its `pedidoId` where that much could be read.
    #[error("{}: {}", .poison.reason, .poison.message)]
    Poison { poison: Poison, order_id: Option<String> },
    /// Fetch this writer's schema, [`Decoder::learn`] it, and decode the same record again.
    #[error("the Avro schema with id {0} is not known yet")]
    SchemaNeeded(u32),
}

impl From<Poison> for DecodeError {
    fn from(poison: Poison) -> Self {
        Self::Poison { poison, order_id: None }
    }
}

/// An exact percentage from its text, as JSON spells numbers; `None` outside 0 to 100.
pub fn percent(text: &str) -> Option<crate::domain::money::Percent> {
    number::Decimal::parse(text)?.to_percent().ok()
}

/// First byte of the Confluent wire format. JSON text never starts with it.
const AVRO_MAGIC: u8 = 0;

/// Decodes records; knows the writer schemas it was taught. Cheap to call, one per thread.
#[derive(Debug, Default)]
pub struct Decoder {
    schemas: HashMap<u32, Schema>,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// `value` is the record's value: `None` is null; an empty one is not a tombstone but invalid JSON.
    pub fn decode(&self, value: Option<&[u8]>) -> Result<Decoded, DecodeError> {
        match value {
            None => Ok(Decoded::Tombstone),
            Some([AVRO_MAGIC, framed @ ..]) => self.decode_avro(framed),
            Some(text) => json::read(text)?.check(),
        }
    }

    /// Keeps a writer's schema under its registry id. Registry ids are immutable, so it is kept for good.
    pub fn learn(&mut self, id: u32, schema: Schema) {
        self.schemas.insert(id, schema);
    }

    fn decode_avro(&self, framed: &[u8]) -> Result<Decoded, DecodeError> {
        let Some((id, datum)) = framed.split_first_chunk::<4>() else {
            let wanted = "starts like framed Avro (0x00) but ends before its four-byte schema id";
            return Err(Poison::new(Reason::InvalidAvro, wanted).into());
        };
        let id = u32::from_be_bytes(*id);
        let schema = self.schemas.get(&id).ok_or(DecodeError::SchemaNeeded(id))?;
        schema
            .read(datum)
            .map_err(|cause| Poison::new(Reason::InvalidAvro, format!("with its schema (id {id}): {cause}")))?
            .check()
    }
}

/// The verdict on a record whose schema the registry keeps saying it does not have.
pub fn schema_unknown(id: u32) -> Poison {
    Poison::new(Reason::InvalidAvro, format!("the schema registry has no schema with id {id}"))
}
