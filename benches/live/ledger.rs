//! What more rows, scattered ids and more instances change.
//!
//! `instances`: one, two and four processes in one group, over `EVENTS` (100,000).
//! `random`: ids like uuid v4, `KNOWN` (300,000) of them, new and then again.
//! `ledger`: `LEDGER` (1,000,000; 50,000,000 takes hours and 60 GB) rows stand there already, with
//! random ids; then `EVENTS` (60,000) new ones and the same again.

use sqlx::PgPool;

use crate::support::events::{Ids, orders};
use crate::support::report::{Report, Row};
use crate::support::servers::Bench;
use crate::support::service::{Pass, Settings, run};
use crate::support::{Failure, as_f64, size};
use crate::throughput::vacuum;

pub async fn instances(bench: &mut Bench) -> Result<Report, Failure> {
    let (events, runs) = (size("EVENTS", 100_000), size("RUNS", 3));
    let mut report = Report::new("instances");
    let topic = bench.topic("instances", orders(events, Ids::Sequential)).await?;
    for instances in [1, 2, 4] {
        for n in 0..runs {
            let database = bench.database("reprise_bench").await?;
            let settings = Settings::new(&topic, &format!("{topic}.{instances}.{n}"), &database, 256);
            let name = format!("{instances} x 256 slots");
            let mut row =
                run(bench, Pass { name: &name, settings: &settings, instances, events, calls: true }).await?;
            row.set("deadlocks", deadlocks(&database).await?);
            report.add(row);
        }
    }
    Ok(report)
}

async fn deadlocks(database: &str) -> Result<f64, Failure> {
    let pool = PgPool::connect(database).await?;
    let count: i64 =
        sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
            .fetch_one(&pool)
            .await?;
    Ok(as_f64(usize::try_from(count)?))
}

pub async fn random(bench: &mut Bench) -> Result<Report, Failure> {
    let events = size("KNOWN", 300_000);
    let mut report = Report::new("random");
    for ids in [Ids::Sequential, Ids::Random] {
        let topic = bench.topic(&format!("ids{}", ids.name().len()), orders(events, ids)).await?;
        let database = bench.database("reprise_bench").await?;
        for row in new_and_again(bench, &topic, &database, events, ids.name()).await? {
            report.add(row);
        }
    }
    Ok(report)
}

pub async fn ledger(bench: &mut Bench) -> Result<Report, Failure> {
    let (rows, events) = (size("LEDGER", 1_000_000), size("EVENTS", 60_000));
    let mut report = Report::new("ledger");
    let topic = bench.topic("ledger", orders(events, Ids::Random)).await?;
    for rows in [0, rows] {
        let database = bench.database("reprise_bench").await?;
        fill(&database, rows).await?;
        for row in new_and_again(bench, &topic, &database, events, &format!("{rows} rows before")).await? {
            report.add(row);
        }
    }
    Ok(report)
}

/// New events once, then `RUNS` times again.
async fn new_and_again(
    bench: &Bench,
    topic: &str,
    database: &str,
    events: usize,
    what: &str,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for n in 0..=size("RUNS", 3) {
        let settings = Settings::new(topic, &format!("{topic}.{}.{n}", what.len()), database, 512);
        let name = format!("{}, {what}", if n == 0 { "new" } else { "known" });
        rows.push(
            run(bench, Pass { name: &name, settings: &settings, instances: 1, events, calls: n == 0 })
                .await?,
        );
        if n == 0 {
            vacuum(database).await?;
        }
    }
    Ok(rows)
}

/// Settled effects and their commissions, as live would have left them.
async fn fill(database: &str, rows: usize) -> Result<(), Failure> {
    const PART: usize = 500_000;
    let pool = PgPool::connect(database).await?;
    for part in 0..rows.div_ceil(PART) {
        sqlx::query(
            "with x as materialized (
                 select gen_random_uuid()::text as id, gen_random_uuid()::text as pedido, sha256(n::text::bytea) as resumo
                 from generate_series(1, $1::bigint) n
             ), c as (
                 insert into comissao (pedido_id, valor_centavos, versao_evento, evento_id, resumo_evento)
                 select pedido, 500, 1, id, resumo from x
             )
             insert into efeito_aplicado (chave, evento_id, tipo_efeito, pedido_id, versao_evento, estado, execucao_id,
                 requisicao, resumo_requisicao, resumo_evento, resultado, ficha, dono, reserva_ate, tentativas)
             select id || ':notificar-vendedor', id, 'notificar-vendedor', pedido, 1, 'concluido', 'ao-vivo',
                 jsonb_build_object('chave', id || ':notificar-vendedor', 'eventoId', id, 'tipoEfeito', 'notificar-vendedor',
                     'pedidoId', pedido, 'valorCentavos', 500, 'ocorridoEm', '2026-10-14T12:00:00Z'),
                 resumo, resumo, '{\"ok\": true}', gen_random_uuid(), 1, now(), 1
             from x",
        )
        .bind(i64::try_from(PART.min(rows - part * PART))?)
        .execute(&pool)
        .await?;
    }
    vacuum(database).await
}
