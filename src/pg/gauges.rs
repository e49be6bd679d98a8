//! What is pending, for gauges: read from the small tables beside the ledger, never by scanning it.

use std::time::Duration;

use sqlx::{PgPool, Row};

use super::error::StoreError;
use crate::domain::effect::EffectState;

/// How many effects of a type are in a state that is not final, and since when the oldest.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingEffects {
    pub effect_type: String,
    pub state: EffectState,
    pub count: i64,
    pub oldest: Duration,
}

/// Everything pending, by type and state; types with nothing pending are absent.
pub async fn pending(pool: &PgPool) -> Result<Vec<PendingEffects>, StoreError> {
    let rows = sqlx::query(
        "select tipo, estado, sum(n)::bigint as n, max(idade)::bigint as idade from (
             select tipo_efeito as tipo, case situacao when 'incerto' then 'incerto' else 'reservado' end as estado,
                    count(*) as n, extract(epoch from now() - min(desde)) as idade
             from efeito_pendente group by 1, 2
             union all
             select e.tipo_efeito, 'reservado', count(*), extract(epoch from now() - min(e.criado_em))
             from onda_aberta o cross join lateral unnest(o.chaves) as k(chave)
             join efeito_aplicado e on e.chave = k.chave and e.ficha = o.ficha
             where e.estado = 'reservado' group by 1
         ) as p group by 1, 2",
    )
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            let state: &str = row.try_get("estado")?;
            let age: i64 = row.try_get("idade")?;
            Ok(PendingEffects {
                effect_type: row.try_get("tipo")?,
                state: EffectState::parse(state).unwrap_or(EffectState::Reserved),
                count: row.try_get("n")?,
                oldest: Duration::from_secs(u64::try_from(age).unwrap_or(0)),
            })
        })
        .collect()
}

/// Where one replay that is under way stands in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayPosition {
    pub partition: i32,
    pub position: i64,
    pub remaining: i64,
}

/// Replays and dry runs of this topic that are under way, paused ones included, by partition.
pub async fn replays(pool: &PgPool, topic: &str) -> Result<Vec<ReplayPosition>, StoreError> {
    let rows = sqlx::query(
        "select c.particao, c.posicao, greatest(c.fim - c.posicao, 0) as restante
         from reprocessamento r join reprocessamento_checkpoint c using (execucao_id, simular)
         where r.situacao in ('executando', 'pausado') and r.topico = $1",
    )
    .bind(topic)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(ReplayPosition {
                partition: row.try_get("particao")?,
                position: row.try_get("posicao")?,
                remaining: row.try_get("restante")?,
            })
        })
        .collect()
}

/// Age of the oldest open transaction in this database: what holds back vacuum, and bloats queue-like tables.
pub async fn oldest_transaction(pool: &PgPool) -> Result<Option<Duration>, StoreError> {
    let seconds: Option<i64> = sqlx::query_scalar(
        "select extract(epoch from now() - min(xact_start))::bigint from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null",
    )
    .fetch_one(pool)
    .await?;
    Ok(seconds.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
}
