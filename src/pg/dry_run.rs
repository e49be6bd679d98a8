//! The draft of a dry run: what the earlier events of its range would have written.
//!
//! ```text
//!   begin ──► read / write, batch by batch ──► publish: the diff is replaced, old or new for every reader
//!     └──────────── another begin of the same id, or a server crash ──► Lost
//! ```
//!
//! The draft lives in unlogged tables: a million changed orders cost disk and no memory, and no WAL before the diff
//! is published. It is kept under a token of its own, so that two processes with the same id never mix; the later
//! one wins and the earlier one finds its token gone.
//!
//! Everything here writes `reprocessamento*` rows and nothing else.

use sqlx::types::Uuid;
use sqlx::{Connection as _, PgConnection, Row};

use super::connect::Database;
use super::error::StoreError;
use crate::domain::effect::{EffectRequest, EffectState, Outcome};
use crate::domain::event::Digest;
use crate::domain::money::Cents;
use crate::domain::plan::CommissionWrite;
use crate::domain::verdict::{StoredCommission, StoredEffect};

/// Publishing a million orders takes longer than a statement of the hot path may.
const LONG_STATEMENT: &str = "set local statement_timeout = '30min'";

/// The token under which one attempt of a dry run keeps its draft.
#[derive(Debug, Clone)]
pub struct Draft {
    run_id: String,
    token: Uuid,
}

/// A commission that would be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftState<'a> {
    /// What stands there now; kept only by the first write of the order.
    pub before: Option<&'a StoredCommission>,
    pub after: &'a CommissionWrite,
}

/// An effect that is not simply recorded already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftEffect<'a> {
    pub event: &'a CommissionWrite,
    pub request: &'a EffectRequest,
    pub effect_type: &'a str,
    pub outcome: Outcome,
}

/// What a batch is asked about: one entry per effect of an event, or one with an empty key.
#[derive(Debug, Clone, Copy)]
pub struct DraftQuestion<'a> {
    pub event: &'a CommissionWrite,
    pub key: &'a str,
}

/// What earlier events of the range would have left behind.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Drafted {
    /// Index of the question.
    pub question: usize,
    pub commission: Option<StoredCommission>,
    pub effect: Option<StoredEffect>,
    /// Another event of the range would hold this order's version.
    pub version_taken: bool,
}

/// How a dry run stands, as others may have decided meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Executing,
    Paused,
    Cancelled,
    /// The draft is gone: another process began the same dry run, or the server lost its unlogged tables.
    Lost,
}

/// How far a partition is, with everything counted below as JSON.
#[derive(Debug, Clone)]
pub struct Position {
    pub partition: i32,
    pub at: i64,
    pub counts: String,
}

/// Starts over: an earlier draft of this id is dropped, positions go back to the start, the published diff stays.
/// `None`: no dry run is planned under this id.
pub async fn begin(database: &Database, run_id: &str) -> Result<Option<Draft>, StoreError> {
    let mut connection = database.plain().await?;
    let mut tx = connection.begin().await?;
    sqlx::query(LONG_STATEMENT).execute(&mut *tx).await?;
    let planned = sqlx::query(
        "update reprocessamento set iniciado_em = now(), terminado_em = null, motivo_falha = null,
                situacao = case situacao when 'pausado' then situacao else 'executando' end
         where execucao_id = $1 and simular",
    )
    .bind(run_id)
    .execute(&mut *tx)
    .await?;
    if planned.rows_affected() == 0 {
        return Ok(None);
    }
    // Rows without a header are left over from an attempt that was replaced while it wrote.
    for leftovers in [
        "delete from reprocessamento_rascunho_pedido where ficha not in (select ficha from reprocessamento_rascunho where execucao_id <> $1)",
        "delete from reprocessamento_rascunho_efeito where ficha not in (select ficha from reprocessamento_rascunho where execucao_id <> $1)",
        "delete from reprocessamento_rascunho where execucao_id = $1",
        "update reprocessamento_checkpoint set posicao = inicio, contagens = '{}', atualizado_em = now() where execucao_id = $1 and simular",
    ] {
        sqlx::query(leftovers).bind(run_id).execute(&mut *tx).await?;
    }
    let draft = Draft { run_id: run_id.to_owned(), token: Uuid::new_v4() };
    sqlx::query("insert into reprocessamento_rascunho (ficha, execucao_id) values ($1, $2)")
        .bind(draft.token)
        .bind(run_id)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(Some(draft))
}

const READ: &str = "
select x.n, p.evento_id, p.versao_evento, p.valor_centavos, p.resumo_evento as resumo_comissao,
       e.resumo_requisicao, e.resumo_evento,
       exists (select 1 from reprocessamento_rascunho_efeito v
               where v.ficha = $1 and v.desfecho = 'seria-aplicado' and v.pedido_id = x.pedido
                 and v.versao_evento = x.versao and v.evento_id <> x.evento) as versao_tomada
from unnest($2::text[], $3::text[], $4::bigint[], $5::text[]) with ordinality as x(chave, pedido, versao, evento, n)
left join reprocessamento_rascunho_pedido p on p.ficha = $1 and p.pedido_id = x.pedido
left join reprocessamento_rascunho_efeito e on e.ficha = $1 and e.chave = x.chave and e.desfecho = 'seria-aplicado'
";

/// What the draft says about a batch; silence where it says nothing.
pub async fn read(
    connection: &mut PgConnection,
    draft: &Draft,
    questions: &[DraftQuestion<'_>],
) -> Result<Vec<Drafted>, StoreError> {
    let rows = sqlx::query(READ)
        .bind(draft.token)
        .bind(questions.iter().map(|q| q.key).collect::<Vec<_>>())
        .bind(questions.iter().map(|q| q.event.order_id.as_str()).collect::<Vec<_>>())
        .bind(questions.iter().map(|q| q.event.version).collect::<Vec<_>>())
        .bind(questions.iter().map(|q| q.event.event_id.as_str()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let mut found = Vec::new();
    for row in &rows {
        let drafted = drafted(row)?;
        if drafted.commission.is_some() || drafted.effect.is_some() || drafted.version_taken {
            found.push(drafted);
        }
    }
    Ok(found)
}

fn drafted(row: &sqlx::postgres::PgRow) -> Result<Drafted, sqlx::Error> {
    let ordinality: i64 = row.try_get("n")?;
    let event_id: Option<String> = row.try_get("evento_id")?;
    let commission = match event_id {
        None => None,
        Some(event_id) => Some(StoredCommission {
            event_id,
            version: row.try_get("versao_evento")?,
            amount: Cents(row.try_get("valor_centavos")?),
            event_digest: digest(row.try_get("resumo_comissao")?),
            // An earlier record of this dry run would have written it, and is counted for it.
            by_this_run: false,
        }),
    };
    let request: Option<&[u8]> = row.try_get("resumo_requisicao")?;
    let effect = match request {
        None => None,
        Some(request) => Some(done(digest(request), digest(row.try_get("resumo_evento")?))),
    };
    let question = usize::try_from(ordinality - 1).unwrap_or(usize::MAX);
    Ok(Drafted { question, commission, effect, version_taken: row.try_get("versao_tomada")? })
}

fn digest(bytes: &[u8]) -> Digest {
    bytes.try_into().unwrap_or([0; 32])
}

/// The ledger row that a real run would have by the time it meets the same effect again.
pub fn done(request_digest: Digest, event_digest: Digest) -> StoredEffect {
    StoredEffect {
        state: EffectState::Done,
        request_digest,
        event_digest,
        by_this_run: false,
        token: None,
        owner: None,
        lease_left: std::time::Duration::ZERO,
        due_in: std::time::Duration::ZERO,
        maybe_sent: false,
        attempts: 0,
        age: std::time::Duration::ZERO,
    }
}

/// One statement for both, so that a repeated one finds all of the batch or nothing of it.
const WRITE: &str = "
with pedidos as (
    insert into reprocessamento_rascunho_pedido as p (ficha, pedido_id, antes, valor_centavos, versao_evento, evento_id, resumo_evento)
    select $1, x.pedido, x.antes::jsonb, x.valor, x.versao, x.evento, x.conteudo
    from unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::bytea[])
         as x(pedido, antes, valor, versao, evento, conteudo)
    on conflict (ficha, pedido_id) do update set valor_centavos = excluded.valor_centavos,
        versao_evento = excluded.versao_evento, evento_id = excluded.evento_id, resumo_evento = excluded.resumo_evento)
insert into reprocessamento_rascunho_efeito
    (ficha, chave, evento_id, tipo_efeito, pedido_id, versao_evento, desfecho, resumo_requisicao, resumo_evento, requisicao_antes, requisicao_depois)
select $1, x.chave, x.evento, x.tipo, x.pedido, x.versao, x.desfecho, x.requisicao, x.conteudo, l.requisicao, x.corpo::jsonb
from unnest($8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::text[], $14::bytea[], $15::bytea[], $16::text[])
     as x(chave, evento, tipo, pedido, versao, desfecho, requisicao, conteudo, corpo)
left join efeito_aplicado l on l.chave = x.chave
on conflict (ficha, chave) do nothing
";

/// Writes what a batch would change: at most one state per order; of an effect key, the first stays.
pub async fn write(
    connection: &mut PgConnection,
    draft: &Draft,
    states: &[DraftState<'_>],
    effects: &[DraftEffect<'_>],
) -> Result<(), StoreError> {
    let before: Vec<Option<String>> = states.iter().map(|s| s.before.map(commission_json)).collect();
    sqlx::query(WRITE)
        .bind(draft.token)
        .bind(states.iter().map(|s| s.after.order_id.as_str()).collect::<Vec<_>>())
        .bind(before)
        .bind(states.iter().map(|s| s.after.amount.0).collect::<Vec<_>>())
        .bind(states.iter().map(|s| s.after.version).collect::<Vec<_>>())
        .bind(states.iter().map(|s| s.after.event_id.as_str()).collect::<Vec<_>>())
        .bind(states.iter().map(|s| s.after.event_digest.as_slice()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.request.key.as_str()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.event.event_id.as_str()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.effect_type).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.event.order_id.as_str()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.event.version).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.outcome.as_str()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.request.digest.as_slice()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.event.event_digest.as_slice()).collect::<Vec<_>>())
        .bind(effects.iter().map(|e| e.request.body.as_str()).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

fn commission_json(row: &StoredCommission) -> String {
    format!(r#"{{"valorCentavos":{},"versaoEvento":{}}}"#, row.amount.0, row.version)
}

/// Writes the positions, and says how the dry run stands.
pub async fn checkpoint(
    database: &Database,
    draft: &Draft,
    positions: &[Position],
) -> Result<Standing, StoreError> {
    let mut connection = database.pool().acquire().await?;
    write_positions(&mut connection, draft, positions).await?;
    standing(&mut connection, draft).await
}

async fn write_positions(
    connection: &mut PgConnection,
    draft: &Draft,
    positions: &[Position],
) -> Result<(), StoreError> {
    sqlx::query(
        "update reprocessamento_checkpoint c set posicao = x.posicao, contagens = x.contagens::jsonb, atualizado_em = now()
         from unnest($2::integer[], $3::bigint[], $4::text[]) as x(particao, posicao, contagens)
         where c.execucao_id = $1 and c.simular and c.particao = x.particao
           and exists (select 1 from reprocessamento_rascunho where ficha = $5)",
    )
    .bind(&draft.run_id)
    .bind(positions.iter().map(|p| p.partition).collect::<Vec<_>>())
    .bind(positions.iter().map(|p| p.at).collect::<Vec<_>>())
    .bind(positions.iter().map(|p| p.counts.as_str()).collect::<Vec<_>>())
    .bind(draft.token)
    .execute(connection)
    .await?;
    Ok(())
}

async fn standing(connection: &mut PgConnection, draft: &Draft) -> Result<Standing, StoreError> {
    let row = sqlx::query(
        "select r.situacao, exists (select 1 from reprocessamento_rascunho where ficha = $2) as ainda
         from reprocessamento r where r.execucao_id = $1 and r.simular",
    )
    .bind(&draft.run_id)
    .bind(draft.token)
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(Standing::Lost) };
    let situation: &str = row.try_get("situacao")?;
    let still_ours: bool = row.try_get("ainda")?;
    Ok(match situation {
        "cancelado" => Standing::Cancelled,
        _ if !still_ours => Standing::Lost,
        "pausado" => Standing::Paused,
        _ => Standing::Executing,
    })
}

/// Marks the dry run `falhou`, unless another process has taken it over. Its earlier diff stands.
pub async fn fail(database: &Database, draft: &Draft, reason: &str) -> Result<(), StoreError> {
    sqlx::query(
        "update reprocessamento set situacao = 'falhou', motivo_falha = $3, terminado_em = now()
         where execucao_id = $1 and simular and situacao in ('executando', 'pausado')
           and exists (select 1 from reprocessamento_rascunho where ficha = $2)",
    )
    .bind(&draft.run_id)
    .bind(draft.token)
    .bind(reason)
    .execute(database.pool())
    .await?;
    Ok(())
}

/// How publishing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    Done,
    Cancelled,
    Lost,
}

/// Replaces the diff of this id by the draft, with the final positions, in one transaction; the dry run is
/// `concluido` then. Repeatable after a lost answer.
pub async fn publish(
    database: &Database,
    draft: &Draft,
    positions: &[Position],
) -> Result<Published, StoreError> {
    let mut connection = database.plain().await?;
    let mut tx = connection.begin().await?;
    sqlx::query(LONG_STATEMENT).execute(&mut *tx).await?;
    // Locked, so that cancelling comes before or after, not in between.
    let situation: Option<String> = sqlx::query_scalar(
        "select situacao from reprocessamento where execucao_id = $1 and simular for update",
    )
    .bind(&draft.run_id)
    .fetch_optional(&mut *tx)
    .await?;
    let kept: Option<Uuid> =
        sqlx::query_scalar("select ficha from reprocessamento_rascunho where ficha = $1")
            .bind(draft.token)
            .fetch_optional(&mut *tx)
            .await?;
    match (situation.as_deref(), kept) {
        (Some("cancelado"), _) => return Ok(Published::Cancelled),
        // Our own commit, whose answer was lost, or that of the process that replaced us.
        (Some("concluido"), None) => return Ok(Published::Done),
        (None, _) | (_, None) => return Ok(Published::Lost),
        (Some(_), Some(_)) => {}
    }
    write_positions(&mut tx, draft, positions).await?;
    for statement in CLEAR_DIFF {
        sqlx::query(statement).bind(&draft.run_id).execute(&mut *tx).await?;
    }
    for statement in FILL_DIFF {
        sqlx::query(statement).bind(&draft.run_id).bind(draft.token).execute(&mut *tx).await?;
    }
    for statement in CLEAR_DRAFT {
        sqlx::query(statement).bind(draft.token).execute(&mut *tx).await?;
    }
    sqlx::query(
        "update reprocessamento set situacao = 'concluido', terminado_em = now(), efeitos_do_diff =
            (select jsonb_agg(contagens->'efeitos') from reprocessamento_checkpoint where execucao_id = $1 and simular)
         where execucao_id = $1 and simular",
    )
    .bind(&draft.run_id)
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(Published::Done)
}

const CLEAR_DIFF: [&str; 2] = [
    "delete from reprocessamento_diff where execucao_id = $1 and simular",
    "delete from reprocessamento_efeito where execucao_id = $1 and simular",
];

const FILL_DIFF: [&str; 2] = [
    "insert into reprocessamento_diff (execucao_id, simular, pedido_id, antes, depois)
     select $1, true, pedido_id, antes, jsonb_build_object('valorCentavos', valor_centavos, 'versaoEvento', versao_evento)
     from reprocessamento_rascunho_pedido where ficha = $2 order by pedido_id",
    "insert into reprocessamento_efeito (execucao_id, simular, chave, pedido_id, tipo_efeito, desfecho, requisicao_antes, requisicao_depois)
     select $1, true, chave, pedido_id, tipo_efeito, desfecho, requisicao_antes, requisicao_depois
     from reprocessamento_rascunho_efeito where ficha = $2 order by chave",
];

const CLEAR_DRAFT: [&str; 3] = [
    "delete from reprocessamento_rascunho_pedido where ficha = $1",
    "delete from reprocessamento_rascunho_efeito where ficha = $1",
    "delete from reprocessamento_rascunho where ficha = $1",
];
