//! One event at a time: from before it is produced until its row says done, the provider's 20 ms taken off.
//!
//! `LATENCY_EVENTS` (300), one every 50 ms. The watcher asks Postgres every half millisecond.

use std::time::{Duration, Instant};

use sqlx::PgPool;

use crate::support::events::record;
use crate::support::provider::PROVIDER_TIME;
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{Live, Settings};
use crate::support::{Failure, size};

const EVERY: Duration = Duration::from_millis(50);

pub async fn all(bench: &mut Bench) -> Result<Report, Failure> {
    let mut report = Report::new("latency");
    for _ in 0..size("RUNS", 3) {
        report.add(one_at_a_time(bench).await?);
    }
    Ok(report)
}

async fn one_at_a_time(bench: &mut Bench) -> Result<Row, Failure> {
    let count = size("LATENCY_EVENTS", 300);
    let topic = bench.empty_topic(&format!("latency{}", rand::random::<u16>())).await?;
    let database = bench.database("reprise_bench").await?;
    let live = Live::start(bench, &Settings::new(&topic, &topic, &database, 64))?;
    live.ready().await?;
    let pool = PgPool::connect(&database).await?;
    let mut times = Vec::with_capacity(count);
    // The first ones open connections.
    for n in 0..count + 20 {
        let took = settled(bench, &pool, &topic, &format!("lat-{n:06}")).await?;
        if n >= 20 {
            times.push(took.saturating_sub(PROVIDER_TIME));
        }
        tokio::time::sleep(EVERY).await;
    }
    live.stop()?;
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
    let mut row = Row::new("one event at a time", count);
    row.set("p50_ms", at(50));
    row.set("p90_ms", at(90));
    row.set("p99_ms", at(99));
    Ok(row)
}

async fn settled(bench: &Bench, pool: &PgPool, topic: &str, id: &str) -> Result<Duration, Failure> {
    let key = format!("{id}:notificar-vendedor");
    let begun = Instant::now();
    bench.produce_one(topic, &record(id, id, 10_000)).await?;
    loop {
        let done: Option<bool> =
            sqlx::query_scalar("select estado = 'concluido' from efeito_aplicado where chave = $1")
                .bind(&key)
                .fetch_optional(pool)
                .await?;
        if done == Some(true) {
            return Ok(begun.elapsed());
        }
        tokio::time::sleep(Duration::from_micros(500)).await;
    }
}
