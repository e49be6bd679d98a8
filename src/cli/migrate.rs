//! `migrate`: brings the schema up to date.

use super::Context;
use super::failure::Failure;
use crate::pg::connect::Database;
use crate::pg::schema::{self, SchemaError};

pub async fn run(context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    let applied = schema::migrate(&database).await.map_err(|error| match error {
        SchemaError::Store(error) => {
            Failure::failed(format!("{error}; check that Postgres runs and that postgres.url is right"))
        }
        error @ SchemaError::Pooled(_) => Failure::Usage(error.to_string()),
        error => Failure::failed(error),
    })?;
    match applied {
        0 => context.output.note("the schema is up to date"),
        n => context.output.note(&format!("applied {n} migrations; the schema is up to date")),
    }
}
