//! What the demo asks and writes: a database of its own, the rows that 'the old code' would have left, the proof.

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, Row};
use std::str::FromStr as _;

use super::error::StoreError;

/// Makes the database anew on the server that `url` names, and returns its own URL.
pub async fn fresh_database(url: &str, name: &str) -> Result<String, StoreError> {
    let server = PgConnectOptions::from_str(url)?.database("postgres");
    let mut connection: PgConnection = server.connect().await?;
    // The name is the demo's own constant; identifiers cannot be bound.
    let drop = format!(r#"drop database if exists "{name}" with (force)"#);
    sqlx::query(AssertSqlSafe(drop)).execute(&mut connection).await?;
    let create = format!(r#"create database "{name}""#);
    sqlx::query(AssertSqlSafe(create)).execute(&mut connection).await?;
    let (before, _) = url.rsplit_once('/').unwrap_or((url, ""));
    Ok(format!("{before}/{name}"))
}

/// Events of this many different orders were paid in the window of the bug.
pub async fn spoil(pool: &PgPool, from: &str, missing: i64) -> Result<Spoilt, StoreError> {
    let commissions = sqlx::query(
        "update comissao c set valor_centavos = c.valor_centavos / 10, atualizado_em = now()
         where exists (select 1 from efeito_aplicado e where e.evento_id = c.evento_id
                       and (e.requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz)",
    )
    .bind(from)
    .execute(pool)
    .await?
    .rows_affected();
    let notices = sqlx::query(
        "update efeito_aplicado e
         set requisicao = jsonb_set(e.requisicao, '{valorCentavos}', to_jsonb((e.requisicao ->> 'valorCentavos')::bigint / 10)),
             resumo_requisicao = sha256(convert_to((e.requisicao ->> 'chave') || ' a tenth', 'UTF8'))
         where e.estado = 'concluido' and (e.requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz",
    )
    .bind(from)
    .execute(pool)
    .await?
    .rows_affected();
    let removed = sqlx::query(
        "delete from efeito_aplicado where chave in (
             select chave from efeito_aplicado
             where estado = 'concluido' and (requisicao ->> 'ocorridoEm')::timestamptz >= $1::timestamptz
             order by chave limit $2) returning chave",
    )
    .bind(from)
    .bind(missing)
    .fetch_all(pool)
    .await?;
    let missing = removed.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
    Ok(Spoilt { commissions, notices: notices - missing.len() as u64, missing })
}

/// What the old code left behind.
#[derive(Debug)]
pub struct Spoilt {
    /// Commissions a tenth too small.
    pub commissions: u64,
    /// Notices sent with the wrong amount.
    pub notices: u64,
    /// Keys of notices that were never sent.
    pub missing: Vec<String>,
}

/// `pedido_id`, `valor_centavos` of every commission.
pub async fn commissions(pool: &PgPool) -> Result<Vec<(String, i64)>, StoreError> {
    let rows =
        sqlx::query("select pedido_id, valor_centavos from comissao order by 1").fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Counts of a two-column grouping, for tables.
pub async fn counts(pool: &PgPool, of: Counting) -> Result<Vec<(String, i64)>, StoreError> {
    let sql = match of {
        Counting::Effects => "select estado, count(*) from efeito_aplicado group by 1 order by 2 desc",
        Counting::DeadLetters => "select motivo, count(*) from carta_morta group by 1 order by 2 desc, 1",
    };
    let rows = sqlx::query(sql).fetch_all(pool).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// What [`counts`] counts.
#[derive(Debug, Clone, Copy)]
pub enum Counting {
    Effects,
    DeadLetters,
}
