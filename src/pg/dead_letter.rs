//! The index of dead letters: one row per record, reason and effect, with the record itself (bounded).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sqlx::{PgPool, Row};

use super::error::StoreError;
use crate::domain::event::digest_of;
use crate::domain::record::DeadLetter;

/// Most bytes of a value that are kept in the index; the topic has the whole.
const VALUE_MAX: usize = 256 * 1024;
const KEY_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64 * 1024;

/// Of these letters, which have a row already (open or resolved)?
pub async fn known(pool: &PgPool, letters: &[Arc<DeadLetter>]) -> Result<Vec<bool>, StoreError> {
    let digests: Vec<[u8; 32]> = letters.iter().map(|l| value_digest(l)).collect();
    let rows = sqlx::query(
        r#"select exists (select 1 from carta_morta c where c.topico = x.topico and c.particao = x.particao and c."offset" = x.posicao
               and c.motivo = x.motivo and coalesce(c.efeito, '') = x.efeito and coalesce(c.timestamp_ms, -1) = x.tempo and c.resumo = x.resumo)
           from unnest($1::text[], $2::integer[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::bytea[])
                with ordinality as x(topico, particao, posicao, motivo, efeito, tempo, resumo, n) order by x.n"#,
    )
    .bind(letters.iter().map(|l| &*l.raw.topic).collect::<Vec<_>>())
    .bind(letters.iter().map(|l| l.raw.partition).collect::<Vec<_>>())
    .bind(letters.iter().map(|l| l.raw.offset).collect::<Vec<_>>())
    .bind(letters.iter().map(|l| l.reason.code()).collect::<Vec<_>>())
    .bind(letters.iter().map(|l| l.effect_type.as_deref().unwrap_or("")).collect::<Vec<_>>())
    .bind(letters.iter().map(|l| l.raw.timestamp_ms.unwrap_or(-1)).collect::<Vec<_>>())
    .bind(digests.iter().map(<[u8; 32]>::as_slice).collect::<Vec<_>>())
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}

/// Records letters whose copy the broker has acknowledged. A letter that was resolved and fails again is open again.
pub async fn record(pool: &PgPool, letters: &[Arc<DeadLetter>]) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await?;
    for letter in letters {
        record_one(&mut connection, letter).await?;
    }
    Ok(())
}

async fn record_one(connection: &mut sqlx::PgConnection, letter: &DeadLetter) -> Result<(), StoreError> {
    let value = letter.raw.value.as_deref();
    sqlx::query(
        r#"insert into carta_morta (topico, particao, "offset", motivo, mensagem, pedido_id, efeito, execucao_id, tentativas,
               timestamp_ms, chave, valor, cabecalhos, tamanho, resumo, primeira_falha_em)
           values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13::jsonb, $14, $15, $16::timestamptz)
           on conflict (topico, particao, "offset", motivo, coalesce(efeito, ''), coalesce(timestamp_ms, -1), resumo)
           do update set situacao = 'aberta', mensagem = excluded.mensagem, tentativas = excluded.tentativas, atualizado_em = now()
           where carta_morta.situacao <> 'aberta'"#,
    )
    .bind(&*letter.raw.topic)
    .bind(letter.raw.partition)
    .bind(letter.raw.offset)
    .bind(letter.reason.code())
    .bind(storable(&letter.message))
    .bind(letter.order_id.as_deref().map(storable))
    .bind(letter.effect_type.as_deref())
    .bind(&letter.run.id)
    .bind(i32::try_from(letter.attempts).unwrap_or(i32::MAX))
    .bind(letter.raw.timestamp_ms)
    .bind(letter.raw.key.as_deref().map(|key| &key[..key.len().min(KEY_MAX)]))
    .bind(value.map(|value| &value[..value.len().min(VALUE_MAX)]))
    .bind(headers_json(letter))
    .bind(value.map_or(0, |value| i64::try_from(value.len()).unwrap_or(i64::MAX)))
    .bind(value_digest(letter).as_slice())
    .bind(letter.first_failed_at.to_string())
    .execute(connection)
    .await?;
    Ok(())
}

fn value_digest(letter: &DeadLetter) -> [u8; 32] {
    digest_of(letter.raw.value.as_deref().unwrap_or_default())
}

/// Postgres text holds no NUL.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn headers_json(letter: &DeadLetter) -> String {
    let mut budget = HEADERS_MAX;
    let mut kept: Vec<(String, Option<String>)> = Vec::new();
    for (name, value) in &letter.raw.headers {
        let size = name.len() + value.as_ref().map_or(0, Vec::len);
        if size > budget {
            break;
        }
        budget -= size;
        kept.push((storable(name), value.as_ref().map(|value| STANDARD.encode(value))));
    }
    serde_json::to_string(&kept).unwrap_or_else(|_| "[]".to_owned())
}
