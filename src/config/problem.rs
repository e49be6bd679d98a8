//! What is wrong with a configuration, in words that name the key, its source and the remedy.
//!
//! No text here ever repeats a value that may be secret.

use std::fmt;
use std::path::PathBuf;

/// Where a value came from, or should have come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    /// The name of an environment variable.
    Variable(String),
    /// Set nowhere.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

/// One thing that keeps a configuration from being used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key, as `efeitos.notificar-vendedor.prazo`.
    pub key: String,
    pub what: String,
    pub remedy: String,
    pub source: Source,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, what, remedy, source } = self;
        match source {
            Source::Default => write!(f, "{key}: {what}; {remedy}"),
            _ => write!(f, "{key} ({source}): {what}; {remedy}"),
        }
    }
}

/// Something that works, but hardly as meant. The same shape as a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning(pub Problem);

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Every problem of a configuration, never only the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<Problem>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => write!(f, "1 problem in the configuration:")?,
            n => write!(f, "{n} problems in the configuration:")?,
        }
        for problem in &self.0 {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The known name that `given` was probably meant to be: at most a third of its letters differ.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(given, name), name))
        .filter(|(distance, name)| *distance <= (given.len().max(name.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// "did you mean `x`?" where something is near, else all there is.
pub(super) fn suggestion(given: &str, known: &[&str]) -> String {
    nearest(given, known.iter().copied())
        .map_or_else(|| format!("known here: {}", known.join(", ")), |name| format!("did you mean {name}?"))
}
