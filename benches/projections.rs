//! `make bench-projections`: read models on a real Postgres: following, and a rebuild beside live writes.
//!
//! Sizes: `EVENTS` (600,000; the goal is 10,000,000 in 100 s and 256 MB on two cores), `SHARDS` (2), `LIVE` events a
//! second that come in meanwhile (500), `OPEN` orders under way at one time (20,000), `ONLY` one projection.
//! `PLOT=file.svg` draws the rebuild of the first one: what it has, and how far readers' own generation is behind.
//! Server: `REPRISE_TEST_PG`, else that of `make up`. No assertion on time; that the rebuilt rows equal the followed
//! ones is asserted.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reprise::metrics::Metrics;
use reprise::pg::connect::Database;
use reprise::pg::demo::fresh_database;
use reprise::pg::projections as store;
use reprise::pg::schema;
use reprise::projections::runner::{self, Settings};
use reprise::projections::{Name, steer};
use reprise::run::rebuild;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio_util::sync::CancellationToken;

// As the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LIMIT: Duration = Duration::from_mins(20);

/// Six events an order, whose lives overlap: while one comes to its next step, `OPEN` / 6 others begin.
const HISTORY: &str = r"
    insert into order_events (stream_id, version, type, payload, metadata, ts)
    select md5(o::text)::uuid, step + 1,
           (array['OrderPlaced','OrderPaid','CourierAssigned','PickedUp','OutForDelivery','Delivered'])[step + 1],
           case step
               when 0 then jsonb_build_object('customerId', 'c' || o % 9973, 'sellerId', 'v' || o % 997,
                    'commissionPercent', '5', 'items', jsonb_build_array(jsonb_build_object(
                    'sku', 'livro', 'quantity', 1 + o % 5, 'unitPriceCents', 1000 + o % 9000)))
               when 1 then jsonb_build_object('sellerId', 'v' || o % 997, 'commissionPercent', '5',
                    'amountCents', (1 + o % 5) * (1000 + o % 9000))
               when 2 then jsonb_build_object('courierId', 'k' || o % 499, 'vehicleType', 'bike')
               else '{}'::jsonb end,
           jsonb_build_object('event_id', gen_random_uuid(), 'command_id', step::text, 'tenant_id', 't' || o % 20,
                              'schema_version', case step when 2 then 2 else 1 end, 'actor', 'bench',
                              'traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'),
           now()
    from (select slot - step * $3 as o, step
          from generate_series($1::bigint, $2::bigint) as slot, generate_series(0, 5) as step order by slot, step) as s
    where o >= 0";

fn size(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() -> Result<(), Failure> {
    // As the binary: one thread, and the clients' own.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<(), Failure> {
    let postgres =
        std::env::var("REPRISE_TEST_PG").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:25432".to_owned());
    let name = format!("bench_projections_{}", std::process::id());
    let url = fresh_database(&postgres, &name).await?;
    let database = Database::new(&url, 8)?;
    schema::migrate(&database).await?;
    let measured = measure(&database).await;
    let mut admin = PgConnection::connect(&format!("{postgres}/postgres")).await?;
    sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
    measured
}

async fn measure(database: &Database) -> Result<(), Failure> {
    let (events, live) = (size("EVENTS", 600_000), size("LIVE", 500));
    let mut connection = database.plain().await?;
    write_history(&mut connection, i64::try_from(events / 6)?).await?;
    let written: i64 =
        sqlx::query_scalar("select count(*) from order_events").fetch_one(&mut connection).await?;

    let stop = CancellationToken::new();
    let settings = Settings { batch: 1_000, poll_interval: Duration::from_millis(100) };
    let metrics = Arc::new(Metrics::new([])?);
    let begun = Instant::now();
    let following = tokio::spawn(runner::run(database.clone(), settings, metrics, stop.clone()));
    let limit = Instant::now() + LIMIT;
    while behind(database, None).await?.0 > 0 {
        if Instant::now() > limit || following.is_finished() {
            return Err("the runner did not come to the tip".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!(
        "follow    {written} events, three projections, from the first to the tip: {:.0} events/s each",
        per_second(written, begun.elapsed())
    );

    let writing = tokio::spawn(write_live(database.clone(), live, stop.clone()));
    let only = std::env::var("ONLY").ok();
    let mut plot = std::env::var("PLOT").ok();
    for name in Name::ALL.into_iter().filter(|name| only.as_deref().is_none_or(|only| only == name.as_str()))
    {
        rebuild(database, name, plot.take()).await?;
    }
    println!(
        "memory    {:.0} MB at most, of this process: the runner, the rebuild and the writer",
        peak_mb()?
    );
    stop.cancel();
    following.await?;
    writing.await??;
    Ok(())
}

async fn write_history(connection: &mut PgConnection, orders: i64) -> Result<(), Failure> {
    const SLICE: i64 = 100_000;
    let lead = i64::try_from(size("OPEN", 20_000) / 6)?;
    let mut from = 0;
    while from < orders + 5 * lead {
        let to = (from + SLICE).min(orders + 5 * lead) - 1;
        let sql = format!("{HISTORY} and o < {orders}");
        sqlx::query(AssertSqlSafe(sql)).bind(from).bind(to).bind(lead).execute(&mut *connection).await?;
        from = to + 1;
    }
    sqlx::query("vacuum analyze order_events").execute(connection).await?;
    Ok(())
}

/// Single events, each in a transaction of its own, as the desk appends them.
async fn write_live(database: Database, per_second: u64, stop: CancellationToken) -> Result<(), Failure> {
    let mut connection = database.plain().await?;
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(per_second.max(1))?);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        if per_second == 0 {
            continue;
        }
        sqlx::query(
            r#"insert into order_events (stream_id, version, type, payload, metadata)
               values (gen_random_uuid(), 1, 'OrderPlaced',
                       '{"customerId":"c","sellerId":"v","commissionPercent":"5","items":[{"sku":"a","quantity":1,"unitPriceCents":100}]}',
                       jsonb_build_object('event_id', gen_random_uuid(), 'command_id', 'c', 'tenant_id', 't1', 'schema_version', 1))"#,
        )
        .execute(&mut connection)
        .await?;
    }
    Ok(())
}

async fn rebuild(database: &Database, name: Name, plot: Option<String>) -> Result<(), Failure> {
    let shards = i32::try_from(size("SHARDS", 2))?;
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    let new = rebuild::begin(database, name, shards, None).await?;
    let mut points: Vec<(f64, i64, i64)> = Vec::new();
    let done = CancellationToken::new();
    let watching = tokio::spawn(watch(database.clone(), name, done.clone()));
    let show = |seen: rebuild::Seen| points.push((begun.elapsed().as_secs_f64(), seen.done, seen.total));
    new.build(database, None, None, show).await?;
    let (took, used) = (begun.elapsed(), cpu_seconds()? - cpu);
    done.cancel();
    let lags = watching.await??;
    let mut connection = database.plain().await?;
    let events: i64 =
        sqlx::query_scalar("select count(*) from order_events").fetch_one(&mut connection).await?;
    let (_, _, different) = steer::compare(&mut connection, name, Some(new.generation)).await?;
    assert_eq!(different, 0, "what was rebuilt equals what was followed");
    let mut sorted: Vec<f64> = lags.iter().map(|(_, seconds)| *seconds).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let p99 = sorted.get(sorted.len() * 99 / 100).or(sorted.last()).copied().unwrap_or(0.0);
    println!(
        "rebuild   {:<20} {events} events in {:.1} s: {:.0} events/s, {:.1} us CPU of this process each; \
         the followed one was at most {:.2} s behind (p99 {p99:.2} s)",
        name.as_str(),
        took.as_secs_f64(),
        per_second(events, took),
        used * 1e6 / float(events),
        sorted.last().copied().unwrap_or(0.0),
    );
    if let Some(path) = plot {
        std::fs::write(path, drawn(&points, &lags))?;
    }
    Ok(())
}

/// (seconds since the beginning, seconds behind) of the generation that readers see.
async fn watch(database: Database, name: Name, done: CancellationToken) -> Result<Vec<(f64, f64)>, Failure> {
    let (begun, mut seen) = (Instant::now(), Vec::new());
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    while done.run_until_cancelled(tick.tick()).await.is_some() {
        seen.push((begun.elapsed().as_secs_f64(), behind(&database, Some(name)).await?.1));
    }
    Ok(seen)
}

/// (events, seconds) of the active generations, or of one.
async fn behind(database: &Database, name: Option<Name>) -> Result<(i64, f64), Failure> {
    let mut connection = database.pool().acquire().await?;
    let lags = store::lags(&mut connection).await?;
    let wanted =
        lags.iter().filter(|lag| lag.state == "active" && name.is_none_or(|name| name.as_str() == lag.name));
    Ok(wanted
        .fold((0, 0.0), |(events, seconds), lag| (events.max(lag.lag_events), seconds.max(lag.lag_seconds))))
}

/// The rebuild as a picture: above, events in it and events there are; below, how far behind readers are meanwhile.
fn drawn(points: &[(f64, i64, i64)], lags: &[(f64, f64)]) -> String {
    let end = points.last().map_or(1.0, |point| point.0).max(lags.last().map_or(1.0, |lag| lag.0)).max(0.1);
    let top = points.iter().map(|point| float(point.2)).fold(1.0, f64::max);
    let worst = lags.iter().map(|lag| lag.1).fold(0.5, f64::max);
    let x = |seconds: f64| 70.0 + seconds / end * 610.0;
    let line = |colour: &str, at: Vec<(f64, f64)>| {
        let mut path = String::new();
        for (x, y) in at {
            write!(path, "{x:.1},{y:.1} ").unwrap_or_default();
        }
        format!("<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{path}\"/>")
    };
    let above = |events: i64| 180.0 - float(events) / top * 150.0;
    let there = line("#888", points.iter().map(|p| (x(p.0), above(p.2))).collect());
    let have = line("#0a6", points.iter().map(|p| (x(p.0), above(p.1))).collect());
    let lag = line("#c40", lags.iter().map(|l| (x(l.0), 300.0 - l.1 / worst * 80.0)).collect());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 700 330\" font-family=\"sans-serif\" font-size=\"12\">\
         <rect width=\"700\" height=\"330\" fill=\"white\"/>\
         <text x=\"70\" y=\"18\">events: there (grey), in the new generation (green)</text>{there}{have}\
         <text x=\"10\" y=\"36\">{:.1} M</text><text x=\"10\" y=\"184\">0</text>\
         <text x=\"70\" y=\"212\">seconds that the generation which readers see is behind (red)</text>{lag}\
         <text x=\"10\" y=\"226\">{worst:.2} s</text><text x=\"10\" y=\"304\">0</text>\
         <line x1=\"70\" y1=\"180\" x2=\"680\" y2=\"180\" stroke=\"#ccc\"/><line x1=\"70\" y1=\"300\" x2=\"680\" y2=\"300\" stroke=\"#ccc\"/>\
         <text x=\"70\" y=\"320\">0 s</text><text x=\"680\" y=\"320\" text-anchor=\"end\">{end:.0} s</text></svg>\n",
        top / 1e6
    )
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bench are far below 2^52")]
const fn float(count: i64) -> f64 {
    count as f64
}

fn per_second(events: i64, within: Duration) -> f64 {
    float(events) / within.as_secs_f64()
}

/// User and system time of this process.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(')').ok_or("no process name in /proc/self/stat")?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}

fn peak_mb() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse::<f64>()? / 1024.0)
}
