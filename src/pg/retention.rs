//! Taking away what is old enough, and remembering that it was taken.
//!
//! Promises:
//! * a ledger row that is `reservado` or `incerto` is never taken, however old; nor is a row of an order with an open
//!   dead letter (its redrive would call again);
//! * the ledger's horizon is committed *before* the first row goes, so that no replay can begin behind it meanwhile;
//! * decisions of people (`revisao_efeito`), commissions and order events are not touched;
//! * the archive loses only the beginning of each partition and never its last record, so that a gap stays visible;
//! * every step is a bounded transaction of its own: it can be interrupted and run again.
//!
//! The ledger is walked by ranges of its blocks: no index serves this, so that the hot path maintains none for it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use sqlx::{AssertSqlSafe, PgPool, Row as _};

use super::error::StoreError;

/// Blocks (of 8 KiB) of one step: some ten thousand rows, well below a second of work.
const BLOCKS_PER_STEP: i64 = 512;
/// Records of the archive in one step; each holds its raw bytes.
const RECORDS_PER_STEP: i64 = 5_000;
/// A row may be younger than its record's log time says, if the clocks of producers are ahead of the database's. Rows
/// go only when they are this much older than the horizon that replays are held to.
const CLOCK_MARGIN: SignedDuration = SignedDuration::from_hours(1);

/// What is walked block by block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aged {
    Ledger,
    Attempts,
    Letters,
}

impl Aged {
    pub const ALL: [Self; 3] = [Self::Ledger, Self::Attempts, Self::Letters];

    pub const fn table(self) -> &'static str {
        match self {
            Self::Ledger => "efeito_aplicado",
            Self::Attempts => "tentativa_efeito",
            Self::Letters => "carta_morta",
        }
    }

    /// Which rows `t` are old: `$1` is the horizon.
    const fn condition(self) -> &'static str {
        match self {
            Self::Ledger => {
                "t.estado = 'concluido' and t.criado_em < $1::timestamptz
                 and not exists (select from efeito_pendente p where p.chave = t.chave)
                 and not exists (select from carta_morta c where c.pedido_id = t.pedido_id and c.situacao = 'aberta')"
            }
            Self::Attempts => {
                "t.em < $1::timestamptz
                 and not exists (select from efeito_aplicado e where e.chave = t.chave and e.estado <> 'concluido')"
            }
            Self::Letters => "t.situacao = 'resolvida' and t.atualizado_em < $1::timestamptz",
        }
    }

    fn before(self, horizon: Timestamp) -> Timestamp {
        match self {
            Self::Ledger => horizon.saturating_sub(CLOCK_MARGIN).unwrap_or(horizon),
            Self::Attempts | Self::Letters => horizon,
        }
    }
}

/// Horizons of one run; `None` leaves that part alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Horizons {
    pub ledger: Option<Timestamp>,
    pub evidence: Option<Timestamp>,
    pub archive: Option<Timestamp>,
}

impl Horizons {
    pub const fn of(&self, aged: Aged) -> Option<Timestamp> {
        match aged {
            Aged::Ledger => self.ledger,
            Aged::Attempts | Aged::Letters => self.evidence,
        }
    }
}

/// A replay that is not finished and reads what would be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InTheWay {
    pub id: String,
    pub from: String,
}

/// Unfinished replays (no dry runs) that begin before a horizon they depend on.
pub async fn in_the_way(pool: &PgPool, horizons: Horizons) -> Result<Vec<InTheWay>, StoreError> {
    let rows = sqlx::query(
        r#"select execucao_id, to_char(de at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as de
           from reprocessamento
           where not simular and situacao in ('planejado', 'executando', 'pausado')
             and (de < $1::timestamptz or (fonte = 'arquivo' and de < $2::timestamptz))
           order by execucao_id"#,
    )
    .bind(horizons.ledger.map(|at| at.to_string()))
    .bind(horizons.archive.map(|at| at.to_string()))
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| Ok(InTheWay { id: row.try_get("execucao_id")?, from: row.try_get("de")? }))
        .collect()
}

/// Records a run and, before anything is taken, how far the ledger is to be forgotten. Gives the run's number.
pub async fn begin(pool: &PgPool, horizons: Horizons, by: Option<&str>) -> Result<i64, StoreError> {
    let mut transaction = pool.begin().await?;
    if let Some(ledger) = horizons.ledger {
        sqlx::query(
            "insert into livro_horizonte (purgado_ate) values ($1::timestamptz)
             on conflict (unico) do update
             set purgado_ate = greatest(livro_horizonte.purgado_ate, excluded.purgado_ate), em = now()",
        )
        .bind(ledger.to_string())
        .execute(&mut *transaction)
        .await?;
    }
    let number = sqlx::query_scalar(
        "insert into retencao_execucao (por, livro_ate, evidencia_ate, arquivo_ate)
         values ($1, $2::timestamptz, $3::timestamptz, $4::timestamptz) returning id",
    )
    .bind(by)
    .bind(horizons.ledger.map(|at| at.to_string()))
    .bind(horizons.evidence.map(|at| at.to_string()))
    .bind(horizons.archive.map(|at| at.to_string()))
    .fetch_one(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(number)
}

/// Records what was taken.
pub async fn end(pool: &PgPool, number: i64, taken: &BTreeMap<&str, u64>) -> Result<(), StoreError> {
    let taken: serde_json::Value = taken.iter().map(|(table, rows)| (*table, *rows)).collect();
    sqlx::query("update retencao_execucao set apagadas = $2::jsonb, terminada_em = now() where id = $1")
        .bind(number)
        .bind(taken.to_string())
        .execute(pool)
        .await?;
    Ok(())
}

/// Ranges of blocks that cover a table as it is now.
pub async fn steps(pool: &PgPool, aged: Aged) -> Result<Vec<(i64, i64)>, StoreError> {
    let blocks: i64 =
        sqlx::query_scalar("select pg_relation_size($1::regclass) / current_setting('block_size')::bigint")
            .bind(aged.table())
            .fetch_one(pool)
            .await?;
    let starts = std::iter::successors(Some(0), |start| Some(start + BLOCKS_PER_STEP));
    Ok(starts.take_while(|start| *start < blocks).map(|start| (start, start + BLOCKS_PER_STEP)).collect())
}

/// How many rows of these blocks would go.
pub async fn count(
    pool: &PgPool,
    aged: Aged,
    horizon: Timestamp,
    step: (i64, i64),
) -> Result<u64, StoreError> {
    let sql = format!(
        "select count(*) from {} t where t.ctid >= $2::text::tid and t.ctid < $3::text::tid and {}",
        aged.table(),
        aged.condition()
    );
    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(aged.before(horizon).to_string())
        .bind(format!("({},0)", step.0))
        .bind(format!("({},0)", step.1))
        .fetch_one(pool)
        .await?;
    Ok(u64::try_from(rows).unwrap_or_default())
}

/// Takes the old rows of these blocks away; says how many.
pub async fn take(
    pool: &PgPool,
    aged: Aged,
    horizon: Timestamp,
    step: (i64, i64),
) -> Result<u64, StoreError> {
    let sql = format!(
        "delete from {} t where t.ctid >= $2::text::tid and t.ctid < $3::text::tid and {}",
        aged.table(),
        aged.condition()
    );
    let done = sqlx::query(AssertSqlSafe(sql))
        .bind(aged.before(horizon).to_string())
        .bind(format!("({},0)", step.0))
        .bind(format!("({},0)", step.1))
        .execute(pool)
        .await?;
    Ok(done.rows_affected())
}

/// The beginning of one archived partition that is older than the horizon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldRecords {
    pub topic: String,
    pub partition: i32,
    /// `posicao` of the first record that stays.
    pub until: i64,
    pub records: u64,
}

/// What of each archived partition would go: everything before the first record that is young enough, or before the
/// last one where none is.
pub async fn old_records(pool: &PgPool, horizon: Timestamp) -> Result<Vec<OldRecords>, StoreError> {
    let rows = sqlx::query(
        r"with bound as (
              select topico, particao,
                     least(min(posicao) filter (where timestamp_ms is null or timestamp_ms >= $1), max(posicao)) as ate
              from evento_arquivado group by topico, particao
          )
          select b.topico, b.particao, b.ate,
                 (select count(*) from evento_arquivado a
                  where a.topico = b.topico and a.particao = b.particao and a.posicao < b.ate) as registros
          from bound b order by b.topico, b.particao",
    )
    .bind(horizon.as_millisecond())
    .fetch_all(pool)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(OldRecords {
                topic: row.try_get("topico")?,
                partition: row.try_get("particao")?,
                until: row.try_get("ate")?,
                records: u64::try_from(row.try_get::<i64, _>("registros")?).unwrap_or_default(),
            })
        })
        .collect()
}

/// Takes the next records of that beginning away; 0: nothing is left of it.
pub async fn take_records(pool: &PgPool, old: &OldRecords) -> Result<u64, StoreError> {
    let done = sqlx::query(
        "delete from evento_arquivado where posicao = any(array(
             select posicao from evento_arquivado
             where topico = $1 and particao = $2 and posicao < $3 order by posicao limit $4))",
    )
    .bind(&old.topic)
    .bind(old.partition)
    .bind(old.until)
    .bind(RECORDS_PER_STEP)
    .execute(pool)
    .await?;
    Ok(done.rows_affected())
}
