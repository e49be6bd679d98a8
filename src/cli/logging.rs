//! Logs: to stderr, as text for people or JSON for collectors, filtered by `REPRISE_LOG`, else `RUST_LOG`, else `info`.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use super::failure::Failure;

const DEFAULT_FILTER: &str = "info";

/// `--log`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Once per process; a filter that cannot be read is a usage failure, not a silent default.
pub fn set_up(format: LogFormat) -> Result<(), Failure> {
    let set = |name: &'static str| {
        std::env::var(name).ok().filter(|text| !text.trim().is_empty()).map(|text| (name, text))
    };
    let (name, text) =
        set("REPRISE_LOG").or_else(|| set("RUST_LOG")).unwrap_or(("default", DEFAULT_FILTER.to_owned()));
    let filter = EnvFilter::try_new(&text).map_err(|error| {
        Failure::Usage(format!("{name}: {text:?} is not a log filter ({error}); use as \"info\""))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        // It would tell of a closed stderr on stderr, and panic.
        .log_internal_errors(false);
    let installed = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    installed.map_err(Failure::Failed)
}
