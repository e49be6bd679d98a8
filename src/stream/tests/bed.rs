//! Topics, producers and a stand-in for the applier.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tracing_subscriber::EnvFilter;

use super::super::consumer::{ConsumerHandle, Decoding, Outlets, StreamFailure, spawn};
use super::super::health::{Observer, PartitionFacts};
use super::super::settings::ConsumerSettings;
use super::super::starts::{CommittedStarts, LostOffset, Starts};
use crate::applier::intake::{Content, Control, Delivery, LaneId, RawRecord, ResumeAt, Skip, Watermarks};

pub const LIMIT: Duration = Duration::from_secs(30);

pub fn kafka() -> String {
    std::env::var("REPRISE_TEST_KAFKA").unwrap_or_else(|_| "127.0.0.1:29092".into())
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", kafka());
    config
}

pub fn name(what: &str) -> String {
    format!("test-{what}-{}", uuid::Uuid::new_v4().simple())
}

pub struct Bed {
    pub topic: String,
    pub group: String,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
}

impl Bed {
    pub async fn new(partitions: i32) -> Self {
        let bed = Self::without_topic();
        bed.create(partitions, &[]).await;
        bed
    }

    pub fn without_topic() -> Self {
        // RUST_LOG=reprise=info shows what happened; a second initialization changes nothing.
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::from_default_env())
            .with_test_writer()
            .try_init()
            .ok();
        let (topic, group) = (name("topic"), name("group"));
        // Small batches: a fetch takes whole ones.
        let producer = client().set("batch.num.messages", "5").create().unwrap();
        Self { topic, group, admin: client().create().unwrap(), producer }
    }

    pub async fn create(&self, partitions: i32, config: &[(&str, &str)]) {
        let mut topic =
            NewTopic::new(&self.topic, partitions, TopicReplication::Fixed(1)).set("retention.ms", "-1");
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        self.admin.create_topics([&topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    }

    pub async fn delete(&self) {
        self.admin.delete_topics(&[&self.topic], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    }

    pub async fn grow(&self, partitions: usize) {
        let wanted = NewPartitions::new(&self.topic, partitions);
        self.admin.create_partitions([&wanted], &AdminOptions::new()).await.unwrap()[0].as_ref().unwrap();
    }

    /// Deletes the records below an offset.
    pub async fn delete_below(&self, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(offset)).unwrap();
        self.admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    }

    pub async fn produce(&self, partition: i32, values: impl IntoIterator<Item = String>) {
        let sends = values.into_iter().map(async |value| {
            let record = FutureRecord::<(), _>::to(&self.topic).partition(partition).payload(&value);
            self.producer.send(record, LIMIT).await.unwrap();
        });
        futures::future::join_all(sends).await;
    }

    pub async fn produce_numbered(&self, partition: i32, count: usize) {
        self.produce(partition, (0..count).map(|number| number.to_string())).await;
    }

    pub fn commit(&self, partition: i32, offset: i64) {
        let consumer: BaseConsumer = client().set("group.id", &self.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(offset)).unwrap();
        consumer.commit(&list, rdkafka::consumer::CommitMode::Sync).unwrap();
    }

    pub fn committed(&self, partition: i32) -> Option<i64> {
        let consumer: BaseConsumer = client().set("group.id", &self.group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition(&self.topic, partition);
        match consumer.committed_offsets(list, LIMIT).unwrap().elements()[0].offset() {
            Offset::Offset(at) => Some(at),
            _ => None,
        }
    }

    pub fn settings(&self) -> ConsumerSettings {
        let mut settings = ConsumerSettings::new(kafka(), &self.topic, &self.group);
        settings.properties.insert("session.timeout.ms".into(), "6000".into());
        settings
    }
}

/// What a stand-in saw, in order.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub assigned: Vec<(LaneId, i64, Option<i64>)>,
    pub revoked: Vec<LaneId>,
    /// Of lanes that were ours at that moment.
    pub records: Vec<(LaneId, i64)>,
    pub raws: Vec<RawRecord>,
    pub positions: Vec<(LaneId, i64)>,
    pub facts: Vec<PartitionFacts>,
    pub earliest: Vec<i32>,
    pub lost: Vec<(i32, i64, i64)>,
    pub assignment: Option<Vec<i32>>,
}

impl Seen {
    pub fn offsets(&self, partition: i32) -> Vec<i64> {
        self.records
            .iter()
            .filter(|(lane, _)| lane.partition == partition)
            .map(|(_, offset)| *offset)
            .collect()
    }
}

#[derive(Clone, Default)]
pub struct Notes {
    seen: Arc<Mutex<Seen>>,
    changed: Arc<Notify>,
}

impl Notes {
    pub fn add(&self, note: impl FnOnce(&mut Seen)) {
        note(&mut self.seen.lock().unwrap());
        self.changed.notify_waiters();
    }

    pub fn now(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub async fn until(&self, what: &str, holds: impl Fn(&Seen) -> bool) -> Seen {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if holds(&self.seen.lock().unwrap()) {
                    return;
                }
                changed.await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "{what}: {:?}", self.now());
        self.now()
    }
}

impl Observer for Notes {
    fn assigned(&self, partitions: &[i32]) {
        self.add(|seen| seen.assignment = Some(partitions.to_vec()));
    }
    fn facts(&self, facts: &[PartitionFacts]) {
        self.add(|seen| seen.facts = facts.to_vec());
    }
    fn started_at_earliest(&self, partition: i32) {
        self.add(|seen| seen.earliest.push(partition));
    }
    fn offsets_lost(&self, partition: i32, from: i64, to: i64) {
        self.add(|seen| seen.lost.push((partition, from, to)));
    }
    fn commit_failed(&self) {}
}

/// Settles what it receives, at most up to `hold_at`, one delivery per permit.
pub struct StandIn {
    pub handle: Option<ConsumerHandle>,
    pub notes: Notes,
    pub hold_at: watch::Sender<i64>,
    pub permits: Arc<Semaphore>,
    positions: Arc<Mutex<HashMap<LaneId, i64>>>,
}

pub fn skip_all(_: LaneId, raw: Box<RawRecord>) -> Decoding {
    Decoding::Ready { content: Content::Skip(Skip::OtherType), raw, traceparent: None }
}

/// As good as without a limit.
pub const FREE: usize = 1_000_000;

impl StandIn {
    pub fn live(settings: ConsumerSettings) -> Self {
        Self::start(settings, CommittedStarts { on_lost: LostOffset::Stop }, FREE, skip_all).unwrap()
    }

    pub fn start(
        settings: ConsumerSettings,
        starts: impl Starts + 'static,
        permits: usize,
        decode: impl FnMut(LaneId, Box<RawRecord>) -> Decoding + Send + 'static,
    ) -> Result<Self, StreamFailure> {
        let (control, controls) = mpsc::unbounded_channel();
        let (deliveries, delivered) = mpsc::channel(1);
        let (notes, watermarks) = (Notes::default(), Watermarks::default());
        let observer: Arc<dyn Observer> = Arc::new(notes.clone());
        let outlets = Outlets { control, deliveries, watermarks: watermarks.clone(), observer };
        let handle = Some(spawn(settings, Box::new(starts), decode, outlets)?);
        let (hold_at, limit) = watch::channel(i64::MAX);
        let (permits, positions) = (Arc::new(Semaphore::new(permits)), Arc::default());
        let task = Receiving { notes: notes.clone(), watermarks, positions: Arc::clone(&positions), limit };
        tokio::spawn(task.run(controls, delivered, Arc::clone(&permits)));
        Ok(Self { handle, notes, hold_at, permits, positions })
    }

    /// Takes no more, and says where everything stands.
    pub fn positions(&self) -> Vec<(LaneId, ResumeAt)> {
        let hold_at = *self.hold_at.borrow();
        let last = std::mem::take(&mut *self.positions.lock().unwrap());
        last.into_iter().map(|(lane, at)| (lane, ResumeAt(at.min(hold_at)))).collect()
    }

    /// A clean end: drain, last positions, leave.
    pub async fn close(&mut self) {
        let handle = self.handle.take().unwrap();
        handle.stop();
        let closed = handle.close(self.positions(), Duration::from_secs(10)).await;
        assert!(closed.committed && closed.left_group, "{closed:?}");
    }
}

struct Receiving {
    notes: Notes,
    watermarks: Watermarks,
    positions: Arc<Mutex<HashMap<LaneId, i64>>>,
    limit: watch::Receiver<i64>,
}

impl Receiving {
    async fn run(
        self,
        mut controls: mpsc::UnboundedReceiver<Control>,
        mut delivered: mpsc::Receiver<Delivery>,
        permits: Arc<Semaphore>,
    ) {
        loop {
            tokio::select! {
                biased;
                control = controls.recv() => match control {
                    Some(control) => self.control(control),
                    None => return,
                },
                permit = permits.acquire() => {
                    let Ok(permit) = permit else { return };
                    tokio::select! {
                        biased;
                        control = controls.recv() => match control {
                            Some(control) => self.control(control),
                            None => return,
                        },
                        delivery = delivered.recv() => match delivery {
                            Some(delivery) => {
                                permit.forget();
                                self.deliver(delivery);
                            }
                            None => return,
                        },
                    }
                }
            }
        }
    }

    /// Whether the lane is still ours.
    fn settle(&self, lane: LaneId, at: i64) -> bool {
        let mut positions = self.positions.lock().unwrap();
        let Some(position) = positions.get_mut(&lane) else { return false };
        *position = at.max(*position);
        self.watermarks.set(lane, ResumeAt((*position).min(*self.limit.borrow())));
        true
    }

    fn control(&self, control: Control) {
        match control {
            Control::Assigned { lane, start, end } => {
                self.positions.lock().unwrap().insert(lane, start.0);
                self.notes.add(|seen| seen.assigned.push((lane, start.0, end.map(|end| end.0))));
            }
            Control::Revoked { lanes, done, .. } => {
                let hold_at = *self.limit.borrow();
                let mut positions = self.positions.lock().unwrap();
                let last = lanes
                    .iter()
                    .filter_map(|lane| Some((*lane, ResumeAt(positions.remove(lane)?.min(hold_at)))))
                    .collect();
                drop(positions);
                self.notes.add(|seen| seen.revoked.extend(lanes));
                done.send(last).ok();
            }
        }
    }

    fn deliver(&self, delivery: Delivery) {
        match delivery {
            Delivery::Records(records) => {
                for record in records {
                    if self.settle(record.lane, record.offset.0 + 1) {
                        self.notes.add(|seen| {
                            seen.records.push((record.lane, record.offset.0));
                            seen.raws.push((*record.raw).clone());
                        });
                    }
                }
            }
            Delivery::Position { lane, next } => {
                self.settle(lane, next.0);
                self.notes.add(|seen| seen.positions.push((lane, next.0)));
            }
        }
    }
}
