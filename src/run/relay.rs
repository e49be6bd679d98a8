//! The relay as a room, and alone; and everything in one process.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::parts::Parts;
use super::rooms::{Beside, Room};
use super::{LiveOptions, RunError, live_beside, serve};
use crate::codec::outgoing::{AvroWriter, Encoder};
use crate::config::{Config, Format, Publisher};
use crate::outbox::broker::Broker;
use crate::outbox::relay::{self, Relay, RelaySettings, Topics};
use crate::stream::KafkaOutbox;

/// Publishes the outbox until it is told to stop.
pub async fn relay(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    serve(config, options, Beside { rooms: vec![room()], routes: Vec::new() }).await
}

/// The whole of the service in one process: a later room is a line here.
pub async fn all(config: &Config, options: LiveOptions) -> Result<(), RunError> {
    let beside = Beside {
        rooms: vec![
            room(),
            super::projections::room(),
            super::foreign::room(),
            super::saga::room(),
            super::windows::kpi(),
            super::windows::presence(),
        ],
        routes: vec![
            super::orders::routes,
            super::projections::routes,
            super::saga::routes,
            super::windows::routes,
        ],
    };
    // Large, and only once.
    Box::pin(live_beside(config, options, beside)).await
}

pub const fn room() -> Room {
    Room::new("relay", begin)
}

fn begin(
    config: &Config,
    parts: &Parts,
    stop: CancellationToken,
) -> Result<BoxFuture<'static, Result<(), RunError>>, RunError> {
    let outbox = &config.outbox;
    let published_by_cdc = outbox.publisher == Publisher::Cdc;
    let relay = Relay {
        database: parts.database.clone(),
        encoder: encoder(config)?,
        topics: Topics {
            events: Arc::from(config.orders.topic.as_str()),
            paid: Arc::from(config.kafka.topic.as_str()),
            courier_status: Arc::from(config.windows.status_topic.as_str()),
        },
        settings: RelaySettings {
            poll_interval: outbox.poll_interval,
            batch: outbox.batch,
            max_attempts: outbox.max_attempts,
            outbox_retention: outbox.retention,
            inbox_retention: config.inbox.retention,
            published_by_cdc,
        },
        metrics: Arc::clone(&parts.metrics),
        health: parts.health.clone(),
    };
    let brokers = (0..if published_by_cdc { 0 } else { outbox.workers }).map(|_| broker(config));
    let brokers = brokers.collect::<Result<Vec<_>, RunError>>()?;
    tracing::info!(workers = brokers.len(), publisher = outbox.publisher.as_str(), "the relay begins");
    Ok(async move { Ok(relay::run(relay, brokers, stop).await?) }.boxed())
}

/// One client per worker: what a worker forgets is its own.
fn broker(config: &Config) -> Result<Arc<dyn Broker>, RunError> {
    let kafka = &config.kafka;
    Ok(Arc::new(KafkaOutbox::new(&kafka.brokers, &config.orders.dlq_topic, &kafka.properties)?))
}

/// How the order side writes its messages.
pub fn encoder(config: &Config) -> Result<Encoder, RunError> {
    if config.orders.format == Format::Json {
        return Ok(Encoder::Json);
    }
    let missing = "orders.registry_url: is missing: Avro needs a schema registry; set it (or kafka.registro_url), or \
                   orders.format = \"json\"";
    let url = config.orders.registry_url.as_ref();
    let url = url.ok_or_else(|| RunError::Configuration(missing.to_owned()))?;
    let writer = AvroWriter::new(url.expose());
    Ok(Encoder::Avro(writer.map_err(|what| RunError::Configuration(format!("orders.registry_url: {what}")))?))
}
