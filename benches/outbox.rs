//! `make bench`: the relay on real servers: events a second with a backlog, and commit to broker at low load.
//!
//! Sizes: `BACKLOG` (messages relayed in one go, one aggregate each unless `PER_AGGREGATE` says otherwise), `PROBES`
//! (single messages, 20 ms apart). Servers: `REPRISE_TEST_KAFKA`, `REPRISE_TEST_PG`, else those of `make up`. No
//! assertion on time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers as _;
use reprise::codec::outgoing::Encoder;
use reprise::domain::effect::Run;
use reprise::health::{Health, Partitions};
use reprise::metrics::Metrics;
use reprise::outbox::broker::Broker;
use reprise::outbox::relay::{self, Relay, RelaySettings, Topics};
use reprise::outbox::{Destination, Message};
use reprise::pg::connect::Database;
use reprise::pg::demo::fresh_database;
use reprise::pg::{outbox, schema};
use reprise::stream::KafkaOutbox;
use reprise::stream::produce::{create_topics, delete_topics};
use sqlx::{AssertSqlSafe, Connection as _};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const WORKERS: usize = 2;
const PARTITIONS: i32 = 6;
const LIMIT: Duration = Duration::from_mins(5);

fn size(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn server(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_owned())
}

fn main() -> Result<(), Failure> {
    // As the binary: one thread, and the clients' own.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run())
}

async fn run() -> Result<(), Failure> {
    let kafka = server("REPRISE_TEST_KAFKA", "127.0.0.1:29092");
    let postgres = server("REPRISE_TEST_PG", "postgres://postgres@127.0.0.1:25432");
    let name = format!("bench_outbox_{}", std::process::id());
    let (events, dlq) = (format!("{name}.events"), format!("{name}.dlq"));
    create_topics(&kafka, &[(&events, PARTITIONS), (&dlq, 1)]).await?;
    let url = fresh_database(&postgres, &name).await?;
    let database = Database::new(&url, 4)?;
    schema::migrate(&database).await?;

    let measured = measure(&kafka, &events, &dlq, &database).await;
    delete_topics(&kafka, &[&events, &dlq]).await?;
    let mut admin = sqlx::PgConnection::connect(&format!("{postgres}/postgres")).await?;
    sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
    measured
}

async fn measure(kafka: &str, events: &str, dlq: &str, database: &Database) -> Result<(), Failure> {
    let backlog = size("BACKLOG", 200_000);
    let mut connection = database.plain().await?;
    sqlx::query(
        "insert into outbox (id, destination, aggregate_type, aggregate_id, event_type, payload, headers)
         select gen_random_uuid(), 'events', 'order', 'order-' || (n / $2), 'OrderPaid',
                jsonb_build_object('orderId', n, 'tenantId', 't1', 'amountCents', 10000, 'commissionPercent', '5'),
                jsonb_build_object('message_id', gen_random_uuid(), 'event_type', 'OrderPaid', 'schema_version', '1')
         from generate_series(1, $1) as n",
    )
    .bind(i64::try_from(backlog)?)
    .bind(i64::try_from(size("PER_AGGREGATE", 1))?)
    .execute(&mut connection)
    .await?;
    sqlx::query("analyze outbox").execute(&mut connection).await?;

    let stop = CancellationToken::new();
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    let running = tokio::spawn(start(kafka, events, dlq, database, stop.clone())?);
    while outbox::waiting(database.pool()).await?.unpublished > 0 {
        if running.is_finished() || begun.elapsed() > LIMIT {
            return Err("the relay did not publish the backlog".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (took, used) = (begun.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    #[expect(clippy::cast_precision_loss, reason = "a backlog is far below 2^52")]
    let n = backlog as f64;
    println!(
        "backlog  {backlog} messages in {took:.2} s: {:.0}/s, {:.1} us CPU of this process each",
        n / took,
        used / n * 1e6
    );

    let waits = probe(kafka, events, database).await?;
    let at = |share: usize| {
        waits.get((waits.len() * share / 100).min(waits.len() - 1)).map_or(0.0, |d| d.as_secs_f64() * 1e3)
    };
    println!(
        "low load {} messages, commit to consumer: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        waits.len(),
        at(50),
        at(99),
        at(100)
    );
    stop.cancel();
    running.await??;
    Ok(())
}

fn start(
    kafka: &str,
    events: &str,
    dlq: &str,
    database: &Database,
    stop: CancellationToken,
) -> Result<impl Future<Output = Result<(), relay::RelayError>> + use<>, Failure> {
    let brokers = (0..WORKERS)
        .map(|_| Ok(Arc::new(KafkaOutbox::new(kafka, dlq, &BTreeMap::new())?) as Arc<dyn Broker>))
        .collect::<Result<Vec<_>, Failure>>()?;
    let day = Duration::from_hours(24);
    let relay = Relay {
        database: database.clone(),
        encoder: Encoder::Json,
        topics: Topics {
            events: Arc::from(events),
            paid: Arc::from(events),
            courier_status: Arc::from(events),
        },
        settings: RelaySettings {
            poll_interval: Duration::from_millis(200),
            batch: size("BATCH", 500),
            max_attempts: 8,
            outbox_retention: 2 * day,
            inbox_retention: 2 * day,
            published_by_cdc: false,
        },
        metrics: Arc::new(Metrics::new([])?),
        health: Health::new(Run::live(), [], Partitions::NotUsed),
    };
    Ok(relay::run(relay, brokers, stop))
}

/// Adds single messages and sees when a consumer has each; sorted.
async fn probe(kafka: &str, events: &str, database: &Database) -> Result<Vec<Duration>, Failure> {
    let probes = size("PROBES", 500);
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .set("group.id", format!("{events}-probe"))
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "5")
        .create()?;
    let mut everything = rdkafka::TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        let (_, end) = consumer.fetch_watermarks(events, partition, LIMIT)?;
        everything.add_partition_offset(events, partition, rdkafka::Offset::Offset(end))?;
    }
    consumer.assign(&everything)?;
    let reading = std::thread::spawn(move || {
        let mut seen: BTreeMap<String, Instant> = BTreeMap::new();
        let end = Instant::now() + LIMIT;
        while seen.len() < probes && Instant::now() < end {
            let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) else { continue };
            let id = message.headers().and_then(|headers| {
                headers.iter().find(|header| header.key == "message_id").and_then(|header| header.value)
            });
            let id = String::from_utf8_lossy(id.unwrap_or_default()).into_owned();
            seen.entry(id).or_insert_with(Instant::now);
        }
        seen
    });
    let mut connection = database.plain().await?;
    let mut committed = Vec::new();
    for n in 0..probes {
        let id = Uuid::now_v7();
        let message = Message {
            id,
            destination: Destination::Events,
            aggregate_type: "order",
            aggregate_id: format!("probe-{n}"),
            event_type: "OrderPaid".to_owned(),
            payload: serde_json::json!({ "n": n }),
            headers: [("message_id".to_owned(), id.to_string())].into(),
        };
        let mut transaction = connection.begin().await?;
        outbox::add(&mut transaction, &[message]).await?;
        transaction.commit().await?;
        committed.push((id.to_string(), Instant::now()));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen =
        tokio::task::spawn_blocking(move || reading.join()).await?.map_err(|_| "the consumer failed")?;
    let mut waits = committed
        .iter()
        .map(|(id, at)| {
            seen.get(id).map(|seen| seen.saturating_duration_since(*at)).ok_or("a message never came")
        })
        .collect::<Result<Vec<_>, _>>()?;
    waits.sort();
    Ok(waits)
}

/// User and system time of this process.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(')').ok_or("no process name in /proc/self/stat")?;
    let ticks = rest.split_whitespace().skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    Ok(ticks / 100.0)
}
