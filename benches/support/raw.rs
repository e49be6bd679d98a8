//! The raw limits of this machine, measured in the same run: each of the things the service does, done alone.
//!
//! Bare consumption with rdkafka, bare provider calls with the client and the concurrency the service uses, bare
//! batched writes of rows like the service's. What the service reaches is told as a ratio to the slowest of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rdkafka::ClientConfig;
use rdkafka::Message as _;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use sqlx::Connection as _;

use super::report::Row;
use super::servers::Bench;
use super::{Failure, as_f64};

/// Reads a whole topic and does nothing with it. The client's limits are those of the service.
pub fn consumption(bench: &Bench, topic: &str, events: usize) -> Result<Row, Failure> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &bench.kafka)
        .set("group.id", format!("{topic}.raw"))
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "5")
        .set("queued.min.messages", "20000")
        .set("queued.max.messages.kbytes", "16384")
        .create()?;
    consumer.subscribe(&[topic])?;
    let (mut seen, mut bytes, mut begun) = (0, 0, Instant::now());
    while seen < events {
        if let Some(message) = consumer.poll(Duration::from_secs(10)) {
            if seen == 0 {
                begun = Instant::now();
            }
            bytes += message?.payload().map_or(0, <[u8]>::len);
            seen += 1;
        }
    }
    let mut row = Row::new("raw: consumption", events);
    row.set("events_per_second", as_f64(events) / begun.elapsed().as_secs_f64());
    row.set("bytes_per_event", as_f64(bytes / events.max(1)));
    Ok(row)
}

/// Calls the provider `calls` times, `width` at once, with hyper on one thread, and does nothing else.
pub async fn calls(bench: &Bench, calls: usize, width: usize) -> Result<Row, Failure> {
    let url = bench.provider.url.clone();
    let cpu_before = bench.provider.cpu();
    // A thread of its own with a current-thread runtime: what the service has.
    let work = tokio::task::spawn_blocking(move || -> Result<(f64, f64), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = super::cost::thread_id().unwrap_or(0);
        let cpu = super::cost::thread_cpu(thread).unwrap_or(0.0);
        let seconds =
            runtime.block_on(tokio::task::LocalSet::new().run_until(call_all(url, calls, width)))?;
        Ok((seconds, super::cost::thread_cpu(thread).unwrap_or(0.0) - cpu))
    });
    let (seconds, cpu) = work.await??;
    let mut row = Row::new(&format!("raw: calls, {width} at once"), calls);
    row.set("events_per_second", as_f64(calls) / seconds);
    row.set("cpu_service_s_per_1k", cpu / as_f64(calls) * 1000.0);
    row.set("cpu_provider_s_per_1k", (bench.provider.cpu() - cpu_before) / as_f64(calls) * 1000.0);
    Ok(row)
}

async fn call_all(url: String, calls: usize, width: usize) -> Result<f64, Failure> {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    let client: Client<HttpConnector, Full<Bytes>> = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(width)
        .build(tcp);
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let workers = (0..width).map(|_| {
        let (client, url, next) = (client.clone(), url.clone(), Arc::clone(&next));
        tokio::task::spawn_local(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= calls {
                    return Ok::<(), Failure>(());
                }
                let body = format!(
                    r#"{{"chave":"raw-{n:09}:notificar-vendedor","eventoId":"raw-{n:09}","tipoEfeito":"notificar-vendedor","pedidoId":"ped-{n:09}","valorCentavos":500,"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
                );
                let request = Request::post(&url)
                    .header("content-type", "application/json")
                    .header("idempotency-key", format!("raw-{n:09}:notificar-vendedor"))
                    .body(Full::new(Bytes::from(body)))?;
                client.request(request).await?.into_body().collect().await?;
            }
        })
    });
    for ended in try_join_all(workers).await? {
        ended?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// What the service writes about an event, in batches of 256 on one connection: a commission, a ledger row reserved,
/// the same row settled. Three arms of one statement, one commit.
const WRITE: &str = r"
with c as (
    insert into comissao (pedido_id, valor_centavos, versao_evento, evento_id, resumo_evento, execucao_id)
    select x.id, 500, 1, x.id, x.resumo, 'ao-vivo' from unnest($1::text[], $2::bytea[]) as x(id, resumo)
    on conflict do nothing
), s as (
    update efeito_aplicado e set estado = 'concluido', resultado = '{}'::jsonb, atualizado_em = now()
    from unnest($4::text[]) as x(chave) where e.chave = x.chave and e.estado = 'reservado'
)
insert into efeito_aplicado (chave, evento_id, tipo_efeito, pedido_id, versao_evento, estado, execucao_id, requisicao,
                             resumo_requisicao, resumo_evento, ficha, dono, reserva_ate, tentativas)
select x.id, x.id, 'notificar-vendedor', x.id, 1, 'reservado', 'ao-vivo', x.requisicao::jsonb, x.resumo, x.resumo,
       gen_random_uuid(), 1, now() + interval '30 seconds', 1
from unnest($1::text[], $2::bytea[], $3::text[]) as x(id, resumo, requisicao)
on conflict do nothing
";

const PINNED: &str = "set plan_cache_mode = force_generic_plan; set enable_seqscan = off;
                      set enable_hashjoin = off; set enable_mergejoin = off";

pub async fn writes(bench: &Bench, events: usize) -> Result<Row, Failure> {
    const BATCH: usize = 256;
    let url = bench.database("reprise_bench_raw").await?;
    let mut connection = sqlx::PgConnection::connect(&url).await?;
    sqlx::raw_sql(PINNED).execute(&mut connection).await?;
    let digest: &[u8] = &[7; 32];
    let body = r#"{"chave":"raw-000000000:notificar-vendedor","eventoId":"raw-000000000","tipoEfeito":"notificar-vendedor","pedidoId":"ped-000000000","valorCentavos":500,"ocorridoEm":"2026-10-14T12:00:00Z"}"#;
    let mut before: Vec<String> = Vec::new();
    let begun = Instant::now();
    for batch in 0..events.div_ceil(BATCH) {
        let ids: Vec<String> = (0..BATCH).map(|n| format!("raw-{:09}", batch * BATCH + n)).collect();
        sqlx::query(WRITE)
            .bind(&ids)
            .bind(vec![digest; BATCH])
            .bind(vec![body; BATCH])
            .bind(&before)
            .execute(&mut connection)
            .await?;
        before = ids;
    }
    let mut row = Row::new("raw: batched writes", events);
    row.set("events_per_second", as_f64(events) / begun.elapsed().as_secs_f64());
    Ok(row)
}
