//! Windows: counts, sessions and the offsets beside them. Every write names the epoch of whoever may write.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::json;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::error::StoreError;
use super::outbox;
use crate::domain::message::{Destination, Message, header};
use crate::windows::kpi::Placed;
use crate::windows::presence::{Heard, silences};
use crate::windows::{Clock, Rejected};

/// Where a consumer stands in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub partition: i32,
    pub next: i64,
    pub clock: Clock,
}

/// A place that moves: only from where it is thought to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub from: i64,
    pub to: Place,
}

const CLAIM: &str = "
    insert into window_position as w (consumer, topic, partition, next, epoch)
    select $1, $2, p, -1, $4 from unnest($3::int[]) as p order by p
    on conflict (consumer, topic, partition) do update set epoch = excluded.epoch, updated_at = now()
    returning w.partition, w.next, (extract(epoch from w.watermark) * 1000000)::bigint as watermark_us";

/// Becomes the one who may write these partitions. `next` below 0: nothing was read of it yet.
pub async fn claim(
    connection: &mut PgConnection,
    consumer: &str,
    topic: &str,
    partitions: &[i32],
    epoch: Uuid,
) -> Result<Vec<Place>, StoreError> {
    let rows = sqlx::query(CLAIM)
        .bind(consumer)
        .bind(topic)
        .bind(partitions)
        .bind(epoch)
        .fetch_all(connection)
        .await?;
    rows.iter().map(place).collect()
}

fn place(row: &PgRow) -> Result<Place, StoreError> {
    let watermark: Option<i64> = row.try_get("watermark_us")?;
    Ok(Place {
        partition: row.try_get("partition")?,
        next: row.try_get("next")?,
        clock: Clock { watermark: watermark.map(instant).transpose()? },
    })
}

/// The place of a partition that was claimed under `epoch`; `None`: somebody else has claimed it since.
pub async fn claimed(
    connection: &mut PgConnection,
    consumer: &str,
    topic: &str,
    partition: i32,
    epoch: Uuid,
) -> Result<Option<Place>, StoreError> {
    let row = sqlx::query(
        "select partition, next, (extract(epoch from watermark) * 1000000)::bigint as watermark_us
         from window_position where consumer = $1 and topic = $2 and partition = $3 and epoch = $4",
    )
    .bind(consumer)
    .bind(topic)
    .bind(partition)
    .bind(epoch)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(place).transpose()
}

const REACH: &str = "
    update window_position w
    set next = x.next, updated_at = now(),
        watermark = case when x.watermark is null then w.watermark
                         else timestamptz 'epoch' + x.watermark * interval '1 microsecond' end
    from (select * from unnest($4::int[], $5::bigint[], $6::bigint[], $7::bigint[]) as u(partition, next, watermark, start)
          order by 1) as x
    where w.consumer = $1 and w.topic = $2 and w.epoch = $3 and w.partition = x.partition and w.next = x.start
    returning w.partition";

/// Moves these places, in the transaction of what was counted, and says which: the others are somebody else's now, or
/// were never where they are thought to be.
pub async fn reach(
    connection: &mut PgConnection,
    consumer: &str,
    topic: &str,
    epoch: Uuid,
    steps: &[Step],
) -> Result<Vec<i32>, StoreError> {
    let watermark = |step: &Step| step.to.clock.watermark.map(Timestamp::as_microsecond);
    let moved = sqlx::query_scalar(REACH)
        .bind(consumer)
        .bind(topic)
        .bind(epoch)
        .bind(steps.iter().map(|step| step.to.partition).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.to.next).collect::<Vec<_>>())
        .bind(steps.iter().map(watermark).collect::<Vec<_>>())
        .bind(steps.iter().map(|step| step.from).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    Ok(moved)
}

/// Lists what could not be read.
pub async fn reject(
    connection: &mut PgConnection,
    consumer: &str,
    topic: &str,
    rejected: &[Rejected],
) -> Result<(), StoreError> {
    if rejected.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "insert into window_rejected (consumer, topic, partition, \"offset\", reason)
         select $1, $2, p, o, left(r, 1000) from unnest($3::int[], $4::bigint[], $5::text[]) as u(p, o, r)
         on conflict do nothing",
    )
    .bind(consumer)
    .bind(topic)
    .bind(rejected.iter().map(|one| one.partition).collect::<Vec<_>>())
    .bind(rejected.iter().map(|one| one.offset).collect::<Vec<_>>())
    .bind(rejected.iter().map(|one| one.reason.replace('\0', " ")).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

const COUNT: &str = "
    with new as (
        insert into kpi_order (order_id, tenant_id, placed_at, amount_cents)
        select id, tenant, timestamptz 'epoch' + at * interval '1 microsecond', cents
        from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) as u(id, tenant, at, cents) order by id
        on conflict do nothing
        returning tenant_id, placed_at, amount_cents
    ), minutes as (
        insert into kpi_orders_per_minute as k (tenant_id, window_start, orders, amount_cents)
        select tenant_id, date_trunc('minute', placed_at, 'UTC'), count(*), sum(amount_cents)::bigint
        from new group by 1, 2 order by 1, 2
        on conflict (tenant_id, window_start) do update
        set orders = k.orders + excluded.orders, amount_cents = k.amount_cents + excluded.amount_cents
    ), hours as (
        insert into kpi_orders_hour as k (tenant_id, window_start, orders, amount_cents)
        select tenant_id, date_bin('5 minutes', placed_at, timestamptz 'epoch') - n * interval '5 minutes',
               count(*), sum(amount_cents)::bigint
        from new cross join generate_series(0, 11) as n group by 1, 2 order by 1, 2
        on conflict (tenant_id, window_start) do update
        set orders = k.orders + excluded.orders, amount_cents = k.amount_cents + excluded.amount_cents
    )
    select count(*) from new";

const LATE: &str = "
    insert into kpi_late (order_id, tenant_id, placed_at, amount_cents, watermark)
    select id, tenant, timestamptz 'epoch' + at * interval '1 microsecond', cents,
           timestamptz 'epoch' + clock * interval '1 microsecond'
    from unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[]) as u(id, tenant, at, cents, clock)
    where not exists (select 1 from kpi_order k where k.order_id = u.id)
    order by id on conflict do nothing";

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    pub orders: u64,
    pub late: u64,
}

/// Counts each order once, into its minute and its hours; late ones are listed instead.
pub async fn count(connection: &mut PgConnection, placed: &[Placed]) -> Result<Counted, StoreError> {
    let mut counted = Counted::default();
    let (late, timely): (Vec<&Placed>, Vec<&Placed>) =
        placed.iter().partition(|placed| placed.late_for.is_some());
    if !timely.is_empty() {
        let orders: i64 = bind_placed(sqlx::query_scalar(COUNT), &timely).fetch_one(&mut *connection).await?;
        counted.orders = u64::try_from(orders).unwrap_or(0);
    }
    if !late.is_empty() {
        let clocks: Vec<Option<i64>> =
            late.iter().map(|placed| placed.late_for.map(Timestamp::as_microsecond)).collect();
        let done = sqlx::query(LATE)
            .bind(late.iter().map(|placed| placed.order_id).collect::<Vec<_>>())
            .bind(late.iter().map(|placed| placed.tenant_id.as_str()).collect::<Vec<_>>())
            .bind(late.iter().map(|placed| placed.at.as_microsecond()).collect::<Vec<_>>())
            .bind(late.iter().map(|placed| placed.amount_cents).collect::<Vec<_>>())
            .bind(clocks)
            .execute(connection)
            .await?;
        counted.late = done.rows_affected();
    }
    Ok(counted)
}

type Scalar<'q> = sqlx::query::QueryScalar<'q, sqlx::Postgres, i64, sqlx::postgres::PgArguments>;

fn bind_placed<'q>(query: Scalar<'q>, placed: &[&Placed]) -> Scalar<'q> {
    query
        .bind(placed.iter().map(|placed| placed.order_id).collect::<Vec<_>>())
        .bind(placed.iter().map(|placed| placed.tenant_id.clone()).collect::<Vec<_>>())
        .bind(placed.iter().map(|placed| placed.at.as_microsecond()).collect::<Vec<_>>())
        .bind(placed.iter().map(|placed| placed.amount_cents).collect::<Vec<_>>())
}

/// Writes the heartbeats of a batch: who was silent for too long, who is back, who was seen last when.
pub async fn hear<'a>(
    connection: &mut PgConnection,
    heard: impl Iterator<Item = (&'a String, &'a Heard)>,
    offline_after: SignedDuration,
) -> Result<(), StoreError> {
    let heard: Vec<(&String, &Heard)> = heard.collect();
    let ids: Vec<&str> = heard.iter().map(|(id, _)| id.as_str()).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let rows = sqlx::query(
        "select courier_id, (extract(epoch from last_seen_at) * 1000000)::bigint as seen_us, offline
         from courier_seen where courier_id = any($1) order by courier_id for update",
    )
    .bind(&ids)
    .fetch_all(&mut *connection)
    .await?;
    let mut seen: HashMap<String, (Timestamp, bool)> = HashMap::new();
    for row in &rows {
        seen.insert(row.try_get("courier_id")?, (instant(row.try_get("seen_us")?)?, row.try_get("offline")?));
    }
    let mut messages = Vec::new();
    for (id, heard) in &heard {
        let last = seen.get(*id).copied();
        let new = heard.at.iter().find(|at| last.is_none_or(|(last, _)| **at > last));
        if let (Some((last, true)), Some(back)) = (last, new) {
            // It was told to be offline: this heartbeat ends that, whenever it was made.
            back_again(&mut *connection, id, last, *back).await?;
            messages.push(told(id, &heard.tenant_id, last, Some(*back)));
        }
        for (since, until) in silences(last.map(|(last, _)| last), &heard.at, offline_after) {
            if last.is_some_and(|(last, offline)| offline && last == since) {
                continue;
            }
            silent(&mut *connection, id, &heard.tenant_id, since, Some(until)).await?;
            messages.push(told(id, &heard.tenant_id, since, None));
            messages.push(told(id, &heard.tenant_id, since, Some(until)));
        }
    }
    let latest = |heard: &Heard| heard.at.iter().max().map(|at| at.as_microsecond());
    sqlx::query(
        "insert into courier_seen as s (courier_id, tenant_id, partition, last_seen_at)
         select id, tenant, p, timestamptz 'epoch' + at * interval '1 microsecond'
         from unnest($1::text[], $2::text[], $3::int[], $4::bigint[]) as u(id, tenant, p, at) order by id
         on conflict (courier_id) do update
         set tenant_id = excluded.tenant_id, partition = excluded.partition,
             offline = s.offline and excluded.last_seen_at <= s.last_seen_at,
             last_seen_at = greatest(s.last_seen_at, excluded.last_seen_at)",
    )
    .bind(&ids)
    .bind(heard.iter().map(|(_, heard)| heard.tenant_id.as_str()).collect::<Vec<_>>())
    .bind(heard.iter().map(|(_, heard)| heard.partition).collect::<Vec<_>>())
    .bind(heard.iter().map(|(_, heard)| latest(heard)).collect::<Vec<_>>())
    .execute(&mut *connection)
    .await?;
    if messages.is_empty() { Ok(()) } else { outbox::add(connection, &messages).await }
}

async fn silent(
    connection: &mut PgConnection,
    courier: &str,
    tenant: &str,
    since: Timestamp,
    until: Option<Timestamp>,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into courier_offline (courier_id, tenant_id, last_seen_at, back_at)
         values ($1, $2, timestamptz 'epoch' + $3 * interval '1 microsecond',
                 timestamptz 'epoch' + $4 * interval '1 microsecond')
         on conflict (courier_id, last_seen_at) do nothing",
    )
    .bind(courier)
    .bind(tenant)
    .bind(since.as_microsecond())
    .bind(until.map(Timestamp::as_microsecond))
    .execute(connection)
    .await?;
    Ok(())
}

async fn back_again(
    connection: &mut PgConnection,
    courier: &str,
    since: Timestamp,
    back: Timestamp,
) -> Result<(), StoreError> {
    sqlx::query(
        "update courier_offline set back_at = timestamptz 'epoch' + $3 * interval '1 microsecond'
         where courier_id = $1 and last_seen_at = timestamptz 'epoch' + $2 * interval '1 microsecond'
           and back_at is null",
    )
    .bind(courier)
    .bind(since.as_microsecond())
    .bind(back.as_microsecond())
    .execute(connection)
    .await?;
    Ok(())
}

/// Couriers told about in one look.
const LOOK_MAX: i64 = 1_000;

const SILENT: &str = "
    with due as (
        select s.courier_id from courier_seen s
        join unnest($1::int[], $2::bigint[]) as h(partition, clock) on h.partition = s.partition
        where not s.offline and s.last_seen_at < least(now(), coalesce(timestamptz 'epoch' + h.clock * interval '1 microsecond', now()))
                                                 - $3 * interval '1 millisecond'
        order by s.courier_id limit $4 for update of s skip locked
    ), told as (
        update courier_seen s set offline = true from due where s.courier_id = due.courier_id
        returning s.courier_id, s.tenant_id, s.last_seen_at
    ), listed as (
        insert into courier_offline (courier_id, tenant_id, last_seen_at)
        select courier_id, tenant_id, last_seen_at from told on conflict do nothing
    )
    select courier_id, tenant_id, (extract(epoch from last_seen_at) * 1000000)::bigint as seen_us from told";

/// Lists couriers of these partitions that have been silent for longer than `offline_after`, and tells about them. A
/// partition's clock is its watermark while it is behind its log, and the database's (`None`) once it has caught up.
pub async fn look_for_silence(
    connection: &mut PgConnection,
    clocks: &[(i32, Option<Timestamp>)],
    offline_after: SignedDuration,
) -> Result<usize, StoreError> {
    let rows = sqlx::query(SILENT)
        .bind(clocks.iter().map(|(partition, _)| *partition).collect::<Vec<_>>())
        .bind(clocks.iter().map(|(_, clock)| clock.map(Timestamp::as_microsecond)).collect::<Vec<_>>())
        .bind(i64::try_from(offline_after.as_millis()).unwrap_or(i64::MAX))
        .bind(LOOK_MAX)
        .fetch_all(&mut *connection)
        .await?;
    let message = |row: &PgRow| -> Result<Message, StoreError> {
        let (id, tenant): (String, String) = (row.try_get("courier_id")?, row.try_get("tenant_id")?);
        Ok(told(&id, &tenant, instant(row.try_get("seen_us")?)?, None))
    };
    let messages = rows.iter().map(message).collect::<Result<Vec<_>, _>>()?;
    if !messages.is_empty() {
        outbox::add(connection, &messages).await?;
    }
    Ok(messages.len())
}

fn told(courier: &str, tenant: &str, last_seen: Timestamp, back: Option<Timestamp>) -> Message {
    let id = Uuid::now_v7();
    let event_type = if back.is_some() { "CourierBack" } else { "CourierOffline" };
    let headers = [
        (header::MESSAGE_ID, id.to_string()),
        (header::EVENT_TYPE, event_type.to_owned()),
        (header::SCHEMA_VERSION, "1".to_owned()),
        (header::TENANT_ID, tenant.to_owned()),
    ];
    let status = if back.is_some() { "online" } else { "offline" };
    let mut payload =
        json!({ "courierId": courier, "tenantId": tenant, "status": status, "lastSeenAt": last_seen });
    if let Some(back) = back {
        payload["backAt"] = json!(back);
    }
    Message {
        id,
        destination: Destination::CourierStatus,
        aggregate_type: "courier",
        aggregate_id: courier.to_owned(),
        event_type: event_type.to_owned(),
        payload,
        headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

/// Forgets what is older than the retention, a bounded part at a time: state that only recognises repetitions, and
/// windows that nobody looks at any more.
pub async fn expire(connection: &mut PgConnection, older_than: SignedDuration) -> Result<u64, StoreError> {
    let mut gone = 0;
    for sql in [
        "delete from kpi_order where order_id in (select order_id from kpi_order
            where placed_at < now() - $1 * interval '1 second' limit 100000)",
        "delete from kpi_orders_per_minute where window_start < now() - $1 * interval '1 second'",
        "delete from kpi_orders_hour where window_start < now() - $1 * interval '1 second'",
        "delete from kpi_late where seen_at < now() - $1 * interval '1 second'",
        "delete from window_rejected where seen_at < now() - $1 * interval '1 second'",
        "delete from courier_offline where back_at < now() - $1 * interval '1 second'",
    ] {
        gone += sqlx::query(sql).bind(older_than.as_secs()).execute(&mut *connection).await?.rows_affected();
    }
    Ok(gone)
}

/// How far a consumer of windows is, in one partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    pub consumer: String,
    pub topic: String,
    pub partition: i32,
    pub next: i64,
    pub watermark: Option<String>,
    pub late: i64,
    pub rejected: i64,
}

/// Every partition that was ever read.
pub async fn progress(connection: &mut PgConnection) -> Result<Vec<Progress>, StoreError> {
    let rows = sqlx::query(
        r#"select w.consumer, w.topic, w.partition, w.next,
                  to_char(w.watermark at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as watermark_text,
                  case when w.consumer = 'kpi' then (select count(*) from kpi_late) else 0 end as late,
                  (select count(*) from window_rejected r where r.consumer = w.consumer and r.topic = w.topic
                      and r.partition = w.partition) as rejected
           from window_position w order by 1, 2, 3"#,
    )
    .fetch_all(connection)
    .await?;
    let read = |row: &PgRow| -> Result<Progress, StoreError> {
        Ok(Progress {
            consumer: row.try_get("consumer")?,
            topic: row.try_get("topic")?,
            partition: row.try_get("partition")?,
            next: row.try_get("next")?,
            watermark: row.try_get("watermark_text")?,
            late: row.try_get("late")?,
            rejected: row.try_get("rejected")?,
        })
    };
    rows.iter().map(read).collect()
}

fn instant(micros: i64) -> Result<Timestamp, StoreError> {
    let unreadable = |error: jiff::Error| StoreError::Broken(sqlx::Error::Decode(error.to_string().into()));
    Timestamp::from_microsecond(micros).map_err(unreadable)
}
