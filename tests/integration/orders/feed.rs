//! Nobody who follows the feed ever passes over an event.

use reprise::pg::order_feed::{Position, floor, next};
use sqlx::Connection as _;
use uuid::Uuid;

use super::{PLACED, Shop, insert};

#[tokio::test]
async fn the_feed_waits_for_a_transaction_that_commits_late() {
    let shop = Shop::open().await;
    let (mut slow, mut fast, mut reader) =
        (shop.connection().await, shop.connection().await, shop.connection().await);
    let [first, late, early, last] = [1, 2, 3, 4].map(Uuid::from_u128);
    insert(&mut fast, first, 1, "OrderPlaced", PLACED).await;
    let mut open = slow.begin().await.expect("begun");
    insert(&mut open, late, 1, "OrderPlaced", PLACED).await;
    insert(&mut fast, early, 1, "OrderPlaced", PLACED).await;

    let seen = next(&mut reader, Position(0), 10).await.expect("read");
    assert_eq!(seen.iter().map(|event| event.stream_id).collect::<Vec<_>>(), [first]);
    let after = Position(seen[0].global_seq);
    assert!(
        next(&mut reader, after, 10).await.expect("read").is_empty(),
        "number 3 is there, number 2 not yet"
    );

    // A second writer that begins later does not raise the floor, and its end does not either.
    insert(&mut fast, last, 1, "OrderPlaced", PLACED).await;
    assert!(next(&mut reader, after, 10).await.expect("read").is_empty());

    open.commit().await.expect("committed");
    let seen = next(&mut reader, after, 10).await.expect("read");
    assert_eq!(seen.iter().map(|event| event.stream_id).collect::<Vec<_>>(), [late, early, last]);
    assert_eq!(seen[0].metadata.tenant_id, "t1");
}

#[tokio::test]
async fn the_feed_steps_over_what_was_rolled_back() {
    let shop = Shop::open().await;
    let (mut slow, mut fast, mut reader) =
        (shop.connection().await, shop.connection().await, shop.connection().await);
    let [gone, stays] = [1, 2].map(Uuid::from_u128);
    let mut open = slow.begin().await.expect("begun");
    insert(&mut open, gone, 1, "OrderPlaced", PLACED).await;
    insert(&mut fast, stays, 1, "OrderPlaced", PLACED).await;
    assert!(next(&mut reader, Position(0), 10).await.expect("read").is_empty());
    open.rollback().await.expect("rolled back");

    let seen = next(&mut reader, Position(0), 10).await.expect("read");
    assert_eq!(seen.iter().map(|event| event.stream_id).collect::<Vec<_>>(), [stays]);
    assert_eq!(floor(&mut reader).await.expect("read"), Position(seen[0].global_seq));
}

#[tokio::test]
async fn a_long_transaction_that_writes_no_order_holds_nobody_up() {
    let shop = Shop::open().await;
    let (mut other, mut writer, mut reader) =
        (shop.connection().await, shop.connection().await, shop.connection().await);
    let mut open = other.begin().await.expect("begun");
    sqlx::query("create table elsewhere (id int)").execute(&mut *open).await.expect("made");
    insert(&mut writer, Uuid::from_u128(1), 1, "OrderPlaced", PLACED).await;
    assert_eq!(next(&mut reader, Position(0), 10).await.expect("read").len(), 1);
    open.rollback().await.expect("rolled back");
}

#[tokio::test]
async fn readers_beside_many_writers_see_every_event_once_and_in_order() {
    let shop = Shop::open().await;
    let writers = (0..8_u128).map(|writer| {
        let url = shop.world.database_url.clone();
        tokio::spawn(async move {
            let mut connection = sqlx::PgConnection::connect(&url).await.expect("Postgres answers");
            for number in 0..40_u128 {
                let mut open = connection.begin().await.expect("begun");
                insert(&mut open, Uuid::from_u128(writer * 1000 + number), 1, "OrderPlaced", PLACED).await;
                if number % 5 == 4 {
                    open.rollback().await.expect("rolled back");
                } else {
                    open.commit().await.expect("committed");
                }
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut reader = shop.connection().await;
    let (mut at, mut seen) = (Position(0), Vec::new());
    while seen.len() < 8 * 32 {
        let page = next(&mut reader, at, 7).await.expect("read");
        let ended = writers.iter().all(tokio::task::JoinHandle::is_finished);
        assert!(
            !(ended && page.is_empty() && next(&mut reader, at, 7).await.expect("read").is_empty()),
            "the feed ended after {} events",
            seen.len()
        );
        if let Some(last) = page.last() {
            at = Position(last.global_seq);
        }
        seen.extend(page.into_iter().map(|event| event.global_seq));
    }
    for writer in writers {
        writer.await.expect("wrote");
    }
    assert!(seen.is_sorted_by(|a, b| a < b));
    assert_eq!(shop.number("select count(*) from order_events").await, 256);
    assert_eq!(seen.len(), 256);
}
