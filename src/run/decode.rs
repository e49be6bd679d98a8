//! From a record's bytes to what is to be done with it, on the polling thread: decode, plan, nothing that waits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::applier::intake::{Content, RawRecord, Skip};
use crate::codec::registry::{RegistryError, SchemaRegistry};
use crate::codec::{DecodeError, Decoded, Decoder, Schema, schema_unknown, traceparent};
use crate::domain::event::Event;
use crate::domain::plan::{Policies, plan};
use crate::domain::poison::Poison;
use crate::metrics::Metrics;
use crate::stream::Decoding;

/// How long a schema id that the registry does not know is asked for again: registries replicate.
const UNKNOWN_SCHEMA_PATIENCE: Duration = Duration::from_secs(30);
const REGISTRY_PAUSE: Duration = Duration::from_secs(1);

/// Which events are wanted, and which period they should belong to.
pub trait Selection: Send {
    fn wants(&self, event: &Event) -> bool;
}

/// Everything: the live run.
pub struct Everything;

impl Selection for Everything {
    fn wants(&self, _: &Event) -> bool {
        true
    }
}

/// Decodes and plans records.
pub struct Reader<S> {
    values: Values,
    policies: Policies,
    selection: S,
    metrics: Arc<Metrics>,
    mismatches: u64,
}

/// Decodes values; asks for the schemas it needs.
pub struct Values {
    decoder: Decoder,
    schemas: Option<Schemas>,
}

impl Values {
    pub fn new(schemas: Option<Schemas>) -> Self {
        Self { decoder: Decoder::new(), schemas }
    }

    /// `None` while its Avro schema is being fetched.
    pub fn decode(&mut self, value: Option<&[u8]>) -> Option<Result<Decoded, DecodeError>> {
        match self.decoder.decode(value) {
            Err(DecodeError::SchemaNeeded(id)) => match self.schema(id) {
                Ok(true) => Some(self.decoder.decode(value)),
                Ok(false) => None,
                Err(poison) => Some(Err(DecodeError::Poison { poison, order_id: None })),
            },
            decoded => Some(decoded),
        }
    }

    /// Whether the schema is known now; poison once the registry has denied it for long enough.
    fn schema(&mut self, id: u32) -> Result<bool, Poison> {
        let Some(schemas) = &mut self.schemas else { return Err(schema_unknown(id)) };
        match schemas.ask(id) {
            Fetched::Waiting => Ok(false),
            Fetched::Schema(schema) => {
                self.decoder.learn(id, schema);
                Ok(true)
            }
            Fetched::Unknown => Err(schema_unknown(id)),
        }
    }
}

impl<S: Selection> Reader<S> {
    pub fn new(policies: Policies, selection: S, metrics: Arc<Metrics>, schemas: Option<Schemas>) -> Self {
        Self { values: Values::new(schemas), policies, selection, metrics, mismatches: 0 }
    }

    /// What a record is. `Wait` while its Avro schema is being fetched.
    pub fn read(&mut self, raw: Box<RawRecord>) -> Decoding {
        let Some(decoded) = self.values.decode(raw.value.as_deref()) else { return Decoding::Wait(raw) };
        let content = match decoded {
            Ok(Decoded::Event(event)) => self.planned(event, &raw),
            Ok(Decoded::Tombstone) => Content::Skip(Skip::Tombstone),
            Ok(Decoded::OtherType) => Content::Skip(Skip::OtherType),
            Err(DecodeError::Poison { poison, order_id }) => Content::Poison { poison, order_id },
            Err(DecodeError::SchemaNeeded(id)) => {
                Content::Poison { poison: schema_unknown(id), order_id: None }
            }
        };
        let parent = raw.headers.iter().find(|(name, _)| name == "traceparent");
        let traceparent = traceparent(parent.and_then(|(_, value)| value.as_deref()));
        Decoding::Ready { content, raw, traceparent }
    }

    fn planned(&mut self, event: Event, raw: &RawRecord) -> Content {
        if !self.selection.wants(&event) {
            return Content::Skip(Skip::NotSelected);
        }
        if raw.key.as_deref() != Some(event.order_id.as_bytes()) {
            self.warn_of_key(&event, raw);
        }
        Content::Plan(Arc::new(plan(event, &self.policies)))
    }

    /// Counted always, logged at the first and then ever more rarely.
    fn warn_of_key(&mut self, event: &Event, raw: &RawRecord) {
        self.metrics.key_mismatch(1);
        self.mismatches += 1;
        if self.mismatches.is_power_of_two() {
            tracing::warn!(
                evento.id = event.id,
                pedido.id = event.order_id,
                kafka.partition = raw.partition,
                kafka.offset = raw.offset,
                so_far = self.mismatches,
                "message key is not pedidoId: the order of an order's events holds within a partition only"
            );
        }
    }
}

/// Fetches schemas beside the polling thread.
pub struct Schemas {
    wanted: mpsc::UnboundedSender<u32>,
    arrived: std_mpsc::Receiver<(u32, Option<Schema>)>,
    asked: HashSet<u32>,
    ready: HashMap<u32, Option<Schema>>,
}

enum Fetched {
    Waiting,
    Schema(Schema),
    Unknown,
}

impl Schemas {
    /// Starts the fetching task on the current runtime. It ends with the receiver.
    pub fn start(registry: SchemaRegistry) -> Self {
        let (wanted, mut wanted_in) = mpsc::unbounded_channel::<u32>();
        let (arrived_out, arrived) = std_mpsc::channel();
        tokio::spawn(async move {
            while let Some(id) = wanted_in.recv().await {
                let schema = fetch(&registry, id).await;
                if arrived_out.send((id, schema)).is_err() {
                    return;
                }
            }
        });
        Self { wanted, arrived, asked: HashSet::new(), ready: HashMap::new() }
    }

    fn ask(&mut self, id: u32) -> Fetched {
        while let Ok((id, schema)) = self.arrived.try_recv() {
            self.ready.insert(id, schema);
        }
        if let Some(result) = self.ready.remove(&id) {
            self.asked.remove(&id);
            return result.map_or(Fetched::Unknown, Fetched::Schema);
        }
        if self.asked.insert(id) && self.wanted.send(id).is_err() {
            return Fetched::Unknown;
        }
        Fetched::Waiting
    }
}

/// A registry that is away is waited for; one that does not know the id is asked for a while.
async fn fetch(registry: &SchemaRegistry, id: u32) -> Option<Schema> {
    let begun = Instant::now();
    loop {
        match registry.fetch(id).await {
            Ok(schema) => return Some(schema),
            Err(RegistryError::NotFound) if begun.elapsed() >= UNKNOWN_SCHEMA_PATIENCE => return None,
            Err(error) => tracing::warn!(schema.id = id, %error, "schema registry; its records wait"),
        }
        tokio::time::sleep(REGISTRY_PAUSE).await;
    }
}
