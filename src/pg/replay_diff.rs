//! The diff of a replay or dry run: totals, and then row by row, however many there are.
//!
//! All of it is read in one snapshot, so that totals and rows belong together and a dry run that is repeated
//! meanwhile is seen as it was or as it is. Rows are streamed: the server waits for the reader, memory is bounded.

use std::collections::BTreeMap;

use futures::stream::{BoxStream, StreamExt as _};
use serde_json::value::RawValue;
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection, Postgres, Row, Transaction};

use super::connect::Database;
use super::error::StoreError;

/// Whose diff: `simular` tells a dry run from the real run of the same id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffOf {
    pub id: String,
    pub dry_run: bool,
    /// `situacao`: while it is not `concluido`, rows are still to come.
    pub situation: String,
}

/// `totais`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    pub orders: i64,
    /// Sums over the changed orders, in cents; nothing before counts as 0. Wider than any one amount.
    pub before: i128,
    pub after: i128,
    /// By effect type and outcome, `ja-registrado` included.
    pub effects: BTreeMap<String, BTreeMap<String, i64>>,
}

/// A changed order; the JSON is as stored.
#[derive(Debug)]
pub struct OrderRow {
    pub order_id: String,
    pub before: Option<Box<RawValue>>,
    pub after: Option<Box<RawValue>>,
}

/// An effect that was not simply recorded already.
#[derive(Debug)]
pub struct EffectRow {
    pub key: String,
    pub order_id: String,
    pub effect_type: String,
    pub outcome: String,
    pub request_before: Option<Box<RawValue>>,
    pub request_after: Option<Box<RawValue>>,
}

/// How many rows to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    All,
    First(i64),
}

impl Extent {
    /// `limit null` is no limit.
    const fn limit(self) -> Option<i64> {
        match self {
            Self::All => None,
            Self::First(rows) => Some(rows),
        }
    }
}

/// A connection of its own for one diff.
pub struct DiffReader {
    connection: PgConnection,
}

/// One snapshot of one diff.
pub struct Snapshot<'c> {
    tx: Transaction<'c, Postgres>,
    of: DiffOf,
}

impl DiffReader {
    pub async fn connect(database: &Database) -> Result<Self, StoreError> {
        let mut connection = database.plain().await?;
        // A reader may take its time (a pager, a slow disk): while it does, the server waits in the middle of a
        // statement and the network in the middle of a row.
        for patience in [
            "set statement_timeout = 0",
            "set tcp_user_timeout = 0",
            "set idle_in_transaction_session_timeout = 0",
        ] {
            sqlx::query(patience).execute(&mut connection).await?;
        }
        Ok(Self { connection })
    }

    /// The diff of this id: the dry run's or the real run's, or (`None`) the real run's if there is one.
    pub async fn open(
        &mut self,
        id: &str,
        dry_run: Option<bool>,
    ) -> Result<Option<Snapshot<'_>>, StoreError> {
        let mut tx = self.connection.begin_with("begin isolation level repeatable read, read only").await?;
        let row = sqlx::query(
            "select simular, situacao from reprocessamento
             where execucao_id = $1 and ($2::boolean is null or simular = $2) order by simular limit 1",
        )
        .bind(id)
        .bind(dry_run)
        .fetch_optional(&mut *tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let of = DiffOf {
            id: id.to_owned(),
            dry_run: row.try_get("simular")?,
            situation: row.try_get("situacao")?,
        };
        Ok(Some(Snapshot { tx, of }))
    }
}

const TOTALS: &str = "
select count(*) as pedidos,
       coalesce(sum((antes->>'valorCentavos')::bigint), 0)::text as antes,
       coalesce(sum((depois->>'valorCentavos')::bigint), 0)::text as depois
from reprocessamento_diff where execucao_id = $1 and simular = $2
";

/// A dry run's counts belong to its diff from when it was published; a real run's grow with it.
const EFFECT_TOTALS: &str = "
select tipo.key as tipo, desfecho.key as desfecho, sum(desfecho.value::bigint)::bigint as n
from (select jsonb_array_elements(efeitos_do_diff) as efeitos
      from reprocessamento where execucao_id = $1 and simular and $2
      union all
      select contagens->'efeitos' from reprocessamento_checkpoint
      where execucao_id = $1 and not simular and not $2) as contados
cross join lateral jsonb_each(coalesce(contados.efeitos, '{}')) as tipo
cross join lateral jsonb_each_text(tipo.value) as desfecho
group by 1, 2
";

const ORDERS: &str = "
select pedido_id, antes::text as antes, depois::text as depois from reprocessamento_diff
where execucao_id = $1 and simular = $2 order by pedido_id limit $3
";

const EFFECTS: &str = "
select chave, pedido_id, tipo_efeito, desfecho, requisicao_antes::text as antes, requisicao_depois::text as depois
from reprocessamento_efeito
where execucao_id = $1 and simular = $2 and desfecho <> 'ja-registrado' and ($4::text is null or desfecho = $4)
order by chave limit $3
";

const ORDER: &str = "
select pedido_id, antes::text as antes, depois::text as depois from reprocessamento_diff
where execucao_id = $1 and simular = $2 and pedido_id = $3
";

impl Snapshot<'_> {
    /// The row of one order, if it changed.
    pub async fn order(&mut self, order_id: &str) -> Result<Option<OrderRow>, StoreError> {
        let row = sqlx::query(ORDER)
            .bind(&self.of.id)
            .bind(self.of.dry_run)
            .bind(order_id)
            .fetch_optional(&mut *self.tx)
            .await?;
        Ok(row.as_ref().map(order).transpose()?)
    }

    pub const fn of(&self) -> &DiffOf {
        &self.of
    }

    pub async fn totals(&mut self) -> Result<Totals, StoreError> {
        let row =
            sqlx::query(TOTALS).bind(&self.of.id).bind(self.of.dry_run).fetch_one(&mut *self.tx).await?;
        let mut totals = Totals {
            orders: row.try_get("pedidos")?,
            before: sum(&row, "antes")?,
            after: sum(&row, "depois")?,
            effects: BTreeMap::new(),
        };
        let rows = sqlx::query(EFFECT_TOTALS)
            .bind(&self.of.id)
            .bind(self.of.dry_run)
            .fetch_all(&mut *self.tx)
            .await?;
        for row in rows {
            let of_type = totals.effects.entry(row.try_get("tipo")?).or_default();
            of_type.insert(row.try_get("desfecho")?, row.try_get("n")?);
        }
        Ok(totals)
    }

    /// The changed orders, by their id.
    pub fn orders(&mut self, extent: Extent) -> BoxStream<'_, Result<OrderRow, StoreError>> {
        sqlx::query(ORDERS)
            .bind(&self.of.id)
            .bind(self.of.dry_run)
            .bind(extent.limit())
            .fetch(&mut *self.tx)
            .map(|row| Ok(order(&row?)?))
            .boxed()
    }

    /// The effects, by their key; only those with this outcome if one is given.
    pub fn effects(
        &mut self,
        extent: Extent,
        outcome: Option<&'static str>,
    ) -> BoxStream<'_, Result<EffectRow, StoreError>> {
        sqlx::query(EFFECTS)
            .bind(&self.of.id)
            .bind(self.of.dry_run)
            .bind(extent.limit())
            .bind(outcome)
            .fetch(&mut *self.tx)
            .map(|row| Ok(effect(&row?)?))
            .boxed()
    }
}

/// A sum of bigints is a numeric.
fn sum(row: &PgRow, column: &str) -> Result<i128, sqlx::Error> {
    let text: &str = row.try_get(column)?;
    text.parse().map_err(|error| sqlx::Error::Decode(format!("{column}: {text:?}: {error}").into()))
}

fn order(row: &PgRow) -> Result<OrderRow, sqlx::Error> {
    Ok(OrderRow {
        order_id: row.try_get("pedido_id")?,
        before: json(row, "antes")?,
        after: json(row, "depois")?,
    })
}

fn effect(row: &PgRow) -> Result<EffectRow, sqlx::Error> {
    Ok(EffectRow {
        key: row.try_get("chave")?,
        order_id: row.try_get("pedido_id")?,
        effect_type: row.try_get("tipo_efeito")?,
        outcome: row.try_get("desfecho")?,
        request_before: json(row, "antes")?,
        request_after: json(row, "depois")?,
    })
}

/// As the database wrote it: numbers are not rounded on the way.
fn json(row: &PgRow, column: &str) -> Result<Option<Box<RawValue>>, sqlx::Error> {
    let text: Option<String> = row.try_get(column)?;
    text.map(RawValue::from_string).transpose().map_err(|error| sqlx::Error::Decode(error.into()))
}
