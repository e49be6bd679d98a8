//! Windows as they are shown.

use serde::Serialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::error::StoreError;

/// Rows of one answer.
const ROWS_MAX: i64 = 50_000;

/// A courier that is not heard of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Silence {
    pub courier_id: String,
    pub tenant_id: String,
    pub last_seen_at: String,
    pub detected_at: String,
}

const UTC: &str = r#"'YYYY-MM-DD"T"HH24:MI:SS"Z"'"#;

/// Couriers that are offline now, those silent longest first.
pub async fn offline(
    connection: &mut PgConnection,
    tenant: Option<&str>,
) -> Result<Vec<Silence>, StoreError> {
    let sql = format!(
        "select courier_id, tenant_id, to_char(last_seen_at at time zone 'UTC', {UTC}) as seen_text,
                to_char(detected_at at time zone 'UTC', {UTC}) as detected_text
         from courier_offline where back_at is null and ($1::text is null or tenant_id = $1)
         order by last_seen_at, courier_id limit $2"
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).bind(tenant).bind(ROWS_MAX).fetch_all(connection).await?;
    let read = |row: &PgRow| -> Result<Silence, StoreError> {
        Ok(Silence {
            courier_id: row.try_get("courier_id")?,
            tenant_id: row.try_get("tenant_id")?,
            last_seen_at: row.try_get("seen_text")?,
            detected_at: row.try_get("detected_text")?,
        })
    };
    rows.iter().map(read).collect()
}
