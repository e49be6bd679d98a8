//! Starting, and starting again after kill -9: how long until the first call, and until what was in flight is settled.
//!
//! `RUNS` (3). In flight at the kill are 256 calls. With static membership (`kafka.instancia`) and without.

use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::support::events::{Ids, orders};
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{Live, Settings};
use crate::support::{Failure, as_f64, size, wait_for};

const SLOTS: usize = 256;
const EVENTS: usize = 60_000;

pub async fn all(bench: &mut Bench) -> Result<Report, Failure> {
    let mut report = Report::new("restart");
    for n in 0..size("RUNS", 3) {
        report.add(cold(bench, n).await?);
        report.add(killed(bench, n, "kill -9, static membership", "instancia = \"bench-1\"").await?);
        report.add(killed(bench, n, "kill -9, plain membership", "").await?);
    }
    Ok(report)
}

/// From the start of the process to the first committed offset.
async fn cold(bench: &mut Bench, n: usize) -> Result<Row, Failure> {
    let topic = bench.topic(&format!("cold{n}"), orders(1000, Ids::Sequential)).await?;
    let database = bench.database("reprise_bench").await?;
    bench.provider.reset();
    let live = Live::start(bench, &Settings::new(&topic, &topic, &database, SLOTS))?;
    let ready = live.ready().await?;
    let call = wait_for(|| async { bench.provider.first_call() }).await?;
    let committed = wait_for(|| async { (live.committed().await > 0).then(Instant::now) }).await?;
    let since = |at: Instant| at.duration_since(live.started).as_secs_f64();
    let mut row = Row::new("cold start", 1000);
    row.set("to_ready_s", since(ready));
    row.set("to_first_call_s", since(call));
    row.set("to_first_commit_s", since(committed));
    live.stop()?;
    Ok(row)
}

async fn killed(bench: &mut Bench, n: usize, name: &str, kafka: &str) -> Result<Row, Failure> {
    let topic = bench.topic(&format!("kill{n}{}", kafka.len()), orders(EVENTS, Ids::Sequential)).await?;
    let database = bench.database("reprise_bench").await?;
    let settings = Settings { kafka: kafka.to_owned(), ..Settings::new(&topic, &topic, &database, SLOTS) };
    let pool = PgPool::connect(&database).await?;
    bench.provider.reset();
    let first = Live::start(bench, &settings)?;
    wait_for(|| async { (bench.provider.keys() > EVENTS / 6).then_some(()) }).await?;
    first.kill()?;
    // What was on its way to the provider is there by now; what comes from here on is the new process.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let in_flight = reserved(&pool).await?;
    let keys = bench.provider.keys();
    let second = Live::start(bench, &settings)?;
    let call = wait_for(|| async { (bench.provider.keys() > keys).then(Instant::now) }).await?;
    let owners: Vec<i64> = in_flight.iter().map(|(owner, _)| *owner).collect();
    let settled = wait_for(|| async {
        let now = reserved(&pool).await.ok()?;
        (!now.iter().any(|(owner, _)| owners.contains(owner))).then(Instant::now)
    })
    .await?;
    let since = |at: Instant| at.duration_since(second.started).as_secs_f64();
    let mut row = Row::new(name, EVENTS);
    row.set(
        "in_flight",
        in_flight.iter().map(|(_, count)| as_f64(usize::try_from(*count).unwrap_or(0))).sum(),
    );
    row.set("to_first_new_call_s", since(call));
    row.set("to_in_flight_settled_s", since(settled));
    row.set("repeated", as_f64(bench.provider.repeated()));
    second.stop()?;
    Ok(row)
}

/// Reservations in flight, by owner.
async fn reserved(pool: &PgPool) -> Result<Vec<(i64, i64)>, Failure> {
    let rows = sqlx::query_as(
        "select dono, count(*) from efeito_aplicado where estado = 'reservado' and ficha is not null group by 1",
    )
    .fetch_all(pool)
    .await?;
    Ok(rows)
}
