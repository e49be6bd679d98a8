//! The inbox: once per consumer and message, in the transaction of the work.

use reprise::pg::days::{self, DayTable};
use reprise::pg::inbox::claim;
use sqlx::{Connection as _, PgConnection};
use std::time::Duration;
use uuid::Uuid;

use crate::support::World;

const TOPIC: &str = "orders.events";

/// A consumer that adds each message's amount to a total, in one transaction with its claim.
async fn add(connection: &mut PgConnection, ids: &[&str]) -> Vec<bool> {
    let mut transaction = connection.begin().await.expect("a transaction");
    let new = claim(&mut transaction, "totals", TOPIC, ids).await.expect("claimed");
    let amount = i64::try_from(new.iter().filter(|new| **new).count()).expect("few") * 100;
    sqlx::query("update total set cents = cents + $1")
        .bind(amount)
        .execute(&mut *transaction)
        .await
        .expect("added");
    transaction.commit().await.expect("committed");
    new
}

async fn world_with_a_total() -> (World, PgConnection) {
    let world = World::start().await;
    world.execute("create table total as select 0::bigint as cents").await;
    let connection = PgConnection::connect(&world.database_url).await.expect("a database");
    (world, connection)
}

#[tokio::test]
async fn a_message_counts_once_however_often_it_comes() {
    let (world, mut connection) = world_with_a_total().await;
    let (a, b) = (Uuid::now_v7().to_string(), Uuid::now_v7().to_string());
    assert_eq!(add(&mut connection, &[&a, &b, &a]).await, [true, true, false]);
    assert_eq!(add(&mut connection, &[&b, &a]).await, [false, false]);
    assert_eq!(add(&mut connection, &["foreign-7", &b, "foreign-7"]).await, [true, false, false]);
    assert_eq!(world.one::<i64>("select cents from total").await, 300);
    let mut transaction = connection.begin().await.expect("a transaction");
    let other = claim(&mut transaction, "other", TOPIC, &[&a]).await.expect("claimed");
    assert_eq!(other, [true], "another consumer has not handled it");
}

#[tokio::test]
async fn a_consumer_killed_before_its_commit_has_done_nothing_and_the_repetition_is_the_first() {
    let (world, mut connection) = world_with_a_total().await;
    let id = Uuid::now_v7().to_string();
    let mut doomed = PgConnection::connect(&world.database_url).await.expect("a database");
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut doomed).await.expect("a pid");
    let mut transaction = doomed.begin().await.expect("a transaction");
    assert_eq!(claim(&mut transaction, "totals", TOPIC, &[&id]).await.expect("claimed"), [true]);
    sqlx::query("update total set cents = cents + 100").execute(&mut *transaction).await.expect("added");
    world.execute(&format!("select pg_terminate_backend({pid})")).await;
    assert!(transaction.commit().await.is_err(), "its session is gone");

    assert_eq!(add(&mut connection, &[&id]).await, [true]);
    assert_eq!(add(&mut connection, &[&id]).await, [false]);
    assert_eq!(world.one::<i64>("select cents from total").await, 100);
}

#[tokio::test]
async fn two_consumers_with_the_same_message_wait_for_one_another() {
    let (world, mut connection) = world_with_a_total().await;
    let id = Uuid::now_v7().to_string();
    let mut first = connection.begin().await.expect("a transaction");
    assert_eq!(claim(&mut first, "totals", TOPIC, &[&id]).await.expect("claimed"), [true]);
    sqlx::query("update total set cents = cents + 100").execute(&mut *first).await.expect("added");
    let (url, other) = (world.database_url.clone(), id.clone());
    let second = tokio::spawn(async move {
        let mut connection = PgConnection::connect(&url).await.expect("a database");
        add(&mut connection, &[&other]).await
    });
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like 'insert into inbox%'";
    crate::support::until("the second waits", crate::support::SOON, async || {
        world.one::<i64>(waiting).await == 1
    })
    .await;
    first.commit().await.expect("committed");
    assert_eq!(second.await.expect("no panic"), [false]);
    assert_eq!(world.one::<i64>("select cents from total").await, 100);
}

#[tokio::test]
async fn a_day_is_forgotten_by_when_it_was_handled_not_by_when_it_was_sent() {
    let (world, mut connection) = world_with_a_total().await;
    // 2025-10-20, which has a partition of its own.
    let old = "019a0000-0000-7000-8000-000000000000";
    world
        .execute(
            "create table inbox_20251020 partition of inbox for values from ('2025-10-20') to ('2025-10-21')",
        )
        .await;
    assert_eq!(add(&mut connection, &[old, "foreign-1"]).await, [true, true]);
    let day = Duration::from_hours(24);
    let dropped = days::drop_over(&mut connection, DayTable::Inbox, day).await.expect("looked after");
    assert_eq!(dropped, [""; 0], "a late message was handled just now");
    assert_eq!(add(&mut connection, &[old, "foreign-1"]).await, [false, false]);

    world.execute("update inbox set processed_at = now() - interval '25 hours'").await;
    let dropped = days::drop_over(&mut connection, DayTable::Inbox, day).await.expect("looked after");
    assert_eq!(dropped, ["inbox_20251020"]);
    assert_eq!(world.one::<i64>("select count(*) from inbox").await, 0);
}
