//! The write side of orders on a real Postgres: the store, its feed, the desk, the API.

mod api;
mod feed;
mod foreign;
mod store;

use reprise::orders::desk::{Desk, DeskSettings, Request};
use reprise::orders::event::{Item, OrderPlaced};
use reprise::orders::order::Command;
use reprise::pg::connect::Database;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use super::support::World;

/// A world's database, and a desk on it.
pub struct Shop {
    pub world: World,
    pub desk: Desk,
}

impl Shop {
    pub async fn open() -> Self {
        Self::with_snapshots_every(50).await
    }

    pub async fn with_snapshots_every(snapshot_every: u32) -> Self {
        let world = World::start().await;
        let database = Database::new(&world.database_url, 30).expect("a URL");
        let desk = Desk::new(database, DeskSettings { snapshot_every, also_publish: Vec::new() });
        Self { world, desk }
    }

    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.world.database_url).await.expect("Postgres answers")
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.connection().await;
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await.expect("a number")
    }

    pub async fn place(&self, order_id: Uuid) {
        self.desk.take(&request(order_id, place())).await.expect("placed");
    }
}

pub fn place() -> Command {
    let placed = OrderPlaced {
        customer_id: "c1".to_owned(),
        seller_id: "v1".to_owned(),
        items: vec![Item { sku: "livro".to_owned(), quantity: 2, unit_price_cents: 5000 }],
        commission_percent: "5".to_owned(),
    };
    Command::Place { tenant_id: "t1".to_owned(), placed }
}

pub fn pay() -> Command {
    Command::Pay { amount_cents: 10_000 }
}

/// Under a key of its own.
pub fn request(order_id: Uuid, command: Command) -> Request {
    Request {
        order_id,
        command,
        command_id: Uuid::new_v4().to_string(),
        expected_version: None,
        tenant_id: None,
        actor: "ana".to_owned(),
        reason: None,
        traceparent: None,
    }
}

/// Events as another program would write them.
pub async fn insert(connection: &mut PgConnection, stream: Uuid, version: i32, name: &str, payload: &str) {
    insert_form(connection, stream, version, name, 1, payload).await;
}

pub async fn insert_form(
    connection: &mut PgConnection,
    stream: Uuid,
    version: i32,
    name: &str,
    form: i32,
    payload: &str,
) {
    sqlx::query(
        "insert into order_events (stream_id, version, type, payload, metadata)
         values ($1, $2, $3, $4::jsonb, jsonb_build_object('event_id', gen_random_uuid(), 'schema_version', $5::int,
                 'command_id', gen_random_uuid(), 'tenant_id', 't1', 'actor', 'import'))",
    )
    .bind(stream)
    .bind(version)
    .bind(name)
    .bind(payload)
    .bind(form)
    .execute(connection)
    .await
    .expect("inserted");
}

pub const PLACED: &str = r#"{"customerId":"c1","sellerId":"v1","commissionPercent":"5",
    "items":[{"sku":"livro","quantity":2,"unitPriceCents":5000}]}"#;
pub const PAID: &str = r#"{"sellerId":"v1","amountCents":10000,"commissionPercent":"5"}"#;
