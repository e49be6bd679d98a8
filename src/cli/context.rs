//! What every command gets: the global options, made usable.

use std::path::PathBuf;

use super::failure::Failure;
use super::logging::{self, LogFormat};
use super::output::{Format, Output};
use crate::config::{Config, ConfigErrors, Warning};

/// Options that stand before or after every command.
#[derive(Debug, Clone, clap::Args)]
pub struct Global {
    // Help in attributes, not in doc comments: there the names of variables would need backticks.
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help = "Configuration file; else REPRISE_CONFIG, else ./reprise.toml"
    )]
    pub config: Option<PathBuf>,
    /// Format of results on stdout
    #[arg(long, global = true, value_enum, default_value_t)]
    pub output: Format,
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        help = "Format of logs on stderr (level by REPRISE_LOG or RUST_LOG, else info)"
    )]
    pub log: LogFormat,
}

/// The ground a command stands on. Logging is set up when there is one.
#[derive(Debug)]
pub struct Context {
    config_path: Option<PathBuf>,
    pub output: Output,
}

impl Context {
    pub fn new(global: Global) -> Result<Self, Failure> {
        logging::set_up(global.log)?;
        Ok(Self { config_path: global.config, output: Output::new(global.output) })
    }

    /// The file that was named on the command line: commands that this process starts are given it, too.
    pub fn config_file(&self) -> Option<PathBuf> {
        self.config_path.clone()
    }

    /// The configuration, its warnings logged; with problems, a usage failure that tells them all.
    pub fn config(&self) -> Result<Config, Failure> {
        let (config, warnings) = self.read_config()?;
        for warning in warnings {
            tracing::warn!(config.key = warning.0.key, "{warning}");
        }
        Ok(config)
    }

    /// The configuration and what is to be said about it.
    pub fn read_config(&self) -> Result<(Config, Vec<Warning>), ConfigErrors> {
        // Not `vars()`: it panics where a variable is not Unicode.
        let env = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        Config::load(self.config_path.as_deref(), env)
    }
}
