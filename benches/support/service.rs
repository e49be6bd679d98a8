//! The service as its users run it: the release binary, a configuration file, its admin port.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::PgPool;

use super::cost::{self, Counters, Cpu, Servers};
use super::report::Row;
use super::servers::{Bench, PARTITIONS};
use super::{Failure, as_f64, wait_for};

/// One configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    pub topic: String,
    pub group: String,
    pub database: String,
    pub slots: usize,
    /// Further lines of the `[kafka]` section.
    pub kafka: String,
    /// Further lines of the effect's section.
    pub effect: String,
    /// The binary that runs: that of this build, unless another is to be compared with it.
    pub binary: String,
}

impl Settings {
    pub fn new(topic: &str, group: &str, database: &str, slots: usize) -> Self {
        Self {
            topic: topic.to_owned(),
            group: group.to_owned(),
            database: database.to_owned(),
            slots,
            kafka: String::new(),
            effect: String::new(),
            binary: env!("CARGO_BIN_EXE_reprise").to_owned(),
        }
    }

    fn write(&self, bench: &Bench, port: u16) -> Result<PathBuf, Failure> {
        let path = bench.dir.join(format!("{}-{port}.toml", self.group));
        let Self { topic, group, database, slots, kafka, effect, .. } = self;
        let text = format!(
            "[kafka]\nbrokers = \"{}\"\ntopico = \"{topic}\"\ngrupo = \"{group}\"\n{kafka}\n\
             [postgres]\nurl = \"{database}\"\n[http]\nendereco = \"127.0.0.1:{port}\"\n\
             [efeitos.notificar-vendedor]\nurl = \"{}\"\nconcorrencia = {slots}\n{effect}\n",
            bench.kafka, bench.provider.url
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }
}

/// Runs the binary with these settings.
pub fn start(bench: &Bench, settings: &Settings, args: &[&str]) -> Result<Child, Failure> {
    command(bench, settings, args)?.stdout(Stdio::null()).spawn().map_err(Failure::from)
}

/// A command of the binary with these settings, not yet begun.
pub fn command(bench: &Bench, settings: &Settings, args: &[&str]) -> Result<Command, Failure> {
    Ok(with_config(settings, &settings.write(bench, free_port()?)?, args))
}

fn with_config(settings: &Settings, config: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(&settings.binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REPRISE_") {
            command.env_remove(name);
        }
    }
    command.env("RUST_LOG", "error").arg("--config").arg(config).args(args).stdin(Stdio::null());
    command
}

fn free_port() -> Result<u16, Failure> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A running `live`.
pub struct Live {
    child: Child,
    port: u16,
    http: reqwest::Client,
    pub started: Instant,
}

impl Live {
    pub fn start(bench: &Bench, settings: &Settings) -> Result<Self, Failure> {
        let port = free_port()?;
        let path = settings.write(bench, port)?;
        let started = Instant::now();
        let child = with_config(settings, &path, &["live"]).stdout(Stdio::null()).spawn()?;
        Ok(Self { child, port, http: reqwest::Client::new(), started })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn ready(&self) -> Result<Instant, Failure> {
        wait_for(|| async {
            let answer = self.get("/readyz").await;
            answer.is_some_and(|(status, _)| status == 200).then(Instant::now)
        })
        .await
    }

    /// Settled offsets, by partition.
    pub async fn positions(&self) -> HashMap<i32, usize> {
        self.by_partition("reprise_particao_posicao").await
    }

    async fn by_partition(&self, metric: &str) -> HashMap<i32, usize> {
        let Some((_, text)) = self.get("/metrics").await else { return HashMap::new() };
        let prefix = format!("{metric}{{particao=\"");
        let lines = text.lines().filter_map(|line| line.strip_prefix(prefix.as_str()));
        lines
            .filter_map(|line| {
                let (partition, value) = line.split_once("\"} ")?;
                Some((partition.parse().ok()?, value.parse().ok()?))
            })
            .collect()
    }

    pub async fn settled(&self) -> usize {
        self.positions().await.values().sum()
    }

    /// Committed offsets over all partitions.
    pub async fn committed(&self) -> usize {
        self.by_partition("reprise_particao_confirmado").await.values().sum()
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let answer = self.http.get(format!("http://127.0.0.1:{}{path}", self.port)).send().await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    /// SIGTERM, and the end.
    pub fn stop(mut self) -> Result<(), Failure> {
        Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        self.child.wait()?;
        Ok(())
    }

    /// kill -9.
    pub fn kill(mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

/// What is to be measured.
pub struct Pass<'a> {
    pub name: &'a str,
    pub settings: &'a Settings,
    pub instances: usize,
    /// Records in the topic.
    pub events: usize,
    /// Whether providers are called: the clock then starts with the first call.
    pub calls: bool,
}

/// Runs `live` over a topic until everything is settled.
///
/// The clock starts when work does: with the first call, or with the first positions seen to move, or, of several
/// instances, when all partitions are shared out. So the rate is that of a service that runs; starting has its own
/// bench. CPU is that of the whole process, start included.
pub async fn run(bench: &Bench, pass: Pass<'_>) -> Result<Row, Failure> {
    bench.provider.reset();
    let servers = Servers::find(&bench.kafka, &bench.postgres);
    let pool = PgPool::connect(&pass.settings.database).await?;
    let before = Counters::read(&pool).await?;
    let cpu_before = Cpu::read(&[], servers, bench.provider.cpu());
    let lives: Vec<Live> =
        (0..pass.instances).map(|_| Live::start(bench, pass.settings)).collect::<Result<_, _>>()?;
    let pids: Vec<u32> = lives.iter().map(Live::pid).collect();
    let profile = profile(pass.name, &pids)?;
    let (begun, done_then) = wait_for(|| async {
        let settled = if is_shared_out(&lives).await { settled_by(&lives).await } else { 0 };
        (settled > 0).then(|| (Instant::now(), settled))
    })
    .await?;
    // Positions are published ten times a second: asking more often costs CPU and tells nothing.
    while settled_by(&lives).await < pass.events {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (begun, done_then) = match bench.provider.first_call() {
        Some(first) if pass.calls && pass.instances == 1 => (first, 0),
        _ => (begun, done_then),
    };
    let seconds = begun.elapsed().as_secs_f64();
    let cpu = Cpu::read(&pids, servers, bench.provider.cpu()).since(Cpu { service: Some(0.0), ..cpu_before });
    let rss: Option<f64> = pids.iter().map(|pid| cost::peak_rss_mb(*pid)).sum();
    for live in lives {
        live.stop()?;
    }
    if let Some(mut profile) = profile {
        profile.wait()?;
    }
    let after = Counters::read(&pool).await?;
    let events = as_f64(pass.events);
    let mut row = Row::new(pass.name, pass.events);
    row.set("events_per_second", (events - as_f64(done_then)) / seconds);
    row.set_cpu(&cpu, events);
    row.set_some("rss_peak_mb", rss);
    row.set("repeated", as_f64(bench.provider.repeated()));
    after.per_event(&before, events, &mut row.values);
    Ok(row)
}

/// Every instance has partitions, and together they have each once.
async fn is_shared_out(lives: &[Live]) -> bool {
    let mut partitions: Vec<i32> = Vec::new();
    for live in lives {
        let own = live.positions().await;
        if own.is_empty() {
            return false;
        }
        partitions.extend(own.into_keys());
    }
    partitions.sort_unstable();
    partitions.into_iter().eq(0..PARTITIONS)
}

/// Partitions move between instances while they start: the furthest position of each counts.
async fn settled_by(lives: &[Live]) -> usize {
    let mut furthest: HashMap<i32, usize> = HashMap::new();
    for live in lives {
        for (partition, at) in live.positions().await {
            let known = furthest.entry(partition).or_insert(0);
            *known = at.max(*known);
        }
    }
    furthest.values().sum()
}

/// With `PERF=<directory>` the first instance runs under `perf record`.
fn profile(name: &str, pids: &[u32]) -> Result<Option<Child>, Failure> {
    let (Ok(dir), Some(pid)) = (std::env::var("PERF"), pids.first()) else { return Ok(None) };
    std::fs::create_dir_all(&dir)?;
    let file = format!("{dir}/{}.data", name.replace([' ', ','], "-"));
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-g", "-F", "499", "-o", &file, "-p", &pid.to_string()]);
    let child = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_millis(100));
    Ok(Some(child))
}
