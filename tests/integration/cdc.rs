//! The outbox by CDC, with the connector configuration that is shipped. `make test-cdc` brings Java and the jars.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::support::kafka::{header, payload};
use crate::support::process::{Process, tail};
use crate::support::shop::{Shop, event, message};
use crate::support::{LATER, SOON, World, eventually, kafka_servers, until};
use reprise::outbox::Destination;

const CONNECTOR: &str = include_str!("../../deploy/debezium/outbox-connector.json");
const PUBLICATION: &str = include_str!("../../deploy/debezium/publication.sql");

/// The shipped configuration with this test's addresses and names.
fn connector(shop: &Shop, slot: &str) -> String {
    let shipped: serde_json::Value = serde_json::from_str(CONNECTOR).expect("JSON");
    let mut config = shipped["config"].as_object().expect("an object").clone();
    let url = url::Url::parse(&shop.world.database_url).expect("a URL");
    let mut set = |key: &str, value: &str| {
        let before = config.insert(key.to_owned(), json!(value));
        assert!(before.is_some(), "{key} is no longer in the shipped configuration");
    };
    set("database.hostname", url.host_str().expect("a host"));
    set("database.port", &url.port().expect("a port").to_string());
    set("database.user", url.username());
    set("database.password", url.password().unwrap_or("none"));
    set("database.dbname", url.path().trim_start_matches('/'));
    set("topic.prefix", slot);
    set("slot.name", slot);
    set("transforms.events.replacement", &shop.events);
    set("transforms.paid.replacement", &shop.world.topic);
    let lines = config.iter().map(|(key, value)| format!("{key}={}", value.as_str().expect("a text")));
    ["name=reprise-outbox".to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

fn connect(shop: &Shop, slot: &str) -> Process {
    let path = |name: &str| {
        PathBuf::from(
            std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: make test-cdc sets it")),
        )
    };
    let (jars, plugins) = (path("REPRISE_TEST_CONNECT_JARS"), path("REPRISE_TEST_CONNECT_PLUGINS"));
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let dir = shop.world.write_config_as("reprise.toml", &shop.world.config);
    let dir = dir.parent().expect("a folder").to_owned();
    let worker = format!(
        "bootstrap.servers={}\nplugin.path={}\nlisteners=http://127.0.0.1:{port}\noffset.storage.file.filename={}\n\
         offset.flush.interval.ms=500\nkey.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.storage.StringConverter\n",
        kafka_servers(),
        plugins.display(),
        dir.join("offsets").display(),
    );
    std::fs::write(dir.join("worker.properties"), worker).expect("written");
    std::fs::write(dir.join("connector.properties"), connector(shop, slot)).expect("written");
    let mut command = Command::new("java");
    command
        .args([
            "-Xmx384m",
            "-cp",
            &format!("{}/*", jars.display()),
            "org.apache.kafka.connect.cli.ConnectStandalone",
        ])
        .args([dir.join("worker.properties"), dir.join("connector.properties")])
        .current_dir(&dir);
    Process::start(command, &dir, "connect")
}

async fn slot_is_active(world: &World, slot: &str) -> bool {
    world
        .one(&format!(
            "select coalesce(bool_or(active), false) from pg_replication_slots where slot_name = '{slot}'"
        ))
        .await
}

#[tokio::test]
#[ignore = "needs Java and Kafka Connect: make test-cdc"]
async fn debezium_reads_the_same_table_and_says_the_same() {
    let mut shop = Shop::open().await;
    let slot = shop.world.topic.replace(['.', '-'], "_");
    shop.world.set(&["outbox", "publisher"], "cdc");
    shop.world.execute(PUBLICATION).await;
    let mut connect = connect(&shop, &slot);
    until("the connector streams", LATER, async || {
        assert!(connect.is_alive(), "Connect ended:\n{}", tail(&connect.stdout(), 40));
        slot_is_active(&shop.world, &slot).await
    })
    .await;
    let placed = event("order-1", "OrderPlaced", json!({ "n": 1, "note": "três" }));
    let mut paid = event("order-1", "pedido.pago", json!({ "n": 2 }));
    paid.destination = Destination::Paid;
    shop.add(&[placed.clone(), message("order-1", 2), paid.clone()]).await;
    shop.add(&[message("order-1", 3)]).await;

    let events = eventually("four messages are there", LATER, async || {
        let events = shop.world.kafka.read(&shop.events).await;
        (events.len() == 3).then_some(events)
    })
    .await;
    assert_eq!(rdkafka::Message::key(&events[0]), Some(&b"order-1"[..]));
    let value: serde_json::Value = serde_json::from_slice(payload(&events[0])).expect("JSON");
    assert_eq!(value, json!({ "n": 1, "note": "três" }));
    assert_eq!(header(&events[0], "message_id"), placed.id.to_string());
    assert_eq!(header(&events[0], "event_type"), "OrderPlaced");
    assert_eq!(header(&events[0], "schema_version"), "1");
    assert_eq!(header(&events[0], "tenant_id"), "t1");
    assert_eq!(header(&events[0], "traceparent"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(shop.numbers().await["order-1"], [1, 2, 3]);
    let paid_topic = shop.world.kafka.read(&shop.world.topic).await;
    assert_eq!(header(&paid_topic[0], "message_id"), paid.id.to_string());

    // The relay only keeps house then, and tells the lag of the slot.
    let _relay = shop.start("relay").await;
    until("the lag is told", SOON, async || {
        shop.world.metric("reprise_outbox_slot_lag_bytes", &[]).await.is_some()
    })
    .await;
    assert_eq!(shop.unpublished().await, 4, "nobody marks rows");
    assert_eq!(shop.numbers().await["order-1"], [1, 2, 3], "and nobody publishes them twice");

    connect.terminate();
    connect.ended(LATER).await;
    until("the slot is free", SOON, async || !slot_is_active(&shop.world, &slot).await).await;
    shop.world.execute(&format!("select pg_drop_replication_slot('{slot}')")).await;
}

#[tokio::test]
async fn the_doctor_names_what_cdc_still_needs() {
    let mut shop = Shop::open().await;
    shop.world.set(&["outbox", "publisher"], "cdc");
    let report = async || {
        let ended = shop.world.try_cli(&["doctor", "--output", "json"]).await;
        let checks: Vec<serde_json::Value> = serde_json::from_str(&ended.stdout).expect("JSON");
        let check = checks.into_iter().find(|check| check["check"] == "outbox cdc").expect("a check");
        (
            check["status"].as_str().expect("text").to_owned(),
            check["detail"].as_str().expect("text").to_owned(),
        )
    };
    let (status, detail) = report().await;
    assert_eq!((status.as_str(), detail.as_str()), ("fail", "there is no publication reprise_outbox"));
    shop.world.execute(PUBLICATION).await;
    let (status, detail) = report().await;
    assert_eq!((status.as_str(), detail.as_str()), ("fail", "there is no replication slot reprise_outbox"));
}
