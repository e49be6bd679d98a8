//! The guarded upsert: one statement per batch, one row per order.

use sqlx::{PgConnection, Row};

use super::error::StoreError;
use crate::domain::effect::{Run, RunKind};
use crate::domain::plan::CommissionWrite;

const UPSERT: &str = r"
insert into comissao as c (pedido_id, valor_centavos, versao_evento, evento_id, resumo_evento, execucao_id, atualizado_em)
select x.pedido, x.valor, x.versao, x.evento, x.conteudo, $6, now()
from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bytea[]) as x(pedido, valor, versao, evento, conteudo)
on conflict (pedido_id) do update set
    valor_centavos = excluded.valor_centavos, versao_evento = excluded.versao_evento, evento_id = excluded.evento_id,
    resumo_evento = excluded.resumo_evento, execucao_id = excluded.execucao_id, atualizado_em = excluded.atualizado_em
where c.versao_evento < excluded.versao_evento
   or (c.versao_evento = excluded.versao_evento and c.evento_id = excluded.evento_id
       and c.resumo_evento = excluded.resumo_evento and c.valor_centavos <> excluded.valor_centavos)
returning c.pedido_id
";

/// The same, keeping what stood there before: the state's side of a replay's diff, in the statement that changes it.
const UPSERT_WITH_DIFF: &str = r"
with x as (
    select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bytea[]) as x(pedido, valor, versao, evento, conteudo)
), a as materialized (
    select c.pedido_id, c.valor_centavos, c.versao_evento from comissao c join x on c.pedido_id = x.pedido
), u as (
    insert into comissao as c (pedido_id, valor_centavos, versao_evento, evento_id, resumo_evento, execucao_id, atualizado_em)
    select x.pedido, x.valor, x.versao, x.evento, x.conteudo, $6, now() from x order by x.pedido
    on conflict (pedido_id) do update set
        valor_centavos = excluded.valor_centavos, versao_evento = excluded.versao_evento, evento_id = excluded.evento_id,
        resumo_evento = excluded.resumo_evento, execucao_id = excluded.execucao_id, atualizado_em = excluded.atualizado_em
    where c.versao_evento < excluded.versao_evento
       or (c.versao_evento = excluded.versao_evento and c.evento_id = excluded.evento_id
           and c.resumo_evento = excluded.resumo_evento and c.valor_centavos <> excluded.valor_centavos)
    returning c.pedido_id, c.valor_centavos, c.versao_evento
), d as (
    insert into reprocessamento_diff (execucao_id, simular, pedido_id, antes, depois)
    select $6, false, u.pedido_id,
           case when a.pedido_id is not null then jsonb_build_object('valorCentavos', a.valor_centavos, 'versaoEvento', a.versao_evento) end,
           jsonb_build_object('valorCentavos', u.valor_centavos, 'versaoEvento', u.versao_evento)
    from u left join a on a.pedido_id = u.pedido_id
    on conflict (execucao_id, simular, pedido_id) do update set depois = excluded.depois
)
select pedido_id from u
";

/// Writes the commissions and says which orders were written. The others were refused by the guard: somebody
/// wrote them since they were looked up; look again.
///
/// `writes` has at most one entry per order, sorted by order: a statement may not touch a row twice, and sorted
/// keys cannot deadlock.
pub async fn upsert(
    connection: &mut PgConnection,
    writes: &[&CommissionWrite],
    run: &Run,
) -> Result<Vec<String>, StoreError> {
    debug_assert!(writes.is_sorted_by(|a, b| a.order_id < b.order_id));
    let orders: Vec<&str> = writes.iter().map(|w| w.order_id.as_str()).collect();
    let amounts: Vec<i64> = writes.iter().map(|w| w.amount.0).collect();
    let versions: Vec<i64> = writes.iter().map(|w| w.version).collect();
    let events: Vec<&str> = writes.iter().map(|w| w.event_id.as_str()).collect();
    let digests: Vec<&[u8]> = writes.iter().map(|w| w.event_digest.as_slice()).collect();
    let statement = if run.kind == RunKind::Replay { UPSERT_WITH_DIFF } else { UPSERT };
    let rows = sqlx::query(statement)
        .bind(&orders)
        .bind(&amounts)
        .bind(&versions)
        .bind(&events)
        .bind(&digests)
        .bind(&run.id)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}
