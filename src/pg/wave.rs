//! A wave: settle what is finished and reserve what can start, in one durable transaction.
//!
//! The common wave is a single statement: an update of finished effects, an insert of new reservations, and the
//! bookkeeping of open waves. Everything rarer (retries, reviews, give-backs, evidence) runs in statements of its
//! own inside the same transaction. Every write after a reservation is a compare-and-set on its token; what a
//! statement did not match is reported back, never assumed.
//!
//! A wave may be sent again after a lost answer: each arm recognises its own earlier work.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, PgConnection, Row};

use super::error::StoreError;
use crate::domain::effect::{EffectRequest, Run};
use crate::domain::plan::Plan;
use crate::domain::verdict::{Claim, Token};

/// One effect of a plan.
#[derive(Debug, Clone)]
pub struct Target {
    pub plan: Arc<Plan>,
    pub index: usize,
    /// `tipo_efeito`
    pub effect_type: Arc<str>,
}

impl Target {
    pub fn request(&self) -> &EffectRequest {
        &self.plan.effects[self.index]
    }

    pub fn key(&self) -> &str {
        &self.request().key
    }
}

/// Known done.
#[derive(Debug, Clone)]
pub struct Settle {
    pub target: Target,
    pub token: Token,
    /// JSON for `resultado`.
    pub result: String,
}

/// About to be called.
#[derive(Debug, Clone)]
pub struct Reserve {
    pub target: Target,
    pub claim: Claim,
    pub lease: Duration,
}

/// Where an effect that is not done goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Back to waiting. `counted`: the attempt counts towards `max_tentativas`.
    Waiting { due_in: Duration, maybe_sent: bool, counted: bool },
    /// To review.
    Uncertain,
    /// Nothing was ever sent: the row goes.
    Gone,
    /// The attempt was fenced: only its evidence is kept. `done` is proof and turns an undecided `incerto` into `concluido`.
    LateAnswer { done: bool },
}

/// One line of evidence (`tentativa_efeito`).
#[derive(Debug, Clone)]
pub struct Evidence {
    /// What the answer proved.
    pub answer: &'static str,
    /// How far the transport got.
    pub reached: &'static str,
    pub status: Option<u16>,
    pub detail: String,
    pub elapsed: Option<Duration>,
}

/// A transition other than 'done'.
#[derive(Debug, Clone)]
pub struct Move {
    pub target: Target,
    /// The reservation it speaks of; none for a row that waits.
    pub token: Option<Token>,
    pub to: Destination,
    pub evidence: Option<Evidence>,
    /// JSON for `resultado`, with a late 'done'.
    pub result: Option<String>,
}

/// Everything one transaction does.
#[derive(Debug, Clone)]
pub struct Wave {
    /// The token of this wave's reservations.
    pub token: Token,
    pub settle: Vec<Settle>,
    pub reserve: Vec<Reserve>,
    pub moves: Vec<Move>,
    /// Earlier waves that have no unsettled member any more.
    pub closed: Vec<Token>,
}

impl Wave {
    pub const fn empty(token: Token) -> Self {
        Self { token, settle: Vec::new(), reserve: Vec::new(), moves: Vec::new(), closed: Vec::new() }
    }
}

/// Who writes.
#[derive(Debug, Clone)]
pub struct Writer {
    pub run: Run,
    pub owner: i64,
    /// Readable name of this process, for evidence.
    pub instance: Arc<str>,
}

/// What a claimed row says about the request that must be sent.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Index into `reserve`.
    pub index: usize,
    /// The stored body, where an earlier attempt may have sent it: the same key must carry the same body.
    pub stored_body: Option<String>,
    pub maybe_sent: bool,
    pub attempts: u32,
}

/// What the transaction did not do, and what a person or another process changed meanwhile.
#[derive(Debug, Default)]
pub struct WaveDone {
    /// Indices into `settle` whose token no longer holds.
    pub fenced: Vec<usize>,
    /// Indices into `reserve` that were not reserved: look them up again.
    pub not_reserved: Vec<usize>,
    pub claimed: Vec<Claimed>,
    /// Indices into `moves` that found another state.
    pub not_moved: Vec<usize>,
    /// Indices into `reserve` that the database refuses for their data, with its words.
    pub refused: Vec<(usize, String)>,
    /// Indices into `settle`: done, which the database does not take in any form; put to review.
    pub reviewed: Vec<usize>,
    /// Indices into `settle` that it takes neither as done nor as uncertain, with its words.
    pub unsettled: Vec<(usize, String)>,
    /// Indices into `moves` that it refuses for their data, with its words.
    pub unmoved: Vec<(usize, String)>,
}

/// Carries a wave out. A wave that is refused for its data is carried out item by item, so that the guilty one
/// stands alone.
pub async fn perform(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
) -> Result<WaveDone, StoreError> {
    match attempt(connection, writer, wave).await {
        Err(StoreError::Data(error)) => {
            tracing::warn!(%error, reservations = wave.reserve.len(), "a wave was refused for its data; isolating");
            super::isolate::one_by_one(connection, writer, wave).await
        }
        result => result,
    }
}

pub(super) async fn attempt(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
) -> Result<WaveDone, StoreError> {
    let common = wave.moves.is_empty() && wave.reserve.iter().all(|r| r.claim == Claim::New);
    let mut done = WaveDone::default();
    if common {
        settle_and_insert(connection, writer, wave, &mut done).await?;
        return Ok(done);
    }
    let mut tx = connection.begin().await?;
    crate::pg::moves::apply(&mut tx, writer, wave, &mut done).await?;
    claim(&mut tx, writer, wave, &mut done).await?;
    settle_and_insert(&mut tx, writer, wave, &mut done).await?;
    tx.commit().await?;
    Ok(done)
}

const SETTLE_AND_INSERT: &str = r"
with s as (
    update efeito_aplicado e
    set estado = 'concluido', resultado = x.resultado::jsonb, atualizado_em = now()
    from unnest($1::text[], $2::uuid[], $3::text[]) as x(chave, ficha, resultado)
    where e.chave = x.chave and e.ficha = x.ficha and e.estado = 'reservado'
    returning 1
), r as (
    insert into efeito_aplicado (chave, evento_id, tipo_efeito, pedido_id, versao_evento, estado, execucao_id,
        requisicao, resumo_requisicao, resumo_evento, ficha, dono, reserva_ate, tentativas)
    select x.chave, x.evento, x.tipo, x.pedido, x.versao, 'reservado', $12, x.requisicao::jsonb, x.resumo, x.conteudo,
           $13, $14, now() + x.reserva * interval '1 millisecond', 1
    from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::text[], $10::bytea[], $11::bytea[], $15::bigint[])
         as x(chave, evento, tipo, pedido, versao, requisicao, resumo, conteudo, reserva)
    on conflict do nothing
    returning 1
), o as (
    insert into onda_aberta as o (ficha, dono, execucao_id, reserva_ate, chaves)
    select $13, $14, $12, now() + $16 * interval '1 millisecond', $17
    where cardinality($17::text[]) > 0
    on conflict (ficha) do update set chaves = o.chaves || excluded.chaves
), d as (
    delete from onda_aberta where ficha = any($18)
)
select (select count(*) from s), (select count(*) from r)
";

async fn settle_and_insert(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
    done: &mut WaveDone,
) -> Result<(), StoreError> {
    let mut settle: Vec<&Settle> = wave.settle.iter().collect();
    settle.sort_unstable_by(|a, b| a.target.key().cmp(b.target.key()));
    let mut insert: Vec<&Reserve> = wave.reserve.iter().filter(|r| r.claim == Claim::New).collect();
    insert.sort_unstable_by(|a, b| a.target.key().cmp(b.target.key()));
    let requests = || insert.iter().map(|r| r.target.request());
    let states = || insert.iter().map(|r| &r.target.plan.commission);
    let leases: Vec<i64> = insert.iter().map(|r| millis(r.lease)).collect();
    let longest = wave.reserve.iter().map(|r| millis(r.lease)).max().unwrap_or(0);
    let members: Vec<&str> = wave.reserve.iter().map(|r| r.target.key()).collect();
    let row = sqlx::query(SETTLE_AND_INSERT)
        .bind(settle.iter().map(|s| s.target.key()).collect::<Vec<_>>())
        .bind(settle.iter().map(|s| s.token).collect::<Vec<_>>())
        .bind(settle.iter().map(|s| s.result.as_str()).collect::<Vec<_>>())
        .bind(requests().map(|r| r.key.as_str()).collect::<Vec<_>>())
        .bind(states().map(|c| c.event_id.as_str()).collect::<Vec<_>>())
        .bind(insert.iter().map(|r| &*r.target.effect_type).collect::<Vec<_>>())
        .bind(states().map(|c| c.order_id.as_str()).collect::<Vec<_>>())
        .bind(states().map(|c| c.version).collect::<Vec<_>>())
        .bind(requests().map(|r| r.body.as_str()).collect::<Vec<_>>())
        .bind(requests().map(|r| r.digest.as_slice()).collect::<Vec<_>>())
        .bind(states().map(|c| c.event_digest.as_slice()).collect::<Vec<_>>())
        .bind(&writer.run.id)
        .bind(wave.token)
        .bind(writer.owner)
        .bind(&leases)
        .bind(longest)
        .bind(&members)
        .bind(&wave.closed)
        .fetch_one(&mut *connection)
        .await?;
    let (settled, inserted): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    if settled != count(wave.settle.len()) {
        let keys: Vec<(&str, Token)> = wave.settle.iter().map(|s| (s.target.key(), s.token)).collect();
        let ours = under_token(connection, &keys, "concluido").await?;
        let fenced = wave.settle.iter().enumerate().filter(|(_, s)| !ours.contains(s.target.key()));
        done.fenced.extend(fenced.map(|(index, _)| index));
    }
    if inserted != count(insert.len()) {
        let keys: Vec<(&str, Token)> = insert.iter().map(|r| (r.target.key(), wave.token)).collect();
        let ours = under_token(connection, &keys, "reservado").await?;
        let missing = wave.reserve.iter().enumerate();
        let missing = missing.filter(|(_, r)| r.claim == Claim::New && !ours.contains(r.target.key()));
        done.not_reserved.extend(missing.map(|(index, _)| index));
    }
    Ok(())
}

/// Of these keys, which stand in `estado` under the token that is claimed for them?
async fn under_token(
    connection: &mut PgConnection,
    keys: &[(&str, Token)],
    estado: &str,
) -> Result<HashSet<String>, StoreError> {
    let rows = sqlx::query(
        "select e.chave from unnest($1::text[], $2::uuid[]) as x(chave, ficha)
         join efeito_aplicado e on e.chave = x.chave and e.ficha = x.ficha where e.estado = $3",
    )
    .bind(keys.iter().map(|(key, _)| *key).collect::<Vec<_>>())
    .bind(keys.iter().map(|(_, token)| *token).collect::<Vec<_>>())
    .bind(estado)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| row.try_get(0).map_err(StoreError::from)).collect()
}

const CLAIM: &str = r"
with c as (
    update efeito_aplicado e
    set estado = 'reservado', ficha = $1, dono = $2, execucao_id = $3, tentar_em = null, resultado = null,
        reserva_ate = now() + x.reserva * interval '1 millisecond', tentativas = e.tentativas + x.conta,
        talvez_enviado = e.talvez_enviado or x.modo in ('abandonada', 'incerta'),
        primeira_tentativa_em = case when e.talvez_enviado or x.modo <> 'espera' then e.primeira_tentativa_em else now() end,
        requisicao = case when e.talvez_enviado or x.modo <> 'espera' then e.requisicao else x.requisicao::jsonb end,
        resumo_requisicao = case when e.talvez_enviado or x.modo <> 'espera' then e.resumo_requisicao else x.resumo end,
        atualizado_em = now()
    from unnest($4::text[], $5::text[], $6::uuid[], $7::integer[], $8::bigint[], $9::text[], $10::bytea[])
         as x(chave, modo, ficha, conta, reserva, requisicao, resumo)
    where e.chave = x.chave and case x.modo
        when 'espera' then e.estado = 'reservado' and e.ficha is null
        when 'propria' then e.estado = 'reservado' and e.ficha = x.ficha
        when 'incerta' then e.estado = 'incerto'
        else e.estado = 'reservado' and e.ficha = x.ficha
             and (e.reserva_ate <= now() or pg_try_advisory_xact_lock(e.dono)) end
    returning e.chave, e.requisicao::text as corpo, e.resumo_requisicao = x.resumo as igual, e.talvez_enviado,
              e.tentativas, x.modo, x.ficha as anterior
), p as (
    delete from efeito_pendente p using c where p.chave = c.chave
), t as (
    insert into tentativa_efeito (chave, ficha, execucao_id, instancia, dono, resposta, alcance, detalhe, requisicao)
    select chave, anterior, $3, $11, $2, 'abandonado', 'desconhecido',
           'the process that reserved it is gone, or its lease is over; the call may have happened; taken over', corpo::jsonb
    from c where modo = 'abandonada'
)
select chave, corpo, igual, talvez_enviado, tentativas from c
";

/// Takes rows over that exist: waiting, abandoned, our own unconfirmed ones, and uncertain ones in a redrive.
async fn claim(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
    done: &mut WaveDone,
) -> Result<(), StoreError> {
    let mut claims: Vec<(usize, &Reserve)> =
        wave.reserve.iter().enumerate().filter(|(_, r)| r.claim != Claim::New).collect();
    if claims.is_empty() {
        return Ok(());
    }
    claims.sort_unstable_by(|a, b| a.1.target.key().cmp(b.1.target.key()));
    let terms: Vec<_> = claims.iter().map(|(_, r)| claim_terms(r.claim)).collect();
    let rows = sqlx::query(CLAIM)
        .bind(wave.token)
        .bind(writer.owner)
        .bind(&writer.run.id)
        .bind(claims.iter().map(|(_, r)| r.target.key()).collect::<Vec<_>>())
        .bind(terms.iter().map(|t| t.0).collect::<Vec<_>>())
        .bind(terms.iter().map(|t| t.1).collect::<Vec<_>>())
        .bind(terms.iter().map(|t| t.2).collect::<Vec<_>>())
        .bind(claims.iter().map(|(_, r)| millis(r.lease)).collect::<Vec<_>>())
        .bind(claims.iter().map(|(_, r)| r.target.request().body.as_str()).collect::<Vec<_>>())
        .bind(claims.iter().map(|(_, r)| r.target.request().digest.as_slice()).collect::<Vec<_>>())
        .bind(&*writer.instance)
        .fetch_all(connection)
        .await?;
    let mut got = HashSet::new();
    for row in &rows {
        let key: &str = row.try_get("chave")?;
        let Ok(at) = claims.binary_search_by(|(_, r)| r.target.key().cmp(key)) else { continue };
        let index = claims[at].0;
        got.insert(index);
        let equal: bool = row.try_get("igual")?;
        done.claimed.push(Claimed {
            index,
            stored_body: if equal { None } else { Some(row.try_get("corpo")?) },
            maybe_sent: row.try_get("talvez_enviado")?,
            attempts: u32::try_from(row.try_get::<i32, _>("tentativas")?).unwrap_or(0),
        });
    }
    done.not_reserved.extend(claims.iter().map(|(index, _)| *index).filter(|index| !got.contains(index)));
    Ok(())
}

/// Mode, expected token and what is added to the attempts. An attempt of ours that never began counts once.
const fn claim_terms(claim: Claim) -> (&'static str, Option<Token>, i32) {
    match claim {
        Claim::New | Claim::Waiting => ("espera", None, 1),
        Claim::Abandoned(token) => ("abandonada", Some(token), 1),
        Claim::Own(token) => ("propria", Some(token), 0),
        Claim::Uncertain => ("incerta", None, 1),
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn count(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}
