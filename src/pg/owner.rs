//! Session locks: a dead owner is known at once.
//!
//! Every process takes one session-level advisory lock under a number of its own, on its wave connection, and
//! writes that number on its reservations. Whoever can take the lock knows that the owner's session is gone.
//! One free look is not enough: a process that lost its session takes its lock again before anything else, so a
//! claimant looks twice, at least [`GRACE`] apart.

use std::time::Duration;

use sqlx::{PgConnection, PgPool, Row};

use super::error::StoreError;

/// What an owner that lost its session is given to take its lock again.
pub const GRACE: Duration = Duration::from_secs(1);

/// The number of this process: random, so that two processes never share one.
pub fn new_number() -> i64 {
    rand::random_range(1..i64::MAX)
}

/// Takes this process's lock on its session. Waits for a claimant that holds it for a moment (`lock_timeout`).
pub async fn take(connection: &mut PgConnection, owner: i64) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_lock($1)").bind(owner).execute(connection).await?;
    Ok(())
}

/// Of these owners, whose session is gone at this moment?
pub async fn free(pool: &PgPool, owners: &[i64]) -> Result<Vec<i64>, StoreError> {
    let rows = sqlx::query("select d from unnest($1::bigint[]) d where pg_try_advisory_xact_lock(d)")
        .bind(owners)
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}
