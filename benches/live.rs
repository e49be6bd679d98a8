//! `make bench`: the service against the plain design, on real servers, in one run.
//!
//! The plain design is what one writes first: three autocommitted statements and one call per event (insert the
//! effect if it is new, upsert the commission, mark the effect done), one event at a time or 32 at once. Both sides
//! have the same topic, the same events, the same provider of 20 ms, the same Postgres with fsync on. Absolute
//! figures move with the machine; read the ratios, and the provider's own CPU per call as a calibrator.
//!
//! Sizes: `EVENTS` (live), `KNOWN` (already applied), `PLAIN` (plain design, sequential; 32-wide takes ten times as
//! many). Servers: `REPRISE_TEST_KAFKA`, `REPRISE_TEST_PG`, else those of `make up`. No assertion on time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt, TryStreamExt};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer};
use reprise::pg::demo::fresh_database;
use reprise::stream::produce::{NewRecord, create_topics, delete_topics, produce};
use sqlx::{PgPool, Row};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PARTITIONS: i32 = 6;
const PROVIDER_TIME: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_mins(5);

fn size(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn server(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

/// A provider of 20 ms that counts calls by key; raw HTTP/1.1, keep-alive, on a runtime of its own.
struct Provider {
    url: String,
    calls: Arc<Mutex<HashMap<String, u32>>>,
    first: Arc<Mutex<Option<Instant>>>,
}

impl Provider {
    fn start() -> Result<Self, Failure> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let url = format!("http://{}/notificar", listener.local_addr()?);
        let calls = Arc::new(Mutex::new(HashMap::new()));
        let first = Arc::new(Mutex::new(None));
        let (counted, begun) = (Arc::clone(&calls), Arc::clone(&first));
        std::thread::Builder::new().name("provider".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serve(socket, Arc::clone(&counted), Arc::clone(&begun)));
                }
            });
        })?;
        Ok(Self { url, calls, first })
    }

    fn reset(&self) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.first.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn repeated(&self) -> usize {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|n| **n > 1).count()
    }

    fn first_call(&self) -> Option<Instant> {
        *self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve(
    mut socket: TcpStream,
    calls: Arc<Mutex<HashMap<String, u32>>>,
    first: Arc<Mutex<Option<Instant>>>,
) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    loop {
        let head = loop {
            if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(&buffer[..head]).into_owned();
        let header = |name: &str| {
            text.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let length: usize = header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
        while buffer.len() < head + length {
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
        }
        buffer.drain(..head + length);
        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
        let key = header("idempotency-key").unwrap_or_default();
        *calls.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(0) += 1;
        tokio::time::sleep(PROVIDER_TIME).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 11\r\n\r\n{\"ok\":true}")
            .await?;
    }
}

/// One measured run.
struct Measured {
    name: String,
    events: usize,
    seconds: f64,
    /// CPU seconds of the process under test, per 1,000 events; absent for the plain design, which shares ours.
    cpu: Option<f64>,
    syncs: f64,
    transactions: f64,
    wal_bytes: f64,
    rss_mb: Option<u64>,
    repeated: usize,
}

impl Measured {
    fn rate(&self) -> f64 {
        as_f64(self.events) / self.seconds
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

/// Servers, and what this run made on them.
struct Bench {
    kafka: String,
    postgres: String,
    provider: Provider,
    dir: PathBuf,
    made: Vec<String>,
}

fn records(count: usize) -> Vec<NewRecord> {
    (0..count)
        .map(|n| {
            let value = format!(
                r#"{{"id":"evt-{n:09}","tipo":"pedido.pago","pedidoId":"ped-{n:09}","versao":1,"payload":{{"valorCentavos":10000,"percentual":5}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
            );
            NewRecord { key: Some(format!("ped-{n:09}")), value: Some(value.into_bytes()), timestamp_ms: 1_791_979_200_000 }
        })
        .collect()
}

/// Postgres counters that tell what an event costs.
struct Counters {
    syncs: i64,
    wal_bytes: f64,
    transactions: i64,
}

async fn counters(pool: &PgPool) -> Result<Counters, Failure> {
    // The server tells its counters with a delay of a second.
    tokio::time::sleep(Duration::from_millis(1300)).await;
    let row = sqlx::query(
        "select wal_sync, wal_bytes::float8, (select xact_commit from pg_stat_database where datname = current_database()) from pg_stat_wal",
    )
    .fetch_one(pool)
    .await?;
    Ok(Counters { syncs: row.try_get(0)?, wal_bytes: row.try_get(1)?, transactions: row.try_get(2)? })
}

fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

fn peak_rss_mb(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb / 1024)
}

impl Bench {
    async fn topic(&mut self, name: &str, events: usize) -> Result<String, Failure> {
        let topic = format!("bench.{name}.{}", std::process::id());
        create_topics(&self.kafka, &[(&topic, PARTITIONS), (&format!("{topic}.dlq"), 1)]).await?;
        self.made.extend([topic.clone(), format!("{topic}.dlq")]);
        produce(&self.kafka, &topic, &records(events)).await?;
        Ok(topic)
    }

    fn config(
        &self,
        topic: &str,
        group: &str,
        database: &str,
        slots: usize,
    ) -> Result<(PathBuf, u16), Failure> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let path = self.dir.join(format!("{group}.toml"));
        std::fs::write(
            &path,
            format!(
                "[kafka]\nbrokers = \"{}\"\ntopico = \"{topic}\"\ngrupo = \"{group}\"\n[postgres]\nurl = \"{database}\"\n\
                 [http]\nendereco = \"127.0.0.1:{port}\"\n[efeitos.notificar-vendedor]\nurl = \"{}\"\nconcorrencia = {slots}\n",
                self.kafka, self.provider.url
            ),
        )?;
        Ok((path, port))
    }

    fn reprise(config: &PathBuf, args: &[&str]) -> Result<Child, Failure> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("REPRISE_") {
                command.env_remove(name);
            }
        }
        command.env("RUST_LOG", "error").arg("--config").arg(config).args(args);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?)
    }

    /// `live` over a topic until everything is committed.
    async fn live(
        &self,
        name: &str,
        topic: &str,
        database: &str,
        events: usize,
        slots: usize,
    ) -> Result<Measured, Failure> {
        self.provider.reset();
        let group = format!("{topic}.{slots}.{}", name.replace([' ', ','], "-"));
        let (config, port) = self.config(topic, &group, database, slots)?;
        let pool = PgPool::connect(database).await?;
        let before = counters(&pool).await?;
        let mut child = Self::reprise(&config, &["live"])?;
        let begun = wait_for(|| async { ready(port).await.then(Instant::now) }).await?;
        wait_for(|| async { (committed(port).await >= events).then_some(()) }).await?;
        let begun = self.provider.first_call().unwrap_or(begun);
        let seconds = begun.elapsed().as_secs_f64();
        let (cpu, rss_mb) = (cpu_seconds(child.id()), peak_rss_mb(child.id()));
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        child.wait()?;
        let after = counters(&pool).await?;
        let per = |n: f64| n / as_f64(events);
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let (syncs, transactions) =
            ((after.syncs - before.syncs) as f64, (after.transactions - before.transactions) as f64);
        Ok(Measured {
            name: name.to_owned(),
            events,
            seconds,
            cpu: cpu.map(|seconds| seconds / as_f64(events) * 1000.0),
            syncs: per(syncs),
            transactions: per(transactions),
            wal_bytes: per(after.wal_bytes - before.wal_bytes),
            rss_mb,
            repeated: self.provider.repeated(),
        })
    }

    /// The plain design, `width` events at once.
    async fn plain(&mut self, events: usize, width: usize) -> Result<Measured, Failure> {
        self.provider.reset();
        let topic = self.topic(&format!("plain{width}"), events).await?;
        let url = fresh_database(&self.postgres, "reprise_bench_plain").await?;
        let pool = sqlx::postgres::PgPoolOptions::new().max_connections(32).connect(&url).await?;
        sqlx::raw_sql(
            "create table comissao (pedido_id text primary key, valor_centavos bigint, versao bigint);
             create table efeito (chave text primary key, estado text, requisicao jsonb, resultado jsonb)",
        )
        .execute(&pool)
        .await?;
        let consumer: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", &self.kafka)
            .set("group.id", &topic)
            .set("auto.offset.reset", "earliest")
            .create()?;
        consumer.subscribe(&[&topic])?;
        let http = reqwest::Client::builder().pool_max_idle_per_host(width).build()?;
        let before = counters(&pool).await?;
        let mut bodies = Vec::with_capacity(events);
        while bodies.len() < events {
            if let Some(message) = consumer.poll(Duration::from_secs(10)) {
                bodies.push(message?.payload().unwrap_or_default().to_vec());
            }
        }
        let begun = Instant::now();
        stream::iter(bodies.into_iter().map(|body| plain_event(&pool, &http, &self.provider.url, body)))
            .buffer_unordered(width)
            .try_collect::<Vec<()>>()
            .await?;
        let seconds = begun.elapsed().as_secs_f64();
        let after = counters(&pool).await?;
        let per = |n: f64| n / as_f64(events);
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let (syncs, transactions) =
            ((after.syncs - before.syncs) as f64, (after.transactions - before.transactions) as f64);
        Ok(Measured {
            name: if width == 1 { "plain, one at a time".into() } else { format!("plain, {width} at once") },
            events,
            seconds,
            cpu: None,
            syncs: per(syncs),
            transactions: per(transactions),
            wal_bytes: per(after.wal_bytes - before.wal_bytes),
            rss_mb: None,
            repeated: self.provider.repeated(),
        })
    }
}

/// Three autocommitted statements and one call.
async fn plain_event(pool: &PgPool, http: &reqwest::Client, url: &str, body: Vec<u8>) -> Result<(), Failure> {
    let event: serde_json::Value = serde_json::from_slice(&body)?;
    let (id, order) =
        (event["id"].as_str().unwrap_or_default(), event["pedidoId"].as_str().unwrap_or_default());
    let (version, amount) =
        (event["versao"].as_i64(), event["payload"]["valorCentavos"].as_i64().unwrap_or(0) / 20);
    let key = format!("{id}:notificar-vendedor");
    let request =
        serde_json::json!({ "chave": key, "eventoId": id, "pedidoId": order, "valorCentavos": amount });
    sqlx::query("insert into efeito values ($1, 'reservado', $2, null) on conflict do nothing")
        .bind(&key)
        .bind(&request)
        .execute(pool)
        .await?;
    sqlx::query(
        "insert into comissao values ($1, $2, $3) on conflict (pedido_id) do update
         set valor_centavos = excluded.valor_centavos, versao = excluded.versao where comissao.versao < excluded.versao",
    )
    .bind(order)
    .bind(amount)
    .bind(version)
    .execute(pool)
    .await?;
    let answer = http
        .post(url)
        .header("idempotency-key", &key)
        .header("content-type", "application/json")
        .body(request.to_string())
        .send()
        .await?;
    let result: serde_json::Value = serde_json::from_slice(&answer.bytes().await?)?;
    sqlx::query("update efeito set estado = 'concluido', resultado = $2 where chave = $1")
        .bind(&key)
        .bind(result)
        .execute(pool)
        .await?;
    Ok(())
}

async fn wait_for<T, F: Future<Output = Option<T>>>(mut probe: impl FnMut() -> F) -> Result<T, Failure> {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if Instant::now() > end {
            return Err("not within the limit".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

async fn ready(port: u16) -> bool {
    get(port, "/readyz").await.is_some_and(|(status, _)| status == 200)
}

/// Settled offsets over all partitions.
async fn committed(port: u16) -> usize {
    let Some((_, text)) = get(port, "/metrics").await else { return 0 };
    let lines = text.lines().filter(|line| line.starts_with("reprise_particao_posicao{"));
    lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok()).sum()
}

fn report(runs: &[Measured]) {
    let rate_of =
        |name: &str| runs.iter().find(|run| run.name.starts_with(name)).map_or(f64::NAN, Measured::rate);
    let (one, many) = (rate_of("plain, one"), rate_of("plain, 32"));
    println!(
        "\n{:<28} {:>8} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>8}",
        "run",
        "events",
        "events/s",
        "x plain",
        "x 32-wide",
        "CPU s/1k",
        "syncs/ev",
        "tx/ev",
        "WAL B/ev",
        "RSS MB",
        "repeated"
    );
    for run in runs {
        println!(
            "{:<28} {:>8} {:>10.0} {:>9.1} {:>9.1} {:>9} {:>9.4} {:>8.4} {:>8.0} {:>7} {:>8}",
            run.name,
            run.events,
            run.rate(),
            run.rate() / one,
            run.rate() / many,
            run.cpu.map_or("-".to_owned(), |cpu| format!("{cpu:.4}")),
            run.syncs,
            run.transactions,
            run.wal_bytes,
            run.rss_mb.map_or("-".to_owned(), |mb| mb.to_string()),
            run.repeated,
        );
    }
    println!(
        "\nprovider: 20 ms, on the same machine; fsync and synchronous_commit on; events/s from the first call (or readiness) until all is settled"
    );
}

async fn run() -> Result<(), Failure> {
    let (events, known, plain) = (size("EVENTS", 60_000), size("KNOWN", 200_000), size("PLAIN", 300));
    let dir = std::env::temp_dir().join(format!("reprise-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let mut bench = Bench {
        kafka: server("REPRISE_TEST_KAFKA", "127.0.0.1:29092"),
        postgres: format!("{}/postgres", server("REPRISE_TEST_PG", "postgres://postgres@127.0.0.1:25432")),
        provider: Provider::start()?,
        dir,
        made: Vec::new(),
    };
    let mut runs = vec![bench.plain(plain, 1).await?, bench.plain(plain * 10, 32).await?];
    for slots in [64, 256, 512] {
        let count = if slots == 64 { events / 4 } else { events };
        let topic = bench.topic(&format!("live{slots}"), count).await?;
        let database = fresh_database(&bench.postgres, "reprise_bench").await?;
        migrate(&bench, &topic, &database)?;
        runs.push(bench.live(&format!("live, {slots} slots"), &topic, &database, count, slots).await?);
        if slots == 512 {
            runs.push(bench.live("known, same events again", &topic, &database, count, slots).await?);
        }
    }
    if known > events {
        let topic = bench.topic("known", known).await?;
        let database = fresh_database(&bench.postgres, "reprise_bench").await?;
        migrate(&bench, &topic, &database)?;
        bench.live("warm", &topic, &database, known, 512).await?;
        let name = format!("known, {known} events again");
        runs.push(bench.live(&name, &topic, &database, known, 512).await?);
    }
    report(&runs);
    let made: Vec<&str> = bench.made.iter().map(String::as_str).collect();
    delete_topics(&bench.kafka, &made).await?;
    std::fs::remove_dir_all(&bench.dir)?;
    Ok(())
}

fn migrate(bench: &Bench, topic: &str, database: &str) -> Result<(), Failure> {
    let (config, _) = bench.config(topic, "migrate", database, 1)?;
    let status = Bench::reprise(&config, &["migrate"])?.wait()?;
    if status.success() { Ok(()) } else { Err("migrate failed".into()) }
}

fn main() -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(run())
}
