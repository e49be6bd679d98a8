//! The order side of a world: its topic, and messages put into the outbox as an append would.

use std::collections::BTreeMap;

use reprise::outbox::{Destination, Message};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::kafka::{self, header};
use super::process::{Process, tail};
use super::{LATER, Setup, World, eventually, http, kafka_servers};

pub struct Shop {
    pub world: World,
    pub events: String,
    pub dlq: String,
}

impl Shop {
    pub async fn open() -> Self {
        Self::with(&[]).await
    }

    /// With settings of the events topic.
    pub async fn with(topic_config: &[(&str, &str)]) -> Self {
        let mut world = World::with(Setup::default()).await;
        let events = world.topic.replace("pedido.pago", "orders.events");
        let dlq = format!("{events}.dlq");
        let keep = [&[("retention.ms", "-1")], topic_config].concat();
        world.kafka.create_topic(&events, 3, &keep).await;
        world.kafka.create_topic(&dlq, 1, &keep[..1]).await;
        world.set(&["orders", "topic"], events.clone());
        world.set(&["orders", "dlq_topic"], dlq.clone());
        world.set(&["orders", "format"], "json");
        Self { world, events, dlq }
    }

    /// Adds messages in one transaction, and commits it.
    pub async fn add(&self, messages: &[Message]) {
        let mut connection = self.connect().await;
        let mut transaction = connection.begin().await.expect("a transaction");
        reprise::pg::outbox::add(&mut transaction, messages).await.expect("added");
        transaction.commit().await.expect("committed");
        connection.close().await.expect("closed");
    }

    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.world.database_url).await.expect("a database")
    }

    /// A process that serves HTTP, once it is ready.
    pub async fn start(&self, verb: &str) -> Process {
        let mut process = self.world.run(&[verb]);
        let url = format!("http://127.0.0.1:{}/readyz", self.world.http_port);
        eventually("it is ready", LATER, async || {
            assert!(process.is_alive(), "{verb} ended:\n{}", tail(&process.stderr(), 40));
            http::request("GET", &url, &[], None).await.filter(|reply| reply.status == 200)
        })
        .await;
        process
    }

    pub async fn unpublished(&self) -> i64 {
        self.world.one("select count(*) from outbox where published_at is null and parked_at is null").await
    }

    pub async fn all_published(&self) {
        super::until("everything is published", LATER, async || self.unpublished().await == 0).await;
    }

    /// `n` of the payload by key, in the order of the topic, repetitions included.
    pub async fn numbers(&self) -> BTreeMap<String, Vec<i64>> {
        let mut found: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for message in self.world.kafka.read(&self.events).await {
            let key =
                String::from_utf8(rdkafka::Message::key(&message).expect("a key").to_vec()).expect("text");
            let value: Value = serde_json::from_slice(kafka::payload(&message)).expect("JSON");
            found.entry(key).or_default().push(value["n"].as_i64().expect("a number"));
        }
        found
    }

    pub async fn message_ids(&self) -> Vec<String> {
        self.world.kafka.read(&self.events).await.iter().map(|m| header(m, "message_id")).collect()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let topics = [self.events.clone(), self.dlq.clone()];
        let cleaner = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(kafka::remove(&kafka_servers(), &[&topics[0], &topics[1]], &[]));
            std::io::Result::Ok(())
        });
        if !matches!(cleaner.join(), Ok(Ok(()))) {
            eprintln!("the shop's topics were not taken away");
        }
    }
}

/// Message `n` of an aggregate.
pub fn message(aggregate: &str, n: i64) -> Message {
    event(aggregate, "OrderPaid", json!({ "n": n }))
}

pub fn event(aggregate: &str, event_type: &str, payload: Value) -> Message {
    let id = Uuid::now_v7();
    let headers = [
        ("message_id", id.to_string()),
        ("event_type", event_type.to_owned()),
        ("schema_version", "1".to_owned()),
        ("tenant_id", "t1".to_owned()),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
    ];
    Message {
        id,
        destination: Destination::Events,
        aggregate_type: "order",
        aggregate_id: aggregate.to_owned(),
        event_type: event_type.to_owned(),
        payload,
        headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}
