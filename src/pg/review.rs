//! What a person sees of an effect, and decides about an uncertain one.
//!
//! A decision is one statement: a compare-and-set on `incerto` together with its line in `revisao_efeito`. Of two who
//! decide at once one wins, the other changes nothing (`pg` tells them apart by the missing row, tests
//! `two_decisions_at_once_have_one_winner`). It takes the token off the row, so that a late answer of the old attempt
//! is fenced and kept as evidence: it never overrules the person (invariant I9).

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::error::StoreError;
use super::wave::millis;
use crate::domain::effect::{Decision, EffectState};
use crate::domain::verdict::Token;

/// An instant as RFC 3339 in UTC.
macro_rules! instant {
    ($column:literal) => {
        concat!("to_char(", $column, r#" at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#)
    };
}

macro_rules! summary_columns {
    () => {
        concat!(
            "e.chave, e.evento_id, e.tipo_efeito, e.pedido_id, e.estado, e.execucao_id, e.tentativas, ",
            instant!("e.criado_em"),
            " as criado, ",
            instant!("e.atualizado_em"),
            " as atualizado, ",
            instant!("e.reserva_ate"),
            " as reserva"
        )
    };
}

/// One effect in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    #[serde(rename = "chave")]
    pub key: String,
    #[serde(rename = "eventoId")]
    pub event_id: String,
    #[serde(rename = "tipoEfeito")]
    pub effect_type: String,
    #[serde(rename = "pedidoId")]
    pub order_id: String,
    #[serde(rename = "estado")]
    pub state: String,
    #[serde(rename = "execucaoId")]
    pub run_id: String,
    #[serde(rename = "tentativas")]
    pub attempts: i32,
    #[serde(rename = "criadoEm")]
    pub created_at: String,
    #[serde(rename = "atualizadoEm")]
    pub updated_at: String,
    #[serde(rename = "reservaAte")]
    pub lease_until: Option<String>,
}

/// One effect with everything a person needs to decide.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dossier {
    #[serde(flatten)]
    pub summary: Summary,
    #[serde(rename = "versaoEvento")]
    pub version: i64,
    #[serde(rename = "talvezEnviado")]
    pub maybe_sent: bool,
    #[serde(rename = "primeiraTentativaEm")]
    pub first_attempt_at: String,
    #[serde(rename = "tentarEm")]
    pub due_at: Option<String>,
    #[serde(rename = "requisicao")]
    pub request: Value,
    #[serde(rename = "resultado")]
    pub result: Option<Value>,
    /// The commission of the order as it stands.
    #[serde(rename = "comissao")]
    pub commission: Option<Value>,
    /// Attempts that were not a plain success, the latest [`EVIDENCE_MAX`], in their order.
    #[serde(rename = "evidencia")]
    pub evidence: Vec<Value>,
    #[serde(rename = "revisoes")]
    pub rulings: Vec<Ruling>,
}

impl Dossier {
    /// To who decided and changed nothing: how the effect stands, and whose decision that is.
    pub fn why_not_decided(&self) -> String {
        let Summary { key, state, .. } = &self.summary;
        let how = match EffectState::parse(state) {
            Some(EffectState::Done) => "it is settled, and what is settled is not sent or decided again",
            Some(EffectState::Reserved) => "it is being called or waits for its next attempt",
            // It was decided, sent and became uncertain again between our two looks.
            Some(EffectState::Uncertain) | None => "somebody else was faster; look again",
        };
        let whose = self.rulings.last().map_or_else(
            || "nobody decided about it".to_owned(),
            |last| format!("{} decided {} at {}: {}", last.by, last.decision, last.at, last.reason),
        );
        format!("nothing was changed: {key} is {state} ({how}); {whose}")
    }
}

/// A decision that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ruling {
    #[serde(rename = "rodada")]
    pub round: i32,
    #[serde(rename = "decisao")]
    pub decision: String,
    #[serde(rename = "por")]
    pub by: String,
    #[serde(rename = "motivo")]
    pub reason: String,
    #[serde(rename = "em")]
    pub at: String,
}

/// Lines of evidence that are shown of one effect.
pub const EVIDENCE_MAX: i64 = 200;

/// Which effects to list.
#[derive(Debug, Clone, Copy)]
pub struct Filter<'a> {
    pub state: EffectState,
    pub effect_type: Option<&'a str>,
    pub order_id: Option<&'a str>,
}

// One order's effects are few: the unique index finds them. What is not settled stands in the small tables. Only the
// settled ones of all orders are read from the ledger itself, along its key, up to the limit.
const BY_ORDER: &str = concat!(
    "select ",
    summary_columns!(),
    " from efeito_aplicado e
     where e.pedido_id = $4 and e.estado = $1 and ($2::text is null or e.tipo_efeito = $2)
     order by e.versao_evento, e.tipo_efeito limit $3"
);
const UNCERTAIN: &str = concat!(
    "select ",
    summary_columns!(),
    " from efeito_pendente p join efeito_aplicado e on e.chave = p.chave
     where p.situacao = 'incerto' and e.estado = $1 and ($2::text is null or e.tipo_efeito = $2) and $4::text is null
     order by p.desde, e.chave limit $3"
);
const RESERVED: &str = concat!(
    "select ",
    summary_columns!(),
    " from (select p.chave from efeito_pendente p where p.situacao = 'espera'
            union select k.chave from onda_aberta o cross join lateral unnest(o.chaves) as k(chave)) as s
     join efeito_aplicado e on e.chave = s.chave
     where e.estado = $1 and ($2::text is null or e.tipo_efeito = $2) and $4::text is null
     order by e.criado_em, e.chave limit $3"
);
const DONE: &str = concat!(
    "select ",
    summary_columns!(),
    " from efeito_aplicado e
     where e.estado = $1 and ($2::text is null or e.tipo_efeito = $2) and $4::text is null
     order by e.chave limit $3"
);

/// At most `limit` effects.
pub async fn list(
    connection: &mut PgConnection,
    filter: Filter<'_>,
    limit: i64,
) -> Result<Vec<Summary>, StoreError> {
    let sql = match (filter.order_id, filter.state) {
        (Some(_), _) => BY_ORDER,
        (None, EffectState::Uncertain) => UNCERTAIN,
        (None, EffectState::Reserved) => RESERVED,
        (None, EffectState::Done) => DONE,
    };
    let rows = sqlx::query(sql)
        .bind(filter.state.as_str())
        .bind(filter.effect_type)
        .bind(limit)
        .bind(filter.order_id)
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| summary(row).map_err(StoreError::from)).collect()
}

fn summary(row: &PgRow) -> Result<Summary, sqlx::Error> {
    Ok(Summary {
        key: row.try_get("chave")?,
        event_id: row.try_get("evento_id")?,
        effect_type: row.try_get("tipo_efeito")?,
        order_id: row.try_get("pedido_id")?,
        state: row.try_get("estado")?,
        run_id: row.try_get("execucao_id")?,
        attempts: row.try_get("tentativas")?,
        created_at: row.try_get("criado")?,
        updated_at: row.try_get("atualizado")?,
        lease_until: row.try_get("reserva")?,
    })
}

const DOSSIER: &str = concat!(
    "select ",
    summary_columns!(),
    ", e.versao_evento, e.talvez_enviado, e.requisicao, e.resultado, ",
    instant!("e.primeira_tentativa_em"),
    " as primeira, ",
    instant!("e.tentar_em"),
    " as tentar, case when c.pedido_id is not null then jsonb_build_object('valorCentavos', c.valor_centavos,
        'versaoEvento', c.versao_evento, 'eventoId', c.evento_id) end as comissao
     from efeito_aplicado e left join comissao c on c.pedido_id = e.pedido_id where e.chave = $1"
);
const EVIDENCE: &str = concat!(
    "select jsonb_build_object('em', ",
    instant!("t.em"),
    ", 'resposta', t.resposta, 'alcance', t.alcance, 'status', t.status, 'detalhe', t.detalhe,
        'instancia', t.instancia, 'execucaoId', t.execucao_id, 'ficha', t.ficha, 'duracaoMs', t.duracao_ms,
        'requisicao', t.requisicao) as linha
     from (select * from tentativa_efeito where chave = $1 order by id desc limit $2) as t order by t.id"
);
const RULINGS: &str = concat!(
    "select rodada, decisao, por, motivo, ",
    instant!("em"),
    " as quando from revisao_efeito where chave = $1 order by rodada"
);

/// Everything about one effect; `None`: the ledger has no such key.
pub async fn dossier(connection: &mut PgConnection, key: &str) -> Result<Option<Dossier>, StoreError> {
    let Some(row) = sqlx::query(DOSSIER).bind(key).fetch_optional(&mut *connection).await? else {
        return Ok(None);
    };
    let evidence =
        sqlx::query_scalar(EVIDENCE).bind(key).bind(EVIDENCE_MAX).fetch_all(&mut *connection).await?;
    let rulings = sqlx::query(RULINGS).bind(key).fetch_all(connection).await?;
    let ruling = |row: &PgRow| -> Result<Ruling, sqlx::Error> {
        Ok(Ruling {
            round: row.try_get("rodada")?,
            decision: row.try_get("decisao")?,
            by: row.try_get("por")?,
            reason: row.try_get("motivo")?,
            at: row.try_get("quando")?,
        })
    };
    Ok(Some(Dossier {
        summary: summary(&row)?,
        version: row.try_get("versao_evento")?,
        maybe_sent: row.try_get("talvez_enviado")?,
        first_attempt_at: row.try_get("primeira")?,
        due_at: row.try_get("tentar")?,
        request: row.try_get("requisicao")?,
        result: row.try_get("resultado")?,
        commission: row.try_get("comissao")?,
        evidence,
        rulings: rulings.iter().map(ruling).collect::<Result<_, _>>()?,
    }))
}

/// The last decision about an effect, as far as it tells whether the effect is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastDecision {
    pub discarded: bool,
    pub by: String,
    pub reason: String,
}

pub async fn last_decision(
    connection: &mut PgConnection,
    key: &str,
) -> Result<Option<LastDecision>, StoreError> {
    let row = sqlx::query(
        "select decisao = 'descartado' as descartado, por, motivo from revisao_efeito
         where chave = $1 order by rodada desc limit 1",
    )
    .bind(key)
    .fetch_optional(connection)
    .await?;
    let read = |row: PgRow| -> Result<LastDecision, sqlx::Error> {
        Ok(LastDecision {
            discarded: row.try_get("descartado")?,
            by: row.try_get("por")?,
            reason: row.try_get("motivo")?,
        })
    };
    Ok(row.map(read).transpose()?)
}

/// Letters of a name, and of a reason: they stand in every listing of decisions for good.
const NAME_MAX: usize = 200;
const REASON_MAX: usize = 2_000;

/// Who decides, as it is kept.
pub fn name(text: &str) -> Result<String, String> {
    bounded(text, NAME_MAX)
}

/// Why, as it is kept.
pub fn reason(text: &str) -> Result<String, String> {
    bounded(text, REASON_MAX)
}

/// What is kept for good says something, is not endless, and can be stored.
fn bounded(text: &str, letters_max: usize) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err("is empty; say something".to_owned());
    }
    if text.contains('\0') {
        return Err("holds a NUL character; leave it out".to_owned());
    }
    let letters = text.chars().count();
    if letters > letters_max {
        return Err(format!("has {letters} letters; use at most {letters_max}"));
    }
    Ok(text.to_owned())
}

/// A decision to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewRuling<'a> {
    pub key: &'a str,
    pub decision: Decision,
    pub by: &'a str,
    pub reason: &'a str,
}

const SETTLED: &str = r"
with alvo as (
    update efeito_aplicado
    set estado = 'concluido', ficha = null, dono = null, atualizado_em = now(),
        resultado = jsonb_build_object('decisao', $2::text, 'por', $3::text, 'motivo', $4::text)
    where chave = $1 and estado = 'incerto'
    returning chave
), p as (
    delete from efeito_pendente p using alvo a where p.chave = a.chave
)
insert into revisao_efeito (chave, rodada, decisao, por, motivo)
select a.chave, 1 + coalesce((select max(r.rodada) from revisao_efeito r where r.chave = a.chave), 0), $2, $3, $4
from alvo a
";

// Due since ever: the sweeper need not leave it to the event's own consumer first, which does not come for it.
const BACK_TO_WAITING: &str = r"
with alvo as (
    update efeito_aplicado
    set estado = 'reservado', ficha = null, dono = null, reserva_ate = null, tentar_em = now(), talvez_enviado = false,
        tentativas = 0, resultado = null, atualizado_em = now()
    where chave = $1 and estado = 'incerto'
    returning chave, tipo_efeito
), p as (
    insert into efeito_pendente (chave, tipo_efeito, situacao, tentar_em, desde)
    select chave, tipo_efeito, 'espera', '-infinity', now() from alvo
    on conflict (chave) do update set situacao = 'espera', tentar_em = '-infinity', desde = now()
)
insert into revisao_efeito (chave, rodada, decisao, por, motivo)
select a.chave, 1 + coalesce((select max(r.rodada) from revisao_efeito r where r.chave = a.chave), 0), $2, $3, $4
from alvo a
";

/// Records a decision and does what it says; false if the effect is not (or no longer) uncertain.
pub async fn decide(connection: &mut PgConnection, ruling: NewRuling<'_>) -> Result<bool, StoreError> {
    let sql = match ruling.decision {
        Decision::Done | Decision::Discarded => SETTLED,
        Decision::NotSent => BACK_TO_WAITING,
    };
    let recorded = sqlx::query(sql)
        .bind(ruling.key)
        .bind(ruling.decision.as_str())
        .bind(ruling.by)
        .bind(ruling.reason)
        .execute(connection)
        .await?;
    Ok(recorded.rows_affected() == 1)
}

/// A reservation that is made together with a decision.
#[derive(Debug, Clone, Copy)]
pub struct Resend {
    pub token: Token,
    /// Whose session lock is held on this connection.
    pub owner: i64,
    pub lease: Duration,
}

const RESERVED_AGAIN: &str = r"
with alvo as (
    update efeito_aplicado
    set estado = 'reservado', ficha = $5, dono = $6, reserva_ate = now() + $7 * interval '1 millisecond', tentar_em = null,
        talvez_enviado = false, tentativas = 1, primeira_tentativa_em = now(), resultado = null, atualizado_em = now()
    where chave = $1 and estado = 'incerto'
    returning chave, execucao_id, reserva_ate
), p as (
    delete from efeito_pendente p using alvo a where p.chave = a.chave
), o as (
    insert into onda_aberta (ficha, dono, execucao_id, reserva_ate, chaves)
    select $5, $6, execucao_id, reserva_ate, array[chave] from alvo
)
insert into revisao_efeito (chave, rodada, decisao, por, motivo)
select a.chave, 1 + coalesce((select max(r.rodada) from revisao_efeito r where r.chave = a.chave), 0), $2, $3, $4
from alvo a
";

/// Decides 'nao-enviado' and reserves the effect for a call of this process, in one; false as in [`decide`].
pub async fn decide_and_reserve(
    connection: &mut PgConnection,
    ruling: NewRuling<'_>,
    resend: Resend,
) -> Result<bool, StoreError> {
    let recorded = sqlx::query(RESERVED_AGAIN)
        .bind(ruling.key)
        .bind(Decision::NotSent.as_str())
        .bind(ruling.by)
        .bind(ruling.reason)
        .bind(resend.token)
        .bind(resend.owner)
        .bind(millis(resend.lease))
        .execute(connection)
        .await?;
    Ok(recorded.rows_affected() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_good_is_bounded_and_storable() {
        assert_eq!(bounded("  ana ", 3).as_deref(), Ok("ana"));
        assert_eq!(bounded("anna", 3), Err("has 4 letters; use at most 3".to_owned()));
        assert!(bounded(" ", 3).is_err() && bounded("a\0b", 9).is_err());
    }
}
