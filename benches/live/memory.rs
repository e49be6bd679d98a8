//! Memory: peak RSS with a long backlog, with a provider that hangs, and with the diff of many orders.
//!
//! `BACKLOG` (1,000,000 events; the contract names 5,000,000), `MEMORY_SECONDS` (30) of work on it,
//! `DIFF_ORDERS` (200,000).

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::events::{Ids, orders};
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{self, Live, Settings};
use crate::support::{Failure, as_f64, cost, size};

pub async fn all(bench: &mut Bench) -> Result<Report, Failure> {
    let backlog = size("BACKLOG", 1_000_000);
    let mut report = Report::new("memory");
    let topic = bench.topic("backlog", orders(backlog, Ids::Sequential)).await?;
    report.add(at_work(bench, &topic, "backlog, calls answered", backlog).await?);
    bench.provider.hang(true);
    let hanging = at_work(bench, &topic, "backlog, provider hangs", backlog).await;
    bench.provider.hang(false);
    report.add(hanging?);
    report.add(diff(bench, size("DIFF_ORDERS", 200_000)).await?);
    Ok(report)
}

async fn at_work(bench: &Bench, topic: &str, name: &str, backlog: usize) -> Result<Row, Failure> {
    let database = bench.database("reprise_bench").await?;
    let group = format!("{topic}.{}", name.len());
    let live = Live::start(bench, &Settings::new(topic, &group, &database, 512))?;
    live.ready().await?;
    tokio::time::sleep(Duration::from_secs(size("MEMORY_SECONDS", 30) as u64)).await;
    let mut row = Row::new(name, backlog);
    row.set_some("rss_peak_mb", cost::peak_rss_mb(live.pid()));
    row.set_some("rss_mb", cost::rss_mb(live.pid()));
    row.set("settled", as_f64(live.settled().await));
    live.kill()?;
    Ok(row)
}

/// A dry run over orders whose commissions all differ from what is stored.
pub async fn diff(bench: &mut Bench, count: usize) -> Result<Row, Failure> {
    let topic = bench.topic("diff", orders(count, Ids::Sequential)).await?;
    let database = bench.database("reprise_bench").await?;
    let settings = Settings::new(&topic, &topic, &database, 64);
    let begun = Instant::now();
    let args = [
        "replay",
        "run",
        "--id",
        "replay-bench",
        "--from",
        "2026-10-01T00:00:00Z",
        "--dry-run",
        "--by",
        "bench",
        "--yes",
    ];
    let mut child = service::command(bench, &settings, &args)?.stdout(Stdio::null()).spawn()?;
    let mut peak = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = cost::peak_rss_mb(child.id()).or(peak);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    if !status.success() {
        return Err(format!("the dry run ended with {status}").into());
    }
    let mut row = Row::new("dry run, every order differs", count);
    row.set_some("rss_peak_mb", peak);
    row.set("events_per_second", as_f64(count) / begun.elapsed().as_secs_f64());
    Ok(row)
}
