//! Every number this program shows: names, label values and the handles that count.
//!
//! Promises:
//! * every series with a known label set stands at 0 before anything has happened, so that `rate()` and alerts see
//!   the first step (test `every_series_exists_before_anything_happened`);
//! * no label can hold an id or free text: every label is an enum, a configured effect type or a partition number,
//!   so the number of series does not depend on what is processed (test `b76_...`);
//! * counting costs one or two atomic additions: handles are resolved at start, nothing is looked up per event.
//!
//! One registry per value, none global: two services in one test process do not mix.
//! Not here: *present* facts (circuits, database, partitions). [`health`](crate::health) owns them, and [`Metrics::present`]
//! takes a copy of them at each scrape, so that `/metrics`, `/status` and `/readyz` cannot disagree.

use std::time::Duration;

use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntGauge, Registry, TextEncoder};

use crate::domain::effect::{EffectState, EffectTypeId, Outcome, RunKind, StateOutcome};
use crate::domain::poison::Reason;

mod family;
mod outbox;
mod partitions;
mod process;
mod projections;
#[cfg(test)]
mod reference;
mod saga;
#[cfg(test)]
mod tests;
mod windows;

use family::{Families, seconds};
use outbox::OutboxSeries;
use partitions::{PartitionSeries, ReplaySeries};
use process::Process;
use projections::ProjectionSeries;
use saga::SagaSeries;
pub use windows::WindowEvents;
use windows::WindowSeries;

/// The content type of [`Metrics::render`].
pub const TEXT_FORMAT: &str = prometheus::TEXT_FORMAT;

/// Names of the families. Dashboards and alerts rest on them.
pub mod name {
    pub const EFFECTS: &str = "reprise_efeitos_total";
    pub const STATE: &str = "reprise_estado_total";
    pub const EVENTS: &str = "reprise_eventos_total";
    pub const DEAD_LETTERS: &str = "reprise_cartas_mortas_total";
    pub const PENDING: &str = "reprise_efeitos_pendentes";
    pub const OLDEST: &str = "reprise_efeito_mais_antigo_segundos";
    pub const CALL_SECONDS: &str = "reprise_chamada_segundos";
    pub const TRANSACTION_SECONDS: &str = "reprise_transacao_segundos";
    pub const EVENT_SECONDS: &str = "reprise_evento_segundos";
    pub const BATCH_EVENTS: &str = "reprise_lote_eventos";
    pub const PARTITION_LAG: &str = "reprise_particao_lag";
    pub const PARTITION_POSITION: &str = "reprise_particao_posicao";
    pub const PARTITION_COMMITTED: &str = "reprise_particao_confirmado";
    pub const PARTITION_STALLED: &str = "reprise_particao_parada";
    pub const CIRCUIT_OPEN: &str = "reprise_circuito_aberto";
    pub const NO_OFFSET: &str = "reprise_sem_offset_total";
    pub const OFFSET_LOST: &str = "reprise_offset_perdido_total";
    pub const KEY_MISMATCH: &str = "reprise_chave_divergente_total";
    pub const DLQ_AWAY: &str = "reprise_dlq_indisponivel";
    pub const DLQ_FAILURES: &str = "reprise_dlq_tentativas_falhas_total";
    pub const DATABASE_UP: &str = "reprise_banco_disponivel";
    pub const DATABASE_ERRORS: &str = "reprise_banco_erros_total";
    pub const COMMIT_FAILURES: &str = "reprise_commits_falhos_total";
    pub const LIVE_RESERVATIONS: &str = "reprise_reservas_vivas";
    pub const OLDEST_TRANSACTION: &str = "reprise_transacao_mais_antiga_segundos";
    pub const ARCHIVED: &str = "reprise_arquivados_total";
    pub const LAST_SWEEP: &str = "reprise_varredura_ultima_segundos";
    pub const REPLAY_POSITION: &str = "reprise_replay_posicao";
    pub const REPLAY_REMAINING: &str = "reprise_replay_restante";
    pub const PROJECTION_POSITION: &str = "reprise_projection_position";
    pub const PROJECTION_LAG_EVENTS: &str = "reprise_projection_lag_events";
    pub const PROJECTION_LAG_SECONDS: &str = "reprise_projection_lag_seconds";
    pub const OUTBOX_PUBLISHED: &str = "reprise_outbox_published_total";
    pub const OUTBOX_FAILURES: &str = "reprise_outbox_failures_total";
    pub const OUTBOX_PARKED_TOTAL: &str = "reprise_outbox_parked_total";
    pub const OUTBOX_UNPUBLISHED: &str = "reprise_outbox_unpublished";
    pub const OUTBOX_OLDEST: &str = "reprise_outbox_oldest_seconds";
    pub const OUTBOX_PARKED: &str = "reprise_outbox_parked";
    pub const OUTBOX_SECONDS: &str = "reprise_outbox_publish_seconds";
    pub const SAGA_ENDED: &str = "reprise_saga_ended_total";
    pub const SAGA_RUNNING: &str = "reprise_saga_running";
    pub const SAGA_OLDEST: &str = "reprise_saga_oldest_seconds";
    pub const SAGA_UNDO_ATTEMPTS: &str = "reprise_saga_undo_attempts";
    pub const WINDOW_EVENTS: &str = "reprise_window_events_total";
    pub const WINDOW_LATE: &str = "reprise_window_late_total";
    pub const WINDOW_REJECTED: &str = "reprise_window_rejected_total";
    pub const WINDOW_WATERMARK_AGE: &str = "reprise_window_watermark_age_seconds";
    pub const ORDERS_FOREIGN: &str = "reprise_orders_foreign_total";
    pub const OUTBOX_SLOT_LAG: &str = "reprise_outbox_slot_lag_bytes";
    pub const UPTIME: &str = "reprise_processo_segundos";
    pub const RESIDENT: &str = "reprise_processo_memoria_bytes";
    pub const SPANS: &str = "reprise_rastros_total";
    pub const BUILD: &str = "reprise_versao_info";
}

/// Label names.
mod label {
    pub const EFFECT: &str = "efeito";
    pub const OUTCOME: &str = "desfecho";
    pub const RUN: &str = "execucao";
    pub const RESULT: &str = "resultado";
    pub const REASON: &str = "motivo";
    pub const STATE: &str = "estado";
    pub const PARTITION: &str = "particao";
    pub const CLASS: &str = "classe";
    pub const VERSION: &str = "versao";
}

/// What became of a record: label `resultado`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventResult {
    Applied,
    DeadLettered,
    Tombstone,
    OtherType,
    NotSelected,
}

impl EventResult {
    pub const ALL: [Self; 5] =
        [Self::Applied, Self::DeadLettered, Self::Tombstone, Self::OtherType, Self::NotSelected];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "aplicado",
            Self::DeadLettered => "carta-morta",
            Self::Tombstone => "tombstone",
            Self::OtherType => "outro-tipo",
            Self::NotSelected => "nao-selecionado",
        }
    }
}

/// States of the ledger in which something is still to happen: label `estado` of the pending gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PendingState {
    Reserved,
    Uncertain,
}

impl PendingState {
    pub const ALL: [Self; 2] = [Self::Reserved, Self::Uncertain];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => EffectState::Reserved.as_str(),
            Self::Uncertain => EffectState::Uncertain.as_str(),
        }
    }
}

/// What kind of error Postgres gave: label `classe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseErrorClass {
    /// Nothing durable is known; the work is tried again.
    Transient,
    /// The row is refused for its data.
    Data,
    /// Neither helps: schema, permissions, our own mistake.
    Broken,
}

impl DatabaseErrorClass {
    pub const ALL: [Self; 3] = [Self::Transient, Self::Data, Self::Broken];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transitorio",
            Self::Data => "dado",
            Self::Broken => "defeito",
        }
    }
}

/// What became of a span: label `resultado`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanFate {
    Delivered,
    /// The queue was full.
    Dropped,
    /// The collector did not take it.
    Failed,
}

impl SpanFate {
    pub const ALL: [Self; 3] = [Self::Delivered, Self::Dropped, Self::Failed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "entregue",
            Self::Dropped => "descartado",
            Self::Failed => "falhou",
        }
    }
}

/// Why a message of the outbox was not acknowledged: label `cause`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxFailure {
    /// For itself.
    Refused,
    /// Broker, topic or schema registry; it waits.
    Away,
}

impl OutboxFailure {
    pub const ALL: [Self; 2] = [Self::Refused, Self::Away];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Away => "away",
        }
    }
}

/// What became of a message of another system: label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignResult {
    /// Accepted, or known already.
    Taken,
    /// None of ours.
    PassedOver,
    DeadLettered,
}

impl ForeignResult {
    pub const ALL: [Self; 3] = [Self::Taken, Self::PassedOver, Self::DeadLettered];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::PassedOver => "passed-over",
            Self::DeadLettered => "dead-lettered",
        }
    }
}

/// A registry that cannot be built: a name or label that Prometheus does not accept, or the same one twice.
#[derive(Debug, thiserror::Error)]
#[error("metrics cannot be set up: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// Present facts, as `health` knows them at a scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    pub database_up: bool,
    pub dlq_away: bool,
    pub open_circuits: Vec<EffectTypeId>,
    /// Reservations in flight by effect type, in the order of the configuration.
    pub reservations: Vec<i64>,
    pub partitions: Vec<PartitionReading>,
}

/// Where this process stands in one partition it owns. Offsets are those of the first record not yet covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionReading {
    pub partition: i32,
    pub position: i64,
    /// Absent until the broker acknowledged a commit, or said what was committed before.
    pub committed: Option<i64>,
    /// Records between the commit (else the position) and the end of the partition; absent until the end is known.
    pub lag: Option<i64>,
    /// Nothing moves though something should: a person must act.
    pub stalled: bool,
}

/// Where one running replay stands in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayReading {
    pub partition: i32,
    pub position: i64,
    pub remaining: i64,
}

type ByRun = [IntCounter; RunKind::ALL.len()];

/// All counters of one process. Share it in an `Arc`.
pub struct Metrics {
    registry: Registry,
    effects: Box<[EffectSeries]>,
    state: [ByRun; StateOutcome::ALL.len()],
    events: [ByRun; EventResult::ALL.len()],
    dead_letters: [IntCounter; Reason::ALL.len()],
    database_errors: [IntCounter; DatabaseErrorClass::ALL.len()],
    transaction_seconds: Histogram,
    event_seconds: Histogram,
    batch_events: Histogram,
    no_offset: IntCounter,
    offset_lost: IntCounter,
    key_mismatch: IntCounter,
    dlq_failures: IntCounter,
    commit_failures: IntCounter,
    dlq_away: IntGauge,
    database_up: IntGauge,
    oldest_transaction: Gauge,
    last_sweep: Gauge,
    archived: IntCounter,
    spans: [IntCounter; SpanFate::ALL.len()],
    partitions: PartitionSeries,
    replay: ReplaySeries,
    outbox: OutboxSeries,
    projections: ProjectionSeries,
    saga: SagaSeries,
    windows: WindowSeries,
    process: Process,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The series of one effect type.
struct EffectSeries {
    outcomes: [ByRun; Outcome::ALL.len()],
    pending: [IntGauge; PendingState::ALL.len()],
    oldest: [Gauge; PendingState::ALL.len()],
    call_seconds: Histogram,
    circuit_open: IntGauge,
    reservations: IntGauge,
}

impl Metrics {
    /// `effects` are the configured effect types in their order: the position is the [`EffectTypeId`].
    pub fn new<'a>(effects: impl IntoIterator<Item = &'a str>) -> Result<Self, MetricsError> {
        let families = Families::new();
        let effects = effect_series(&families, effects)?;
        let state = families.counters(
            name::STATE,
            "State writes by outcome and kind of run",
            &[label::OUTCOME, label::RUN],
        )?;
        let events = families.counters(
            name::EVENTS,
            "Records settled, by what became of them and kind of run",
            &[label::RUN, label::RESULT],
        )?;
        let dead_letters =
            families.counters(name::DEAD_LETTERS, "Dead letters by reason", &[label::REASON])?;
        let database_errors =
            families.counters(name::DATABASE_ERRORS, "Errors of Postgres by class", &[label::CLASS])?;
        let spans =
            families.counters(name::SPANS, "Spans of traces by what became of them", &[label::RESULT])?;
        families
            .gauges(name::BUILD, "Always 1; the version is the label", &[label::VERSION])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        Ok(Self {
            effects,
            state: StateOutcome::ALL
                .map(|o| RunKind::ALL.map(|r| state.with_label_values(&[o.as_str(), r.as_str()]))),
            events: EventResult::ALL
                .map(|e| RunKind::ALL.map(|r| events.with_label_values(&[r.as_str(), e.as_str()]))),
            dead_letters: Reason::ALL.map(|r| dead_letters.with_label_values(&[r.code()])),
            database_errors: DatabaseErrorClass::ALL
                .map(|c| database_errors.with_label_values(&[c.as_str()])),
            transaction_seconds: families
                .histogram(name::TRANSACTION_SECONDS, "Ledger transactions, from begin to commit")?,
            event_seconds: families
                .histogram(name::EVENT_SECONDS, "Records, from being read to being settled")?,
            batch_events: families
                .size_histogram(name::BATCH_EVENTS, "Events taken together in one batch")?,
            no_offset: families.counter(
                name::NO_OFFSET,
                "Partitions begun without a committed offset, at the earliest record",
            )?,
            offset_lost: families
                .counter(name::OFFSET_LOST, "Partitions whose committed offset no longer existed")?,
            key_mismatch: families
                .counter(name::KEY_MISMATCH, "Records whose message key is not their pedidoId")?,
            dlq_failures: families
                .counter(name::DLQ_FAILURES, "Attempts to write a dead letter that failed")?,
            commit_failures: families.counter(name::COMMIT_FAILURES, "Offset commits that failed")?,
            dlq_away: families
                .gauge(name::DLQ_AWAY, "1 while the dead-letter topic cannot be written and records wait")?,
            database_up: families.gauge(name::DATABASE_UP, "1 while Postgres answers")?,
            oldest_transaction: families.seconds_gauge(
                name::OLDEST_TRANSACTION,
                "Age of the oldest transaction in the database, ours or not",
            )?,
            last_sweep: families.seconds_gauge(
                name::LAST_SWEEP,
                "When the last sweep of this process ended, in seconds since 1970; 0 before the first",
            )?,
            archived: families
                .counter(name::ARCHIVED, "Records newly kept in the archive by this process")?,
            spans: SpanFate::ALL.map(|fate| spans.with_label_values(&[fate.as_str()])),
            partitions: PartitionSeries::new(&families)?,
            replay: ReplaySeries::new(&families)?,
            outbox: OutboxSeries::new(&families)?,
            projections: ProjectionSeries::new(&families)?,
            saga: SagaSeries::new(&families)?,
            windows: WindowSeries::new(&families)?,
            process: Process::new(&families)?,
            registry: families.into_registry(),
        })
    }

    /// `n` effects of this type ended so.
    pub fn effect(&self, id: EffectTypeId, outcome: Outcome, run: RunKind, n: u64) {
        if let Some(series) = self.effect_series(id) {
            series.outcomes[outcome as usize][run as usize].inc_by(n);
        }
    }

    /// `n` state writes ended so.
    pub fn state(&self, outcome: StateOutcome, run: RunKind, n: u64) {
        self.state[outcome as usize][run as usize].inc_by(n);
    }

    /// `n` records were settled so.
    pub fn event(&self, result: EventResult, run: RunKind, n: u64) {
        self.events[result as usize][run as usize].inc_by(n);
    }

    /// One record, or one effect of it, is a dead letter.
    pub fn dead_letter(&self, reason: Reason) {
        self.dead_letters[reason as usize].inc();
    }

    /// A provider call took so long, whatever it ended with.
    pub fn call_seconds(&self, id: EffectTypeId, took: Duration) {
        if let Some(series) = self.effect_series(id) {
            series.call_seconds.observe(took.as_secs_f64());
        }
    }

    pub fn transaction_seconds(&self, took: Duration) {
        self.transaction_seconds.observe(took.as_secs_f64());
    }

    pub fn event_seconds(&self, took: Duration) {
        self.event_seconds.observe(took.as_secs_f64());
    }

    /// A batch of so many events was taken.
    pub fn batch(&self, events: usize) {
        // Batches are far below 2^52, where f64 begins to skip integers.
        #[expect(clippy::cast_precision_loss, reason = "a batch has at most a few thousand events")]
        self.batch_events.observe(events as f64);
    }

    /// A partition had no committed offset and was begun at its earliest record.
    pub fn started_without_offset(&self) {
        self.no_offset.inc();
    }

    /// A partition's committed offset no longer existed.
    pub fn offset_lost(&self) {
        self.offset_lost.inc();
    }

    /// `n` records had a message key other than their `pedidoId`.
    pub fn key_mismatch(&self, n: u64) {
        self.key_mismatch.inc_by(n);
    }

    pub fn dlq_attempt_failed(&self) {
        self.dlq_failures.inc();
    }

    pub fn commit_failed(&self) {
        self.commit_failures.inc();
    }

    pub fn database_error(&self, class: DatabaseErrorClass) {
        self.database_errors[class as usize].inc();
    }

    /// What the ledger still holds of this type in this state, and how old the oldest is (`None`: there is none).
    pub fn pending(&self, id: EffectTypeId, state: PendingState, count: i64, oldest: Option<Duration>) {
        if let Some(series) = self.effect_series(id) {
            series.pending[state as usize].set(count);
            series.oldest[state as usize].set(seconds(oldest));
        }
    }

    /// Age of the oldest transaction in the database (`None`: there is none).
    pub fn oldest_transaction(&self, age: Option<Duration>) {
        self.oldest_transaction.set(seconds(age));
    }

    /// A sweep of this process ended at this instant.
    /// `n` records are newly in the archive.
    pub fn archived(&self, n: u64) {
        self.archived.inc_by(n);
    }

    pub fn swept(&self, at: std::time::SystemTime) {
        let since = at.duration_since(std::time::SystemTime::UNIX_EPOCH);
        self.last_sweep.set(since.map_or(0.0, |since| since.as_secs_f64()));
    }

    /// `n` spans ended so.
    pub fn spans(&self, fate: SpanFate, n: usize) {
        self.spans[fate as usize].inc_by(n as u64);
    }

    /// Progress of every running replay; replaces what was shown before. Where several replays read a partition,
    /// the hindmost position and the sum of what remains are shown: a run's id is no label.
    pub fn replays(&self, readings: &[ReplayReading]) {
        self.replay.show(readings);
    }

    /// How many effects of this type ended so in this process, whatever the kind of run.
    pub fn effects_of(&self, id: EffectTypeId, outcome: Outcome) -> u64 {
        self.effect_series(id)
            .map_or(0, |series| series.outcomes[outcome as usize].iter().map(IntCounter::get).sum())
    }

    /// Takes over the facts of the moment. Partitions that are no longer listed lose their series.
    pub fn present(&self, present: &Present) {
        self.database_up.set(i64::from(present.database_up));
        self.dlq_away.set(i64::from(present.dlq_away));
        for (id, series) in (0_u16..).map(EffectTypeId).zip(&self.effects) {
            series.circuit_open.set(i64::from(present.open_circuits.contains(&id)));
            let reservations = present.reservations.get(usize::from(id.0)).copied();
            series.reservations.set(reservations.unwrap_or(0));
        }
        self.partitions.show(&present.partitions);
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> Result<String, MetricsError> {
        self.process.read();
        Ok(TextEncoder::new().encode_to_string(&self.registry.gather())?)
    }

    /// An id comes from the configuration this value was made of; another one is counted nowhere rather than panic.
    fn effect_series(&self, id: EffectTypeId) -> Option<&EffectSeries> {
        self.effects.get(usize::from(id.0))
    }
}

fn effect_series<'a>(
    families: &Families,
    effects: impl IntoIterator<Item = &'a str>,
) -> Result<Box<[EffectSeries]>, MetricsError> {
    let outcomes = families.counters(
        name::EFFECTS,
        "Effects by outcome and kind of run",
        &[label::EFFECT, label::OUTCOME, label::RUN],
    )?;
    let pending = families.gauges(
        name::PENDING,
        "Effects the ledger still holds in this state",
        &[label::EFFECT, label::STATE],
    )?;
    let oldest = families.seconds_gauges(
        name::OLDEST,
        "Age of the oldest effect in this state; 0 when there is none",
        &[label::EFFECT, label::STATE],
    )?;
    let call_seconds: HistogramVec =
        families.histograms(name::CALL_SECONDS, "Provider calls, connect to last byte", &[label::EFFECT])?;
    let circuit_open = families.gauges(
        name::CIRCUIT_OPEN,
        "1 while the circuit of this effect is open",
        &[label::EFFECT],
    )?;
    let reservations = families.gauges(
        name::LIVE_RESERVATIONS,
        "Reservations this process holds for calls in flight",
        &[label::EFFECT],
    )?;
    let series = |effect: &str| EffectSeries {
        outcomes: Outcome::ALL
            .map(|o| RunKind::ALL.map(|r| outcomes.with_label_values(&[effect, o.as_str(), r.as_str()]))),
        pending: PendingState::ALL.map(|s| pending.with_label_values(&[effect, s.as_str()])),
        oldest: PendingState::ALL.map(|s| oldest.with_label_values(&[effect, s.as_str()])),
        call_seconds: call_seconds.with_label_values(&[effect]),
        circuit_open: circuit_open.with_label_values(&[effect]),
        reservations: reservations.with_label_values(&[effect]),
    };
    Ok(effects.into_iter().map(series).collect())
}
