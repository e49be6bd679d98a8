//! A group whose coordinator moves, in a cluster of stand-in brokers: a real one of a single broker has nowhere to
//! move it.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::super::settings::ConsumerSettings;
use super::bed::{LIMIT, StandIn, name};

async fn produce(servers: &str, topic: &str, count: usize) {
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    for number in 0..count {
        let value = number.to_string();
        let record = FutureRecord::<(), _>::to(topic).partition(0).payload(&value);
        producer.send(record, LIMIT).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_moved_is_found_again_and_the_positions_reach_it() {
    let cluster = MockCluster::new(3).unwrap();
    let (topic, group, servers) = (name("topic"), name("group"), cluster.bootstrap_servers());
    cluster.create_topic(&topic, 1, 3).unwrap();
    // Not on the broker that goes down: nobody elects another leader here.
    cluster.partition_leader(&topic, 0, Some(3)).unwrap();
    cluster.coordinator(MockCoordinator::Group(group.clone()), 1).unwrap();
    produce(&servers, &topic, 5).await;
    let mut settings = ConsumerSettings::new(servers.clone(), &topic, &group);
    settings.properties.insert("session.timeout.ms".into(), "6000".into());
    let mut consumer = StandIn::live(settings);
    let committed = |at| {
        move |seen: &super::bed::Seen| seen.facts.first().is_some_and(|facts| facts.committed == Some(at))
    };
    consumer.notes.until("the first coordinator has the position", committed(5)).await;

    cluster.coordinator(MockCoordinator::Group(group), 2).unwrap();
    cluster.broker_down(1).unwrap();
    produce(&servers, &topic, 5).await;
    let seen = consumer.notes.until("the next one has it", committed(10)).await;
    assert_eq!(seen.offsets(0), (0..10).collect::<Vec<i64>>(), "every record once, in order");
    let handle = consumer.handle.take().unwrap();
    handle.stop();
    handle.close(consumer.positions(), Duration::from_secs(10)).await;
}
