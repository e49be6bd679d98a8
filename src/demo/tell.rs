//! How the demo speaks: short lines, small tables, colour on a terminal only.

use std::io::{IsTerminal as _, Write as _};

use tabled::builder::Builder;
use tabled::settings::{Alignment, Style, object::Columns};

/// Speaks to stdout. A reader that went away is no reason to stop.
pub struct Teller {
    colour: bool,
}

impl Teller {
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none();
        Self { colour: wanted && std::io::stdout().is_terminal() }
    }

    pub fn title(&self, text: &str) {
        self.line(&self.paint("1", text));
    }

    pub fn chapter(&self, text: &str) {
        self.line("");
        self.line(&self.paint("1;36", text));
    }

    pub fn say(&self, text: &str) {
        for line in wrapped(text, 100) {
            self.line(&format!("  {line}"));
        }
    }

    pub fn command(&self, text: &str) {
        self.line(&format!("  {}", self.paint("2", &format!("$ {text}"))));
    }

    /// What, and how many.
    pub fn table(&self, heading: &str, rows: &[(String, i64)]) {
        let mut builder = Builder::default();
        builder.push_record([heading, ""]);
        for (what, count) in rows {
            builder.push_record([what.clone(), count.to_string()]);
        }
        let mut table = builder.build();
        table.with(Style::rounded()).modify(Columns::last(), Alignment::right());
        for line in table.to_string().lines() {
            self.line(&format!("  {line}"));
        }
    }

    /// Several small tables in one: a group of rows, and another.
    pub fn summary(&self, groups: &[(&str, Vec<(String, i64)>)]) {
        let mut builder = Builder::default();
        for (group, rows) in groups {
            for (n, (what, count)) in rows.iter().enumerate() {
                let group = if n == 0 { *group } else { "" };
                builder.push_record([group.to_owned(), what.clone(), count.to_string()]);
            }
        }
        let mut table = builder.build();
        table.with(Style::rounded().remove_horizontals()).modify(Columns::last(), Alignment::right());
        for line in table.to_string().lines() {
            self.line(&format!("  {line}"));
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    #[expect(clippy::unused_self, reason = "the one place that writes")]
    fn line(&self, text: &str) {
        if writeln!(std::io::stdout(), "{text}").is_err() {
            tracing::debug!("nobody reads the demo any more");
        }
    }
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("  a   b ", 80), ["a b"]);
    }
}
