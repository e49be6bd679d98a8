//! Windows against the real servers: counted once whatever is killed, late ones listed, silence noticed.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::support::kafka::{Outgoing, header};
use super::support::shop::Shop;
use super::support::{LATER, crash, until};

/// A message of the topic of orders, as the relay writes it.
fn placed(order: Uuid, tenant: &str, at: Timestamp, cents: i64) -> Outgoing {
    let payload = json!({
        "orderId": order, "tenantId": tenant, "version": 1, "occurredAt": at, "customerId": "c1", "sellerId": "v1",
        "items": [{"sku": "livro", "quantity": 2, "unitPriceCents": cents / 2}], "commissionPercent": "5",
    });
    let text = |name: &str, value: &str| (name.to_owned(), Some(value.as_bytes().to_vec()));
    Outgoing {
        key: Some(order.to_string().into_bytes()),
        value: Some(payload.to_string().into_bytes()),
        headers: vec![text("event_type", "OrderPlaced"), text("schema_version", "1")],
        timestamp_ms: Some(at.as_millisecond()),
        ..Outgoing::default()
    }
}

fn beat(courier: &str, at: Timestamp) -> Outgoing {
    let value = json!({ "courierId": courier, "tenantId": "t1", "at": at });
    Outgoing {
        key: Some(courier.into()),
        value: Some(value.to_string().into_bytes()),
        partition: Some(0),
        timestamp_ms: Some(at.as_millisecond()),
        ..Outgoing::default()
    }
}

struct Floor {
    shop: Shop,
    beats: String,
    status: String,
}

async fn floor() -> Floor {
    let mut shop = Shop::open().await;
    let beats = shop.world.topic.replace("pedido.pago", "courier.heartbeats");
    let status = shop.world.topic.replace("pedido.pago", "courier.status");
    for topic in [&beats, &status] {
        shop.world.kafka.create_topic(topic, 1, &[("retention.ms", "-1")]).await;
    }
    let group = shop.world.topic.replace("pedido.pago", "windows");
    shop.world.set(&["windows", "heartbeats_topic"], beats.clone());
    shop.world.set(&["windows", "status_topic"], status.clone());
    shop.world.set(&["windows", "group"], group);
    Floor { shop, beats, status }
}

fn base() -> Timestamp {
    "2026-10-14T12:00:00Z".parse().expect("an instant")
}

fn after(seconds: i64) -> Timestamp {
    base() + SignedDuration::from_secs(seconds)
}

/// By tenant and start of the window: orders and cents.
type Windows = BTreeMap<(String, String), (i64, i64)>;

async fn stored(shop: &Shop, table: &str) -> Windows {
    let sql = format!(
        "select tenant_id, to_char(window_start at time zone 'UTC', 'HH24:MI'), orders, amount_cents from {table}"
    );
    let rows: Vec<(String, String, i64, i64)> = shop.world.rows(&sql).await;
    rows.into_iter().map(|(tenant, start, orders, cents)| ((tenant, start), (orders, cents))).collect()
}

#[tokio::test]
async fn killed_anywhere_the_windows_hold_what_was_placed() {
    let Floor { shop, .. } = floor().await;
    // The test's own list: 400 orders over 20 minutes, out of order by up to a minute, every fifth sent twice.
    let orders: Vec<(Uuid, String, i64, i64)> = (0..400)
        .map(|n| (Uuid::new_v4(), format!("t{}", n % 3), n * 3 + (n * 7 % 60), 100 + n * 2))
        .collect();
    let (mut minutes, mut hours) = (Windows::new(), Windows::new());
    let clock = |minute: i64| format!("{:02}:{:02}", 12 + minute.div_euclid(60), minute.rem_euclid(60));
    for (_, tenant, second, cents) in &orders {
        let cents = cents / 2 * 2;
        let add = |windows: &mut Windows, minute: i64| {
            let sum = windows.entry((tenant.clone(), clock(minute))).or_insert((0, 0));
            *sum = (sum.0 + 1, sum.1 + cents);
        };
        add(&mut minutes, second / 60);
        let newest = second / 300 * 5;
        (0..12).for_each(|n| add(&mut hours, newest - n * 5));
    }
    let send = |part: &[(Uuid, String, i64, i64)]| -> Vec<Outgoing> {
        let message = |(order, tenant, second, cents): &(Uuid, String, i64, i64)| {
            placed(*order, tenant, after(*second), *cents)
        };
        let twice = part.iter().step_by(5);
        part.iter().chain(twice).map(message).collect()
    };
    for (n, point) in ["windows_before_commit", "windows_after_commit"].into_iter().enumerate() {
        shop.world.kafka.produce_all(&shop.events, send(&orders[n * 100..(n + 1) * 100])).await;
        let mut command = shop.world.command(&["windows", "run"]);
        command.envs([crash(point)]);
        assert_eq!(shop.world.spawn(command).ended(LATER).await.code, None, "{point}");
    }
    shop.world.kafka.produce_all(&shop.events, send(&orders[200..300])).await;
    let _first = shop.world.run(&["windows", "run"]);
    let (config, _) = shop.world.second_instance();
    let mut second =
        shop.world.run(&["windows", "run", "--config", config.to_str().expect("a path of text")]);
    shop.world.kafka.produce_all(&shop.events, send(&orders[300..350])).await;
    second.kill();
    shop.world.kafka.produce_all(&shop.events, send(&orders[350..])).await;
    until("all are counted", LATER, async || {
        shop.world.one::<i64>("select count(*) from kpi_order").await == 400
    })
    .await;
    assert_eq!(stored(&shop, "kpi_orders_per_minute").await, minutes);
    assert_eq!(stored(&shop, "kpi_orders_hour").await, hours);
    assert_eq!(shop.world.one::<i64>("select count(*) from kpi_late").await, 0);
}

#[tokio::test]
async fn what_is_late_or_unreadable_is_listed_and_a_repetition_is_neither() {
    let Floor { mut shop, .. } = floor().await;
    shop.world.set(&["windows", "allowed_lateness"], "1m");
    let (early, newest, late) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
    let on = |message: Outgoing| Outgoing { partition: Some(0), ..message };
    let broken = Outgoing { value: Some(b"{}".to_vec()), ..placed(Uuid::new_v4(), "t1", base(), 100) };
    let messages = [
        on(placed(early, "t1", after(0), 100)),
        on(placed(newest, "t1", after(600), 100)),
        on(placed(late, "t1", after(539), 300)),
        on(placed(early, "t1", after(0), 100)),
        on(broken),
        on(placed(Uuid::new_v4(), "t\u{0}1", after(600), 100)),
    ];
    shop.world.kafka.produce_all(&shop.events, messages).await;
    let _windows = shop.world.run(&["windows", "run"]);
    until("all are read", LATER, async || {
        shop.world
            .one::<i64>("select coalesce(sum(next), 0)::bigint from window_position where consumer = 'kpi' and next >= 0")
            .await
            == 6
    })
    .await;
    let listed: Vec<(Uuid, i64)> = shop.world.rows("select order_id, amount_cents from kpi_late").await;
    assert_eq!(listed, [(late, 300)]);
    assert_eq!(shop.world.one::<i64>("select sum(orders)::bigint from kpi_orders_per_minute").await, 2);
    let rejected: Vec<(i64, String)> =
        shop.world.rows("select \"offset\", reason from window_rejected order by 1").await;
    assert_eq!(rejected.len(), 2);
    assert!(rejected[1].1.starts_with("tenantId: "), "{rejected:?}");
    assert!(rejected[0].0 == 4 && rejected[0].1.contains("orderId"), "{rejected:?}");
    let list = shop.world.json(&["windows", "list"]).await;
    let kpi = list.as_array().expect("a list").iter().find(|row| row["next"] == 6).expect("the partition");
    assert_eq!((&kpi["late"], &kpi["rejected"]), (&json!(1), &json!(2)));
    assert_eq!(kpi["watermark"], "2026-10-14T12:10:00.000000Z");
}

#[tokio::test]
async fn a_silent_courier_is_noticed_told_and_back_with_its_next_heartbeat() {
    let Floor { mut shop, beats, status } = floor().await;
    shop.world.set(&["windows", "courier_offline_after"], "2s");
    let long_ago = Timestamp::now() - SignedDuration::from_secs(3_600);
    let at = |seconds: i64| long_ago + SignedDuration::from_secs(seconds);
    // An hour ago `gap` was silent for a minute; that is found out from the log alone.
    shop.world
        .kafka
        .produce_all(&beats, [beat("gap", at(0)), beat("gap", at(60)), beat("gap", at(61))])
        .await;
    let _windows = shop.world.run(&["windows", "run"]);
    let _relay =
        shop.world.run(&["relay", "--config", shop.world.second_instance().0.to_str().expect("a path")]);
    let silences = "select count(*) from courier_offline";
    until("the gap and the silence since", LATER, async || shop.world.one::<i64>(silences).await == 2).await;
    let closed: Vec<(bool,)> =
        shop.world.rows("select back_at is not null from courier_offline order by last_seen_at").await;
    assert_eq!(closed, [(true,), (false,)]);
    let now = Timestamp::now();
    shop.world.kafka.produce_all(&beats, [beat("gap", now), beat("new", now)]).await;
    let open = "select count(*) from courier_offline where courier_id = 'gap' and last_seen_at < now() - interval '30 minutes' and back_at is null";
    until("it is back", LATER, async || shop.world.one::<i64>(open).await == 0).await;
    until("both fall silent again", LATER, async || shop.world.one::<i64>(silences).await == 4).await;
    let told = async || {
        let messages = shop.world.kafka.read(&status).await;
        let of_gap = messages.iter().filter(|m| rdkafka::Message::key(*m) == Some(b"gap"));
        of_gap.map(|message| header(message, "event_type")).collect::<Vec<_>>()
    };
    let expected = ["CourierOffline", "CourierBack", "CourierOffline", "CourierBack", "CourierOffline"];
    until("all of it is told", LATER, async || told().await == expected).await;
}

#[tokio::test]
async fn a_partition_that_is_taken_over_costs_the_others_nothing() {
    let Floor { shop, .. } = floor().await;
    let orders: Vec<Uuid> = (0..60).map(|_| Uuid::new_v4()).collect();
    let send = |range: std::ops::Range<usize>| -> Vec<Outgoing> {
        let message = |n: usize| Outgoing {
            partition: Some(i32::try_from(n % 2).expect("0 or 1")),
            ..placed(orders[n], "t1", after(60), 100)
        };
        range.map(message).collect()
    };
    shop.world.kafka.produce_all(&shop.events, send(0..20)).await;
    let mut windows = shop.world.run(&["windows", "run"]);
    let counted = async || shop.world.one::<i64>("select count(*) from kpi_order").await;
    until("the first are counted", LATER, async || counted().await == 20).await;
    // As another owner would: the next write of partition 0 is refused, and with it what was read of it.
    shop.world
        .execute(
            "update window_position set epoch = gen_random_uuid() where consumer = 'kpi' and partition = 0",
        )
        .await;
    shop.world.kafka.produce_all(&shop.events, send(20..40)).await;
    until("the other partition goes on", LATER, async || counted().await == 30).await;
    shop.world.kafka.produce_all(&shop.events, send(40..60)).await;
    until("and on", LATER, async || counted().await == 40).await;
    windows.kill();
    let _next = shop.world.run(&["windows", "run"]);
    until("nothing is missing", LATER, async || counted().await == 60).await;
    assert_eq!(
        stored(&shop, "kpi_orders_per_minute").await[&("t1".to_owned(), "12:01".to_owned())],
        (60, 6_000)
    );
}
