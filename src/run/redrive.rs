//! Redrive: dead letters go along the road again, straight into the applier, never onto the shared topic.
//!
//! The letters are read page by page. The letters of one record are one record to the applier; its lane is made up
//! (position in the page), the record keeps its own topic, partition and offset. What fails again keeps its index
//! row: one more round, and no new copy in the dead-letter topic.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::decode::{Everything, Reader, Schemas};
use super::parts::{self, Parts};
use super::{RunError, Signals};
use crate::applier::intake::{
    Content, Control, Delivery, LaneId, Record, RecordOffset, ResumeAt, Watermarks,
};
use crate::applier::{self, Entry, Inlet, JournalReader, LetterRoute, Road};
use crate::config::Config;
use crate::domain::effect::{Mode, Outcome, Run, RunKind};
use crate::domain::record::{DeadLetter, RawRecord};
use crate::domain::verdict::{EffectVerdict, Looker, judge_effect};
use crate::pg::error::StoreError;
use crate::pg::letters::{self, Selection, StoredLetter};
use crate::pg::lookup::{Question, look_up};
use crate::stream::Decoding;

/// Letters taken together. Small: an interrupted redrive repeats at most one page, and the ledger knows it.
const PAGE: i64 = 200;
const POLL: Duration = Duration::from_millis(10);
/// After an interruption: time for the calls in flight.
const LAST_CALLS: Duration = Duration::from_secs(20);

/// What a redrive did, or would do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Redriven {
    pub selecionadas: u64,
    pub aplicadas: u64,
    pub devolvidas: u64,
    /// Not reached because it was interrupted; they stay open.
    pub pendentes: u64,
}

/// Feeds the selected letters to the applier. `progress` is told how many are done.
pub async fn run(
    config: &Config,
    selection: &Selection,
    mut progress: impl FnMut(Redriven),
) -> Result<Redriven, RunError> {
    let id = format!("redrive-{}", uuid::Uuid::now_v7().simple());
    let parts = Parts::build(config, Run { kind: RunKind::Redrive, id })?;
    crate::pg::schema::check(&parts.database).await?;
    let mut signals = Signals::listen()?;
    let mut reader = reader(config, &parts)?;
    let pool = parts.database.pool().clone();
    let total = letters::count(&pool, selection).await.map_err(store)?;
    let mut done = Redriven { selecionadas: u64::try_from(total).unwrap_or(0), ..Redriven::default() };
    let (mut last, mut interrupted) = (0, false);
    while !interrupted {
        let page = letters::page(&pool, selection, last, PAGE).await.map_err(store)?;
        let Some(end) = page.last() else { break };
        last = end.id;
        let back;
        (back, interrupted) = drive(&parts, &mut reader, &page, &mut signals).await?;
        if interrupted {
            break;
        }
        let resolved: Vec<i64> =
            page.iter().map(|letter| letter.id).filter(|id| !back.contains_key(id)).collect();
        letters::resolve(&pool, &resolved).await.map_err(store)?;
        done.aplicadas += resolved.len() as u64;
        done.devolvidas += back.len() as u64;
        let back: Vec<(i64, String)> = back.into_iter().collect();
        letters::came_back(&pool, &back).await.map_err(store)?;
        progress(done);
    }
    done.pendentes = done.selecionadas.saturating_sub(done.aplicadas + done.devolvidas);
    Ok(done)
}

fn reader(config: &Config, parts: &Parts) -> Result<Reader<Everything>, RunError> {
    let schemas = parts::registry(config)?.map(Schemas::start);
    Ok(Reader::new(parts.policies.clone(), Everything, Arc::clone(&parts.metrics), schemas))
}

fn store(error: StoreError) -> RunError {
    RunError::Schema(error.into())
}

/// A record that one or more letters are about.
struct Driven {
    letters: Vec<usize>,
    event_id: Option<String>,
}

/// Drives one page to its end; says which letters came back, with the words, and whether it was interrupted.
async fn drive(
    parts: &Parts,
    reader: &mut Reader<Everything>,
    page: &[StoredLetter],
    signals: &mut Signals,
) -> Result<(HashMap<i64, String>, bool), RunError> {
    let lane = LaneId { partition: 0, claim: 1 };
    let mut back = HashMap::new();
    let (mut driven, mut records) = (Vec::<Driven>::new(), Vec::new());
    let mut places: HashMap<Identity<'_>, usize> = HashMap::new();
    for (at, letter) in page.iter().enumerate() {
        if letter.is_cut() {
            let kept = "the index holds only a part of the record; read the whole from its topic and send it again under a new id";
            back.insert(letter.id, kept.to_owned());
            continue;
        }
        if let Some(place) = places.get(&identity(letter)) {
            driven[*place].letters.push(at);
            continue;
        }
        let place = driven.len();
        places.insert(identity(letter), place);
        let (content, traceparent) = decode(reader, &letter.raw).await;
        let event_id = match &content {
            Content::Plan(plan) => Some(plan.commission.event_id.clone()),
            Content::Poison { .. } | Content::Skip(_) => None,
        };
        driven.push(Driven { letters: vec![at], event_id });
        records.push(Record {
            lane,
            offset: RecordOffset(i64::try_from(place).unwrap_or(i64::MAX)),
            content,
            raw: Box::new(letter.raw.clone()),
            traceparent,
            read_at: Instant::now(),
        });
    }
    let (again, outcomes, interrupted) = feed(parts, lane, records, signals).await?;
    for record in &driven {
        for at in &record.letters {
            let letter = &page[*at];
            if let Some(words) = failed_again(letter, record, &again, &outcomes) {
                back.insert(letter.id, words);
            }
        }
    }
    Ok((back, interrupted))
}

type Identity<'a> = (&'a str, i32, i64, Option<i64>, &'a str);

fn identity(letter: &StoredLetter) -> Identity<'_> {
    (&letter.raw.topic, letter.raw.partition, letter.raw.offset, letter.raw.timestamp_ms, &letter.sha256)
}

/// A schema that is being fetched is waited for.
async fn decode(reader: &mut Reader<Everything>, raw: &RawRecord) -> (Content, Option<String>) {
    let mut raw = Box::new(raw.clone());
    loop {
        match reader.read(raw) {
            Decoding::Ready { content, traceparent, .. } => return (content, traceparent),
            Decoding::Wait(again) => raw = again,
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Whether a letter's record, or its effect, failed again; in which words.
fn failed_again(
    letter: &StoredLetter,
    record: &Driven,
    again: &[Arc<DeadLetter>],
    outcomes: &HashMap<(String, String), Outcome>,
) -> Option<String> {
    let same_record = |new: &&Arc<DeadLetter>| {
        *new.raw.topic == *letter.raw.topic
            && new.raw.partition == letter.raw.partition
            && new.raw.offset == letter.raw.offset
    };
    let same_effect = |effect: Option<&str>| {
        letter.effect_type.is_none() || effect.is_none() || effect == letter.effect_type.as_deref()
    };
    let letter_again = again.iter().filter(same_record).find(|new| same_effect(new.effect_type.as_deref()));
    if let Some(new) = letter_again {
        let changed = new.reason.code() != letter.reason;
        return Some(if changed { format!("{}: {}", new.reason, new.message) } else { new.message.clone() });
    }
    let event_id = record.event_id.as_ref()?;
    let unsettled = outcomes.iter().find(|((event, effect), outcome)| {
        event == event_id && same_effect(Some(effect)) && **outcome == Outcome::Uncertain
    });
    unsettled
        .map(|((_, effect), _)| format!("{effect} is uncertain; decide it with `reprise effects resolve`"))
}

type Fed = (Vec<Arc<DeadLetter>>, HashMap<(String, String), Outcome>, bool);

/// Runs the applier over these records until every one is settled, or it is interrupted.
async fn feed(
    parts: &Parts,
    lane: LaneId,
    records: Vec<Record>,
    signals: &mut Signals,
) -> Result<Fed, RunError> {
    let end = ResumeAt(i64::try_from(records.len()).unwrap_or(i64::MAX));
    let (control_out, control) = mpsc::unbounded_channel();
    let (deliveries_out, deliveries) = mpsc::channel(1);
    let (again_out, mut again_in) = mpsc::unbounded_channel();
    let (journal, mut entries) = applier::journal();
    let watermarks = Watermarks::default();
    let (stop_out, stop) = watch::channel(None);
    let road = Road {
        run: parts.run.clone(),
        policies: parts.policies.clone(),
        database: parts.database.clone(),
        gateway: Arc::clone(&parts.gateway),
        rates: parts.rates.clone(),
        dead_letters: LetterRoute::Collected(again_out),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        traces: parts.traces.clone(),
        instance: Arc::clone(&parts.instance),
        watermarks: watermarks.clone(),
        journal: Some(journal),
        paused: watch::channel(false).1,
        mark: None,
    };
    let applier = applier::run(road, Inlet { control, deliveries }, stop);
    tokio::pin!(applier);
    let gone = || RunError::TaskLost("applier");
    control_out.send(Control::Assigned { lane, start: ResumeAt(0), end: Some(end) }).map_err(|_| gone())?;
    deliveries_out.send(Delivery::Records(records)).await.map_err(|_| gone())?;
    let mut poll = tokio::time::interval(POLL);
    let interrupted = loop {
        tokio::select! {
            ended = &mut applier => return Err(ended.map_or_else(RunError::from, |_| RunError::TaskLost("applier"))),
            () = signals.next() => break true,
            _ = poll.tick() => {
                if watermarks.snapshot().iter().any(|(_, at)| *at >= end) {
                    break false;
                }
            }
        }
    };
    stop_out.send_replace(Some(Instant::now() + LAST_CALLS));
    applier.await?;
    let mut again = Vec::new();
    while let Ok(letter) = again_in.try_recv() {
        again.push(letter);
    }
    Ok((again, outcomes(&mut entries).await, interrupted))
}

async fn outcomes(entries: &mut JournalReader) -> HashMap<(String, String), Outcome> {
    let mut taken = Vec::new();
    while entries.take(&mut taken, 1024).await > 0 {}
    taken
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Effect { target, outcome } => {
                let event = target.plan.commission.event_id.clone();
                Some(((event, target.effect_type.to_string()), outcome))
            }
            Entry::Checkpoint(_) | Entry::Waiting(_) => None,
        })
        .collect()
}

/// What each letter would come to, without calling anybody or writing anything.
pub async fn rehearse(config: &Config, selection: &Selection) -> Result<Redriven, RunError> {
    let parts = Parts::build(config, Run { kind: RunKind::Redrive, id: "redrive-simulacao".to_owned() })?;
    crate::pg::schema::check(&parts.database).await?;
    let mut reader = reader(config, &parts)?;
    let pool = parts.database.pool().clone();
    let mut would = Redriven::default();
    let mut last = 0;
    loop {
        let page = letters::page(&pool, selection, last, PAGE).await.map_err(store)?;
        let Some(end) = page.last() else { return Ok(would) };
        last = end.id;
        for letter in &page {
            would.selecionadas += 1;
            if would_apply(&parts, &mut reader, letter).await? {
                would.aplicadas += 1;
            } else {
                would.devolvidas += 1;
            }
        }
    }
}

/// Whether the road has a way for this letter today. What a provider would answer nobody knows.
async fn would_apply(
    parts: &Parts,
    reader: &mut Reader<Everything>,
    letter: &StoredLetter,
) -> Result<bool, RunError> {
    if letter.is_cut() {
        return Ok(false);
    }
    let Content::Plan(plan) = decode(reader, &letter.raw).await.0 else { return Ok(false) };
    let state = &plan.commission;
    for request in &plan.effects {
        let policy = parts.policies.get(request.effect_type);
        if request.mode == Mode::Suppress
            || letter.effect_type.as_ref().is_some_and(|only| *only != policy.name)
        {
            continue;
        }
        let question = Question {
            key: &request.key,
            order_id: &state.order_id,
            request_digest: &request.digest,
            event_digest: &state.event_digest,
            amount: state.amount,
            version: state.version,
            event_id: &state.event_id,
        };
        let answers = parts
            .database
            .hot()
            .run(async |connection| look_up(connection, &[question], &parts.run).await)
            .await
            .map_err(store)?;
        let Some(found) = answers.into_iter().next() else { continue };
        let looker = Looker { redrive: true, ..Looker::default() };
        let stored = found.effect.as_ref();
        let verdict =
            judge_effect(stored, &request.digest, &state.event_digest, request.mode, policy, looker);
        let taken = found.version_taken
            || found
                .commission
                .is_some_and(|row| row.version == state.version && row.event_id != state.event_id);
        let stuck = matches!(
            verdict,
            EffectVerdict::ContentConflict
                | EffectVerdict::ToUncertain { .. }
                | EffectVerdict::Settled(Outcome::Uncertain)
        );
        if taken || stuck {
            return Ok(false);
        }
    }
    Ok(true)
}
