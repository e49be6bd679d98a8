//! The providers: one call in, what its answer *proves* out.
//!
//! The promise:
//! * one [`Call`] puts at most one request on the wire. Nothing below here retries, follows a redirect or asks
//!   again (tests in `http`: each counts what the server saw);
//! * every call ends within the provider's deadline (`prazo`), connect to last byte;
//! * no call begins that would outlive its reservation: a process that was stopped between the two, while others
//!   went on with the effect, calls nobody when it wakes up;
//! * [`Proof::NotSent`] is claimed only where the request's body provably never left this process (see
//!   `handover`); whatever may have arrived and has no complete answer is [`Proof::Unknown`];
//! * what is kept of an answer is bounded and always storable as `jsonb`.
//!
//! Not here: what to do about a proof (that is the applier's, which knows `ao_falhar` and earlier attempts), when
//! to try again, and the ledger.
//!
//! * [`http`]: the HTTP adapter, [`HttpGateway`](http::HttpGateway)
//! * [`settings`]: one provider's settings, checked
//! * [`answer`]: from a complete answer to a [`Proof`], with the overrides of `respostas`
//! * `kept`: the bounded, storable rest of an answer's body
//! * `connections`: kept open, lent to one call at a time
//! * `handover`: whether the request may have left
//! * [`signature`]: Standard Webhooks signatures and their [`Secret`](signature::Secret)
//! * [`rate`]: calls a second
//! * [`circuit`]: stop asking a provider that answers nobody

pub mod answer;
pub mod circuit;
mod connections;
mod handover;
pub mod http;
mod kept;
pub mod rate;
pub mod settings;
pub mod signature;

use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use crate::domain::effect::EffectTypeId;

/// One request to a provider. It must stand in the ledger as reserved before it comes here.
#[derive(Debug, Clone)]
pub struct Call {
    pub effect_type: EffectTypeId,
    /// `chave`, sent as `Idempotency-Key`.
    pub key: String,
    /// The exact JSON body.
    pub body: String,
    /// When its reservation may end, by our clock, counted from before it was asked for.
    pub lease_ends: Instant,
    /// W3C trace context. One that is no header value is left out: a trace never costs an effect.
    pub traceparent: Option<String>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub proof: Proof,
    pub evidence: Evidence,
}

/// What an answer, or its absence, proves about the effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// The provider did it. `result` is JSON for `resultado`: bounded, valid, storable as `jsonb`.
    Done { result: String },
    /// A definite no.
    Refused,
    /// The request never left: refused connection, DNS, TLS handshake, no connection within the deadline.
    NotSent,
    /// 401, 403, 407: not done, because of our credentials.
    Credentials,
    /// 429, or 503 with Retry-After: not done, ask again later. Also a call that came too late to be begun.
    NotNow { retry_after: Option<Duration> },
    /// 409 or 425. Under `liberar` our own key is in progress there: ask again with it. Under `manter` the
    /// provider knows no keys, so it is like any other 4xx: the applier treats it as [`Proof::Refused`].
    InProgress,
    /// Nobody knows: it may have been done.
    Unknown,
}

impl Proof {
    /// Whether somebody answered something one can act on. [`circuit`] counts the other two.
    pub const fn is_definite(&self) -> bool {
        !matches!(self, Self::NotSent | Self::Unknown)
    }

    /// The stable code that stands in `tentativa_efeito`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Done { .. } => "feito",
            Self::Refused => "recusado",
            Self::NotSent => "nao-enviado",
            Self::Credentials => "credenciais",
            Self::NotNow { .. } => "agora-nao",
            Self::InProgress => "em-andamento",
            Self::Unknown => "desconhecido",
        }
    }
}

/// What the transport saw, for the person who must decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub reached: Reached,
    /// The status line, where one arrived; it proves nothing when the rest of the answer did not.
    pub status: Option<u16>,
    /// A readable sentence of at most 2 KiB, without control characters; empty for
    /// [`Proof::Done`], whose answer is its evidence. Holds neither our address nor our headers.
    pub detail: String,
    pub elapsed: Duration,
}

/// How far a call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reached {
    /// No usable connection (TCP and, for https, TLS).
    NotConnected,
    /// A connection, but the request was not handed to it.
    Connected,
    /// The request may have arrived.
    Sent,
    /// An answer began and did not end.
    Head,
    /// A complete answer.
    Body,
}

impl Reached {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotConnected => "nao-conectado",
            Self::Connected => "conectado",
            Self::Sent => "enviado",
            Self::Head => "cabecalho",
            Self::Body => "corpo",
        }
    }
}

/// Performs calls. A dry run holds none of these, so it cannot call.
pub trait EffectGateway: Send + Sync {
    /// Never panics and never hangs: the future ends within the provider's deadline. Dropping it abandons the
    /// call with its outcome unknown.
    fn call(&self, call: Call) -> BoxFuture<'static, Answer>;
}
