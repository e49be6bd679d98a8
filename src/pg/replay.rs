//! The bookkeeping of replays: what was asked, how far it is, and what it came to.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};
use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgPool, Row};
use uuid::Uuid;

use super::connect::Database;
use super::error::StoreError;
use super::wave::Target;
use crate::domain::effect::Outcome;

/// `fonte`: where the records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// `kafka`
    #[default]
    Log,
    /// `arquivo`
    Archive,
}

impl Origin {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "kafka",
            Self::Archive => "arquivo",
        }
    }
}

/// What was asked for. Two runs under one id must agree in all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Positions mean something else in another topic.
    pub topic: String,
    pub origin: Origin,
    pub from: Timestamp,
    pub to: Option<Timestamp>,
    /// Effective mode by effect type.
    pub policies: BTreeMap<String, String>,
    /// Sorted; `None`: all.
    pub orders: Option<Vec<String>>,
}

impl Asked {
    /// What the other one asks otherwise, in words; empty where they agree.
    pub fn differs(&self, other: &Self) -> Vec<&'static str> {
        let pairs = [
            (self.topic != other.topic, "kafka.topico"),
            (self.origin != other.origin, "--source"),
            (self.from != other.from, "--from"),
            (self.to != other.to, "--to"),
            (self.policies != other.policies, "effect policies"),
            (self.orders != other.orders, "orders"),
        ];
        pairs.into_iter().filter_map(|(differs, name)| differs.then_some(name)).collect()
    }
}

/// One partition of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionProgress {
    pub partition: i32,
    pub start: i64,
    pub end: i64,
    pub at: i64,
}

/// A stored run.
#[derive(Debug, Clone)]
pub struct StoredRun {
    pub id: String,
    pub dry_run: bool,
    pub situation: String,
    pub asked: Asked,
    pub by: Option<String>,
    /// Why it failed, where it did.
    pub failure: Option<String>,
    pub created_at: String,
    pub partitions: Vec<PartitionProgress>,
    /// Counts below the positions, summed over the partitions: eventos, estado, efeitos.
    pub counts: Value,
}

impl StoredRun {
    pub fn is_complete(&self) -> bool {
        self.partitions.iter().all(|partition| partition.at >= partition.end)
    }
}

/// The run under this id, if there is one.
pub async fn load(pool: &PgPool, id: &str, dry_run: bool) -> Result<Option<StoredRun>, StoreError> {
    let row = sqlx::query(
        r#"select execucao_id, simular, situacao, topico, fonte, politicas::text, pedidos, pedido_por, motivo_falha,
                  to_char(de at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as de,
                  to_char(ate at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as ate,
                  to_char(criado_em at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as criado_em
           from reprocessamento where execucao_id = $1 and simular = $2"#,
    )
    .bind(id)
    .bind(dry_run)
    .fetch_optional(pool)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let mut run = read(&row)?;
    let rows = sqlx::query(
        "select particao, inicio, fim, posicao, contagens::text from reprocessamento_checkpoint
         where execucao_id = $1 and simular = $2 order by particao",
    )
    .bind(id)
    .bind(dry_run)
    .fetch_all(pool)
    .await?;
    for row in rows {
        run.partitions.push(PartitionProgress {
            partition: row.try_get(0)?,
            start: row.try_get(1)?,
            end: row.try_get(2)?,
            at: row.try_get(3)?,
        });
        let counts: String = row.try_get(4)?;
        add(&mut run.counts, &serde_json::from_str(&counts).unwrap_or_default());
    }
    Ok(Some(run))
}

/// Every run, newest first, without its partitions.
pub async fn list(pool: &PgPool) -> Result<Vec<(String, bool)>, StoreError> {
    let rows =
        sqlx::query("select execucao_id, simular from reprocessamento order by criado_em desc limit 1000")
            .fetch_all(pool)
            .await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

fn read(row: &PgRow) -> Result<StoredRun, StoreError> {
    let instant = |column: &str| -> Result<Option<Timestamp>, StoreError> {
        let text: Option<String> = row.try_get(column)?;
        Ok(text.and_then(|text| text.parse().ok()))
    };
    let policies: String = row.try_get("politicas")?;
    Ok(StoredRun {
        id: row.try_get("execucao_id")?,
        dry_run: row.try_get("simular")?,
        situation: row.try_get("situacao")?,
        asked: Asked {
            topic: row.try_get("topico")?,
            origin: if row.try_get::<&str, _>("fonte")? == "arquivo" { Origin::Archive } else { Origin::Log },
            from: instant("de")?.unwrap_or_default(),
            to: instant("ate")?,
            policies: serde_json::from_str(&policies).unwrap_or_default(),
            orders: row.try_get("pedidos")?,
        },
        by: row.try_get("pedido_por")?,
        failure: row.try_get("motivo_falha")?,
        created_at: row.try_get("criado_em")?,
        partitions: Vec::new(),
        counts: Value::Object(Map::new()),
    })
}

/// Adds counts to counts, whatever their depth.
fn add(to: &mut Value, more: &Value) {
    match (to, more) {
        (Value::Object(to), Value::Object(more)) => {
            for (name, value) in more {
                add(to.entry(name.clone()).or_insert_with(|| empty_like(value)), value);
            }
        }
        (to @ Value::Number(_), Value::Number(more)) => {
            *to = Value::from(to.as_u64().unwrap_or(0) + more.as_u64().unwrap_or(0));
        }
        _ => {}
    }
}

fn empty_like(value: &Value) -> Value {
    if value.is_object() { Value::Object(Map::new()) } else { Value::from(0) }
}

/// Stores a plan. `false`: one stands under this id already. `replace`: an earlier dry run gives way; its diff stays
/// until the new one is published.
pub async fn store(database: &Database, run: &StoredRun, replace: bool) -> Result<bool, StoreError> {
    let mut connection = database.plain().await?;
    let mut tx = connection.begin().await?;
    let stored = sqlx::query(
        "insert into reprocessamento (execucao_id, simular, situacao, topico, de, ate, fonte, politicas, pedidos, pedido_por)
         values ($1, $2, 'planejado', $3, $4::timestamptz, $5::timestamptz, $10, $6::jsonb, $7, $8)
         on conflict (execucao_id, simular) do update set situacao = excluded.situacao, topico = excluded.topico,
             de = excluded.de, ate = excluded.ate, fonte = excluded.fonte, politicas = excluded.politicas,
             pedidos = excluded.pedidos, pedido_por = excluded.pedido_por, motivo_falha = null,
             criado_em = excluded.criado_em, iniciado_em = null, terminado_em = null
         where $9 and reprocessamento.simular",
    )
    .bind(&run.id)
    .bind(run.dry_run)
    .bind(&run.asked.topic)
    .bind(run.asked.from.to_string())
    .bind(run.asked.to.map(|to| to.to_string()))
    .bind(serde_json::to_string(&run.asked.policies).unwrap_or_default())
    .bind(run.asked.orders.as_deref())
    .bind(run.by.as_deref())
    .bind(replace)
    .bind(run.asked.origin.as_str())
    .execute(&mut *tx)
    .await?
    .rows_affected();
    if stored == 0 {
        return Ok(false);
    }
    sqlx::query("delete from reprocessamento_checkpoint where execucao_id = $1 and simular = $2")
        .bind(&run.id)
        .bind(run.dry_run)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "insert into reprocessamento_checkpoint (execucao_id, simular, particao, inicio, fim, posicao)
         select $1, $2, x.particao, x.inicio, x.fim, x.inicio from unnest($3::integer[], $4::bigint[], $5::bigint[]) as x(particao, inicio, fim)",
    )
    .bind(&run.id)
    .bind(run.dry_run)
    .bind(run.partitions.iter().map(|p| p.partition).collect::<Vec<_>>())
    .bind(run.partitions.iter().map(|p| p.start).collect::<Vec<_>>())
    .bind(run.partitions.iter().map(|p| p.end).collect::<Vec<_>>())
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(true)
}

/// What a person does to a run that is not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Pause,
    Resume,
    Cancel,
}

impl Change {
    /// The situations it starts from.
    pub const fn from(self) -> &'static [&'static str] {
        match self {
            Self::Pause => &["planejado", "executando"],
            Self::Resume => &["pausado"],
            Self::Cancel => &["planejado", "executando", "pausado", "falhou"],
        }
    }

    /// The situation it leads to.
    pub const fn to(self) -> &'static str {
        match self {
            Self::Pause => "pausado",
            Self::Resume => "executando",
            Self::Cancel => "cancelado",
        }
    }
}

/// Moves a real run or dry run from one of `from` to `to`; `false` if it is in none of them.
pub async fn transition(
    pool: &PgPool,
    id: &str,
    dry_run: bool,
    from: &[&str],
    to: &str,
) -> Result<bool, StoreError> {
    let moved = sqlx::query(
        "update reprocessamento set situacao = $4,
             iniciado_em = case when $4 = 'executando' then coalesce(iniciado_em, now()) else iniciado_em end,
             terminado_em = case when $4 in ('concluido', 'cancelado', 'falhou') then now() end,
             motivo_falha = null
         where execucao_id = $1 and simular = $2 and situacao = any($3)",
    )
    .bind(id)
    .bind(dry_run)
    .bind(from)
    .bind(to)
    .execute(pool)
    .await?;
    Ok(moved.rows_affected() > 0)
}

/// A run that no repetition cures is marked failed, with the reason; whoever shares it ends too.
pub async fn fail(pool: &PgPool, id: &str, reason: &str) -> Result<(), StoreError> {
    sqlx::query(
        "update reprocessamento set situacao = 'falhou', motivo_falha = $2, terminado_em = now()
         where execucao_id = $1 and not simular and situacao in ('planejado', 'executando', 'pausado')",
    )
    .bind(id)
    .bind(reason)
    .execute(pool)
    .await?;
    Ok(())
}

/// Claims partitions for a reader: their positions, from which only it may go on.
pub async fn claim(
    pool: &PgPool,
    id: &str,
    reader: Uuid,
    partitions: &[i32],
) -> Result<Vec<PartitionProgress>, StoreError> {
    let rows = sqlx::query(
        "update reprocessamento_checkpoint set leitor = $2 where execucao_id = $1 and not simular and particao = any($3)
         returning particao, inicio, fim, posicao",
    )
    .bind(id)
    .bind(reader)
    .bind(partitions)
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(PartitionProgress {
                partition: row.try_get(0)?,
                start: row.try_get(1)?,
                end: row.try_get(2)?,
                at: row.try_get(3)?,
            })
        })
        .collect()
}

/// How far a reader came in a partition, and what it counted on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    pub partition: i32,
    pub at: i64,
    pub counts: Value,
}

/// Moves positions and adds what was counted on the way, in one transaction. Written again after a lost answer it
/// adds nothing; of a reader that was replaced it is refused.
///
/// It need not be durable at once: rows it covers were committed before it, and what it forgets is read again.
pub async fn checkpoint(
    database: &Database,
    id: &str,
    reader: Uuid,
    moved: &[Moved],
) -> Result<(), StoreError> {
    let mut connection = database.pool().acquire().await?;
    let mut tx = connection.begin().await?;
    sqlx::query("set local synchronous_commit = off").execute(&mut *tx).await?;
    let rows = sqlx::query(
        "select particao, posicao, contagens::text from reprocessamento_checkpoint
         where execucao_id = $1 and not simular and particao = any($2) and leitor = $3
         order by particao for update",
    )
    .bind(id)
    .bind(moved.iter().map(|m| m.partition).collect::<Vec<_>>())
    .bind(reader)
    .fetch_all(&mut *tx)
    .await?;
    let mut stands = BTreeMap::new();
    for row in rows {
        let counts: String = row.try_get(2)?;
        let sum: Value = serde_json::from_str(&counts).unwrap_or_default();
        stands.insert(row.try_get(0)?, (row.try_get(1)?, sum));
    }
    let further = go_on(stands, moved);
    if further.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "update reprocessamento_checkpoint c
         set posicao = least(x.posicao, c.fim), contagens = x.contagens::jsonb, atualizado_em = now()
         from unnest($2::integer[], $3::bigint[], $4::text[]) as x(particao, posicao, contagens)
         where c.execucao_id = $1 and not c.simular and c.particao = x.particao",
    )
    .bind(id)
    .bind(further.iter().map(|m| m.partition).collect::<Vec<_>>())
    .bind(further.iter().map(|m| m.at).collect::<Vec<_>>())
    .bind(further.iter().map(|m| m.counts.to_string()).collect::<Vec<_>>())
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;
    Ok(())
}

/// The sums where partitions stand further on. What lies at or below a stored position is counted there already;
/// partitions that are not there are someone else's.
fn go_on(mut stands: BTreeMap<i32, (i64, Value)>, moved: &[Moved]) -> Vec<Moved> {
    let mut further: BTreeMap<i32, Moved> = BTreeMap::new();
    for step in moved {
        let Some((at, sum)) = stands.get_mut(&step.partition) else { continue };
        if step.at <= *at {
            continue;
        }
        *at = step.at;
        add(sum, &step.counts);
        further.insert(step.partition, Moved { counts: sum.clone(), ..step.clone() });
    }
    further.into_values().collect()
}

/// What became of effects that were not simply recorded already. The last word counts.
pub async fn effects(pool: &PgPool, id: &str, entries: &[(Target, Outcome)]) -> Result<(), StoreError> {
    let mut last: BTreeMap<&str, &(Target, Outcome)> = BTreeMap::new();
    for entry in entries {
        last.insert(entry.0.key(), entry);
    }
    let rows: Vec<_> = last.into_values().collect();
    sqlx::query(
        "insert into reprocessamento_efeito (execucao_id, simular, chave, pedido_id, tipo_efeito, desfecho, requisicao_antes, requisicao_depois)
         select $1, false, x.chave, x.pedido, x.tipo, x.desfecho,
                case when x.desfecho in ('divergente', 'incerto') then e.requisicao end, x.requisicao::jsonb
         from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) as x(chave, pedido, tipo, desfecho, requisicao)
         left join efeito_aplicado e on e.chave = x.chave
         on conflict (execucao_id, simular, chave) do update set desfecho = excluded.desfecho,
             requisicao_antes = excluded.requisicao_antes, requisicao_depois = excluded.requisicao_depois",
    )
    .bind(id)
    .bind(rows.iter().map(|(t, _)| t.key()).collect::<Vec<_>>())
    .bind(rows.iter().map(|(t, _)| t.plan.commission.order_id.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|(t, _)| &*t.effect_type).collect::<Vec<_>>())
    .bind(rows.iter().map(|(_, outcome)| outcome.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|(t, _)| t.request().body.as_str()).collect::<Vec<_>>())
    .execute(pool)
    .await?;
    Ok(())
}

/// Ledger rows of events before this instant were purged, if any were.
pub async fn horizon(pool: &PgPool) -> Result<Option<String>, StoreError> {
    let text = sqlx::query_scalar(
        r#"select to_char(purgado_ate at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from livro_horizonte"#,
    )
    .fetch_optional(pool)
    .await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_are_added_whatever_their_depth() {
        let mut sum = json!({"eventos": {"lidos": 2}, "efeitos": {"t": {"aplicado": 1}}});
        add(&mut sum, &json!({"eventos": {"lidos": 3, "aplicados": 1}, "efeitos": {"u": {"incerto": 4}}}));
        assert_eq!(
            sum,
            json!({"eventos": {"lidos": 5, "aplicados": 1}, "efeitos": {"t": {"aplicado": 1}, "u": {"incerto": 4}}})
        );
    }

    #[test]
    fn b79_what_is_written_again_is_not_counted_again() {
        let step = |partition, at, n| Moved { partition, at, counts: json!({"eventos": {"lidos": n}}) };
        let stands = || BTreeMap::from([(0, (10, json!({"eventos": {"lidos": 4}}))), (1, (7, json!({})))]);
        let steps = [step(0, 12, 2), step(1, 7, 5), step(2, 9, 9), step(0, 15, 3)];
        assert_eq!(go_on(stands(), &steps), [step(0, 15, 9)]);
        let after = BTreeMap::from([(0, (15, json!({"eventos": {"lidos": 9}})))]);
        assert_eq!(go_on(after, &steps), []);
    }

    #[test]
    fn what_differs_is_named() {
        let asked = Asked {
            origin: Origin::Log,
            topic: "pedido.pago".into(),
            from: Timestamp::UNIX_EPOCH,
            to: None,
            policies: BTreeMap::new(),
            orders: None,
        };
        let other = Asked { orders: Some(vec!["p".into()]), ..asked.clone() };
        assert_eq!(asked.differs(&asked.clone()), Vec::<&str>::new());
        assert_eq!(asked.differs(&other), ["orders"]);
        let elsewhere = Asked { topic: "pedido.pago.2".into(), to: Some(Timestamp::MAX), ..asked.clone() };
        assert_eq!(asked.differs(&elsewhere), ["kafka.topico", "--to"]);
    }
}
