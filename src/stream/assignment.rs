//! The client's callbacks: which partitions are ours, what was committed, what went wrong.
//!
//! ```text
//! group gives ──► wanted ──start found (loop)──► ours ──► fetched
//!                    └─────────group takes─────────┴──► applier drains (bounded) ─► commit ─► given back
//! ```
//!
//! A partition given to us is only noted here; it enters the client's assignment, with its start, once the loop has
//! found that start. So no look-up runs inside a callback and none is ever answered by a guess. A partition taken
//! from us is drained inside the callback, because giving it back is what lets the group go on; that wait is
//! bounded. The commit is sent before the partition is given back: the client holds the group's next step until
//! that commit is answered, so the next owner starts behind it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use super::commits::CommitBook;
use super::health::{LatestStatistics, Observer};
use super::settings::Commits;
use crate::applier::intake::{Control, LaneId, ResumeAt, Watermarks};

/// The same trouble is logged at most once in so long.
const MURMUR: Duration = Duration::from_secs(10);

/// Whether the applier still answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// The applier has given its last positions; partitions are given back without asking.
    Closing,
}

pub struct Ours {
    /// Given by the group, start not found yet.
    pub wanted: BTreeSet<i32>,
    /// Announced to the applier, by partition.
    pub lanes: BTreeMap<i32, LaneId>,
    /// In the client's own assignment.
    pub fetched: BTreeSet<i32>,
    /// Taken since the loop last looked: their queues can go.
    pub gone: Vec<LaneId>,
    /// The group has spoken since the loop last looked.
    pub changed: bool,
    pub commits: CommitBook,
    pub phase: Phase,
    /// When each kind of trouble (by the client's error number) was last logged.
    murmured: HashMap<i32, Instant>,
}

pub struct GroupContext {
    pub topic: Arc<str>,
    pub statistics: LatestStatistics,
    ours: Mutex<Ours>,
    control: mpsc::UnboundedSender<Control>,
    watermarks: Watermarks,
    observer: Arc<dyn Observer>,
    commits: Commits,
    revocation_limit: Duration,
}

impl GroupContext {
    pub fn new(
        topic: Arc<str>,
        control: mpsc::UnboundedSender<Control>,
        watermarks: Watermarks,
        observer: Arc<dyn Observer>,
        commits: Commits,
        revocation_limit: Duration,
    ) -> Self {
        let ours = Ours {
            wanted: BTreeSet::new(),
            lanes: BTreeMap::new(),
            fetched: BTreeSet::new(),
            gone: Vec::new(),
            changed: false,
            commits: CommitBook::default(),
            phase: Phase::Open,
            murmured: HashMap::new(),
        };
        let (statistics, ours) = (LatestStatistics::default(), Mutex::new(ours));
        Self { topic, statistics, ours, control, watermarks, observer, commits, revocation_limit }
    }

    /// Never held across a call into the client that can call back.
    pub fn ours(&self) -> MutexGuard<'_, Ours> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn list(
        &self,
        positions: impl IntoIterator<Item = (i32, Offset)>,
    ) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in positions {
            list.add_partition_offset(&self.topic, partition, offset)?;
        }
        Ok(list)
    }

    /// Sends what is due, with offsets as they are: a resume position needs nothing added. Never waits.
    pub fn commit(&self, consumer: &BaseConsumer<Self>, settled: &[(LaneId, ResumeAt)]) {
        if self.commits == Commits::Never {
            return;
        }
        let due = self.ours().commits.due(settled, Instant::now());
        if due.positions.is_empty() {
            return;
        }
        if due.repeated > 0 {
            self.observer.commit_failed();
            warn!(partitions = due.repeated, "commits were not confirmed; repeating them");
        }
        let sent =
            self.commit_list(&due.positions).and_then(|list| consumer.commit(&list, CommitMode::Async));
        if let Err(cause) = sent {
            // Not confirmed, and therefore repeated.
            warn!(%cause, "commit could not be sent");
        }
    }

    /// The last commit, waiting for the broker without a limit of its own: for a thread nobody waits for.
    pub fn commit_last(
        &self,
        consumer: &BaseConsumer<Self>,
        settled: &[(LaneId, ResumeAt)],
    ) -> KafkaResult<()> {
        let last =
            if self.commits == Commits::Never { Vec::new() } else { self.ours().commits.last(settled) };
        if last.is_empty() {
            return Ok(());
        }
        consumer.commit(&self.commit_list(&last)?, CommitMode::Sync)
    }

    fn commit_list(&self, positions: &[(LaneId, ResumeAt)]) -> KafkaResult<TopicPartitionList> {
        self.list(positions.iter().map(|(lane, at)| (lane.partition, Offset::Offset(at.0))))
    }

    /// Has the applier let go of these lanes, and commits where it stands. Bounded by the revocation limit.
    pub fn release(&self, consumer: &BaseConsumer<Self>, partitions: &[i32], ownership: Ownership) {
        let lanes: Vec<LaneId> = {
            let mut ours = self.ours();
            for partition in partitions {
                ours.wanted.remove(partition);
            }
            partitions.iter().filter_map(|partition| ours.lanes.get(partition).copied()).collect()
        };
        if !lanes.is_empty() && self.ours().phase == Phase::Open {
            let settled = self.ask_to_let_go(&lanes, ownership);
            if ownership == Ownership::Held {
                let settled: Vec<_> = settled.into_iter().filter(|(lane, _)| lanes.contains(lane)).collect();
                self.commit(consumer, &settled);
            }
        }
        let mut ours = self.ours();
        for lane in lanes {
            ours.lanes.remove(&lane.partition);
            ours.commits.close(lane);
            self.watermarks.forget(lane);
            ours.gone.push(lane);
        }
        ours.changed = true;
    }

    fn ask_to_let_go(&self, lanes: &[LaneId], ownership: Ownership) -> Vec<(LaneId, ResumeAt)> {
        let lost = ownership == Ownership::Lost;
        let wait = if lost { Duration::ZERO } else { self.revocation_limit };
        let (done, answer) = std_mpsc::channel();
        let revoked = Control::Revoked { lanes: lanes.to_vec(), lost, deadline: Instant::now() + wait, done };
        if self.control.send(revoked).is_err() || lost {
            return Vec::new();
        }
        // The applier answers at its deadline; a little more for the answer's way.
        match answer.recv_timeout(wait + Duration::from_millis(250)) {
            Ok(settled) => settled,
            Err(cause) => {
                warn!(%cause, ?lanes, "partitions are given back without final positions; the next owner sees events again");
                Vec::new()
            }
        }
    }

    fn assigned(&self, consumer: &BaseConsumer<Self>, partitions: &[i32]) {
        info!(?partitions, "partitions given by the group");
        let mut ours = self.ours();
        ours.wanted.extend(partitions);
        ours.changed = true;
        drop(ours);
        // The group's step is answered at once; the partitions follow when their starts are known.
        let answered = TopicPartitionList::new();
        let answered = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.assign(&answered),
            _ => consumer.incremental_assign(&answered),
        };
        if let Err(cause) = answered {
            error!(%cause, "the group's assignment could not be taken");
        }
    }

    fn revoked(&self, consumer: &BaseConsumer<Self>, partitions: &[i32]) {
        let ownership = if consumer.assignment_lost() { Ownership::Lost } else { Ownership::Held };
        info!(?partitions, ?ownership, "partitions taken by the group");
        self.release(consumer, partitions, ownership);
        self.give_back(consumer, partitions);
    }

    /// Takes partitions out of the client's assignment; answers which of them were in it.
    pub fn give_back(&self, consumer: &BaseConsumer<Self>, partitions: &[i32]) -> Vec<i32> {
        let fetched: Vec<i32> = {
            let mut ours = self.ours();
            partitions.iter().copied().filter(|partition| ours.fetched.remove(partition)).collect()
        };
        let given = match consumer.rebalance_protocol() {
            RebalanceProtocol::Eager => consumer.unassign(),
            _ => self
                .list(fetched.iter().map(|partition| (*partition, Offset::Invalid)))
                .and_then(|list| consumer.incremental_unassign(&list)),
        };
        if let Err(cause) = given {
            error!(%cause, ?fetched, "partitions could not be given back");
        }
        fetched
    }

    fn may_murmur(&self, code: RDKafkaErrorCode) -> bool {
        let mut ours = self.ours();
        let now = Instant::now();
        let fresh = ours
            .murmured
            .get(&(code as i32))
            .is_none_or(|last| now.saturating_duration_since(*last) >= MURMUR);
        if fresh {
            ours.murmured.insert(code as i32, now);
        }
        fresh
    }
}

/// Whether a partition that is taken is still ours while we drain it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    Held,
    Lost,
}

impl ConsumerContext for GroupContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, step: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions: Vec<i32> = list
            .elements()
            .iter()
            .filter(|element| element.topic() == &*self.topic)
            .map(rdkafka::topic_partition_list::TopicPartitionListElem::partition)
            .collect();
        match step {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => self.assigned(consumer, &partitions),
            _ => self.revoked(consumer, &partitions),
        }
    }
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if facility == "COMMITFAIL" {
            // The only word the client has on an asynchronous commit.
            self.observer.commit_failed();
        }
        log_line(level, facility, message);
    }

    fn stats_raw(&self, statistics: &[u8]) {
        if let Err(cause) = self.statistics.put(statistics, &self.topic) {
            warn!(%cause, "the client's statistics cannot be read");
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        use RDKafkaErrorCode as Code;
        let Some(code) = error.rdkafka_error_code() else { return };
        match code {
            // Not trouble, or told by the loop with its partition.
            Code::PartitionEOF | Code::AutoOffsetReset | Code::OffsetOutOfRange => {}
            _ if !self.may_murmur(code) => {}
            Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => {
                error!(topic = %self.topic, reason, "topic or partition does not exist; waiting for it to come back");
            }
            Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::Authentication
            | Code::SaslAuthenticationFailed => {
                error!(reason, "Kafka refuses us; check the credentials and the access rules");
            }
            _ => warn!(%code, reason, "Kafka trouble; waited out"),
        }
    }
}

/// The client library's own lines, under its own target.
pub fn log_line(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg
        | RDKafkaLogLevel::Alert
        | RDKafkaLogLevel::Critical
        | RDKafkaLogLevel::Error => {
            error!(target: "librdkafka", "{facility}: {message}");
        }
        RDKafkaLogLevel::Warning => warn!(target: "librdkafka", "{facility}: {message}"),
        RDKafkaLogLevel::Notice | RDKafkaLogLevel::Info => {
            info!(target: "librdkafka", "{facility}: {message}");
        }
        RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", "{facility}: {message}"),
    }
}
