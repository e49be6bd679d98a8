//! `config check` and `config show`: what the service would run with, and every reason why it would not.

use clap::Subcommand;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use super::output::{Format, Row};
use crate::config::{Problem, Setting};

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Report every problem and warning; exit 2 if there is a problem
    Check,
    /// Print the effective settings with where each came from; secrets are redacted
    Show,
}

/// One problem or warning, for programs.
#[derive(Debug, Serialize)]
struct Finding {
    severity: &'static str,
    key: String,
    what: String,
    remedy: String,
    source: String,
}

impl Finding {
    fn new(severity: &'static str, problem: &Problem) -> Self {
        let Problem { key, what, remedy, source } = problem.clone();
        Self { severity, key, what, remedy, source: source.to_string() }
    }
}

impl Row for Finding {
    const COLUMNS: &'static [&'static str] = &["severity", "key", "what", "remedy", "source"];
}

impl Row for Setting {
    const COLUMNS: &'static [&'static str] = &["key", "value", "origin"];
}

#[expect(clippy::unused_async, reason = "every command has this signature")]
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::Check => check(context),
        Args::Show => context.output.rows(&context.config()?.settings()),
    }
}

fn check(context: &Context) -> Result<(), Failure> {
    let (findings, errors) = match context.read_config() {
        Ok((_, warnings)) => {
            (warnings.iter().map(|warning| Finding::new("warning", &warning.0)).collect::<Vec<_>>(), None)
        }
        Err(errors) => {
            (errors.0.iter().map(|problem| Finding::new("problem", problem)).collect(), Some(errors))
        }
    };
    // People read the problems once, as the service would tell them.
    let for_people = context.output.format() == Format::Table;
    if !for_people || (errors.is_none() && !findings.is_empty()) {
        context.output.rows(&findings)?;
    }
    match errors {
        Some(errors) => Err(errors.into()),
        None => context.output.note("the configuration can be used"),
    }
}
