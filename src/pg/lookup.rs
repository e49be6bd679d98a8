//! One statement per batch: what the ledger and the commissions say about it.
//!
//! Only rows that *differ* from what should be true come back. An event that was applied before, unchanged, costs
//! one index look in each table and no bytes on the wire; whoever asks takes silence for 'already so'.

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::error::StoreError;
use crate::domain::effect::{EffectState, Run, RunKind};
use crate::domain::event::Digest;
use crate::domain::money::Cents;
use crate::domain::verdict::{StoredCommission, StoredEffect};

/// What is asked about one effect of one event (or about an event without effects, with an empty key).
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    pub key: &'a str,
    pub order_id: &'a str,
    pub request_digest: &'a Digest,
    pub event_digest: &'a Digest,
    pub amount: Cents,
    pub version: i64,
    pub event_id: &'a str,
}

/// What the two rows say, for a question whose answer is not simply 'already so'.
#[derive(Debug)]
pub struct Found {
    /// Index of the question.
    pub question: usize,
    pub effect: Option<StoredEffect>,
    pub commission: Option<StoredCommission>,
    /// The ledger knows another event at this order's version (an older one than the commission's).
    pub version_taken: bool,
}

/// Only what is joined on is unnested. The rest is taken by its place, and the digests lie end to end in one value
/// each: taking arrays of 512 elements apart costs the server as much as one of the two index looks. That the event
/// is the same needs no comparison of ids: its digest covers id, order, version and amounts.
const LOOK_UP: &str = r"
select x.n, l.estado, l.resumo_requisicao, l.resumo_evento, l.execucao_id = $8 as efeito_meu, l.ficha, l.dono,
       greatest(0, extract(epoch from l.reserva_ate - now()) * 1000)::bigint as reserva_ms,
       greatest(0, extract(epoch from l.tentar_em - now()) * 1000)::bigint as espera_ms,
       l.talvez_enviado, l.tentativas,
       greatest(0, extract(epoch from now() - least(l.primeira_tentativa_em, l.atualizado_em)) * 1000)::bigint as idade_ms,
       c.evento_id, c.versao_evento, c.valor_centavos, c.resumo_evento as resumo_comissao, c.execucao_id = $8 as comissao_minha,
       coalesce(c.versao_evento > ($6::bigint[])[x.n] and exists (
           select 1 from efeito_aplicado v
           where v.pedido_id = x.pedido and v.versao_evento = ($6::bigint[])[x.n]
                 and v.evento_id <> ($7::text[])[x.n]), false) as versao_tomada
from unnest($1::text[], $2::text[]) with ordinality as x(chave, pedido, n)
left join efeito_aplicado l on l.chave = x.chave
left join comissao c on c.pedido_id = x.pedido
where not coalesce(l.estado = 'concluido' and l.resumo_requisicao = substr($3::bytea, x.n::integer * 32 - 31, 32)
                   and l.resumo_evento = substr($4::bytea, x.n::integer * 32 - 31, 32)
                   and c.resumo_evento = l.resumo_evento and c.valor_centavos = ($5::bigint[])[x.n]
                   and l.execucao_id <> $8 and c.execucao_id <> $8, false)
";

/// Looks a batch up. `run` matters to runs that must recognise their own earlier work after a restart.
pub async fn look_up(
    connection: &mut PgConnection,
    questions: &[Question<'_>],
    run: &Run,
) -> Result<Vec<Found>, StoreError> {
    let keys: Vec<&str> = questions.iter().map(|q| q.key).collect();
    let orders: Vec<&str> = questions.iter().map(|q| q.order_id).collect();
    let requests = end_to_end(questions.iter().map(|q| q.request_digest));
    let contents = end_to_end(questions.iter().map(|q| q.event_digest));
    let amounts: Vec<i64> = questions.iter().map(|q| q.amount.0).collect();
    let versions: Vec<i64> = questions.iter().map(|q| q.version).collect();
    let events: Vec<&str> = questions.iter().map(|q| q.event_id).collect();
    let rows = sqlx::query(LOOK_UP)
        .bind(&keys)
        .bind(&orders)
        .bind(&requests)
        .bind(&contents)
        .bind(&amounts)
        .bind(&versions)
        .bind(&events)
        .bind(own_id(run))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| read(row).map_err(StoreError::from)).collect()
}

fn end_to_end<'a>(digests: impl ExactSizeIterator<Item = &'a Digest>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(digests.len() * size_of::<Digest>());
    digests.for_each(|digest| bytes.extend_from_slice(digest));
    bytes
}

/// Live never asks who applied an effect: a redelivery is `ja-registrado` whoever it was.
fn own_id(run: &Run) -> &str {
    match run.kind {
        RunKind::Replay => &run.id,
        RunKind::Live | RunKind::DryRun | RunKind::Redrive => "",
    }
}

fn read(row: &PgRow) -> Result<Found, sqlx::Error> {
    let ordinality: i64 = row.try_get("n")?;
    let effect = stored_effect(row, row.try_get::<Option<bool>, _>("efeito_meu")?.unwrap_or(false))?;
    let event_id: Option<String> = row.try_get("evento_id")?;
    let commission = match event_id {
        None => None,
        Some(event_id) => Some(StoredCommission {
            event_id,
            version: row.try_get("versao_evento")?,
            amount: Cents(row.try_get("valor_centavos")?),
            event_digest: digest(row, "resumo_comissao")?,
            by_this_run: row.try_get("comissao_minha")?,
        }),
    };
    Ok(Found {
        question: usize::try_from(ordinality - 1).unwrap_or(usize::MAX),
        effect,
        commission,
        version_taken: row.try_get("versao_tomada")?,
    })
}

/// The effect in a row with the ledger's columns and the distances `reserva_ms`, `espera_ms` and `idade_ms`.
pub(super) fn stored_effect(row: &PgRow, by_this_run: bool) -> Result<Option<StoredEffect>, sqlx::Error> {
    let estado: Option<&str> = row.try_get("estado")?;
    let Some(estado) = estado else { return Ok(None) };
    Ok(Some(StoredEffect {
        state: EffectState::parse(estado)
            .ok_or_else(|| sqlx::Error::Decode(format!("unknown estado {estado:?}").into()))?,
        request_digest: digest(row, "resumo_requisicao")?,
        event_digest: digest(row, "resumo_evento")?,
        by_this_run,
        token: row.try_get("ficha")?,
        owner: row.try_get("dono")?,
        lease_left: millis(row, "reserva_ms")?,
        due_in: millis(row, "espera_ms")?,
        maybe_sent: row.try_get("talvez_enviado")?,
        attempts: u32::try_from(row.try_get::<i32, _>("tentativas")?).unwrap_or(0),
        age: millis(row, "idade_ms")?,
    }))
}

fn millis(row: &PgRow, column: &str) -> Result<Duration, sqlx::Error> {
    let millis: Option<i64> = row.try_get(column)?;
    Ok(Duration::from_millis(u64::try_from(millis.unwrap_or(0)).unwrap_or(0)))
}

/// A digest of another length (written by somebody's hand) equals none of ours.
fn digest(row: &PgRow, column: &str) -> Result<Digest, sqlx::Error> {
    let bytes: &[u8] = row.try_get(column)?;
    Ok(bytes.try_into().unwrap_or([0; 32]))
}
