//! Reading dead letters, and keeping what a redrive did with them.

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

use super::error::StoreError;
use crate::domain::record::RawRecord;

/// Which letters are meant. Everything given must hold.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    pub ids: Option<Vec<i64>>,
    pub reason: Option<String>,
    pub order: Option<String>,
    /// `criado_em`, inclusive.
    pub from: Option<Timestamp>,
    /// `criado_em`, exclusive.
    pub to: Option<Timestamp>,
    pub open_only: bool,
}

/// A letter as its index row tells it.
#[derive(Debug, Clone)]
pub struct StoredLetter {
    pub id: i64,
    pub reason: String,
    pub message: String,
    pub order_id: Option<String>,
    pub effect_type: Option<String>,
    pub run_id: String,
    pub attempts: i32,
    pub rounds: i32,
    pub situation: String,
    pub created_at: String,
    pub first_failed_at: String,
    /// Size of the whole value in bytes.
    pub size: i64,
    /// SHA-256 of the whole value, in hex.
    pub sha256: String,
    pub raw: RawRecord,
}

impl StoredLetter {
    /// Whether the index holds less than the record had.
    pub fn is_cut(&self) -> bool {
        let kept = self.raw.value.as_ref().map_or(0, |value| value.len());
        i64::try_from(kept).unwrap_or(i64::MAX) < self.size
    }
}

const COLUMNS: &str = r#"select id, topico, particao, "offset", motivo, mensagem, pedido_id, efeito, execucao_id, tentativas, timestamp_ms,
    chave, valor, cabecalhos::text as cabecalhos, tamanho, encode(resumo, 'hex') as resumo, rodadas, situacao,
    to_char(criado_em at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as criado_em,
    to_char(primeira_falha_em at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as primeira_falha_em
    from carta_morta
    where ($1::bigint[] is null or id = any($1)) and ($2::text is null or motivo = $2) and ($3::text is null or pedido_id = $3)
      and ($4::timestamptz is null or criado_em >= $4::timestamptz) and ($5::timestamptz is null or criado_em < $5::timestamptz)
      and (not $6 or situacao = 'aberta') "#;

/// The newest letters, at most `limit`.
pub async fn newest(pool: &PgPool, of: &Selection, limit: i64) -> Result<Vec<StoredLetter>, StoreError> {
    fetch(pool, of, "order by id desc limit $7 offset $8", limit, 0).await
}

/// Letters with an id above `after`, in the order of their ids.
pub async fn page(
    pool: &PgPool,
    of: &Selection,
    after: i64,
    limit: i64,
) -> Result<Vec<StoredLetter>, StoreError> {
    fetch(pool, of, "and id > $8 order by id limit $7", limit, after).await
}

async fn fetch(
    pool: &PgPool,
    of: &Selection,
    tail: &'static str,
    limit: i64,
    last: i64,
) -> Result<Vec<StoredLetter>, StoreError> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!("{COLUMNS}{tail}")))
        .bind(of.ids.as_deref())
        .bind(of.reason.as_deref())
        .bind(of.order.as_deref())
        .bind(of.from.map(|at| at.to_string()))
        .bind(of.to.map(|at| at.to_string()))
        .bind(of.open_only)
        .bind(limit)
        .bind(last)
        .fetch_all(pool)
        .await?;
    rows.iter().map(|row| read(row).map_err(StoreError::from)).collect()
}

/// How many letters are meant.
pub async fn count(pool: &PgPool, of: &Selection) -> Result<i64, StoreError> {
    let sql = format!("select count(*) from ({COLUMNS}) as c");
    let count = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(of.ids.as_deref())
        .bind(of.reason.as_deref())
        .bind(of.order.as_deref())
        .bind(of.from.map(|at| at.to_string()))
        .bind(of.to.map(|at| at.to_string()))
        .bind(of.open_only)
        .fetch_one(pool)
        .await?;
    Ok(count)
}

fn read(row: &PgRow) -> Result<StoredLetter, sqlx::Error> {
    let topic: String = row.try_get("topico")?;
    let headers: String = row.try_get("cabecalhos")?;
    let boxed = |bytes: Option<Vec<u8>>| bytes.map(Vec::into_boxed_slice);
    Ok(StoredLetter {
        id: row.try_get("id")?,
        reason: row.try_get("motivo")?,
        message: row.try_get("mensagem")?,
        order_id: row.try_get("pedido_id")?,
        effect_type: row.try_get("efeito")?,
        run_id: row.try_get("execucao_id")?,
        attempts: row.try_get("tentativas")?,
        rounds: row.try_get("rodadas")?,
        situation: row.try_get("situacao")?,
        created_at: row.try_get("criado_em")?,
        first_failed_at: row.try_get("primeira_falha_em")?,
        size: row.try_get("tamanho")?,
        sha256: row.try_get("resumo")?,
        raw: RawRecord {
            topic: topic.into(),
            partition: row.try_get("particao")?,
            offset: row.try_get("offset")?,
            timestamp_ms: row.try_get("timestamp_ms")?,
            key: boxed(row.try_get("chave")?),
            value: boxed(row.try_get("valor")?),
            headers: super::headers::of_json(&headers),
        },
    })
}

/// These letters' records are applied now.
pub async fn resolve(pool: &PgPool, ids: &[i64]) -> Result<(), StoreError> {
    sqlx::query("update carta_morta set situacao = 'resolvida', atualizado_em = now() where id = any($1)")
        .bind(ids)
        .execute(pool)
        .await?;
    Ok(())
}

/// These letters came back: one more round, with what was said this time.
pub async fn came_back(pool: &PgPool, letters: &[(i64, String)]) -> Result<(), StoreError> {
    let messages: Vec<String> = letters.iter().map(|(_, words)| words.replace('\0', "\u{fffd}")).collect();
    sqlx::query(
        "update carta_morta c set rodadas = c.rodadas + 1, situacao = 'aberta', atualizado_em = now(),
             mensagem = case when x.mensagem = '' then c.mensagem else x.mensagem end
         from unnest($1::bigint[], $2::text[]) as x(id, mensagem) where c.id = x.id",
    )
    .bind(letters.iter().map(|(id, _)| *id).collect::<Vec<_>>())
    .bind(messages)
    .execute(pool)
    .await?;
    Ok(())
}
