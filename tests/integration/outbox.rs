//! The outbox against the real servers: what is committed goes out, in order, at least once, whatever is killed.

use std::time::Duration;

use rdkafka::Message as _;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use serde_json::json;
use sqlx::Connection as _;

use crate::support::kafka::{header, payload};
use crate::support::shop::{Shop, event, message};
use crate::support::{LATER, Link, SOON, crash, http, kafka_servers, until};

#[tokio::test]
async fn what_is_committed_goes_out_with_its_headers_and_what_is_rolled_back_never_does() {
    let shop = Shop::open().await;
    let _relay = shop.start("relay").await;
    let kept = event("order-1", "OrderPlaced", json!({ "n": 1, "note": "três" }));
    shop.add(std::slice::from_ref(&kept)).await;
    let mut connection = shop.connect().await;
    let mut transaction = connection.begin().await.expect("a transaction");
    reprise::pg::outbox::add(&mut transaction, &[message("order-1", 2)]).await.expect("added");
    transaction.rollback().await.expect("rolled back");
    shop.add(&[message("order-1", 3)]).await;
    shop.all_published().await;

    let found = shop.world.kafka.read(&shop.events).await;
    assert_eq!(found.len(), 2);
    let first = &found[0];
    assert_eq!(first.key(), Some(&b"order-1"[..]));
    let value: serde_json::Value = serde_json::from_slice(payload(first)).expect("JSON");
    assert_eq!(value, json!({ "n": 1, "note": "três" }));
    assert_eq!(header(first, "message_id"), kept.id.to_string());
    assert_eq!(header(first, "event_type"), "OrderPlaced");
    assert_eq!(header(first, "schema_version"), "1");
    assert_eq!(header(first, "tenant_id"), "t1");
    assert_eq!(header(first, "traceparent"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(
        shop.world.metric("reprise_outbox_published_total", &[("destination", "events")]).await,
        Some(2.0)
    );
}

#[tokio::test]
async fn b61_a_message_whose_hint_was_lost_is_published_all_the_same() {
    let shop = Shop::open().await;
    let _relay = shop.start("relay").await;
    // 12,000 bytes of accents and emoji: a notification that carried them would fail the insert.
    let note = "ação 🚚 ".repeat(800);
    shop.world
        .execute(&format!(
            "insert into outbox (id, destination, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), 'events', 'order', 'order-1', 'OrderPaid', '{{\"n\": 1, \"note\": \"{note}\"}}')"
        ))
        .await;
    shop.all_published().await;
    assert_eq!(shop.numbers().await["order-1"], [1]);
}

#[tokio::test]
async fn a_relay_killed_before_its_mark_repeats_and_loses_nothing() {
    let mut shop = Shop::open().await;
    // One worker has everything acknowledged when it dies; of two, one takes the other with it.
    shop.world.set(&["outbox", "workers"], 1);
    for n in 1..=3 {
        shop.add(&[message("order-1", n), message("order-2", n)]).await;
    }
    let mut command = shop.world.command(&["relay"]);
    command.envs([crash("relay_before_mark")]);
    let ended = shop.world.spawn(command).ended(LATER).await;
    assert_eq!(ended.code, None, "it died:\n{}", ended.stderr);
    assert_eq!(shop.unpublished().await, 6, "acknowledged, and not marked");

    let _relay = shop.start("relay").await;
    shop.all_published().await;
    let numbers = shop.numbers().await;
    for order in ["order-1", "order-2"] {
        assert_eq!(numbers[order], [1, 2, 3, 1, 2, 3], "{order}: once more, and in order");
    }
    let mut ids = shop.message_ids().await;
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "a repetition has the id of the first");
}

#[tokio::test]
async fn b60_nothing_overtakes_a_refused_message_of_its_aggregate() {
    let shop = Shop::with(&[("max.message.bytes", "2000")]).await;
    let _relay = shop.start("relay").await;
    let large = event("order-1", "OrderPaid", json!({ "n": 1, "note": noise(4_000) }));
    shop.add(&[large, message("order-1", 2), message("order-1", 3), message("order-2", 1)]).await;
    let refused = "select attempts from outbox where aggregate_id = 'order-1' order by seq limit 1";
    until("the head was refused twice", SOON, async || shop.world.one::<i32>(refused).await >= 2).await;
    assert_eq!(shop.numbers().await.into_iter().collect::<Vec<_>>(), [("order-2".to_owned(), vec![1])]);

    set_topic(&shop.events, "max.message.bytes", "1000000").await;
    shop.all_published().await;
    assert_eq!(shop.numbers().await["order-1"], [1, 2, 3]);
}

#[tokio::test]
async fn b60_a_message_that_is_refused_for_good_is_parked_and_its_aggregate_goes_on() {
    let mut shop = Shop::with(&[("max.message.bytes", "2000")]).await;
    shop.world.set(&["outbox", "max_attempts"], 2);
    set_topic(&shop.dlq, "max.message.bytes", "3000").await;
    let _relay = shop.start("relay").await;
    let large = event("order-1", "OrderPaid", json!({ "n": 1, "note": noise(4_000) }));
    shop.add(&[large.clone(), message("order-1", 2), message("order-1", 3)]).await;
    shop.all_published().await;
    assert_eq!(shop.numbers().await["order-1"], [2, 3]);

    let letters = shop.world.kafka.read(&shop.dlq).await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].key(), Some(&b"order-1"[..]));
    assert_eq!(header(&letters[0], "message_id"), large.id.to_string());
    assert_eq!(header(&letters[0], "reprise-dlq-motivo"), "recusado-pelo-broker");
    assert_eq!(header(&letters[0], "reprise-dlq-topico"), shop.events);
    assert_eq!(header(&letters[0], "reprise-dlq-tentativas"), "2");
    assert_eq!(header(&letters[0], "reprise-dlq-truncado"), "true");
    assert!(payload(&letters[0]).len() > 1_000 && payload(&letters[0]).len() < 3_000);
    let parked: (bool, i32) = shop
        .world
        .rows("select parked_at is not null, attempts from outbox where published_at is null")
        .await[0];
    assert_eq!(parked, (true, 2));
    until("the gauge tells it", SOON, async || {
        shop.world.metric("reprise_outbox_parked", &[]).await == Some(1.0)
    })
    .await;
    assert_eq!(shop.world.metric("reprise_outbox_parked_total", &[]).await, Some(1.0));
}

#[tokio::test]
async fn a_person_sends_a_parked_message_after_all_or_leaves_it_out_and_the_decision_is_kept() {
    let mut shop = Shop::with(&[("max.message.bytes", "2000")]).await;
    shop.world.set(&["outbox", "max_attempts"], 1);
    let _relay = shop.start("relay").await;
    let large = |order: &str| event(order, "OrderPaid", json!({ "n": 1, "note": noise(4_000) }));
    let (first, second) = (large("order-1"), large("order-2"));
    shop.add(&[first.clone(), second.clone(), message("order-1", 2), message("order-1", 3)]).await;
    shop.all_published().await;

    let parked = shop.world.json(&["outbox", "parked"]).await;
    let told: Vec<_> = parked.as_array().expect("a list").iter().collect();
    assert_eq!(told.len(), 2);
    assert_eq!((&told[0]["id"], &told[0]["aggregateId"]), (&json!(first.id), &json!("order-1")));
    assert_eq!((&told[0]["later"], &told[1]["later"]), (&json!(2), &json!(0)));
    let said = told[0]["lastError"].as_str().expect("what the broker said");
    assert!(said.to_lowercase().contains("size") || said.contains("large"), "{said}");

    set_topic(&shop.events, "max.message.bytes", "1000000").await;
    let (first, second) = (first.id.to_string(), second.id.to_string());
    let by = ["--by", "ana", "--reason", "o limite foi aumentado"];
    shop.world.cli(&[&["outbox", "requeue", first.as_str()][..], &by].concat()).await;
    shop.all_published().await;
    assert_eq!(shop.numbers().await["order-1"], [2, 3, 1], "behind what went on without it");
    shop.world.cli(&[&["outbox", "discard", "--all"][..], &by].concat()).await;
    let again = shop.world.try_cli(&[&["outbox", "discard", second.as_str()][..], &by].concat()).await;
    assert_eq!(again.code, Some(4), "{}", again.stderr);
    assert!(again.stderr.contains(&second), "{}", again.stderr);

    let decisions: Vec<(String, String, String, bool)> = shop
        .world
        .rows("select message_id::text, decision, decided_by, payload is not null from outbox_decision order by id")
        .await;
    let ana = || "ana".to_owned();
    let expected =
        [(first, "requeued".to_owned(), ana(), false), (second.clone(), "discarded".to_owned(), ana(), true)];
    assert_eq!(decisions, expected);
    assert_eq!(shop.world.one::<i64>("select count(*) from outbox").await, 3, "the discarded one is gone");
    assert!(!shop.message_ids().await.contains(&second));
}

#[tokio::test]
async fn b65_a_transaction_left_open_elsewhere_is_shown_and_holds_up_neither_orders_nor_effects() {
    let shop = Shop::open().await;
    let mut idle = shop.connect().await;
    let mut held = idle.begin().await.expect("a transaction");
    sqlx::query("set transaction isolation level repeatable read").execute(&mut *held).await.expect("set");
    sqlx::query("select count(*) from outbox").execute(&mut *held).await.expect("a snapshot");
    let _all = shop.start("all").await;
    for round in 1..=20 {
        let messages: Vec<_> = (0..50).map(|n| message(&format!("order-{n}"), round)).collect();
        shop.add(&messages).await;
    }
    shop.world.feed(0, 50).await;
    shop.all_published().await;
    shop.world.settled().await;
    let numbers = shop.numbers().await;
    assert_eq!(numbers.len(), 50);
    for (order, seen) in numbers {
        assert_eq!(first_copies(&seen), (1..=20).collect::<Vec<_>>(), "{order}");
    }
    assert_eq!(shop.world.done().await, 50);
    until("the transaction is shown", SOON, async || {
        shop.world.metric("reprise_transacao_mais_antiga_segundos", &[]).await > Some(1.0)
    })
    .await;
    held.rollback().await.expect("it was open all the time");
}

#[tokio::test]
async fn b50_what_the_broker_did_not_take_stays_pending_through_a_stop_and_is_sent_after_a_restart() {
    let mut shop = Shop::open().await;
    let link = Link::to_kafka(&kafka_servers()).await;
    shop.world.set(&["kafka", "brokers"], link.address());
    let mut relay = shop.start("relay").await;
    shop.add(&[message("order-1", 1)]).await;
    shop.all_published().await;
    link.cut();
    shop.add(&[message("order-1", 2), message("order-1", 3), message("order-2", 1)]).await;
    until("the lag is seen", SOON, async || {
        shop.world.metric("reprise_outbox_unpublished", &[]).await == Some(3.0)
            && shop.world.metric("reprise_outbox_oldest_seconds", &[]).await > Some(0.0)
    })
    .await;
    relay.terminate();
    let ended = relay.ended(Duration::from_secs(15)).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(shop.unpublished().await, 3);

    link.restore();
    let _relay = shop.start("relay").await;
    shop.all_published().await;
    let numbers = shop.numbers().await;
    assert_eq!(first_copies(&numbers["order-1"]), [1, 2, 3]);
    assert_eq!(first_copies(&numbers["order-2"]), [1]);
}

#[tokio::test]
async fn two_relays_share_the_work_and_a_killed_one_is_replaced_without_breaking_the_order() {
    let shop = Shop::open().await;
    let _first = shop.start("relay").await;
    let (config, port) = shop.world.second_instance();
    let mut second = shop.world.run(&["relay", "--config", config.to_str().expect("a path of text")]);
    let url = format!("http://127.0.0.1:{port}/metrics");
    let by_second = async || {
        let reply = http::request("GET", &url, &[], None).await?;
        http::metric(&reply.body, "reprise_outbox_published_total", &[("destination", "events")])
    };
    let orders: Vec<String> = (0..40).map(|n| format!("order-{n}")).collect();
    let mut round = 0;
    until("both publish", LATER, async || {
        round += 1;
        shop.add(&orders.iter().map(|order| message(order, round)).collect::<Vec<_>>()).await;
        by_second().await > Some(0.0)
    })
    .await;
    for _ in 0..3 {
        round += 1;
        shop.add(&orders.iter().map(|order| message(order, round)).collect::<Vec<_>>()).await;
    }
    second.kill();
    round += 1;
    shop.add(&orders.iter().map(|order| message(order, round)).collect::<Vec<_>>()).await;
    shop.all_published().await;
    let numbers = shop.numbers().await;
    for order in &orders {
        assert_eq!(first_copies(&numbers[order]), (1..=round).collect::<Vec<_>>(), "{order}");
    }
}

#[tokio::test]
async fn a_session_that_is_lost_is_begun_again_and_nothing_is_lost_with_it() {
    let shop = Shop::open().await;
    let _relay = shop.start("relay").await;
    for n in 1..=5 {
        shop.add(&[message("order-1", n)]).await;
        shop.world
            .execute(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and pid <> pg_backend_pid() and application_name = 'reprise'",
            )
            .await;
    }
    shop.all_published().await;
    assert_eq!(first_copies(&shop.numbers().await["order-1"]), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_day_leaves_as_a_whole_once_it_is_over_and_not_while_anything_in_it_waits() {
    let shop = Shop::open().await;
    for day in ["2026-01-01", "2026-01-02", "2026-01-03"] {
        let name = day.replace('-', "");
        shop.world
            .execute(&format!(
                "create table outbox_{name} partition of outbox
                 for values from ('{day} 00:00:00+00') to ('{day} 23:59:59+00')"
            ))
            .await;
        shop.world
            .execute(&format!(
                "insert into outbox (id, destination, aggregate_type, aggregate_id, event_type, payload, created_at,
                                     published_at, parked_at)
                 values (gen_random_uuid(), 'events', 'order', 'order-1', 'OrderPaid', '{{}}', '{day} 10:00:00+00',
                         case when '{day}' <> '2026-01-02' then timestamptz '{day} 10:00:01+00' end,
                         case when '{day}' = '2026-01-02' then timestamptz '{day} 10:00:01+00' end)"
            ))
            .await;
    }
    let mut relay = shop.start("relay").await;
    let days = "select count(*) from pg_class where relname ~ '^outbox_2026010[123]$'";
    until("two days are dropped", SOON, async || shop.world.one::<i64>(days).await == 1).await;
    assert_eq!(shop.world.one::<i64>("select count(*) from outbox").await, 1, "the parked one stays");
    let ahead: i64 =
        shop.world.one("select count(*) from pg_class where relname ~ '^(in|out)box_[0-9]{8}$'").await;
    assert_eq!(ahead, 9, "today and three days ahead, for both tables, and the one that stays");
    shop.add(&[message("order-2", 1)]).await;
    shop.all_published().await;
    assert_eq!(
        shop.world.one::<i64>("select count(*) from outbox_default").await,
        0,
        "it has a day of its own"
    );
    relay.terminate();
    assert_eq!(relay.ended(SOON).await.code, Some(0));
}

/// First copies, in their order: what a consumer that leaves out repetitions sees.
fn first_copies(numbers: &[i64]) -> Vec<i64> {
    let mut seen = Vec::new();
    for n in numbers {
        if !seen.contains(n) {
            seen.push(*n);
        }
    }
    seen
}

/// A text that does not compress.
fn noise(bytes: usize) -> String {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'!' + u8::try_from((state >> 33) % 90).expect("below 90"))
    };
    (0..bytes).map(letter).filter(|c| !matches!(c, '"' | '\\')).collect()
}

async fn set_topic(topic: &str, key: &str, value: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka_servers());
    let admin: AdminClient<DefaultClientContext> = config.create().expect("a client");
    let keep = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("retention.ms", "-1").set(key, value);
    let results = admin.alter_configs([&keep], &AdminOptions::new()).await.expect("a broker");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
