//! Effects: external calls, one per event and effect type, with their policies, ledger states and outcomes.
//!
//! The boundary words (database, metrics, JSON) are Portuguese and live in `as_str`; nothing else spells them.

use std::time::Duration;

use jiff::Timestamp;

use super::event::Digest;

/// Position of an effect type in the configuration; small, so that queues and slots are arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EffectTypeId(pub u16);

/// `chave` = `<evento_id>:<tipo_efeito>`: the same live, in replay and in redrive.
pub fn effect_key(event_id: &str, effect_type: &str) -> String {
    let mut key = String::with_capacity(event_id.len() + 1 + effect_type.len());
    key.push_str(event_id);
    key.push(':');
    key.push_str(effect_type);
    key
}

/// `modo`: whether an effect type is performed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum Mode {
    #[serde(rename = "aplicar")]
    Apply,
    #[serde(rename = "suprimir")]
    Suppress,
}

impl Mode {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "aplicar",
            Self::Suppress => "suprimir",
        }
    }
}

/// `ao_falhar`: what an unknown answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub enum OnFailure {
    /// `liberar`: the provider deduplicates by our key; the same key again is safe.
    #[serde(rename = "liberar")]
    Release,
    /// `manter`: it does not; only a person may decide.
    #[serde(rename = "manter")]
    Hold,
}

impl OnFailure {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release => "liberar",
            Self::Hold => "manter",
        }
    }
}

/// What the applier must know of an effect type to plan and to judge. Transport settings live in `gateway`.
#[derive(Debug, Clone)]
pub struct EffectPolicy {
    /// `tipo_efeito`
    pub name: String,
    pub mode: Mode,
    /// Whether paid orders ask for it. Effects of sagas are asked for by sagas alone.
    pub on_event: bool,
    pub on_failure: OnFailure,
    /// `vigente_desde`: events that occurred earlier are suppressed.
    pub effective_from: Option<Timestamp>,
    /// `reserva`: how long a reservation protects a call, by database time.
    pub lease: Duration,
    /// `max_tentativas`: unknown answers before the effect is given up.
    pub max_attempts: u32,
    /// `recuo_inicial`, `recuo_maximo`: exponential backoff with jitter.
    pub backoff_initial: Duration,
    pub backoff_max: Duration,
    /// `janela_idempotencia`: how long the provider remembers our key, from the first attempt.
    pub key_memory: Duration,
    /// `concorrencia`: call slots of this process.
    pub slots: usize,
    /// `limite_por_segundo`
    pub per_second: Option<u32>,
    /// `circuito_limite`: events in a row without a definite answer that open the circuit.
    pub circuit_threshold: u32,
    /// `circuito_espera`: first wait of an open circuit; doubles up to `backoff_max`.
    pub circuit_wait: Duration,
}

/// `estado` of a ledger row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EffectState {
    Reserved,
    Done,
    Uncertain,
}

impl EffectState {
    pub const ALL: [Self; 3] = [Self::Reserved, Self::Done, Self::Uncertain];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reservado",
            Self::Done => "concluido",
            Self::Uncertain => "incerto",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// A person's decision about an uncertain effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The provider did it.
    Done,
    /// The provider never got it: it will be sent.
    NotSent,
    /// It is not wanted any more: settled without sending.
    Discarded,
}

impl Decision {
    pub const ALL: [Self; 3] = [Self::Done, Self::NotSent, Self::Discarded];

    /// `revisao_efeito.decisao`
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "concluido",
            Self::NotSent => "nao-enviado",
            Self::Discarded => "descartado",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|decision| decision.as_str() == text)
    }
}

/// `desfecho` of an effect, as counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Outcome {
    Applied,
    AlreadyRecorded,
    Suppressed,
    WouldApply,
    Uncertain,
    Refused,
    Failed,
    Divergent,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::Applied,
        Self::AlreadyRecorded,
        Self::Suppressed,
        Self::WouldApply,
        Self::Uncertain,
        Self::Refused,
        Self::Failed,
        Self::Divergent,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "aplicado",
            Self::AlreadyRecorded => "ja-registrado",
            Self::Suppressed => "suprimido",
            Self::WouldApply => "seria-aplicado",
            Self::Uncertain => "incerto",
            Self::Refused => "recusado",
            Self::Failed => "falhou",
            Self::Divergent => "divergente",
        }
    }
}

/// `desfecho` of a state write, as counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StateOutcome {
    Written,
    Unchanged,
    IgnoredNewer,
    VersionConflict,
}

impl StateOutcome {
    pub const ALL: [Self; 4] = [Self::Written, Self::Unchanged, Self::IgnoredNewer, Self::VersionConflict];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Written => "gravado",
            Self::Unchanged => "inalterado",
            Self::IgnoredNewer => "ignorado-versao-mais-nova",
            Self::VersionConflict => "conflito-de-versao",
        }
    }
}

/// What kind of run performs or counts: metric label `execucao`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunKind {
    Live,
    Replay,
    DryRun,
    Redrive,
}

impl RunKind {
    pub const ALL: [Self; 4] = [Self::Live, Self::Replay, Self::DryRun, Self::Redrive];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "ao-vivo",
            Self::Replay => "replay",
            Self::DryRun => "simulacao",
            Self::Redrive => "redrive",
        }
    }
}

/// `execucao_id` with its kind: `ao-vivo`, or the replay's id, or the redrive's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub kind: RunKind,
    pub id: String,
}

impl Run {
    pub fn live() -> Self {
        Self { kind: RunKind::Live, id: RunKind::Live.as_str().to_owned() }
    }
}

/// One external call that should have happened: what will be sent, and under which key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectRequest {
    pub effect_type: EffectTypeId,
    pub key: String,
    /// The exact request body.
    pub body: String,
    /// `resumo_requisicao`: digest of `body`, compared for `divergente`.
    pub digest: Digest,
    /// The policy for this very event: the type's mode, or suppressed because it occurred before `vigente_desde`.
    pub mode: Mode,
}

/// The body of a request to a provider. Field order is part of the contract: a body that was stored as jsonb
/// is rebuilt byte for byte from it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestBody<'a> {
    #[serde(borrow)]
    pub chave: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub evento_id: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub tipo_efeito: std::borrow::Cow<'a, str>,
    #[serde(borrow)]
    pub pedido_id: std::borrow::Cow<'a, str>,
    pub valor_centavos: i64,
    /// RFC 3339 in UTC.
    #[serde(borrow)]
    pub ocorrido_em: std::borrow::Cow<'a, str>,
}

/// Rebuilds the exact body from its stored jsonb text.
pub fn body_from_stored(json: &str) -> Result<String, serde_json::Error> {
    let body: RequestBody<'_> = serde_json::from_str(json)?;
    serde_json::to_string(&body)
}
