//! A typed reader over the merged settings that collects problems instead of stopping at the first.
//!
//! Every method answers with a usable value or `None`; whoever needs a value after a problem may take any
//! placeholder, for a configuration with problems is never handed out.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::layers::{Layers, read_secret};
use super::problem::{Problem, Warning, suggestion};
use super::schema::FILE_KEY;
use super::secret::Secret;

/// Longest text of a refused value that is repeated in a message.
const SHOWN_CHARS_MAX: usize = 40;

pub(super) struct Reader<'a> {
    pub layers: &'a Layers,
    pub problems: Vec<Problem>,
    pub warnings: Vec<Warning>,
}

/// One table of settings, by its path.
pub(super) struct Section<'r, 'a> {
    reader: &'r mut Reader<'a>,
    path: String,
    table: Option<&'a Table>,
}

impl<'a> Reader<'a> {
    pub fn new(layers: &'a Layers, problems: Vec<Problem>) -> Self {
        Self { layers, problems, warnings: Vec::new() }
    }

    /// The section `name`, present or not; refuses every key that is not in `known`.
    pub fn section(&mut self, name: &str, known: &[&str]) -> Section<'_, 'a> {
        let value = self.layers.root.get(name);
        self.table(name.to_owned(), value, known)
    }

    /// The table `value` at `path`.
    pub fn table(&mut self, path: String, value: Option<&'a Value>, known: &[&str]) -> Section<'_, 'a> {
        let table = value.and_then(Value::as_table);
        let mut section = Section { reader: self, path, table };
        if value.is_some() && table.is_none() {
            let (path, remedy) = (section.path.clone(), format!("write it as a section: [{}]", section.path));
            section.reader.problem(&path, "is not a section".to_owned(), remedy);
        }
        for key in table.into_iter().flat_map(Table::keys) {
            if !known.contains(&key.as_str()) {
                section.reject(key, "there is no such key", suggestion(key, known));
            }
        }
        section
    }

    pub fn problem(&mut self, path: &str, what: String, remedy: String) {
        let source = self.layers.source_of(path, true);
        self.problems.push(Problem { key: path.to_owned(), what, remedy, source });
    }
}

impl<'a> Section<'_, 'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.table?.get(key)
    }

    pub fn path_of(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    /// Records a problem with `key`.
    pub fn reject(&mut self, key: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let path = self.path_of(key);
        self.reader.problem(&path, what.into(), remedy.into());
    }

    pub fn warn(&mut self, key: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let key = self.path_of(key);
        let source = self.reader.layers.source_of(&key, true);
        self.reader.warnings.push(Warning(Problem { key, what: what.into(), remedy: remedy.into(), source }));
    }

    /// A text that is not empty.
    pub fn text(&mut self, key: &str) -> Option<String> {
        let value = self.get(key)?;
        match value.as_str().map(str::trim) {
            Some("") => self.reject(key, "is empty", "give it a value, or leave the key out"),
            Some(text) => return Some(text.to_owned()),
            None => self.reject(key, format!("{} is not text", kind(value)), "write it in quotes"),
        }
        None
    }

    /// A text without which nothing works.
    pub fn required_text(&mut self, key: &str, example: &str) -> Option<String> {
        if self.get(key).is_none() {
            self.reader.problems.push(Problem {
                key: self.path_of(key),
                what: "is missing".to_owned(),
                remedy: format!("add {key} = \"{example}\" to [{}]", self.path),
                source: self.reader.layers.source_of("", true),
            });
        }
        self.text(key)
    }

    /// A whole number in `allowed`.
    pub fn integer<T>(&mut self, key: &str, allowed: &RangeInclusive<T>) -> Option<T>
    where
        T: PartialOrd + Display + TryFrom<i64>,
    {
        let value = self.get(key)?;
        let number = match value {
            Value::Integer(number) => Some(*number),
            // The environment has only texts; in the file a quoted number is a mistake.
            Value::String(text) if self.is_from_variable(key) => text.trim().parse().ok(),
            _ => None,
        };
        let fitting = number.and_then(|n| T::try_from(n).ok()).filter(|n| allowed.contains(n));
        if fitting.is_none() {
            let remedy =
                format!("give a whole number from {} to {}, unquoted", allowed.start(), allowed.end());
            self.reject(key, format!("{} cannot be used", shown(value)), remedy);
        }
        fitting
    }

    /// A share from 0 to 1.
    pub fn share(&mut self, key: &str) -> Option<f64> {
        let value = self.get(key)?;
        let number = match value {
            Value::Float(number) => Some(*number),
            Value::Integer(0) => Some(0.0),
            Value::Integer(1) => Some(1.0),
            Value::String(text) if self.is_from_variable(key) => text.trim().parse().ok(),
            _ => None,
        };
        let fitting = number.filter(|share| (0.0..=1.0).contains(share));
        if fitting.is_none() {
            self.reject(key, format!("{} cannot be used", shown(value)), "give a share from 0.0 to 1.0");
        }
        fitting
    }

    /// A duration in `allowed`; `None` only if it was refused.
    pub fn duration(
        &mut self,
        key: &str,
        default: Duration,
        allowed: &RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let Some(value) = self.get(key) else { return Some(default) };
        let parsed = value.as_str().and_then(|text| humantime::parse_duration(text.trim()).ok());
        let fitting = parsed.filter(|duration| allowed.contains(duration));
        if fitting.is_none() {
            let (least, most) =
                (humantime::format_duration(*allowed.start()), humantime::format_duration(*allowed.end()));
            let remedy = format!("give a duration as \"250ms\", \"5s\" or \"24h\", from {least} to {most}");
            self.reject(key, format!("{} cannot be used", shown(value)), remedy);
        }
        fitting
    }

    /// True or false; false where nothing is said.
    pub fn flag(&mut self, key: &str) -> bool {
        let Some(value) = self.get(key) else { return false };
        let said = match value {
            Value::Boolean(said) => Some(*said),
            // The environment has only texts; in the file a quoted word is a mistake.
            Value::String(text) if self.is_from_variable(key) => text.trim().parse().ok(),
            _ => None,
        };
        said.unwrap_or_else(|| {
            self.reject(
                key,
                format!("{} is neither true nor false", shown(value)),
                "write true or false, unquoted",
            );
            false
        })
    }

    /// Texts: a list, or one text with commas (the environment has no lists).
    pub fn texts(&mut self, key: &str) -> Option<Vec<String>> {
        let value = self.get(key)?;
        let list: Option<Vec<String>> = match value {
            Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            Value::String(text) => Some(text.split(',').map(str::to_owned).collect()),
            _ => None,
        };
        if list.is_none() {
            self.reject(key, format!("{} is not a list of texts", kind(value)), "write [\"one\", \"two\"]");
        }
        Some(list?.into_iter().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect())
    }

    /// The text of a file that is no secret.
    pub fn file(&mut self, key: &str) -> Option<(PathBuf, String)> {
        let path = PathBuf::from(self.text(key)?);
        match read_secret(&path) {
            Ok(text) => Some((path, text)),
            Err(what) => {
                self.reject(key, what, "name a readable file");
                None
            }
        }
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&mut self, key: &str, default: T, words: &[(&str, T)]) -> T {
        let Some(value) = self.get(key) else { return default };
        let chosen = value.as_str().and_then(|text| words.iter().find(|(word, _)| *word == text));
        chosen.map_or_else(
            || {
                let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                self.reject(key, format!("{} is not a value", shown(value)), allowed_words(&allowed));
                default
            },
            |(_, meaning)| *meaning,
        )
    }

    /// A secret from the key `inline` (if there is such a key) or from the file that `file_key` names. The
    /// environment wins over the file; both from one layer contradict each other.
    pub fn secret(&mut self, inline: Option<&str>, file_key: &str) -> Option<Secret> {
        debug_assert!(file_key.ends_with(FILE_KEY), "secrets come from files by this ending");
        let set_inline = inline.filter(|key| self.get(key).is_some());
        let file_set = self.get(file_key).is_some();
        let use_file = match set_inline {
            Some(key) if file_set => {
                let (from_env, file_from_env) = (self.is_from_variable(key), self.is_from_variable(file_key));
                if from_env == file_from_env {
                    self.reject(file_key, format!("is set together with {key}"), "keep one of the two");
                }
                file_from_env
            }
            Some(_) => false,
            None => true,
        };
        if !use_file {
            return self.text(set_inline?).map(Secret::new);
        }
        let path = self.text(file_key)?;
        match read_secret(Path::new(&path)) {
            Ok(secret) => Some(Secret::new(secret)),
            Err(what) => {
                self.reject(file_key, what, "name a readable file that holds the secret and nothing else");
                None
            }
        }
    }

    fn is_from_variable(&self, key: &str) -> bool {
        self.reader.layers.is_from_variable(&self.path_of(key))
    }
}

pub(super) fn allowed_words(words: &[&str]) -> String {
    format!("use one of: {}", words.join(", "))
}

/// A refused value, short and without control characters. Never for values that may be secret.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.chars().take(SHOWN_CHARS_MAX).collect::<String>()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => value.to_string(),
        Value::Array(_) | Value::Table(_) => kind(value).to_owned(),
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::Table(_) => "a table",
    }
}
