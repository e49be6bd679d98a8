//! Results on stdout: a table for people, JSON and CSV for programs.
//!
//! JSON has every field of a value; tables and CSV have the columns that its type names, in their order, headed even
//! when there is no row. Control characters never reach a terminal from data. A closed stdout ends the printing,
//! and is not an error.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use tabled::builder::Builder;
use tabled::settings::Style;

use super::failure::Failure;

/// `--output`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    Csv,
}

/// A value that can stand in a listing.
pub trait Row: Serialize {
    /// Names of the fields (as serialized) that tables and CSV show.
    const COLUMNS: &'static [&'static str];
}

/// Where results go, in the format that was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    format: Format,
}

impl Output {
    pub const fn new(format: Format) -> Self {
        Self { format }
    }

    pub const fn format(&self) -> Format {
        self.format
    }

    /// A listing: in JSON an array.
    pub fn rows<T: Row>(&self, rows: &[T]) -> Result<(), Failure> {
        print(&self.render_rows(rows)?)
    }

    /// A single value: in JSON an object, in a table one line per column.
    pub fn one<T: Row>(&self, value: &T) -> Result<(), Failure> {
        print(&self.render_one(value)?)
    }

    /// A line for people: nothing is printed where a program reads.
    pub fn note(&self, line: &str) -> Result<(), Failure> {
        if self.format == Format::Table { print(line) } else { Ok(()) }
    }

    fn render_rows<T: Row>(self, rows: &[T]) -> Result<String, Failure> {
        match self.format {
            Format::Json => Ok(serde_json::to_string_pretty(rows)?),
            Format::Table => {
                let mut table = Builder::default();
                table.push_record(T::COLUMNS.iter().copied());
                for row in rows {
                    table.push_record(cells(row)?.iter().map(|cell| printable(cell)));
                }
                Ok(table.build().with(Style::psql()).to_string())
            }
            Format::Csv => {
                let mut lines = csv::Writer::from_writer(Vec::new());
                let written = || -> Result<Vec<u8>, Failure> {
                    lines.write_record(T::COLUMNS).map_err(Failure::failed)?;
                    for row in rows {
                        lines.write_record(cells(row)?).map_err(Failure::failed)?;
                    }
                    lines.into_inner().map_err(|error| Failure::failed(error.into_error()))
                };
                Ok(String::from_utf8_lossy(written()?.trim_ascii_end()).into_owned())
            }
        }
    }

    fn render_one<T: Row>(self, value: &T) -> Result<String, Failure> {
        match self.format {
            Format::Json => Ok(serde_json::to_string_pretty(value)?),
            Format::Csv => self.render_rows(std::slice::from_ref(value)),
            Format::Table => {
                let mut table = Builder::default();
                for (name, cell) in T::COLUMNS.iter().zip(cells(value)?) {
                    table.push_record([(*name).to_owned(), printable(&cell)]);
                }
                Ok(table.build().with(Style::psql().remove_horizontals()).to_string())
            }
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The columns of a value as texts: a text as it is, nothing for null, anything else as JSON.
fn cells<T: Row>(row: &T) -> Result<Vec<String>, Failure> {
    let value = serde_json::to_value(row)?;
    let cell = |column: &&str| match value.get(*column) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Ok(T::COLUMNS.iter().map(cell).collect())
}

/// Without control characters: what a message or an id holds must not drive the terminal or break the table.
fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Letter {
        pedido_id: Option<&'static str>,
        mensagem: &'static str,
        rodadas: u32,
        detail: &'static str,
    }

    impl Row for Letter {
        const COLUMNS: &'static [&'static str] = &["rodadas", "pedidoId", "mensagem"];
    }

    const LETTERS: [Letter; 2] = [
        Letter { pedido_id: Some("p-1"), mensagem: "a \"b\", c", rodadas: 2, detail: "x" },
        Letter { pedido_id: None, mensagem: "\u{1b}[31mred\n", rodadas: 0, detail: "y" },
    ];

    fn rendered(format: Format, rows: &[Letter]) -> String {
        Output::new(format).render_rows(rows).expect("rendered")
    }

    #[test]
    fn csv_quotes_and_has_a_header_without_rows() {
        assert_eq!(
            rendered(Format::Csv, &LETTERS[..1]),
            "rodadas,pedidoId,mensagem\n2,p-1,\"a \"\"b\"\", c\""
        );
        assert_eq!(rendered(Format::Csv, &[]), "rodadas,pedidoId,mensagem");
    }

    #[test]
    fn json_has_every_field_in_order_and_an_empty_list_is_a_list() {
        let json = rendered(Format::Json, &LETTERS[1..]);
        assert_eq!(
            json.split_whitespace().collect::<String>(),
            r#"[{"pedidoId":null,"mensagem":"\u001b[31mred\n","rodadas":0,"detail":"y"}]"#
        );
        assert_eq!(rendered(Format::Json, &[]), "[]");
    }

    #[test]
    fn a_table_cannot_be_driven_by_data() {
        let expected = " rodadas | pedidoId | mensagem \n---------+----------+-----------------\n 0       |          | \\u{1b}[31mred\\n ";
        let squeezed = |text: &str| text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        assert_eq!(squeezed(&rendered(Format::Table, &LETTERS[1..])), squeezed(expected));
    }
}
