//! How a command that did not succeed ended: the exit code and what a person reads.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use crate::config::ConfigErrors;
use crate::pg::schema::SchemaError;
use crate::run::RunError;
use crate::run::dry_run::DryRunError;

/// Exit code of a usage or configuration error; clap's own too.
pub(super) const USAGE: u8 = 2;

/// Every variant is one exit code of the contract.
#[derive(Debug)]
pub enum Failure {
    /// 1: it was tried and did not work.
    Failed(Box<dyn Error + Send + Sync>),
    /// 2: the command or the configuration cannot be used as it is.
    Usage(String),
    /// 3: a safety check said no.
    Refused(String),
    /// 4: there is no such thing, or somebody else was first.
    NotFound(String),
}

impl Failure {
    /// 1, from an error or a text.
    pub fn failed(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed(cause.into())
    }

    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    pub const fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => USAGE,
            Self::Refused(_) => 3,
            Self::NotFound(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => {
                let mut said = error.to_string();
                f.write_str(&said)?;
                let mut cause = error.source();
                while let Some(inner) = cause {
                    let text = inner.to_string();
                    // Many errors repeat their source in their own words.
                    if !said.contains(&text) {
                        write!(f, ": {text}")?;
                    }
                    said = text;
                    cause = inner.source();
                }
                Ok(())
            }
            Self::Usage(text) | Self::Refused(text) | Self::NotFound(text) => f.write_str(text),
        }
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::Usage(errors.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Configuration(_)
            | RunError::Schema(SchemaError::Behind { .. } | SchemaError::Pooled(_)) => {
                Self::Usage(error.to_string())
            }
            error => Self::failed(error),
        }
    }
}

impl From<DryRunError> for Failure {
    fn from(error: DryRunError) -> Self {
        match error {
            DryRunError::Run(error) => error.into(),
            DryRunError::NotPlanned(_) | DryRunError::Cancelled => Self::NotFound(error.to_string()),
            error => Self::failed(error),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::failed(error)
    }
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn every_kind_of_end_has_its_exit_code() {
        let text = String::new;
        let codes = [
            Failure::failed("x"),
            Failure::Usage(text()),
            Failure::Refused(text()),
            Failure::NotFound(text()),
        ];
        assert_eq!(codes.map(|failure| failure.code()), [1, 2, 3, 4]);
    }

    #[test]
    fn the_chain_of_causes_is_told() {
        let failure = Failure::failed(Outer(std::io::Error::other("disk on fire")));
        assert_eq!(failure.to_string(), "cannot read the file: disk on fire");
    }
}
