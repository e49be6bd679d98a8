//! Typed settings: file, then environment, with every contradiction reported at once.
//!
//! [`Config::load`] either hands out a configuration in which nothing is left to check, or *all* the problems it
//! has, each with the key, where the value stands, what is wrong and what to do. An unknown key is a problem (a
//! setting that is silently ignored is worse than a refused one). Secrets are [`Secret`]s: they are printed
//! nowhere, neither in messages nor in `Debug`.
//!
//! ```text
//! file (--config, REPRISE_CONFIG, ./reprise.toml)  <-  REPRISE_SECTION__KEY  =  one tree  ->  typed reader
//! ```
//!
//! Not here: command-line flags (they are `cli`'s), and whether what is configured exists or answers (`doctor`).

mod effects;
mod layers;
mod orders;
mod outgoing;
mod problem;
mod properties;
mod reader;
#[cfg(test)]
mod reference;
mod retention;
mod schema;
mod secret;
mod sections;
mod show;
mod telemetry;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use effects::LEASE_MARGIN;
pub use orders::{Format, Inbox, Orders, Outbox, Projections, Publisher, Saga, Windows};
pub use outgoing::AllowedHost;
pub use problem::{ConfigErrors, Problem, Source, Warning};
pub use retention::Retention;
pub use secret::{REDACTED, Secret, redacted_url};
pub use sections::REPLAY_GROUP_PREFIX;
pub use show::Setting;

pub use telemetry::{Telemetry, TraceProtocol};

use layers::Layers;
use reader::Reader;

use crate::domain::effect::EffectPolicy;
use crate::domain::plan::Policies;

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// `http.endereco` where nothing is configured: reachable from this machine only.
pub const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// A configuration without contradictions.
#[derive(Debug, Clone)]
pub struct Config {
    pub kafka: Kafka,
    pub postgres: Postgres,
    pub http: Http,
    pub batch: Batch,
    pub sweep: Sweep,
    pub replay: Replay,
    pub archive: Archive,
    pub telemetry: Telemetry,
    pub orders: Orders,
    pub outbox: Outbox,
    pub inbox: Inbox,
    pub projections: Projections,
    pub saga: Saga,
    pub windows: Windows,
    pub retention: Retention,
    /// `http_saida.permitidos`: where providers may be; `None`: anywhere.
    pub allowed_hosts: Option<Vec<AllowedHost>>,
    /// In the order of the file: the position is the effect's id.
    pub effects: Vec<Effect>,
    /// Path of every key that was set, with where; for `config show`.
    origins: BTreeMap<String, Source>,
}

/// `[kafka]`
#[derive(Clone)]
pub struct Kafka {
    pub brokers: String,
    pub topic: String,
    pub group: String,
    pub dlq_topic: String,
    /// `instancia`: static membership.
    pub instance: Option<String>,
    pub lost_offset: LostOffset,
    /// `registro_url`: the schema registry for Avro. It may hold a user and password.
    pub registry_url: Option<Secret>,
    /// `[kafka.propriedades]`: passed to librdkafka as they are. May hold passwords: never print them.
    pub properties: BTreeMap<String, String>,
}

impl fmt::Debug for Kafka {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kafka")
            .field("brokers", &self.brokers)
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("dlq_topic", &self.dlq_topic)
            .field("instance", &self.instance)
            .field("lost_offset", &self.lost_offset)
            .field("registry_url", &self.registry_url)
            .field("properties", &self.properties.keys())
            .finish()
    }
}

/// `offset_perdido`: what to do when the committed offset no longer exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostOffset {
    /// `parar`: end non-zero; a person decides about the events that are gone.
    Stop,
    /// `avancar`: go on at the oldest record there is, and say which were lost.
    Advance,
}

impl LostOffset {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "parar",
            Self::Advance => "avancar",
        }
    }
}

/// `[postgres]`
#[derive(Debug, Clone)]
pub struct Postgres {
    pub url: Secret,
    pub max_connections: u32,
}

/// `[http]`
#[derive(Debug, Clone)]
pub struct Http {
    pub address: SocketAddr,
    /// Always there when `address` is not a loopback address.
    pub token: Option<Secret>,
    /// `atras_de_proxy`: something before this process ends TLS, so that the token travels encrypted.
    pub behind_proxy: bool,
}

/// `[lote]`
#[derive(Debug, Clone)]
pub struct Batch {
    pub max_events: usize,
}

/// `[varredura]`
#[derive(Debug, Clone)]
pub struct Sweep {
    pub interval: Duration,
}

/// `[replay]`
#[derive(Debug, Clone)]
pub struct Replay {
    /// `concorrencia` of every effect type in a replay; without it, each type's own.
    pub slots: Option<usize>,
    /// As many as live's where nothing is configured.
    pub max_connections: u32,
}

/// `[arquivo]`
#[derive(Debug, Clone)]
pub struct Archive {
    /// Consumer group of `reprise archive`; live's with `-arquivo` behind it where nothing is configured.
    pub group: String,
}

/// One `[efeitos.*]`.
#[derive(Debug, Clone)]
pub struct Effect {
    pub policy: EffectPolicy,
    /// `http` or `https`, without user or password.
    pub url: String,
    /// `prazo`: the whole call, from connecting to the last byte.
    pub deadline: Duration,
    /// `respostas`: what single statuses mean, in place of the rule.
    pub answers: BTreeMap<u16, Answer>,
    /// `assinatura_arquivo`: signs every request (Standard Webhooks).
    pub signature_secret: Option<Secret>,
    /// `ca_arquivo`: the authorities that may vouch for this provider, in place of the public ones.
    pub authorities: Option<Authorities>,
}

/// Certificates in PEM, and the file they were read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities {
    pub path: PathBuf,
    pub pem: String,
}

/// What the answer of a provider is said to mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Done,
    Refused,
    NotNow,
    Unknown,
}

impl Answer {
    pub const ALL: [Self; 4] = [Self::Done, Self::Refused, Self::NotNow, Self::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "feito",
            Self::Refused => "recusado",
            Self::NotNow => "agora-nao",
            Self::Unknown => "desconhecido",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|answer| answer.as_str() == word)
    }
}

impl Config {
    /// Reads `path` (else `REPRISE_CONFIG`, else `./reprise.toml` if it is there) and the environment `env`.
    pub fn load(
        path: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        let (layers, problems) = Layers::read(path, env).map_err(|problem| ConfigErrors(vec![problem]))?;
        Self::build(&layers, problems)
    }

    /// The same from a text, for programs that bring their configuration along.
    pub fn from_text(
        text: &str,
        env: impl Iterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        let (layers, problems) =
            Layers::parse(text, None, env.collect()).map_err(|problem| ConfigErrors(vec![problem]))?;
        Self::build(&layers, problems)
    }

    /// The policies of the effect types, for planning.
    pub fn policies(&self) -> Policies {
        Policies::new(self.effects.iter().map(|effect| effect.policy.clone()).collect())
    }

    fn build(layers: &Layers, problems: Vec<Problem>) -> Result<(Self, Vec<Warning>), ConfigErrors> {
        let mut reader = Reader::new(layers, problems);
        let known = schema::section_names();
        for section in layers.root.keys().filter(|name| !known.contains(&name.as_str())) {
            reader.problem(
                section,
                "there is no such section".to_owned(),
                problem::suggestion(section, &known),
            );
        }
        let kafka = sections::kafka(&mut reader);
        let postgres = sections::postgres(&mut reader);
        let http = sections::http(&mut reader);
        let batch = sections::batch(&mut reader);
        let sweep = sections::sweep(&mut reader);
        let live_group = kafka.as_ref().map_or("", |kafka| &kafka.group);
        let archive = sections::archive(&mut reader, live_group);
        let replay = sections::replay(&mut reader, postgres.as_ref().map_or(0, |pg| pg.max_connections));
        let telemetry = telemetry::read(&mut reader);
        let orders = orders::orders(&mut reader, kafka.as_ref());
        let outbox = orders::outbox(&mut reader);
        let inbox = orders::inbox(&mut reader);
        let projections = orders::projections(&mut reader);
        let saga = orders::saga(&mut reader);
        let windows = orders::windows(&mut reader);
        let retention = retention::read(&mut reader);
        let allowed_hosts = outgoing::read(&mut reader);
        let effects = effects::read(&mut reader);
        outgoing::check(&mut reader, allowed_hosts.as_deref(), &effects);
        let Reader { problems, warnings, .. } = reader;
        match (kafka, postgres, sweep, outbox, inbox.zip(projections).zip(saga.zip(windows))) {
            (
                Some(kafka),
                Some(postgres),
                Some(sweep),
                Some(outbox),
                Some(((inbox, projections), (saga, windows))),
            ) if problems.is_empty() => {
                let origins = layers.origins();
                let config = Self {
                    kafka,
                    postgres,
                    http,
                    batch,
                    sweep,
                    replay,
                    archive,
                    telemetry,
                    orders,
                    outbox,
                    inbox,
                    projections,
                    saga,
                    windows,
                    retention,
                    allowed_hosts,
                    effects,
                    origins,
                };
                Ok((config, warnings))
            }
            _ => Err(ConfigErrors(problems)),
        }
    }
}
