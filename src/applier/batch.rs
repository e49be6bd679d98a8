//! The batch step: look a micro-batch up, judge its states, write what must be written.
//!
//! Two events of one order in one batch are judged one after the other, as if each had been alone; only the last
//! state of an order is written (a statement may not touch a row twice). What the guard in SQL refuses was
//! written by somebody else since the look-up: it is looked up and judged again. A row that the database refuses
//! for its data is narrowed down until the guilty event stands alone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::intake::{LaneId, RawRecord, RecordOffset};
use crate::domain::effect::Run;
use crate::domain::plan::{CommissionWrite, Plan};
use crate::domain::verdict::{StateVerdict, StoredCommission, judge_state};
use crate::health::Health;
use crate::metrics::Metrics;
use crate::pg::commission;
use crate::pg::connect::Database;
use crate::pg::error::StoreError;
use crate::pg::lookup::{Found, Question, look_up};

/// A record with a plan, on its way through the batch step.
#[derive(Debug)]
pub(super) struct Planned {
    pub lane: LaneId,
    pub offset: RecordOffset,
    pub plan: Arc<Plan>,
    pub raw: Box<RawRecord>,
    pub traceparent: Option<String>,
    pub read_at: Instant,
}

/// A batch with what the database said about it.
pub(super) struct LookedUp {
    pub records: Vec<Planned>,
    /// By record: index range of its questions; by question: what was found, if it differs.
    pub answers: Vec<Answers>,
}

/// What was found, by effect of the plan (or one entry for an event without effects); `None`: already so.
///
/// Boxed, because silence is the common answer and must cost no memory: a replay hears little else.
pub(super) type FoundByEffect = SmallVec<[Option<Box<Found>>; 2]>;

/// What was found about one record.
#[derive(Default)]
pub(super) struct Answers {
    pub found: FoundByEffect,
}

impl Answers {
    pub fn differs(&self) -> Option<&Found> {
        self.found.iter().flatten().next().map(|found| &**found)
    }
}

/// What became of one record's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StateResult {
    Judged(StateVerdict),
    /// The database refuses the row for its data; its words.
    Refused(String),
}

/// What every database step needs: where, as whom, and whom to tell.
#[derive(Clone)]
pub(super) struct Store {
    pub database: Database,
    pub run: Run,
    pub health: Health,
    pub metrics: Arc<Metrics>,
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Store {
    /// Repeats a step until the database answers it or refuses its data: an outage is waited out, never passed on.
    pub async fn persist<T>(
        &self,
        what: &'static str,
        mut step: impl AsyncFnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut pause = FIRST_PAUSE;
        loop {
            match step().await {
                Ok(done) => {
                    self.health.database(Ok::<(), StoreError>(()));
                    return Ok(done);
                }
                Err(error @ StoreError::Data(_)) => return Err(error),
                Err(error) => self.failed(what, error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// One failure, told to readiness, metrics and the log.
    pub fn failed(&self, what: &'static str, error: StoreError) {
        self.metrics.database_error(error.counted());
        let class = error.class();
        tracing::warn!(what, class, %error, "database step failed; trying again");
        self.health.database(Err(error));
    }
}

/// The questions of a batch, and for each the record and effect it is about.
fn questions(records: &[Planned]) -> Vec<(usize, Question<'_>)> {
    const NO_DIGEST: &[u8; 32] = &[0; 32];
    let mut asked = Vec::with_capacity(records.len());
    for (at, record) in records.iter().enumerate() {
        let state = &record.plan.commission;
        let question = |key, request_digest| Question {
            key,
            order_id: &state.order_id,
            request_digest,
            event_digest: &state.event_digest,
            amount: state.amount,
            version: state.version,
            event_id: &state.event_id,
        };
        if record.plan.effects.is_empty() {
            asked.push((at, question("", NO_DIGEST)));
        }
        asked.extend(record.plan.effects.iter().map(|e| (at, question(e.key.as_str(), &e.digest))));
    }
    asked
}

/// Looks a batch up, however long the database takes to answer.
pub(super) async fn look(store: &Store, records: Vec<Planned>) -> LookedUp {
    let answers = ask(store, &records).await;
    LookedUp { records, answers }
}

async fn ask(store: &Store, records: &[Planned]) -> Vec<Answers> {
    let asked = questions(records);
    let only: Vec<Question<'_>> = asked.iter().map(|(_, question)| *question).collect();
    let step = async || {
        store.database.hot().run(async |connection| look_up(connection, &only, &store.run).await).await
    };
    let mut found = store.persist("look-up", step).await;
    while let Err(error) = found {
        // Nothing in a question can be refused for its data; whatever this is, it must not pass silently.
        store.failed("look-up", error);
        tokio::time::sleep(LONGEST_PAUSE).await;
        found = store.persist("look-up", step).await;
    }
    let mut answers: Vec<Answers> = records
        .iter()
        .map(|record| Answers {
            found: std::iter::repeat_with(|| None).take(record.plan.effects.len().max(1)).collect(),
        })
        .collect();
    let first: Vec<usize> = {
        let mut first = vec![0; records.len()];
        for (question, (record, _)) in asked.iter().enumerate().rev() {
            first[*record] = question;
        }
        first
    };
    for row in found.into_iter().flatten() {
        let Some((record, _)) = asked.get(row.question) else { continue };
        let slot = row.question - first[*record];
        answers[*record].found[slot] = Some(Box::new(row));
    }
    answers
}

/// The judgement of a batch: a verdict per record, and the rows to write.
pub(super) struct Fold {
    pub verdicts: Vec<StateResult>,
    /// By order: index of the record whose state is to be written.
    pub writes: BTreeMap<String, usize>,
}

/// Judges the records one after the other on what was found and on what the earlier ones of the batch will write.
/// `excluded` records are passed over.
pub(super) fn fold(records: &[Planned], answers: &[Answers], excluded: &HashSet<usize>) -> Fold {
    let mut verdicts = Vec::with_capacity(records.len());
    let mut overlay: HashMap<&str, StoredCommission> = HashMap::new();
    let mut writes = BTreeMap::new();
    for (at, (record, answer)) in records.iter().zip(answers).enumerate() {
        let state = &record.plan.commission;
        let order = state.order_id.as_str();
        let stored = overlay.get(order).map(Some).or_else(|| answer.differs().map(|f| f.commission.as_ref()));
        let verdict = match stored {
            _ if excluded.contains(&at) => StateVerdict::IgnoredNewer,
            None => StateVerdict::Unchanged { by_this_run: false },
            Some(_) if answer.differs().is_some_and(|f| f.version_taken) => StateVerdict::VersionConflict,
            Some(stored) => judge_state(stored, state),
        };
        if verdict == StateVerdict::Write {
            overlay.insert(order, as_stored(state));
            writes.insert(order.to_owned(), at);
        }
        verdicts.push(StateResult::Judged(verdict));
    }
    Fold { verdicts, writes }
}

fn as_stored(state: &CommissionWrite) -> StoredCommission {
    StoredCommission {
        event_id: state.event_id.clone(),
        version: state.version,
        amount: state.amount,
        event_digest: state.event_digest,
        // Another record of this batch writes it, and is counted for it.
        by_this_run: false,
    }
}

/// Most rounds of 'the guard refused, look again' for one batch. Each means that another writer was faster.
const ROUNDS_MAX: usize = 50;

/// Writes the states of a batch and says what became of each record's.
pub(super) async fn write_states(store: &Store, batch: &mut LookedUp, first: Fold) -> Vec<StateResult> {
    let mut results = first.verdicts;
    let mut writes = first.writes;
    let mut refused: HashMap<usize, String> = HashMap::new();
    for _ in 0..ROUNDS_MAX {
        let targets: Vec<&CommissionWrite> =
            writes.values().map(|at| &batch.records[*at].plan.commission).collect();
        let (written, guilty) = write_isolating(store, &targets).await;
        let mut again: HashSet<String> = HashSet::new();
        for (order, at) in &writes {
            if let Some(words) = guilty.get(order) {
                refused.insert(*at, words.clone());
                again.insert(order.clone());
            } else if !written.contains(order) {
                again.insert(order.clone());
            }
        }
        if again.is_empty() {
            break;
        }
        // Only these orders are looked up and judged again; the verdicts of the others stand.
        let excluded: HashSet<usize> = batch
            .records
            .iter()
            .enumerate()
            .filter(|(at, r)| refused.contains_key(at) || !again.contains(&r.plan.commission.order_id))
            .map(|(at, _)| at)
            .collect();
        batch.answers = ask(store, &batch.records).await;
        let next = fold(&batch.records, &batch.answers, &excluded);
        for (at, verdict) in next.verdicts.into_iter().enumerate() {
            // What this batch itself wrote a moment ago counts as written, not as 'already so'.
            let stands = results[at] == StateResult::Judged(StateVerdict::Write)
                && matches!(
                    verdict,
                    StateResult::Judged(StateVerdict::Unchanged { .. } | StateVerdict::IgnoredNewer)
                )
                && written.contains(&batch.records[at].plan.commission.order_id);
            if !excluded.contains(&at) && !stands {
                results[at] = verdict;
            }
        }
        writes = next.writes;
        if writes.is_empty() {
            break;
        }
    }
    for (at, words) in refused {
        results[at] = StateResult::Refused(words);
    }
    results
}

/// Upserts, halving a batch that is refused for its data until the guilty rows stand alone.
async fn write_isolating(
    store: &Store,
    targets: &[&CommissionWrite],
) -> (HashSet<String>, HashMap<String, String>) {
    let mut written = HashSet::new();
    let mut guilty = HashMap::new();
    let mut parts: Vec<&[&CommissionWrite]> = vec![targets];
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        let step = async || {
            let upsert = async |connection: &mut sqlx::PgConnection| {
                commission::upsert(connection, part, &store.run).await
            };
            store.database.hot().run(upsert).await
        };
        match store.persist("state", step).await {
            Ok(orders) => written.extend(orders),
            Err(error) if part.len() == 1 => {
                guilty.insert(part[0].order_id.clone(), error.database_message());
            }
            Err(_) => {
                let (left, right) = part.split_at(part.len() / 2);
                parts.push(right);
                parts.push(left);
            }
        }
    }
    (written, guilty)
}
