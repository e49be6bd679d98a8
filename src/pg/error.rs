//! Failures of Postgres, classified where they are born: what do I do now?

use sqlx::Error;

use crate::metrics::DatabaseErrorClass;

/// What a failed statement means for its caller.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, or said 'not now'. Nothing is known to have happened: hold, try again.
    #[error("database unavailable: {0}")]
    Transient(#[source] Error),
    /// Classes 22 and 23: one row of the statement is to blame.
    #[error("database refused the data: {0}")]
    Data(#[source] Error),
    /// A defect, a missing table or right: a person must act.
    #[error("database error: {0}")]
    Broken(#[source] Error),
}

impl StoreError {
    /// Metric label: the kind of failure.
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Transient(_) => "transitorio",
            Self::Data(_) => "dado",
            Self::Broken(_) => "defeito",
        }
    }

    /// The same for the counters.
    pub const fn counted(&self) -> DatabaseErrorClass {
        match self {
            Self::Transient(_) => DatabaseErrorClass::Transient,
            Self::Data(_) => DatabaseErrorClass::Data,
            Self::Broken(_) => DatabaseErrorClass::Broken,
        }
    }

    /// Words for a dead letter: what the database said, bounded, without the row's values.
    pub fn database_message(&self) -> String {
        let (Self::Transient(error) | Self::Data(error) | Self::Broken(error)) = self;
        error.as_database_error().map_or_else(
            || error.to_string(),
            |db| {
                let code = db.code().unwrap_or_default();
                let constraint = db.constraint().map(|name| format!(" (constraint {name})"));
                let text: String = db.message().chars().take(300).collect();
                format!("{code}{}: {text}", constraint.unwrap_or_default())
            },
        )
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        classify(error)
    }
}

fn classify(error: Error) -> StoreError {
    let Some(db) = error.as_database_error() else {
        return match error {
            Error::ColumnDecode { .. } | Error::Decode(_) | Error::Encode(_) | Error::ColumnNotFound(_) => {
                StoreError::Broken(error)
            }
            // Io, Tls, Protocol, PoolTimedOut, PoolClosed, WorkerCrashed: the connection is the problem.
            _ => StoreError::Transient(error),
        };
    };
    match db.code().as_deref() {
        // Connection (08), resources (53), operator intervention and shutdown (57), serialization and deadlock (40),
        // lock timeout (55P03), a standby that was promoted or a database set read-only (25006), a database that
        // does not accept connections now (55000, 3D000 while it is being restored), idle-in-transaction (25P03),
        // a cached plan that a migration outdated (0A000): a new connection has none.
        Some("55P03" | "55000" | "25006" | "25P03" | "25P02" | "0A000" | "3D000" | "XX000") => {
            StoreError::Transient(error)
        }
        Some(code) => match &code[..code.len().min(2)] {
            // 28: a password that is being rotated comes right again; it is loud in logs and readiness.
            "08" | "28" | "40" | "53" | "57" | "58" => StoreError::Transient(error),
            "22" | "23" => StoreError::Data(error),
            _ => StoreError::Broken(error),
        },
        None => StoreError::Broken(error),
    }
}
