//! Avro to [`Fields`]: a datum read with its writer's schema, field by field, by name.
//!
//! A [`Schema`] is the writer's, compiled to the few shapes that matter here; the published reader schema is
//! [`PEDIDO_PAGO_AVSC`]. The datum is walked in place. The general decoder of the Avro library is not used for it:
//! it reads a datum that ends early as nulls, recurses and allocates by what the bytes claim, and resolves decimals
//! and timestamps without comparing scale or unit.
//!
//! * Every number keeps the meaning its writer gave it: a decimal its scale, a timestamp its unit. `percentual` may
//!   be a string, a decimal or an integer; `ocorridoEm` a timestamp of any unit or an RFC 3339 string.
//! * A float, a local timestamp and a bare long as an instant say too little: `campo-invalido`.
//! * A field the writer does not have is as missing as in JSON; fields we do not know are skipped.
//! * A datum that ends early, goes on behind its end, or does not follow its schema is an error, never a guess.

use std::borrow::Cow;
use std::collections::HashMap;

use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, NamespaceRef, UuidSchema};

use super::fields::{Fields, Payload, Raw};
use super::instant::EpochUnit;
use super::number::Decimal;

/// The published schema of `pedido.pago`: what producers should register.
pub const PEDIDO_PAGO_AVSC: &str = include_str!("../../schemas/pedido.pago.avsc");

/// Deepest nesting that is followed. Only recursive schemas have more, and only in fields that are skipped.
const DEPTH_MAX: usize = 128;

/// A writer's schema, ready to read with. One that cannot be used is kept with the reason, so that its records are
/// told apart from those whose schema is merely not known yet.
#[derive(Debug, Clone)]
pub struct Schema(Result<Program, String>);

#[derive(Debug, Clone)]
struct Program {
    root: Shape,
    /// Named types; schemas refer to them by position, which is how they can be recursive.
    named: Vec<Shape>,
}

#[derive(Debug, Clone)]
enum Shape {
    Null,
    Boolean,
    Integer,
    Float,
    Double,
    Bytes,
    Text,
    Fixed(usize),
    Symbol(Vec<String>),
    Array(Box<Shape>),
    Map(Box<Shape>),
    Union(Vec<Shape>),
    Record(Vec<(String, Shape)>),
    Named(usize),
    /// `size` where the bytes are fixed.
    Decimal {
        scale: u32,
        size: Option<usize>,
    },
    Instant(EpochUnit),
    /// A long that counts local time: an instant only for those who know the place.
    LocalInstant,
}

impl Schema {
    /// `text` is the schema's JSON; `references` are the schemas it names but does not hold.
    pub fn parse(text: &str, references: &[String]) -> Self {
        let parsed = apache_avro::Schema::parse_str_with_list(text, references);
        Self(parsed.map_err(|err| format!("schema cannot be parsed: {err}")).and_then(|(schema, others)| {
            let mut compiler = Compiler::knowing(&others);
            let root = compiler.compile(&schema, None)?;
            Ok(Program { root, named: compiler.named })
        }))
    }

    /// A schema that no datum can be read with.
    pub fn unusable(reason: impl Into<String>) -> Self {
        Self(Err(reason.into()))
    }

    /// Reads exactly one datum, which must be all of `datum`.
    pub(super) fn read<'a>(&'a self, datum: &'a [u8]) -> Result<Fields<'a>, &'a str> {
        let program = self.0.as_ref().map_err(String::as_str)?;
        let mut walk = Walk { named: &program.named, rest: datum };
        let root = walk.choose(&program.root)?;
        let Shape::Record(members) = root else {
            return Err("schema is not a record");
        };
        let mut fields = Fields::EMPTY;
        for (name, shape) in members {
            match name.as_str() {
                "id" => fields.id = walk.value(shape)?,
                "tipo" => fields.kind = walk.value(shape)?,
                "pedidoId" => fields.order_id = walk.value(shape)?,
                "versao" => fields.version = walk.value(shape)?,
                "payload" => fields.payload = walk.payload(shape)?,
                "ocorridoEm" => fields.occurred_at = walk.value(shape)?,
                _ => walk.skip(shape, 0)?,
            }
        }
        if walk.rest.is_empty() { Ok(fields) } else { Err("datum goes on behind its end") }
    }
}

/// Turns the library's schema into shapes; every named type once.
struct Compiler<'s> {
    named: Vec<Shape>,
    positions: HashMap<String, usize>,
    /// Schemas from references, by full name, until they are needed.
    others: HashMap<String, &'s apache_avro::Schema>,
}

impl<'s> Compiler<'s> {
    fn knowing(others: &'s [apache_avro::Schema]) -> Self {
        let by_name = others.iter().filter_map(|schema| Some((schema.name()?.fullname(None), schema)));
        Self { named: Vec::new(), positions: HashMap::new(), others: by_name.collect() }
    }

    fn compile(&mut self, schema: &'s apache_avro::Schema, space: NamespaceRef<'_>) -> Result<Shape, String> {
        use apache_avro::Schema as S;
        Ok(match schema {
            S::Null => Shape::Null,
            S::Boolean => Shape::Boolean,
            S::Int | S::Long | S::Date | S::TimeMillis | S::TimeMicros => Shape::Integer,
            S::LocalTimestampMillis | S::LocalTimestampMicros | S::LocalTimestampNanos => Shape::LocalInstant,
            S::TimestampMillis => Shape::Instant(EpochUnit::Millis),
            S::TimestampMicros => Shape::Instant(EpochUnit::Micros),
            S::TimestampNanos => Shape::Instant(EpochUnit::Nanos),
            S::Float => Shape::Float,
            S::Double => Shape::Double,
            S::Bytes | S::BigDecimal | S::Uuid(UuidSchema::Bytes) => Shape::Bytes,
            S::String | S::Uuid(UuidSchema::String) => Shape::Text,
            S::Array(array) => Shape::Array(Box::new(self.compile(&array.items, space)?)),
            S::Map(map) => Shape::Map(Box::new(self.compile(&map.types, space)?)),
            S::Union(union) => Shape::Union(
                union
                    .variants()
                    .iter()
                    .map(|variant| self.compile(variant, space))
                    .collect::<Result<_, _>>()?,
            ),
            S::Decimal(decimal) => self.compile_decimal(decimal, space)?,
            S::Fixed(fixed) | S::Duration(fixed) | S::Uuid(UuidSchema::Fixed(fixed)) => {
                self.define(fixed.name.fullname(space), Shape::Fixed(fixed.size))
            }
            S::Enum(symbols) => {
                self.define(symbols.name.fullname(space), Shape::Symbol(symbols.symbols.clone()))
            }
            S::Record(record) => {
                let name = record.name.fully_qualified_name(space);
                // Taken before the fields are looked at: they may name this record.
                let at = self.reserve(name.fullname(None));
                let fields = record.fields.iter().map(|field| {
                    let shape = self.compile(&field.schema, name.namespace())?;
                    Ok((field.name.clone(), shape))
                });
                let fields = fields.collect::<Result<_, String>>()?;
                self.named[at] = Shape::Record(fields);
                Shape::Named(at)
            }
            S::Ref { name } => {
                let name = name.fullname(space);
                if let Some(&at) = self.positions.get(&name) {
                    return Ok(Shape::Named(at));
                }
                let schema = self
                    .others
                    .remove(&name)
                    .ok_or_else(|| format!("schema names an unknown type {name}"))?;
                self.compile(schema, None)?
            }
        })
    }

    fn compile_decimal(&mut self, decimal: &DecimalSchema, space: NamespaceRef<'_>) -> Result<Shape, String> {
        let scale =
            u32::try_from(decimal.scale).map_err(|_| "schema has a decimal of absurd scale".to_owned())?;
        Ok(match &decimal.inner {
            InnerDecimalSchema::Bytes => Shape::Decimal { scale, size: None },
            InnerDecimalSchema::Fixed(fixed) => {
                self.define(fixed.name.fullname(space), Shape::Decimal { scale, size: Some(fixed.size) })
            }
        })
    }

    fn define(&mut self, name: String, shape: Shape) -> Shape {
        let at = self.reserve(name);
        self.named[at] = shape;
        Shape::Named(at)
    }

    fn reserve(&mut self, name: String) -> usize {
        self.named.push(Shape::Null);
        self.positions.insert(name, self.named.len() - 1);
        self.named.len() - 1
    }
}

/// A walk over one datum. Lengths are believed only as far as there are bytes.
struct Walk<'a> {
    named: &'a [Shape],
    rest: &'a [u8],
}

type Walked<T> = Result<T, &'static str>;

impl<'a> Walk<'a> {
    fn take(&mut self, len: usize) -> Walked<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or("datum ends early")?;
        self.rest = rest;
        Ok(head)
    }

    /// A zigzag varint of at most 64 bits.
    fn long(&mut self) -> Walked<i64> {
        let mut bits = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            bits |= part << shift;
            if byte & 0x80 == 0 {
                return Ok((bits >> 1).cast_signed() ^ -(bits & 1).cast_signed());
            }
        }
        Err("datum has an integer beyond 64 bits")
    }

    fn bytes(&mut self) -> Walked<&'a [u8]> {
        let len = usize::try_from(self.long()?).map_err(|_| "datum has a negative length")?;
        self.take(len)
    }

    fn text(&mut self) -> Walked<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "datum has a string that is not UTF-8")
    }

    fn index_of<T>(&mut self, of: &'a [T]) -> Walked<&'a T> {
        let index = usize::try_from(self.long()?).ok();
        index
            .and_then(|index| of.get(index))
            .ok_or("datum picks a union branch or symbol that its schema lacks")
    }

    /// Follows names and union branches to the shape that the datum really has here.
    fn choose(&mut self, mut shape: &'a Shape) -> Walked<&'a Shape> {
        // A union holds no union directly and a name no name, but a name may hold a union's branch.
        loop {
            shape = match shape {
                Shape::Named(at) => self.named.get(*at).ok_or("schema is broken")?,
                Shape::Union(branches) => self.index_of(branches)?,
                chosen => return Ok(chosen),
            };
        }
    }

    fn value(&mut self, shape: &'a Shape) -> Walked<Raw<'a>> {
        Ok(match self.choose(shape)? {
            Shape::Null => Raw::Null,
            Shape::Integer => Raw::Number(Decimal::from(self.long()?)),
            Shape::Text => Raw::Text(Cow::Borrowed(self.text()?)),
            Shape::Symbol(symbols) => Raw::Text(Cow::Borrowed(self.index_of(symbols)?)),
            Shape::Instant(unit) => Raw::Epoch(self.long()?, *unit),
            Shape::Decimal { scale, size } => {
                let unscaled = match size {
                    Some(size) => self.take(*size)?,
                    None => self.bytes()?,
                };
                Decimal::from_twos_complement(unscaled, *scale)
                    .map_or(Raw::Other("a decimal of no bytes"), Raw::Number)
            }
            other => {
                self.skip(other, 0)?;
                Raw::Other(type_name(other))
            }
        })
    }

    fn payload(&mut self, shape: &'a Shape) -> Walked<Payload<'a>> {
        let members = match self.choose(shape)? {
            Shape::Null => return Ok(Payload::Missing),
            Shape::Record(members) => members,
            other => {
                self.skip(other, 0)?;
                return Ok(Payload::Other(type_name(other)));
            }
        };
        let (mut amount, mut percent) = (Raw::Missing, Raw::Missing);
        for (name, shape) in members {
            match name.as_str() {
                "valorCentavos" => amount = self.value(shape)?,
                "percentual" => percent = self.value(shape)?,
                _ => self.skip(shape, 0)?,
            }
        }
        Ok(Payload::Object { amount, percent })
    }

    fn skip(&mut self, shape: &'a Shape, depth: usize) -> Walked<()> {
        if depth > DEPTH_MAX {
            return Err("datum nests deeper than 128 levels");
        }
        match self.choose(shape)? {
            Shape::Null | Shape::Named(_) | Shape::Union(_) => Ok(()),
            Shape::Boolean => match self.take(1)? {
                [0 | 1] => Ok(()),
                _ => Err("datum has a boolean that is neither 0 nor 1"),
            },
            Shape::Integer | Shape::Instant(_) | Shape::LocalInstant => self.long().map(|_| ()),
            Shape::Float => self.take(4).map(|_| ()),
            Shape::Double => self.take(8).map(|_| ()),
            Shape::Bytes | Shape::Decimal { size: None, .. } => self.bytes().map(|_| ()),
            Shape::Text => self.text().map(|_| ()),
            Shape::Fixed(size) | Shape::Decimal { size: Some(size), .. } => self.take(*size).map(|_| ()),
            Shape::Symbol(symbols) => self.index_of(symbols).map(|_| ()),
            Shape::Record(members) => members.iter().try_for_each(|(_, member)| self.skip(member, depth + 1)),
            Shape::Array(items) => self.blocks(|walk| walk.skip(items, depth + 1)),
            Shape::Map(values) => self.blocks(|walk| {
                walk.text()?;
                walk.skip(values, depth + 1)
            }),
        }
    }

    /// Skips the blocks of an array or map.
    fn blocks(&mut self, mut item: impl FnMut(&mut Self) -> Walked<()>) -> Walked<()> {
        loop {
            let count = self.long()?;
            if count == 0 {
                return Ok(());
            }
            if count < 0 {
                // The writer says how long the block is.
                self.bytes()?;
                continue;
            }
            for _ in 0..count {
                let before = self.rest.len();
                item(self)?;
                if self.rest.len() == before {
                    // Items without bytes: their claimed number costs the writer nothing and must cost us nothing.
                    break;
                }
            }
        }
    }
}

fn type_name(shape: &Shape) -> &'static str {
    match shape {
        Shape::Boolean => "a boolean",
        Shape::Float | Shape::Double => "a floating-point number, which is not exact",
        Shape::Bytes | Shape::Fixed(_) => "bytes",
        Shape::Array(_) => "an array",
        Shape::Map(_) => "a map",
        Shape::Record(_) => "a record",
        Shape::LocalInstant => "a local timestamp, which is no instant",
        Shape::Text | Shape::Symbol(_) => "a text",
        Shape::Integer | Shape::Decimal { .. } => "a number",
        Shape::Instant(_) => "a timestamp",
        Shape::Null | Shape::Named(_) | Shape::Union(_) => "nothing",
    }
}
