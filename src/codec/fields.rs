//! The fields of `pedido.pago` as either format found them, and the one set of checks that makes them an event.
//!
//! | what is found | reason |
//! |---|---|
//! | missing or null | `campo-ausente` |
//! | another type, empty, not of its form, control characters in an id | `campo-invalido` |
//! | of the right form, but outside what may be | `valor-fora-do-limite` |
//! | NUL in an id | `texto-invalido` |
//!
//! One reason per record: `tipo` first, then `pedidoId` (so that every other finding can be filed under its
//! order), then the rest in the order of the document. Messages name the field and what is wanted, and never
//! repeat what was found: it may be large, or nobody's business.

use std::borrow::Cow;

use jiff::Timestamp;

use super::instant::{self, EpochUnit, NotAnInstant};
use super::number::{Decimal, NotAnI64};
use super::{DecodeError, Decoded};
use crate::domain::event::Event;
use crate::domain::money::{Cents, Percent, PercentOutOfRange};
use crate::domain::poison::{Poison, Reason};

/// The only `tipo` that is applied.
const ORDER_PAID: &str = "pedido.pago";

/// Longest id in bytes. Two ids and an effect type together must fit a Postgres index row (about 2,700 bytes).
const ID_BYTES_MAX: usize = 512;

/// One field's value, before anybody judged it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    Missing,
    Null,
    Text(Cow<'a, str>),
    /// A number, exact. Avro's decimals too: their scale is part of the value.
    Number(Decimal),
    /// An instant that names its own unit (Avro's timestamps).
    Epoch(i64, EpochUnit),
    /// Anything that is no value for any of our fields; named for the message.
    Other(&'static str),
}

/// The fields inside `payload`, or what stands there instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    Missing,
    Other(&'static str),
    Object { amount: Raw<'a>, percent: Raw<'a> },
}

/// A whole record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fields<'a> {
    pub(super) id: Raw<'a>,
    pub(super) kind: Raw<'a>,
    pub(super) order_id: Raw<'a>,
    pub(super) version: Raw<'a>,
    pub(super) payload: Payload<'a>,
    pub(super) occurred_at: Raw<'a>,
    /// A field of ours that stands there twice: nobody can say which value is meant.
    pub(super) repeated: Option<&'static str>,
}

impl Fields<'_> {
    pub(super) const EMPTY: Self = Self {
        id: Raw::Missing,
        kind: Raw::Missing,
        order_id: Raw::Missing,
        version: Raw::Missing,
        payload: Payload::Missing,
        occurred_at: Raw::Missing,
        repeated: None,
    };

    pub(super) fn check(self) -> Result<Decoded, DecodeError> {
        let kind_poison = match self.kind {
            Raw::Text(kind) if kind == ORDER_PAID => None,
            Raw::Text(kind) if !kind.is_empty() => return Ok(Decoded::OtherType),
            Raw::Text(_) => Some(invalid("tipo", "must not be empty")),
            other => Some(unfit("tipo", &other, "a text")),
        };
        if let Some(field) = self.repeated {
            let message = format!("{field}: stands there more than once; send it once");
            return Err(Poison::new(Reason::InvalidJson, message).into());
        }
        let order_id = identifier("pedidoId", self.order_id);
        if let Some(poison) = kind_poison {
            return Err(DecodeError::Poison { poison, order_id: order_id.ok() });
        }
        let order_id = order_id?;
        match rest(self.id, &self.version, self.payload, &self.occurred_at) {
            Ok(rest) => Ok(Decoded::Event(rest.of_order(order_id))),
            Err(poison) => Err(DecodeError::Poison { poison, order_id: Some(order_id) }),
        }
    }
}

/// Everything of an event but its order.
struct Rest {
    id: String,
    version: i64,
    amount: Cents,
    percent: Percent,
    occurred_at: Timestamp,
}

impl Rest {
    fn of_order(self, order_id: String) -> Event {
        let Self { id, version, amount, percent, occurred_at } = self;
        Event { id, order_id, version, amount, percent, occurred_at }
    }
}

fn rest(id: Raw<'_>, version: &Raw<'_>, payload: Payload<'_>, occurred_at: &Raw<'_>) -> Result<Rest, Poison> {
    let id = identifier("id", id)?;
    let version = order_version(version)?;
    let (amount, percent) = match payload {
        Payload::Missing => return Err(missing("payload", "an object with valorCentavos and percentual")),
        Payload::Other(found) => return Err(invalid("payload", format!("must be an object, found {found}"))),
        Payload::Object { amount, percent } => (cents(&amount)?, percentage(&percent)?),
    };
    Ok(Rest { id, version, amount, percent, occurred_at: occurrence(occurred_at)? })
}

fn identifier(field: &'static str, raw: Raw<'_>) -> Result<String, Poison> {
    let text = match raw {
        Raw::Text(text) => text,
        other => return Err(unfit(field, &other, "a text")),
    };
    if text.is_empty() {
        return Err(invalid(field, "must not be empty"));
    }
    // Nearly every id is printable ASCII, which one pass over its bytes shows.
    let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !printable && text.contains('\0') {
        return Err(Poison::new(Reason::InvalidText, format!("{field}: must not hold a NUL character")));
    }
    if text.len() > ID_BYTES_MAX {
        return Err(beyond(field, format!("must have at most {ID_BYTES_MAX} bytes")));
    }
    if !printable && text.contains(char::is_control) {
        return Err(invalid(field, "must not hold control characters"));
    }
    Ok(text.into_owned())
}

fn order_version(raw: &Raw<'_>) -> Result<i64, Poison> {
    let field = "versao";
    let Raw::Number(number) = raw else {
        return Err(unfit(field, raw, "an integer from 1"));
    };
    match number.to_i64() {
        Ok(version) if version >= 1 => Ok(version),
        Ok(_) | Err(NotAnI64::TooLarge) => Err(beyond(field, format!("must be from 1 to {}", i64::MAX))),
        Err(NotAnI64::Fraction) => Err(invalid(field, "must be an integer")),
    }
}

fn cents(raw: &Raw<'_>) -> Result<Cents, Poison> {
    let field = "payload.valorCentavos";
    let Raw::Number(number) = raw else {
        return Err(unfit(field, raw, "a number of whole cents"));
    };
    match number.to_i64() {
        Ok(amount) => Ok(Cents(amount)),
        Err(NotAnI64::Fraction) => Err(invalid(field, "must be whole cents, without a fraction")),
        Err(NotAnI64::TooLarge) => Err(beyond(field, format!("must be from {} to {}", i64::MIN, i64::MAX))),
    }
}

fn percentage(raw: &Raw<'_>) -> Result<Percent, Poison> {
    let field = "payload.percentual";
    let number = match raw {
        Raw::Number(number) => *number,
        Raw::Text(text) => Decimal::parse(text).ok_or_else(|| {
            invalid(field, "as a text must be a decimal spelt like a JSON number, such as \"5.25\"")
        })?,
        other => return Err(unfit(field, other, "an exact decimal, as a number or a text")),
    };
    number.to_percent().map_err(|out: PercentOutOfRange| beyond(field, out.to_string()))
}

fn occurrence(raw: &Raw<'_>) -> Result<Timestamp, Poison> {
    let field = "ocorridoEm";
    let wanted = "an RFC 3339 instant with its offset, such as 2026-10-14T12:00:00Z";
    let parsed = match raw {
        Raw::Text(text) => instant::parse(text),
        Raw::Epoch(count, unit) => instant::from_epoch(*count, *unit),
        other => return Err(unfit(field, other, wanted)),
    };
    parsed.map_err(|why| match why {
        NotAnInstant::Form => invalid(field, format!("must be {wanted}")),
        NotAnInstant::Range => beyond(field, "must be from year 1 to 9999 in UTC, at most to the nanosecond"),
    })
}

/// A field that is missing, or of a type that no value of it can have.
fn unfit(field: &'static str, raw: &Raw<'_>, wanted: &'static str) -> Poison {
    let found = match raw {
        Raw::Missing | Raw::Null => return missing(field, wanted),
        Raw::Text(_) => "a text",
        Raw::Number(_) => "a number",
        Raw::Epoch(..) => "a timestamp",
        Raw::Other(found) => found,
    };
    invalid(field, format!("must be {wanted}, found {found}"))
}

fn missing(field: &'static str, wanted: &'static str) -> Poison {
    Poison::new(Reason::MissingField, format!("{field}: is missing or null; must be {wanted}"))
}

fn invalid(field: &'static str, message: impl std::fmt::Display) -> Poison {
    Poison::new(Reason::InvalidField, format!("{field}: {message}"))
}

fn beyond(field: &'static str, message: impl std::fmt::Display) -> Poison {
    Poison::new(Reason::OutOfRange, format!("{field}: {message}"))
}
