//! Sagas: claims, steps, couriers. Every write of a worker names its claim; one whose claim is over touches no row.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::StoreError;

/// What later steps need, and why it failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Context {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub courier_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vehicle_type: Option<String>,
    pub fee_cents: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_because: Option<String>,
}

/// A saga that a worker has claimed.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub id: Uuid,
    pub order_id: Uuid,
    pub tenant_id: String,
    pub ordinal: i32,
    pub state: String,
    pub step: String,
    pub context: Context,
    pub attempts: i32,
    /// Since the present step began, by the database's clock.
    pub step_age: Duration,
    pub created_at: Timestamp,
    worker: Uuid,
}

const CLAIM: &str = "
    update saga s set worker = $1, next_at = now() + $2 * interval '1 millisecond'
    where s.id = (select id from saga where state in ('started', 'compensating') and next_at <= now()
                  order by next_at limit 1 for update skip locked)
    returning s.id, s.order_id, s.tenant_id, s.ordinal, s.state, s.step, s.context, s.attempts,
              greatest(0, extract(epoch from now() - s.step_since) * 1000)::bigint as age_ms,
              (extract(epoch from s.created_at) * 1000000)::bigint as created_us";

/// Claims what has been due longest, for `lease`; `None`: nothing is due.
pub async fn claim(connection: &mut PgConnection, lease: Duration) -> Result<Option<Claimed>, StoreError> {
    let worker = Uuid::new_v4();
    let row = sqlx::query(CLAIM).bind(worker).bind(millis(lease)).fetch_optional(&mut *connection).await?;
    let Some(row) = row else { return Ok(None) };
    let Json(context) = row.try_get("context")?;
    Ok(Some(Claimed {
        id: row.try_get("id")?,
        order_id: row.try_get("order_id")?,
        tenant_id: row.try_get("tenant_id")?,
        ordinal: row.try_get("ordinal")?,
        state: row.try_get("state")?,
        step: row.try_get("step")?,
        context,
        attempts: row.try_get("attempts")?,
        step_age: duration(&row, "age_ms")?,
        created_at: instant(row.try_get("created_us")?)?,
        worker,
    }))
}

/// How the present step relates to the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another step.
    Entered,
    /// The same, an attempt more.
    Again,
    /// The same, waiting for what others will say.
    Held,
}

impl Change {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Entered => "entered",
            Self::Again => "again",
            Self::Held => "held",
        }
    }
}

/// What a worker writes of a saga: where it stands now.
#[derive(Debug, Clone)]
pub struct Next<'a> {
    pub state: &'a str,
    pub step: &'a str,
    pub context: &'a Context,
    pub change: Change,
    pub due_in: Duration,
}

const MOVE: &str = "
    update saga set state = $3, step = $4, context = $5, worker = null, updated_at = now(),
        next_at = now() + $6 * interval '1 millisecond',
        attempts = case $7 when 'entered' then 0 when 'again' then attempts + 1 else attempts end,
        step_since = case $7 when 'entered' then now() else step_since end
    where id = $1 and worker = $2";

/// Whether the claim still held.
pub async fn move_on(
    connection: &mut PgConnection,
    saga: &Claimed,
    next: &Next<'_>,
) -> Result<bool, StoreError> {
    let done = sqlx::query(MOVE)
        .bind(saga.id)
        .bind(saga.worker)
        .bind(next.state)
        .bind(next.step)
        .bind(Json(next.context))
        .bind(millis(next.due_in))
        .bind(next.change.as_str())
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

/// One line of the story.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub step: &'a str,
    pub kind: &'a str,
    pub state: &'a str,
    pub key: Option<&'a str>,
    pub note: Option<&'a str>,
}

/// Tells what happened. What was told already is not told again.
pub async fn tell(connection: &mut PgConnection, saga: Uuid, line: Line<'_>) -> Result<(), StoreError> {
    sqlx::query(
        "insert into saga_step (saga_id, step, kind, state, chave, note, at)
         values ($1, $2, $3, $4, $5, left($6, 1000), clock_timestamp())
         on conflict (saga_id, step, kind, state) do nothing",
    )
    .bind(saga)
    .bind(line.step)
    .bind(line.kind)
    .bind(line.state)
    .bind(line.key)
    .bind(line.note)
    .execute(connection)
    .await?;
    Ok(())
}

const RESERVE: &str = "
    with free as (
        select id, vehicle_type from courier where available and tenant_id = $1
        order by id limit 1 for update skip locked
    ), taken as (
        update courier c set available = false from free where c.id = free.id
        returning c.id, c.vehicle_type
    ), r as (
        insert into courier_reservation (courier_id, order_id, saga_id) select id, $2, $3 from taken
    )
    select id, vehicle_type from taken";

/// Reserves a free courier of the tenant: id and vehicle; `None`: there is none now. One that this saga has already is
/// found again.
pub async fn reserve(
    connection: &mut PgConnection,
    saga: &Claimed,
) -> Result<Option<(String, String)>, StoreError> {
    let own = sqlx::query(
        "select c.id, c.vehicle_type from courier_reservation r join courier c on c.id = r.courier_id
         where r.saga_id = $1",
    );
    let row = match own.bind(saga.id).fetch_optional(&mut *connection).await? {
        Some(row) => Some(row),
        None => {
            sqlx::query(RESERVE)
                .bind(&saga.tenant_id)
                .bind(saga.order_id)
                .bind(saga.id)
                .fetch_optional(connection)
                .await?
        }
    };
    let read =
        |row: PgRow| -> Result<(String, String), sqlx::Error> { Ok((row.try_get(0)?, row.try_get(1)?)) };
    Ok(row.map(read).transpose()?)
}

/// Gives the courier of this saga back; none is none.
pub async fn release(connection: &mut PgConnection, saga: Uuid) -> Result<(), StoreError> {
    sqlx::query(
        "with gone as (delete from courier_reservation where saga_id = $1 returning courier_id)
         update courier c set available = true from gone where c.id = gone.courier_id",
    )
    .bind(saga)
    .execute(connection)
    .await?;
    Ok(())
}

const BEGIN: &str = "
    insert into saga (id, name, order_id, tenant_id, ordinal, state, step, context)
    select $1, $2, $3, $4, 1 + coalesce(max(ordinal), 0), 'started', $5, $6
    from saga where order_id = $3 and name = $2
    on conflict do nothing
    returning id";

/// The saga of an order that runs or has succeeded.
pub async fn standing(
    connection: &mut PgConnection,
    name: &str,
    order_id: Uuid,
) -> Result<Option<Uuid>, StoreError> {
    let found =
        sqlx::query_scalar("select id from saga where order_id = $1 and name = $2 and state <> 'failed'");
    Ok(found.bind(order_id).bind(name).fetch_optional(connection).await?)
}

/// Begins a saga for an order, or finds the one that runs or has succeeded.
pub async fn begin(
    connection: &mut PgConnection,
    name: &str,
    order_id: Uuid,
    tenant_id: &str,
    first_step: &str,
    context: &Context,
) -> Result<Uuid, StoreError> {
    loop {
        if let Some(id) = standing(&mut *connection, name, order_id).await? {
            return Ok(id);
        }
        let begun: Option<Uuid> = sqlx::query_scalar(BEGIN)
            .bind(Uuid::now_v7())
            .bind(name)
            .bind(order_id)
            .bind(tenant_id)
            .bind(first_step)
            .bind(Json(context))
            .fetch_optional(&mut *connection)
            .await?;
        if let Some(id) = begun {
            let line = Line { step: first_step, kind: "action", state: "started", key: None, note: None };
            tell(connection, id, line).await?;
            return Ok(id);
        }
    }
}

/// A saga as people and programs see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shown {
    pub id: Uuid,
    pub name: String,
    pub order_id: Uuid,
    pub tenant_id: String,
    pub state: String,
    pub step: String,
    pub attempts: i32,
    pub next_at: String,
    pub created_at: String,
    pub updated_at: String,
    pub context: Context,
}

/// One line of the story, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ShownStep {
    pub step: String,
    pub kind: String,
    pub state: String,
    pub at: String,
    #[serde(rename = "chave")]
    pub key: Option<String>,
    pub note: Option<String>,
}

macro_rules! instant {
    ($column:literal) => {
        concat!("to_char(", $column, " at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
    };
}

macro_rules! shown_columns {
    () => {
        concat!(
            "id, name, order_id, tenant_id, state, step, attempts, context, ",
            instant!("next_at"),
            " as next_text, ",
            instant!("created_at"),
            " as created_text, ",
            instant!("updated_at"),
            " as updated_text"
        )
    };
}

fn shown(row: &PgRow) -> Result<Shown, sqlx::Error> {
    let Json(context) = row.try_get("context")?;
    Ok(Shown {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        order_id: row.try_get("order_id")?,
        tenant_id: row.try_get("tenant_id")?,
        state: row.try_get("state")?,
        step: row.try_get("step")?,
        attempts: row.try_get("attempts")?,
        next_at: row.try_get("next_text")?,
        created_at: row.try_get("created_text")?,
        updated_at: row.try_get("updated_text")?,
        context,
    })
}

/// One saga with its story, in order.
pub async fn find(
    connection: &mut PgConnection,
    id: Uuid,
) -> Result<Option<(Shown, Vec<ShownStep>)>, StoreError> {
    let row = sqlx::query(concat!("select ", shown_columns!(), " from saga where id = $1"))
        .bind(id)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = row else { return Ok(None) };
    let rows = sqlx::query(concat!(
        "select step, kind, state, chave, note, ",
        instant!("at"),
        " as at_text from saga_step where saga_id = $1 order by id"
    ))
    .bind(id)
    .fetch_all(connection)
    .await?;
    let line = |row: &PgRow| -> Result<ShownStep, sqlx::Error> {
        Ok(ShownStep {
            step: row.try_get("step")?,
            kind: row.try_get("kind")?,
            state: row.try_get("state")?,
            at: row.try_get("at_text")?,
            key: row.try_get("chave")?,
            note: row.try_get("note")?,
        })
    };
    Ok(Some((shown(&row)?, rows.iter().map(line).collect::<Result<_, _>>()?)))
}

/// Which sagas to list.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    pub state: Option<&'a str>,
    pub order_id: Option<Uuid>,
    pub tenant_id: Option<&'a str>,
    /// Older than this one; ids rise with time.
    pub before: Option<Uuid>,
}

/// Sagas, newest first.
pub async fn list(
    connection: &mut PgConnection,
    wanted: Wanted<'_>,
    limit: i64,
) -> Result<Vec<Shown>, StoreError> {
    let rows = sqlx::query(concat!(
        "select ",
        shown_columns!(),
        " from saga where ($1::text is null or state = $1) and ($2::uuid is null or order_id = $2)
          and ($3::uuid is null or id < $3) and ($4::text is null or tenant_id = $4) order by id desc limit $5"
    ))
    .bind(wanted.state)
    .bind(wanted.order_id)
    .bind(wanted.before)
    .bind(wanted.tenant_id)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| shown(row).map_err(StoreError::from)).collect()
}

/// Makes a saga due now, unless it has ended. Whether there was one.
pub async fn retry(connection: &mut PgConnection, id: Uuid) -> Result<bool, StoreError> {
    let done = sqlx::query(
        "update saga set next_at = now() where id = $1 and state in ('started', 'compensating')
         and (worker is null or next_at <= now())",
    )
    .bind(id)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// What runs, for the gauges.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Running {
    pub started: i64,
    pub compensating: i64,
    /// Of those that have not ended.
    pub oldest: Duration,
    /// The most attempts that an undoing has behind it.
    pub undo_attempts: i64,
}

pub async fn running(connection: &mut PgConnection) -> Result<Running, StoreError> {
    let row = sqlx::query(
        "select count(*) filter (where state = 'started') as started,
                count(*) filter (where state = 'compensating') as compensating,
                coalesce(extract(epoch from now() - min(created_at)) * 1000, 0)::bigint as oldest_ms,
                coalesce(max(attempts) filter (where state = 'compensating'), 0)::bigint as undo_attempts
         from saga where state in ('started', 'compensating')",
    )
    .fetch_one(connection)
    .await?;
    Ok(Running {
        started: row.try_get("started")?,
        compensating: row.try_get("compensating")?,
        oldest: duration(&row, "oldest_ms")?,
        undo_attempts: row.try_get("undo_attempts")?,
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(row: &PgRow, column: &str) -> Result<Duration, sqlx::Error> {
    Ok(Duration::from_millis(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0)))
}

fn instant(micros: i64) -> Result<Timestamp, StoreError> {
    let unreadable = |error: jiff::Error| StoreError::Broken(sqlx::Error::Decode(error.to_string().into()));
    Timestamp::from_microsecond(micros).map_err(unreadable)
}
