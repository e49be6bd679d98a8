//! Events per second: new ones by call slots, known ones again, beside the plain design and the raw limits.
//!
//! `EVENTS` (live, 60,000; a quarter at 64 slots), `KNOWN` (400,000), `PLAIN` (300; ten times as many 32-wide),
//! `RUNS` (3). `COMPARE=<binary>`: another build reads the known events in turn with this one, so that both meet the
//! same weather.

use crate::support::events::{Ids, orders};
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{Pass, Settings, run};
use crate::support::{Failure, plain, raw, size};

pub async fn all(bench: &mut Bench) -> Result<Report, Failure> {
    let (events, plain, runs) = (size("EVENTS", 60_000), size("PLAIN", 300), size("RUNS", 3));
    let mut report = Report::new("throughput");
    if plain > 0 {
        report.add(plain::run(bench, "plain, one at a time", plain, 1).await?);
        report.add(plain::run(bench, "plain, 32 at once", plain * 10, 32).await?);
    }
    for slots in [64, 256, 512] {
        let count = if slots == 64 { events / 4 } else { events };
        let topic = bench.topic(&format!("live{slots}"), orders(count, Ids::Sequential)).await?;
        for n in 0..runs {
            report.add(raw::calls(bench, count, slots).await?);
            report.add(live(bench, &topic, slots, count, n).await?);
        }
        if slots == 512 {
            report.add(raw::consumption(bench, &topic, count)?);
            report.add(raw::writes(bench, count).await?);
        }
    }
    again(bench, &mut report).await?;
    ratios(&mut report);
    Ok(report)
}

pub async fn known(bench: &mut Bench) -> Result<Report, Failure> {
    let mut report = Report::new("known");
    again(bench, &mut report).await?;
    Ok(report)
}

/// New events on an empty ledger.
async fn live(bench: &Bench, topic: &str, slots: usize, events: usize, n: usize) -> Result<Row, Failure> {
    let database = bench.database("reprise_bench").await?;
    let settings = Settings::new(topic, &format!("{topic}.{n}"), &database, slots);
    let name = format!("live, {slots} slots");
    run(bench, Pass { name: &name, settings: &settings, instances: 1, events, calls: true }).await
}

/// Events that are applied already, read again by new groups.
async fn again(bench: &mut Bench, report: &mut Report) -> Result<(), Failure> {
    let (known, runs) = (size("KNOWN", 400_000), size("RUNS", 3));
    if known == 0 {
        return Ok(());
    }
    let topic = bench.topic("known", orders(known, Ids::Sequential)).await?;
    let database = bench.database("reprise_bench_known").await?;
    let first = Settings::new(&topic, &format!("{topic}.first"), &database, 512);
    let name = format!("live, 512 slots, {known} events");
    report.add(
        run(bench, Pass { name: &name, settings: &first, instances: 1, events: known, calls: true }).await?,
    );
    vacuum(&database).await?;
    let other = std::env::var("COMPARE").ok();
    for n in 0..runs {
        let settings = Settings::new(&topic, &format!("{topic}.{n}"), &database, 512);
        report.add(known_pass(bench, "known events again", &settings, known).await?);
        if let Some(binary) = &other {
            let group = format!("{topic}.{n}.other");
            let settings = Settings { binary: binary.clone(), group, ..settings };
            report.add(known_pass(bench, "the same, other binary", &settings, known).await?);
        }
    }
    report.add(raw::consumption(bench, &topic, known)?);
    Ok(())
}

async fn known_pass(bench: &Bench, name: &str, settings: &Settings, events: usize) -> Result<Row, Failure> {
    run(bench, Pass { name, settings, instances: 1, events, calls: false }).await
}

/// What a long live run leaves to the vacuum would be charged to the next.
pub async fn vacuum(database: &str) -> Result<(), Failure> {
    let pool = sqlx::PgPool::connect(database).await?;
    sqlx::raw_sql("vacuum (analyze) efeito_aplicado, comissao").execute(&pool).await?;
    sqlx::raw_sql("checkpoint").execute(&pool).await?;
    Ok(())
}

/// Live at 512 slots against the slowest of the raw limits.
fn ratios(report: &mut Report) {
    let rate =
        |report: &Report, name: &str| report.spread(name, "events_per_second").map(|spread| spread.median);
    let limits = ["raw: calls, 512 at once", "raw: consumption", "raw: batched writes"];
    let slowest = limits.iter().filter_map(|name| rate(report, name)).reduce(f64::min);
    if let (Some(live), Some(slowest)) = (rate(report, "live, 512 slots"), slowest) {
        let mut row = Row::new("live, 512 slots, of the slowest raw limit", 0);
        row.set("ratio", live / slowest);
        report.add(row);
    }
}
