//! `cargo bench --bench replay`: what a rewind costs where everything is done already.
//!
//! The same events, on real servers with fsync on: a replay of already applied events, its dry run, filling the
//! archive and a replay from it, beside the plain design's look-ups (two autocommitted selects per event, one event at
//! a time and 32 at once). Absolute figures move with the machine; read the ratios, and the WAL bytes per event.
//!
//! Sizes: `EVENTS` (replays), `PLAIN` (look-ups one at a time; 32 at once takes ten times as many). Servers:
//! `REPRISE_TEST_KAFKA`, `REPRISE_TEST_PG`, else those of `make up`. No assertion on time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use reprise::pg::demo::fresh_database;
use reprise::stream::produce::{NewRecord, create_topics, delete_topics, produce};
use sqlx::{AssertSqlSafe, PgPool, Row};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PARTITIONS: i32 = 6;
const LIMIT: Duration = Duration::from_mins(10);
const FROM: &str = "2026-10-14T00:00:00-03:00";

fn size(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn server(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

/// One measured run.
struct Measured {
    name: &'static str,
    events: usize,
    seconds: f64,
    wal_bytes: f64,
}

struct Bench {
    kafka: String,
    topic: String,
    events: usize,
    config: PathBuf,
    pool: PgPool,
}

fn records(count: usize) -> Vec<NewRecord> {
    let record = |n: usize| {
        let value = format!(
            r#"{{"id":"evt-{n:09}","tipo":"pedido.pago","pedidoId":"ped-{n:09}","versao":1,"payload":{{"valorCentavos":10000,"percentual":5}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
        );
        let (key, value) = (Some(format!("ped-{n:09}")), Some(value.into_bytes()));
        NewRecord { key, value, timestamp_ms: 1_791_979_200_000 }
    };
    (0..count).map(record).collect()
}

/// A provider that says yes to everybody at once.
async fn provider() -> Result<String, Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/notificar", listener.local_addr()?);
    let yes = axum::Router::new().fallback(|| async { "{}" });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, yes).await {
            eprintln!("provider: {error}");
        }
    });
    Ok(url)
}

fn reprise(config: &Path, args: &[&str]) -> Result<Child, Failure> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REPRISE_") {
            command.env_remove(name);
        }
    }
    command.env("RUST_LOG", "error").arg("--config").arg(config).args(args);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
}

async fn wait_for(what: &str, mut holds: impl AsyncFnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let end = Instant::now() + LIMIT;
    while !holds().await? {
        if Instant::now() > end {
            return Err(format!("not within the limit: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

impl Bench {
    async fn start(events: usize) -> Result<Self, Failure> {
        let kafka = server("REPRISE_TEST_KAFKA", "127.0.0.1:29092");
        let postgres =
            format!("{}/postgres", server("REPRISE_TEST_PG", "postgres://postgres@127.0.0.1:25432"));
        let topic = format!("bench.replay.{}", std::process::id());
        create_topics(&kafka, &[(&topic, PARTITIONS), (&format!("{topic}.dlq"), 1)]).await?;
        produce(&kafka, &topic, &records(events)).await?;
        let database = fresh_database(&postgres, "reprise_bench_replay").await?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = std::env::temp_dir().join(format!("{topic}.toml"));
        let text = format!(
            "[kafka]\nbrokers = \"{kafka}\"\ntopico = \"{topic}\"\ngrupo = \"{topic}\"\n[postgres]\nurl = \"{database}\"\n\
             [http]\nendereco = \"127.0.0.1:{port}\"\n[efeitos.notificar-vendedor]\nurl = \"{}\"\nconcorrencia = 512\n",
            provider().await?
        );
        std::fs::write(&config, text)?;
        if !reprise(&config, &["migrate"])?.wait()?.success() {
            return Err("migrate failed".into());
        }
        Ok(Self { kafka, topic, events, config, pool: PgPool::connect(&database).await? })
    }

    async fn count(&self, sql: &str) -> Result<i64, Failure> {
        Ok(sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await?.try_get(0)?)
    }

    async fn wal(&self) -> Result<f64, Failure> {
        // The server tells its counters with a delay of a second.
        tokio::time::sleep(Duration::from_millis(1300)).await;
        Ok(sqlx::query("select wal_bytes::float8 from pg_stat_wal")
            .fetch_one(&self.pool)
            .await?
            .try_get(0)?)
    }

    /// A service until `sql` counts all events; measured from its first row.
    async fn service(&self, name: &'static str, verb: &str, sql: &str) -> Result<Measured, Failure> {
        let before = self.wal().await?;
        let mut child = reprise(&self.config, &[verb])?;
        wait_for("its first row", async || Ok(self.count(sql).await? > 0)).await?;
        let begun = Instant::now();
        wait_for("all of them", async || Ok(usize::try_from(self.count(sql).await?)? >= self.events)).await?;
        let seconds = begun.elapsed().as_secs_f64();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        child.wait()?;
        self.measured(name, seconds, before).await
    }

    async fn measured(&self, name: &'static str, seconds: f64, before: f64) -> Result<Measured, Failure> {
        let wal_bytes = (self.wal().await? - before) / as_f64(self.events);
        Ok(Measured { name, events: self.events, seconds, wal_bytes })
    }

    /// A whole replay, from the first process to the exit of it: joining the group included.
    async fn replay(&self, name: &'static str, id: &str, more: &[&str]) -> Result<Measured, Failure> {
        let before = self.wal().await?;
        let args = [&["replay", "run", "--yes", "--id", id, "--from", FROM], more].concat();
        let begun = Instant::now();
        let mut child = reprise(&self.config, &args)?;
        let status = tokio::task::spawn_blocking(move || child.wait()).await??;
        if !status.success() {
            return Err(format!("{name}: {status}").into());
        }
        self.measured(name, begun.elapsed().as_secs_f64(), before).await
    }

    /// What the plain design asks before it does nothing.
    async fn look_ups(&self, name: &'static str, events: usize, width: usize) -> Result<Measured, Failure> {
        let before = self.wal().await?;
        let options = self.pool.connect_options();
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(u32::try_from(width)?)
            .connect_with((*options).clone())
            .await?;
        let begun = Instant::now();
        stream::iter((0..events).map(|n| look_up(&pool, n)))
            .buffer_unordered(width)
            .try_collect::<Vec<()>>()
            .await?;
        let seconds = begun.elapsed().as_secs_f64();
        let wal_bytes = (self.wal().await? - before) / as_f64(events);
        Ok(Measured { name, events, seconds, wal_bytes })
    }

    async fn end(self) -> Result<(), Failure> {
        delete_topics(&self.kafka, &[&self.topic, &format!("{}.dlq", self.topic)]).await?;
        std::fs::remove_file(&self.config)?;
        Ok(())
    }
}

async fn look_up(pool: &PgPool, n: usize) -> Result<(), Failure> {
    sqlx::query("select estado from efeito_aplicado where chave = $1")
        .bind(format!("evt-{n:09}:notificar-vendedor"))
        .fetch_one(pool)
        .await?;
    sqlx::query("select valor_centavos, versao_evento from comissao where pedido_id = $1")
        .bind(format!("ped-{n:09}"))
        .fetch_one(pool)
        .await?;
    Ok(())
}

fn report(runs: &[Measured]) {
    let rate = |run: &Measured| as_f64(run.events) / run.seconds;
    let plain = runs.iter().find(|run| run.name.starts_with("plain, one")).map_or(f64::NAN, rate);
    println!("\n{:<34} {:>8} {:>10} {:>9} {:>9}", "run", "events", "events/s", "x plain", "WAL B/ev");
    for run in runs {
        let (name, events, wal) = (run.name, run.events, run.wal_bytes);
        println!("{name:<34} {events:>8} {:>10.0} {:>9.1} {wal:>9.1}", rate(run), rate(run) / plain);
    }
    println!(
        "\nreplays: whole process, start and joining the group included; WAL of other databases of the server counts too"
    );
}

async fn run() -> Result<(), Failure> {
    let (events, plain) = (size("EVENTS", 500_000), size("PLAIN", 3_000));
    let bench = Bench::start(events).await?;
    let done = "select count(*) from efeito_aplicado where estado = 'concluido'";
    let runs = [
        bench.service("live, for the rows", "live", done).await?,
        bench.look_ups("plain, one at a time", plain.min(events), 1).await?,
        bench.look_ups("plain, 32 at once", (plain * 10).min(events), 32).await?,
        bench.replay("replay, already applied", "replay-done", &[]).await?,
        bench.replay("dry run, already applied", "replay-dry", &["--dry-run"]).await?,
        bench.service("archive, filling", "archive", "select count(*) from evento_arquivado").await?,
        bench.replay("replay from the archive", "replay-kept", &["--source", "arquivo"]).await?,
    ];
    report(&runs);
    bench.end().await
}

fn main() -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}
