//! How long an order of many events takes to load: from events alone, and with a snapshot. Goals: < 100 ms, < 5 ms.
//!
//! Sizes: `ORDER_EVENTS` (10,000), `LOADS` (50). Server: `REPRISE_TEST_PG`, else that of `make up`. No assertion on
//! time; that both ways give the same order is asserted.

use std::time::{Duration, Instant};

use reprise::orders::desk::{Desk, DeskSettings, Request};
use reprise::orders::order::{Command, Order};
use reprise::pg::connect::Database;
use reprise::pg::demo::fresh_database;
use reprise::pg::orders::Until;
use reprise::pg::schema;
use uuid::Uuid;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ORDER: Uuid = Uuid::from_u128(1);

/// An order that changed hands again and again.
const EVENTS: &str = r#"
    insert into order_events (stream_id, version, type, payload, metadata)
    select $1, n,
           case when n = 1 then 'OrderPlaced' when n = 2 then 'OrderPaid' else 'CourierAssigned' end,
           case when n = 1 then '{"customerId":"c1","sellerId":"v1","commissionPercent":"5",
                                  "items":[{"sku":"livro","quantity":2,"unitPriceCents":5000}]}'::jsonb
                when n = 2 then '{"sellerId":"v1","amountCents":10000,"commissionPercent":"5"}'::jsonb
                else jsonb_build_object('courierId', 'k' || n, 'vehicleType', 'bike') end,
           jsonb_build_object('event_id', gen_random_uuid(), 'command_id', n::text, 'tenant_id', 't1',
                              'schema_version', case when n < 3 then 1 else 2 end, 'actor', 'bench')
    from generate_series(1, $2::int) as n order by n"#;

fn size(name: &str, otherwise: i32) -> i32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server =
        std::env::var("REPRISE_TEST_PG").unwrap_or_else(|_| "postgres://postgres@127.0.0.1:25432".to_owned());
    let url = fresh_database(&format!("{server}/postgres"), "reprise_bench_orders").await?;
    let database = Database::new(&url, 8)?;
    schema::migrate(&database).await?;
    let (events, loads) = (size("ORDER_EVENTS", 10_000), size("LOADS", 50));
    sqlx::query(EVENTS).bind(ORDER).bind(events).execute(database.pool()).await?;

    let desk = Desk::new(database, DeskSettings { snapshot_every: 1, also_publish: Vec::new() });
    let (slow, from_events) = time(&desk, loads).await?;
    // Asking for a cancellation is legal in any state before the end, and leaves a snapshot behind.
    desk.take(&Request {
        order_id: ORDER,
        command: Command::RequestCancellation { reason: "enough".to_owned() },
        command_id: "bench".to_owned(),
        expected_version: None,
        tenant_id: None,
        actor: "bench".to_owned(),
        reason: None,
        traceparent: None,
    })
    .await?;
    let (fast, with_snapshot) = time(&desk, loads).await?;
    assert_eq!(with_snapshot.courier_id, from_events.courier_id);
    assert_eq!(with_snapshot.version, from_events.version + 1);
    println!("an order of {events} events, {loads} loads, median and slowest:");
    println!("  from events alone  {}", shown(&slow));
    println!("  with a snapshot    {}", shown(&fast));
    Ok(())
}

async fn time(desk: &Desk, loads: i32) -> Result<(Vec<Duration>, Order), Failure> {
    let mut order = desk.show(ORDER, Until::Now, None).await?;
    let mut times = Vec::new();
    for _ in 0..loads {
        let begun = Instant::now();
        order = desk.show(ORDER, Until::Now, None).await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok((times, order))
}

fn shown(times: &[Duration]) -> String {
    let at = |index: usize| times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1000.0);
    format!("{:8.2} ms {:8.2} ms", at(times.len() / 2), at(times.len().saturating_sub(1)))
}
