//! `make bench`: the service against the plain design and against the raw limits of the machine, on real servers.
//!
//! `cargo bench --bench live -- [SCENARIO...]`; without a name: `throughput latency`, the quick standard set.
//!
//! | scenario | question |
//! |---|---|
//! | `throughput` | live at 64, 256 and 512 slots, and known events again; plain design and raw limits in the same run |
//! | `known` | only events that are known already, over one ledger |
//! | `latency` | one event at a time: how long until it is settled, the provider's time taken off |
//! | `restart` | cold start; kill -9 and start again, with static membership and without |
//! | `memory` | peak RSS with a backlog, with a provider that hangs, with a diff of many orders |
//! | `instances` | two and four processes on one group and one Postgres |
//! | `random` | random ids against rising ones |
//! | `ledger` | a ledger that holds many rows already |
//! | `soak` | a steady rate for minutes or days, with replays beside it: does anything drift? |
//! | `plots` | no measurement: draws `docs/bench/*.json` |
//!
//! Sizes come from the environment (each scenario names its own), `RUNS` is how often each thing is measured.
//! Servers: `REPRISE_TEST_KAFKA`, `REPRISE_TEST_PG`, else those of `make up`. Results: `target/bench/<scenario>.json`,
//! with `SAVE=<directory>` a copy there; `PERF=<directory>` profiles the service. No assertion on time.

mod latency;
mod ledger;
mod memory;
mod plots;
mod restart;
mod soak;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each bench uses a part of it")]
mod support;
mod throughput;

use support::Failure;
use support::servers::Bench;

const STANDARD: [&str; 2] = ["throughput", "latency"];

async fn run(scenario: &str) -> Result<(), Failure> {
    if scenario == "plots" {
        return plots::draw();
    }
    let mut bench = Bench::start()?;
    let report = match scenario {
        "throughput" => throughput::all(&mut bench).await?,
        "known" => throughput::known(&mut bench).await?,
        "latency" => latency::all(&mut bench).await?,
        "restart" => restart::all(&mut bench).await?,
        "memory" => memory::all(&mut bench).await?,
        "instances" => ledger::instances(&mut bench).await?,
        "random" => ledger::random(&mut bench).await?,
        "ledger" => ledger::ledger(&mut bench).await?,
        "soak" => soak::all(&mut bench).await?,
        other => {
            return Err(format!(
                "no scenario {other:?}; they are listed at the head of benches/live/main.rs"
            )
            .into());
        }
    };
    report.print();
    report.save()?;
    bench.clear().await
}

fn main() -> Result<(), Failure> {
    // cargo passes --bench.
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let standard = || STANDARD.map(str::to_owned).to_vec();
    let scenarios = if named.is_empty() { standard() } else { named };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    scenarios.iter().try_for_each(|scenario| runtime.block_on(run(scenario)))
}
