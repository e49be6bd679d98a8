//! The archive: every record of the topic, byte for byte, for replays beyond its retention.
//!
//! Promises: a record is kept once however often it is delivered; what its bytes say is kept beside them for queries
//! only, and never decides whether they are kept. Within a partition `posicao` has the order of the log, because one
//! archiver at a time writes it, in that order.

use jiff::Timestamp;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};

use super::error::StoreError;
use super::headers;
use crate::domain::record::{RawRecord, Said};

/// A record and what it says.
#[derive(Debug)]
pub struct Archived {
    pub raw: Box<RawRecord>,
    pub said: Said,
}

/// Keeps records, those that are not kept already; says how many were new.
pub async fn store(connection: &mut PgConnection, records: &[Archived]) -> Result<u64, StoreError> {
    let raw = || records.iter().map(|record| &record.raw);
    let said = || records.iter().map(|record| &record.said);
    let headers: Vec<String> = raw().map(|raw| headers::to_json(&raw.headers)).collect();
    let done = sqlx::query(
        r#"insert into evento_arquivado (topico, particao, "offset", timestamp_ms, chave, valor, cabecalhos,
               id, tipo, pedido_id, versao, payload, ocorrido_em)
           select x.topico, x.particao, x.deslocamento, x.carimbo, x.chave, x.valor, x.cabecalhos::jsonb,
                  x.id, x.tipo, x.pedido, x.versao, x.payload::jsonb, x.ocorrido::timestamptz
           from unnest($1::text[], $2::integer[], $3::bigint[], $4::bigint[], $5::bytea[], $6::bytea[], $7::text[],
                       $8::text[], $9::text[], $10::text[], $11::bigint[], $12::text[], $13::text[]) with ordinality
                as x(topico, particao, deslocamento, carimbo, chave, valor, cabecalhos, id, tipo, pedido, versao, payload,
                     ocorrido, ordem)
           order by x.ordem
           on conflict do nothing"#,
    )
    .bind(raw().map(|raw| &*raw.topic).collect::<Vec<_>>())
    .bind(raw().map(|raw| raw.partition).collect::<Vec<_>>())
    .bind(raw().map(|raw| raw.offset).collect::<Vec<_>>())
    .bind(raw().map(|raw| raw.timestamp_ms).collect::<Vec<_>>())
    .bind(raw().map(|raw| raw.key.as_deref()).collect::<Vec<_>>())
    .bind(raw().map(|raw| raw.value.as_deref()).collect::<Vec<_>>())
    .bind(&headers)
    .bind(said().map(|said| said.id.as_deref()).collect::<Vec<_>>())
    .bind(said().map(|said| said.kind.as_deref()).collect::<Vec<_>>())
    .bind(said().map(|said| said.order_id.as_deref()).collect::<Vec<_>>())
    .bind(said().map(|said| said.version).collect::<Vec<_>>())
    .bind(said().map(|said| said.payload.as_deref()).collect::<Vec<_>>())
    .bind(said().map(|said| said.occurred_at.map(|at| at.to_string())).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}

/// A period by event time; records that say none are taken by their log time.
#[derive(Debug, Clone, Copy)]
pub struct Within {
    pub from: Timestamp,
    /// Exclusive.
    pub to: Option<Timestamp>,
}

/// One partition of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub partition: i32,
    /// Positions of the period: `start` inclusive, `end` exclusive; equal where there is nothing of it.
    pub start: i64,
    pub end: i64,
    /// Offset and log time of the oldest record that is kept.
    pub oldest_offset: i64,
    pub oldest_ms: Option<i64>,
    pub newest_ms: Option<i64>,
}

/// What the archive holds of a period, by partition.
pub async fn spans(pool: &PgPool, topic: &str, within: Within) -> Result<Vec<Span>, StoreError> {
    let rows = sqlx::query(
        r#"with recursive p as (
               (select particao from evento_arquivado where topico = $1 order by particao limit 1)
               union all
               select (select a.particao from evento_arquivado a where a.topico = $1 and a.particao > p.particao
                       order by a.particao limit 1)
               from p where p.particao is not null
           ), m as (
               select particao, min(posicao) as inicio, max(posicao) + 1 as fim from (
                   select particao, posicao from evento_arquivado
                   where topico = $1 and ocorrido_em >= $2::timestamptz and ($3::timestamptz is null or ocorrido_em < $3::timestamptz)
                   union all
                   select particao, posicao from evento_arquivado
                   where topico = $1 and ocorrido_em is null and timestamp_ms >= $4 and ($5::bigint is null or timestamp_ms < $5)
               ) x group by particao
           )
           select p.particao, coalesce(m.inicio, 0) as inicio, coalesce(m.fim, 0) as fim, f."offset" as primeiro,
                  f.timestamp_ms as primeiro_ms, l.timestamp_ms as ultimo_ms
           from p left join m on m.particao = p.particao
           cross join lateral (select "offset", timestamp_ms from evento_arquivado a
                               where a.topico = $1 and a.particao = p.particao order by posicao limit 1) f
           cross join lateral (select timestamp_ms from evento_arquivado a
                               where a.topico = $1 and a.particao = p.particao order by posicao desc limit 1) l
           where p.particao is not null order by p.particao"#,
    )
    .bind(topic)
    .bind(within.from.to_string())
    .bind(within.to.map(|to| to.to_string()))
    .bind(within.from.as_millisecond())
    .bind(within.to.map(jiff::Timestamp::as_millisecond))
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Span {
                partition: row.try_get("particao")?,
                start: row.try_get("inicio")?,
                end: row.try_get("fim")?,
                oldest_offset: row.try_get("primeiro")?,
                oldest_ms: row.try_get("primeiro_ms")?,
                newest_ms: row.try_get("ultimo_ms")?,
            })
        })
        .collect()
}

/// One partition's part of a period that is still to be read.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    pub partition: i32,
    pub at: i64,
    pub end: i64,
    pub limit: i64,
}

/// The next records of a period, by position.
pub async fn page(
    connection: &mut PgConnection,
    topic: &str,
    within: Within,
    page: Page,
) -> Result<Vec<(i64, Box<RawRecord>)>, StoreError> {
    let rows = sqlx::query(
        r#"select posicao, topico, particao, "offset", timestamp_ms, chave, valor, cabecalhos::text from evento_arquivado
           where topico = $1 and particao = $2 and posicao >= $3 and posicao < $4
             and case when ocorrido_em is null
                 then timestamp_ms >= $7 and ($8::bigint is null or timestamp_ms < $8)
                 else ocorrido_em >= $5::timestamptz and ($6::timestamptz is null or ocorrido_em < $6::timestamptz) end
           order by posicao limit $9"#,
    )
    .bind(topic)
    .bind(page.partition)
    .bind(page.at)
    .bind(page.end)
    .bind(within.from.to_string())
    .bind(within.to.map(|to| to.to_string()))
    .bind(within.from.as_millisecond())
    .bind(within.to.map(jiff::Timestamp::as_millisecond))
    .bind(page.limit)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get("posicao")?, Box::new(read_raw(row)?)))).collect()
}

fn read_raw(row: &PgRow) -> Result<RawRecord, StoreError> {
    let topic: String = row.try_get("topico")?;
    let headers: String = row.try_get("cabecalhos")?;
    Ok(RawRecord {
        topic: topic.into(),
        partition: row.try_get("particao")?,
        offset: row.try_get("offset")?,
        timestamp_ms: row.try_get("timestamp_ms")?,
        key: row.try_get::<Option<Vec<u8>>, _>("chave")?.map(Vec::into_boxed_slice),
        value: row.try_get::<Option<Vec<u8>>, _>("valor")?.map(Vec::into_boxed_slice),
        headers: headers::of_json(&headers),
    })
}

/// Partitions of a real run from the archive that are not done, in their order.
pub async fn open_partitions(connection: &mut PgConnection, id: &str) -> Result<Vec<i32>, StoreError> {
    let rows = sqlx::query(
        "select particao from reprocessamento_checkpoint where execucao_id = $1 and not simular and posicao < fim
         order by particao",
    )
    .bind(id)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}

/// Takes a partition of a run for this session, as long as it lives. `false`: another process has it.
pub async fn take(connection: &mut PgConnection, id: &str, partition: i32) -> Result<bool, StoreError> {
    let taken = sqlx::query_scalar("select pg_try_advisory_lock(hashtext('reprise replay ' || $1), $2)")
        .bind(id)
        .bind(partition)
        .fetch_one(connection)
        .await?;
    Ok(taken)
}

/// Gives it back.
pub async fn give_back(connection: &mut PgConnection, id: &str, partition: i32) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_unlock(hashtext('reprise replay ' || $1), $2)")
        .bind(id)
        .bind(partition)
        .execute(connection)
        .await?;
    Ok(())
}

/// What is kept of these offsets of a partition (`to` exclusive), for comparison.
pub async fn kept(
    connection: &mut PgConnection,
    topic: &str,
    partition: i32,
    from: i64,
    to: i64,
) -> Result<Vec<RawRecord>, StoreError> {
    let rows = sqlx::query(
        r#"select topico, particao, "offset", timestamp_ms, chave, valor, cabecalhos::text from evento_arquivado
           where topico = $1 and particao = $2 and "offset" >= $3 and "offset" < $4"#,
    )
    .bind(topic)
    .bind(partition)
    .bind(from)
    .bind(to)
    .fetch_all(connection)
    .await?;
    rows.iter().map(read_raw).collect()
}

/// By partition: records kept, and the offset behind the last of them.
pub async fn extent(pool: &PgPool, topic: &str) -> Result<Vec<(i32, i64, i64)>, StoreError> {
    let rows = sqlx::query(
        r#"select particao, count(*), max("offset") + 1 from evento_arquivado where topico = $1 group by particao
           order by particao"#,
    )
    .bind(topic)
    .fetch_all(pool)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect()
}
