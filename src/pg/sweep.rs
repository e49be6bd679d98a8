//! What the sweeper looks for: effects that have been due for one more lease, so that their own consumer, which
//! goes first, does not seem to come back.
//!
//! Candidates come from the small tables (`onda_aberta`, `efeito_pendente`), never from a scan of the ledger; what is
//! said of a candidate is read from its ledger row, which alone decides. Run these on a pinned connection: its plans
//! look single rows up, however large the ledger is.

use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::error::StoreError;
use super::stored::{StoredRow, read, stored_columns};
use super::wave::millis;

/// The lock by which one sweeper works at a time. Two numbers: their space is apart from the owners' single ones.
const SWEEP_LOCK: (i32, i32) = (0x5265_7072, 1);

/// Takes the sweepers' lock for this session, unless another has it.
pub async fn try_lock(connection: &mut PgConnection) -> Result<bool, StoreError> {
    let taken: bool = sqlx::query_scalar("select pg_try_advisory_lock($1, $2)")
        .bind(SWEEP_LOCK.0)
        .bind(SWEEP_LOCK.1)
        .fetch_one(connection)
        .await?;
    Ok(taken)
}

/// Gives the sweepers' lock back.
pub async fn unlock(connection: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query("select pg_advisory_unlock($1, $2)")
        .bind(SWEEP_LOCK.0)
        .bind(SWEEP_LOCK.1)
        .execute(connection)
        .await?;
    Ok(())
}

/// An effect type to sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepType<'a> {
    pub name: &'a str,
    /// `reserva`: what its own consumer is given once it is due.
    pub lease: Duration,
}

// A decision 'nao-enviado' stands in `efeito_pendente` as due since ever: nobody else comes for it, and nobody waits.
// An effect behind an unsettled one of its order and type has its turn after it.
const DUE: &str = concat!(
    r"with tipos as (
        select t.tipo, t.reserva * interval '1 millisecond' as reserva
        from unnest($1::text[], $2::bigint[]) as t(tipo, reserva)
    ), vencidos as (
        select e.chave, e.tipo_efeito, e.reserva_ate as vence
        from onda_aberta o cross join lateral unnest(o.chaves) as k(chave)
        join efeito_aplicado e on e.chave = k.chave and e.ficha = o.ficha
        join tipos t on t.tipo = e.tipo_efeito
        where e.estado = 'reservado' and e.reserva_ate + t.reserva <= now()
        union all
        select p.chave, p.tipo_efeito, p.tentar_em
        from efeito_pendente p join tipos t on t.tipo = p.tipo_efeito
        where p.situacao = 'espera' and p.tentar_em + t.reserva <= now()
    ), primeiros as (
        select v.chave, row_number() over (partition by v.tipo_efeito order by v.vence, v.chave) as n
        from vencidos v join efeito_aplicado e on e.chave = v.chave
        where not exists (
            select 1 from efeito_aplicado a
            where a.pedido_id = e.pedido_id and a.versao_evento < e.versao_evento and a.tipo_efeito = e.tipo_efeito
              and a.estado = 'reservado')
    )
    select ",
    stored_columns!(),
    " from primeiros p join efeito_aplicado e on e.chave = p.chave
    where p.n <= $3 and e.estado = 'reservado' order by p.n"
);

/// What is due, the oldest first, at most `limit` of each type.
pub async fn due(
    connection: &mut PgConnection,
    types: &[SweepType<'_>],
    limit: i64,
) -> Result<Vec<StoredRow>, StoreError> {
    let rows = sqlx::query(DUE)
        .bind(types.iter().map(|t| t.name).collect::<Vec<_>>())
        .bind(types.iter().map(|t| millis(t.lease)).collect::<Vec<_>>())
        .bind(limit)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| read(row).map_err(StoreError::from)).collect()
}

/// Effect types that are not among `configured`, with the number of effects that wait or are reserved.
pub async fn unconfigured(
    connection: &mut PgConnection,
    configured: &[&str],
) -> Result<Vec<(String, i64)>, StoreError> {
    let rows = sqlx::query(
        "select tipo_efeito, count(*) from (
             select e.tipo_efeito from onda_aberta o cross join lateral unnest(o.chaves) as k(chave)
             join efeito_aplicado e on e.chave = k.chave and e.ficha = o.ficha where e.estado = 'reservado'
             union all
             select tipo_efeito from efeito_pendente where situacao = 'espera'
         ) as x where tipo_efeito <> all($1) group by 1 order by 1 limit 100",
    )
    .bind(configured)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// Removes waves whose lease is over and that have no unsettled member; says how many.
pub async fn close_settled_waves(connection: &mut PgConnection) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "delete from onda_aberta o where o.reserva_ate <= now() and not exists (
             select 1 from unnest(o.chaves) as k(chave)
             join efeito_aplicado e on e.chave = k.chave and e.ficha = o.ficha where e.estado = 'reservado')",
    )
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
