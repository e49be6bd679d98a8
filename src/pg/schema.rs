//! Migrations: embedded in the binary, additive, applied by `reprise migrate`.

use sqlx::migrate::{Migrate as _, Migrator};

use super::connect::Database;
use super::error::StoreError;
use super::pooler::{self, Shared};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Why the schema is not what this program needs.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(
        "the schema is behind: {missing} of {known} migrations are not applied; run `reprise migrate` first"
    )]
    Behind { missing: usize, known: usize },
    #[error(
        "postgres.url leads to a pooler that shares sessions: {0}. Session locks, time-outs and prepared statements \
         need a session of their own: give the address of Postgres itself (max_conexoes bounds what is used)"
    )]
    Pooled(Shared),
    #[error("migration failed: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Applies what is missing; says how many migrations that were.
pub async fn migrate(database: &Database) -> Result<usize, SchemaError> {
    refuse_pooler(database).await?;
    let before = Box::pin(applied(database)).await?;
    let mut connection = database.plain().await?;
    MIGRATIONS.run_direct(None, &mut connection, false).await?;
    Ok(known().saturating_sub(before))
}

/// Refuses a schema that is behind this program. One that is ahead is fine: migrations are additive.
pub async fn check(database: &Database) -> Result<(), SchemaError> {
    refuse_pooler(database).await?;
    let known = known();
    let applied = Box::pin(applied(database)).await?;
    if applied < known { Err(SchemaError::Behind { missing: known - applied, known }) } else { Ok(()) }
}

async fn refuse_pooler(database: &Database) -> Result<(), SchemaError> {
    Box::pin(pooler::shared(database)).await?.map_or(Ok(()), |shared| Err(SchemaError::Pooled(shared)))
}

fn known() -> usize {
    MIGRATIONS.iter().filter(|migration| !migration.migration_type.is_down_migration()).count()
}

/// How many of this program's migrations the database has.
async fn applied(database: &Database) -> Result<usize, SchemaError> {
    let mut connection = database.plain().await?;
    let exists: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null")
        .fetch_one(&mut connection)
        .await
        .map_err(StoreError::from)?;
    if !exists {
        return Ok(0);
    }
    let done = connection.list_applied_migrations("_sqlx_migrations").await?;
    Ok(MIGRATIONS.iter().filter(|known| done.iter().any(|row| row.version == known.version)).count())
}
