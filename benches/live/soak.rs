//! `make soak MINUTES=...`: a steady rate with replays beside it, for as long as one likes; fails when something drifts.
//!
//! `MINUTES` (5), `RATE` (1,000 new events a second). One replay after the other goes over the last minutes, so
//! the ledger is read and written at once. A line is printed ten times over the whole. At the end the last third is
//! held against the middle one (the first warms up): memory, bytes per row, dead rows and the median latency may not
//! have grown by half. A drift that small over that time would still be found by a longer run.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use reprise::stream::produce::NewRecord;
use sqlx::{PgPool, Row as _};
use tokio::time::MissedTickBehavior;

use crate::support::events::{Ids, orders_from, record};
use crate::support::provider::PROVIDER_TIME;
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{self, Live, Settings};
use crate::support::{Failure, as_f64, cost, size};

const LINES: u32 = 30;
/// What may not have grown by more than this factor, and how much of it is noise.
const GROWTH_MAX: f64 = 1.5;
const WATCHED: [(&str, f64); 4] =
    [("rss_mb", 20.0), ("bytes_per_row", 200.0), ("dead_rows", 20_000.0), ("p50_ms", 5.0)];

pub async fn all(bench: &mut Bench) -> Result<Report, Failure> {
    let whole = Duration::from_secs(60 * size("MINUTES", 5) as u64);
    let rate = size("RATE", 1000);
    let topic = bench.empty_topic("soak").await?;
    let database = bench.database("reprise_bench_soak").await?;
    let settings = Settings::new(&topic, &topic, &database, 256);
    let pool = PgPool::connect(&database).await?;
    let live = Live::start(bench, &settings)?;
    live.ready().await?;
    let mut replays = Replays { settings, running: None, done: 0 };
    let mut report = Report::new("soak");
    let begun = Instant::now();
    let mut produced = 0;
    for line in 1..=LINES {
        let until = begun + whole * line / LINES;
        let latencies = feed(bench, &pool, &topic, rate, until, &mut produced).await?;
        replays.keep_going(bench)?;
        report.add(look(&live, &pool, produced, begun.elapsed(), latencies, replays.done).await?);
    }
    replays.end()?;
    live.stop()?;
    let lost = produced - applied(&pool).await?.min(produced);
    let drifts = drifts(&report);
    report.save()?;
    if lost > rate * 5 || !drifts.is_empty() {
        return Err(format!("it drifts: {lost} of {produced} events behind; {}", drifts.join("; ")).into());
    }
    Ok(report)
}

/// Produces at the rate until then; every tenth of a second one event is watched until it is settled.
async fn feed(
    bench: &Bench,
    pool: &PgPool,
    topic: &str,
    rate: usize,
    until: Instant,
    produced: &mut usize,
) -> Result<Vec<Duration>, Failure> {
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    // A slow moment is made up for: the rate is steady over the whole.
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut latencies = Vec::new();
    while Instant::now() < until {
        tick.tick().await;
        let records: Vec<NewRecord> = orders_from(*produced, rate / 10, Ids::Sequential).collect();
        *produced += records.len() + 1;
        let fed = bench.produce_together(topic, &records);
        let ((), latency) = tokio::try_join!(fed, probe(bench, pool, topic, *produced))?;
        latencies.push(latency);
    }
    Ok(latencies)
}

async fn probe(bench: &Bench, pool: &PgPool, topic: &str, n: usize) -> Result<Duration, Failure> {
    let id = format!("probe-{n}");
    let begun = Instant::now();
    bench.produce_one(topic, &record(&id, &id, 10_000)).await?;
    let done = "select exists (select 1 from efeito_aplicado where chave = $1 and estado = 'concluido')";
    let key = format!("{id}:notificar-vendedor");
    while !sqlx::query_scalar::<_, bool>(done).bind(&key).fetch_one(pool).await? {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(begun.elapsed().saturating_sub(PROVIDER_TIME))
}

async fn applied(pool: &PgPool) -> Result<usize, Failure> {
    let rows: i64 = sqlx::query_scalar("select count(*) from efeito_aplicado where estado = 'concluido'")
        .fetch_one(pool)
        .await?;
    Ok(usize::try_from(rows)?)
}

async fn look(
    live: &Live,
    pool: &PgPool,
    produced: usize,
    since: Duration,
    mut latencies: Vec<Duration>,
    replays: usize,
) -> Result<Row, Failure> {
    latencies.sort_unstable();
    let at = |percent: usize| {
        let found = latencies.get(latencies.len().saturating_sub(1) * percent / 100);
        found.map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
    };
    let tables = sqlx::query(
        "select pg_total_relation_size('efeito_aplicado')::float8,
                coalesce((select sum(n_dead_tup)::float8 from pg_stat_user_tables), 0)",
    )
    .fetch_one(pool)
    .await?;
    let rows = applied(pool).await?;
    let mut row = Row::new(&format!("after {:>5} s", since.as_secs()), produced);
    row.set("settled", as_f64(rows));
    row.set("bytes_per_row", tables.try_get::<f64, _>(0)? / as_f64(rows.max(1)));
    row.set("dead_rows", tables.try_get(1)?);
    row.set_some("rss_mb", cost::rss_mb(live.pid()));
    row.set("p50_ms", at(50));
    row.set("p99_ms", at(99));
    row.set("replays_done", as_f64(replays));
    Ok(row)
}

/// What grew by more than it may between the middle third and the last one.
fn drifts(report: &Report) -> Vec<String> {
    let third = report.rows().len() / 3;
    let (middle, last) = (&report.rows()[third..2 * third], &report.rows()[2 * third..]);
    let mean = |rows: &[Row], what: &'static str| {
        let values: Vec<f64> = rows.iter().filter_map(|row| row.values.get(what).copied()).collect();
        values.iter().sum::<f64>() / as_f64(values.len().max(1))
    };
    let grew = |(what, noise): &(&'static str, f64)| {
        let (before, after) = (mean(middle, what), mean(last, what));
        (after > before * GROWTH_MAX && after - before > *noise)
            .then(|| format!("{what} from {before:.1} to {after:.1}"))
    };
    WATCHED.iter().filter_map(grew).collect()
}

/// Replays of everything so far, one after the other.
struct Replays {
    settings: Settings,
    running: Option<Child>,
    done: usize,
}

impl Replays {
    fn keep_going(&mut self, bench: &Bench) -> Result<(), Failure> {
        if let Some(child) = &mut self.running {
            match child.try_wait()? {
                None => return Ok(()),
                Some(status) if status.success() => self.done += 1,
                Some(status) => return Err(format!("a replay ended with {status}").into()),
            }
        }
        let id = format!("replay-soak-{}", self.done);
        let args = ["replay", "run", "--id", &id, "--from", "2026-10-01T00:00:00Z", "--by", "soak", "--yes"];
        let mut command = service::command(bench, &self.settings, &args)?;
        self.running = Some(command.stdout(Stdio::null()).spawn()?);
        Ok(())
    }

    fn end(mut self) -> Result<(), Failure> {
        if let Some(child) = &mut self.running {
            child.wait()?;
        }
        Ok(())
    }
}
