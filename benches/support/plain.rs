//! The plain design, which one writes first: three autocommitted statements and one call per event.
//!
//! It inserts the effect if it is new, upserts the commission, calls, and marks the effect done; one event at a time
//! or `width` at once. The same topic, provider and Postgres as the service has.

use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use sqlx::PgPool;

use super::cost::{Counters, Cpu, Servers};
use super::events::{Ids, orders};
use super::report::Row;
use super::servers::Bench;
use super::{Failure, as_f64};

pub async fn run(bench: &mut Bench, name: &str, events: usize, width: usize) -> Result<Row, Failure> {
    bench.provider.reset();
    let topic = bench.topic(&format!("plain{width}"), orders(events, Ids::Sequential)).await?;
    let url = bench.bare_database("reprise_bench_plain").await?;
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(32).connect(&url).await?;
    sqlx::raw_sql(
        "create table comissao (pedido_id text primary key, valor_centavos bigint, versao bigint);
         create table efeito (chave text primary key, estado text, requisicao jsonb, resultado jsonb)",
    )
    .execute(&pool)
    .await?;
    let http = reqwest::Client::builder().pool_max_idle_per_host(width).build()?;
    let before = Counters::read(&pool).await?;
    let bodies = read(&bench.kafka, &topic, events)?;
    let servers = Servers::find(&bench.kafka, &bench.postgres);
    let cpu = |provider| Cpu::read(&[], servers, provider);
    let cpu_before = cpu(bench.provider.cpu());
    let begun = Instant::now();
    let url = bench.provider.url.as_str();
    stream::iter(bodies.into_iter().map(|body| event(&pool, &http, url, body)))
        .buffer_unordered(width)
        .try_collect::<Vec<()>>()
        .await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut used = cpu(bench.provider.cpu()).since(cpu_before);
    // It runs inside the bench, beside the provider's thread: what is left of this process is not told apart.
    used.service = None;
    let after = Counters::read(&pool).await?;
    let mut row = Row::new(name, events);
    row.set("events_per_second", as_f64(events) / seconds);
    row.set_cpu(&used, as_f64(events));
    row.set("repeated", as_f64(bench.provider.repeated()));
    after.per_event(&before, as_f64(events), &mut row.values);
    Ok(row)
}

fn read(kafka: &str, topic: &str, events: usize) -> Result<Vec<Vec<u8>>, Failure> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka)
        .set("group.id", topic)
        .set("auto.offset.reset", "earliest")
        .create()?;
    consumer.subscribe(&[topic])?;
    let mut bodies = Vec::with_capacity(events);
    while bodies.len() < events {
        if let Some(message) = consumer.poll(Duration::from_secs(10)) {
            bodies.push(message?.payload().unwrap_or_default().to_vec());
        }
    }
    Ok(bodies)
}

/// Three autocommitted statements and one call.
async fn event(pool: &PgPool, http: &reqwest::Client, url: &str, body: Vec<u8>) -> Result<(), Failure> {
    let event: serde_json::Value = serde_json::from_slice(&body)?;
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let (id, order, version) = (text("id"), text("pedidoId"), event["versao"].as_i64());
    let amount = event["payload"]["valorCentavos"].as_i64().unwrap_or(0) / 20;
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
