//! Messages of the order side to bytes: JSON as it stands, or Avro in the Confluent wire format.
//!
//! An Avro value is `0x00`, the schema's id in the registry (four bytes, the highest first), and the datum. A schema
//! is registered at its first use: an `orders.events` schema under `<topic>-<full name>`, since one topic carries many
//! event types in order; that of `pedido.pago` under `<topic>-value`. A registry that is away, or refuses a schema, is
//! waited for (a person must act, the message is good); what does not fit its schema can never be written so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use schema_registry_converter::async_impl::schema_registry::{SrSettings, post_schema};
use schema_registry_converter::schema_registry_common::{SchemaType, SuppliedSchema};
use serde_json::Value as Json;
use tokio::sync::Mutex;
use url::Url;

use super::order_schemas::{ORDER_EVENTS, PEDIDO_PAGO, Published, find};
use super::to_avro::datum;

/// Longest wait for one answer of the registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A registry in trouble is asked again so soon, by schema.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// Why a message has no bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The registry gives no id now. Says nothing about the message.
    #[error("schema registry: {0}")]
    Away(String),
    /// It does not fit the schema, or there is none.
    #[error("cannot be written as Avro: {0}")]
    Never(String),
}

/// What is to be encoded.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    pub topic: &'a str,
    pub kind: Kind,
    pub event_type: &'a str,
    /// Header `schema_version`; the newest where it is absent.
    pub schema_version: Option<&'a str>,
    /// JSON.
    pub payload: &'a str,
}

/// Which schemas a topic takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    OrderEvent,
    PedidoPago,
    /// Always JSON.
    CourierStatus,
}

impl Kind {
    const fn published(self) -> &'static [Published] {
        match self {
            Self::OrderEvent => ORDER_EVENTS,
            Self::PedidoPago => PEDIDO_PAGO,
            Self::CourierStatus => &[],
        }
    }
}

pub enum Encoder {
    Json,
    Avro(AvroWriter),
}

impl Encoder {
    pub async fn encode(&self, message: Outgoing<'_>) -> Result<Vec<u8>, EncodeError> {
        match self {
            Self::Json => Ok(message.payload.as_bytes().to_vec()),
            Self::Avro(writer) => writer.encode(message).await,
        }
    }
}

/// Writes Avro, and remembers the ids that the registry gave.
pub struct AvroWriter {
    registry: SrSettings,
    known: Mutex<HashMap<Key, Known>>,
}

type Key = (Kind, &'static str, u32);

enum Known {
    Registered(Arc<Registered>),
    /// The registry gave no id; it is not asked again by every message of a batch.
    Trouble {
        at: Instant,
        cause: String,
    },
}

struct Registered {
    id: u32,
    schema: apache_avro::Schema,
}

impl AvroWriter {
    /// `url` as in `orders.registry_url`; a user and password in it are sent as basic authentication.
    pub fn new(url: &str) -> Result<Self, String> {
        let mut parsed = Url::parse(url).map_err(|error| error.to_string())?;
        let (user, password) = (parsed.username().to_owned(), parsed.password().map(str::to_owned));
        parsed
            .set_username("")
            .and_then(|()| parsed.set_password(None))
            .map_err(|()| "has no host".to_owned())?;
        let mut builder = SrSettings::new_builder(parsed.as_str().trim_end_matches('/').to_owned());
        builder.set_timeout(ANSWER_TIMEOUT);
        if !user.is_empty() {
            builder.set_basic_authorization(&user, password.as_deref());
        }
        let registry = builder.build().map_err(|error| error.error)?;
        Ok(Self { registry, known: Mutex::default() })
    }

    async fn encode(&self, message: Outgoing<'_>) -> Result<Vec<u8>, EncodeError> {
        let version = message.schema_version.map(str::parse).transpose();
        let version = version.map_err(|_| {
            EncodeError::Never(format!("schema_version {:?} is not a number", message.schema_version))
        })?;
        let published = find(message.kind.published(), message.event_type, version).ok_or_else(|| {
            let version = message.schema_version.unwrap_or("newest");
            EncodeError::Never(format!("there is no schema for {}, version {version}", message.event_type))
        })?;
        let payload: Json =
            serde_json::from_str(message.payload).map_err(|error| EncodeError::Never(error.to_string()))?;
        let registered = self.registered(message.topic, message.kind, published).await?;
        let datum = datum(&registered.schema, &payload).map_err(EncodeError::Never)?;
        let mut value = Vec::with_capacity(5 + datum.len());
        value.push(0);
        value.extend_from_slice(&registered.id.to_be_bytes());
        value.extend_from_slice(&datum);
        Ok(value)
    }

    /// The lock is held while the registry is asked: one question at a time, and none twice.
    async fn registered(
        &self,
        topic: &str,
        kind: Kind,
        published: Published,
    ) -> Result<Arc<Registered>, EncodeError> {
        let key = (kind, published.event_type, published.version);
        let mut known = self.known.lock().await;
        match known.get(&key) {
            Some(Known::Registered(registered)) => return Ok(Arc::clone(registered)),
            Some(Known::Trouble { at, cause }) if at.elapsed() < ASK_AGAIN => {
                return Err(EncodeError::Away(cause.clone()));
            }
            _ => {}
        }
        let schema = apache_avro::Schema::parse_str(published.text)
            .map_err(|error| EncodeError::Never(error.to_string()))?;
        let name = schema.name().map(|name| name.fullname(None)).unwrap_or_default();
        let subject = match kind {
            Kind::OrderEvent => format!("{topic}-{name}"),
            Kind::PedidoPago | Kind::CourierStatus => format!("{topic}-value"),
        };
        let supplied = SuppliedSchema::new(Some(name), SchemaType::Avro, published.text.to_owned());
        let answer = post_schema(&self.registry, subject.clone(), supplied).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let cause = error.cause.as_deref().unwrap_or("no cause given");
                let cause = format!("{subject} cannot be registered: {}: {cause}", error.error);
                known.insert(key, Known::Trouble { at: Instant::now(), cause: cause.clone() });
                return Err(EncodeError::Away(cause));
            }
        };
        let registered = Arc::new(Registered { id: answer.id, schema });
        tracing::info!(subject, schema.id = answer.id, "schema registered");
        known.insert(key, Known::Registered(Arc::clone(&registered)));
        Ok(registered)
    }
}
