//! A ledger row with everything it takes to go on without its event: the request, the policy's facts, the token.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use super::error::StoreError;
use super::lookup::stored_effect;
use crate::domain::event::Digest;
use crate::domain::verdict::StoredEffect;

/// One effect as it stands in the ledger.
#[derive(Debug, Clone)]
pub struct StoredRow {
    pub key: String,
    pub effect_type: String,
    pub event_id: String,
    pub order_id: String,
    pub version: i64,
    /// `execucao_id`: whose work it is. Whoever goes on with it leaves it so.
    pub run_id: String,
    /// `requisicao`, as Postgres writes jsonb; [`body_from_stored`](crate::domain::effect::body_from_stored)
    /// makes the exact body of it.
    pub request: String,
    pub effect: StoredEffect,
}

impl StoredRow {
    pub const fn request_digest(&self) -> &Digest {
        &self.effect.request_digest
    }
}

/// The columns that [`read`] needs, of the ledger as `e`. Distances by the database's clock.
macro_rules! stored_columns {
    () => {
        "e.chave, e.tipo_efeito, e.evento_id, e.pedido_id, e.versao_evento, e.execucao_id,
         e.requisicao::text as requisicao, e.estado, e.resumo_requisicao, e.resumo_evento, e.ficha, e.dono,
         greatest(0, extract(epoch from e.reserva_ate - now()) * 1000)::bigint as reserva_ms,
         greatest(0, extract(epoch from e.tentar_em - now()) * 1000)::bigint as espera_ms,
         e.talvez_enviado, e.tentativas,
         greatest(0, extract(epoch from now() - least(e.primeira_tentativa_em, e.atualizado_em)) * 1000)::bigint as idade_ms"
    };
}
pub(super) use stored_columns;

pub(super) fn read(row: &PgRow) -> Result<StoredRow, sqlx::Error> {
    let effect = stored_effect(row, false)?;
    Ok(StoredRow {
        key: row.try_get("chave")?,
        effect_type: row.try_get("tipo_efeito")?,
        event_id: row.try_get("evento_id")?,
        order_id: row.try_get("pedido_id")?,
        version: row.try_get("versao_evento")?,
        run_id: row.try_get("execucao_id")?,
        request: row.try_get("requisicao")?,
        effect: effect.ok_or_else(|| sqlx::Error::Decode("a ledger row without estado".into()))?,
    })
}

/// The row of this key.
pub async fn find(connection: &mut PgConnection, key: &str) -> Result<Option<StoredRow>, StoreError> {
    let row =
        sqlx::query(concat!("select ", stored_columns!(), " from efeito_aplicado e where e.chave = $1"))
            .bind(key)
            .fetch_optional(connection)
            .await?;
    Ok(row.as_ref().map(read).transpose()?)
}
