//! The parts that every run shares, made from the configuration.

use std::sync::Arc;

use super::RunError;
use crate::codec::registry::SchemaRegistry;
use crate::config::{self, Config};
use crate::domain::effect::Run;
use crate::domain::plan::Policies;
use crate::gateway::EffectGateway;
use crate::gateway::answer::Override;
use crate::gateway::http::HttpGateway;
use crate::gateway::rate::Rates;
use crate::gateway::settings::ProviderSettings;
use crate::gateway::signature;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::ops::access::AdminToken;
use crate::pg::connect::Database;
use crate::stream::{LostOffset, Observer, PartitionFacts};
use crate::telemetry::Traces;
use crate::telemetry::export::{Exporter, Protocol, Settings};

/// What every run needs, whatever it does with it.
pub struct Parts {
    pub run: Run,
    pub policies: Policies,
    pub database: Database,
    pub gateway: Arc<dyn EffectGateway>,
    pub rates: Rates,
    pub health: Health,
    pub metrics: Arc<Metrics>,
    pub traces: Traces,
    /// Readable name of this process, for evidence.
    pub instance: Arc<str>,
    /// The last to end: the spans of everything else go through it. Nobody reads it.
    _exporter: Option<Exporter>,
}

impl Parts {
    pub fn build(config: &Config, run: Run) -> Result<Self, RunError> {
        Self::build_with(config, run, config.policies(), config.postgres.max_connections)
    }

    /// For a process that consumes nothing: its readiness waits for no partitions.
    pub fn without_consumer(config: &Config) -> Result<Self, RunError> {
        let mut parts = Self::build(config, Run::live())?;
        let names = parts.policies.iter().map(|(_, policy)| policy.name.as_str());
        parts.health = Health::new(parts.run.clone(), names, crate::health::Partitions::NotUsed);
        Ok(parts)
    }

    /// With policies and a connection budget of the run's own.
    pub fn build_with(
        config: &Config,
        run: Run,
        policies: Policies,
        max_connections: u32,
    ) -> Result<Self, RunError> {
        let names: Vec<String> = policies.iter().map(|(_, policy)| policy.name.clone()).collect();
        let refused = |error: String| RunError::Configuration(error);
        let metrics = Arc::new(
            Metrics::new(names.iter().map(String::as_str)).map_err(|error| refused(error.to_string()))?,
        );
        let (exporter, traces) = traces(config, &run, &metrics)?;
        Ok(Self {
            health: super::health(&run, &names),
            metrics,
            traces,
            _exporter: exporter,
            database: Database::new(config.postgres.url.expose(), max_connections)
                .map_err(|error| refused(format!("postgres.url: {error}")))?,
            gateway: Arc::new(gateway(config, &policies)?),
            rates: Rates::new(&policies),
            instance: instance_name(config).into(),
            policies,
            run,
        })
    }
}

/// Traces, where the configuration wants them.
fn traces(
    config: &Config,
    run: &Run,
    metrics: &Arc<Metrics>,
) -> Result<(Option<Exporter>, Traces), RunError> {
    let wanted = &config.telemetry;
    let Some(endpoint) = wanted.endpoint.clone().filter(|_| wanted.sample > 0.0) else {
        return Ok((None, Traces::off()));
    };
    let settings = Settings {
        endpoint,
        protocol: match wanted.protocol {
            config::TraceProtocol::Http => Protocol::Http,
            config::TraceProtocol::Grpc => Protocol::Grpc,
        },
        sample: wanted.sample,
        headers: wanted
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.expose().to_owned()))
            .collect(),
        service: wanted.service.clone(),
        group: config.kafka.group.clone(),
        dlq_topic: config.kafka.dlq_topic.clone(),
        run: run.clone(),
    };
    let started = Exporter::start(settings, Arc::clone(metrics));
    let (exporter, traces) = started.map_err(|error| RunError::Configuration(error.to_string()))?;
    Ok((Some(exporter), traces))
}

/// The providers of this configuration.
fn gateway(config: &Config, policies: &Policies) -> Result<HttpGateway, RunError> {
    let providers = config
        .effects
        .iter()
        .zip(policies.iter())
        .map(|(effect, (_, policy))| ProviderSettings {
            name: effect.policy.name.clone(),
            url: effect.url.clone(),
            deadline: effect.deadline,
            slots: policy.slots,
            answers: effect.answers.iter().map(|(status, answer)| (*status, reading(*answer))).collect(),
            signature_secret: effect
                .signature_secret
                .as_ref()
                .map(|secret| signature::Secret::new(secret.expose())),
            authorities_pem: effect.authorities.as_ref().map(|file| file.pem.clone()),
        })
        .collect();
    HttpGateway::new(providers).map_err(|error| RunError::Configuration(error.to_string()))
}

const fn reading(answer: config::Answer) -> Override {
    match answer {
        config::Answer::Done => Override::Done,
        config::Answer::Refused => Override::Refused,
        config::Answer::NotNow => Override::NotNow,
        config::Answer::Unknown => Override::Unknown,
    }
}

/// `kafka.instancia`, else host and process.
fn instance_name(config: &Config) -> String {
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
    };
    let place = config.kafka.instance.clone().unwrap_or_else(host);
    format!("{place}/{}", std::process::id())
}

pub fn admin_token(config: &Config) -> Result<Option<AdminToken>, RunError> {
    let token = config.http.token.as_ref().map(|token| AdminToken::new(token.expose()));
    token.transpose().map_err(|error| RunError::Configuration(format!("http.token_arquivo: {error}")))
}

pub fn registry(config: &Config) -> Result<Option<SchemaRegistry>, RunError> {
    // What the order side writes with its registry, the consumer reads with it.
    let url = config.kafka.registry_url.as_ref().or(config.orders.registry_url.as_ref());
    let registry = url.map(|url| SchemaRegistry::new(url.expose()));
    registry.transpose().map_err(|error| RunError::Configuration(format!("kafka.registro_url: {error}")))
}

pub const fn lost_offset(config: &Config) -> LostOffset {
    match config.kafka.lost_offset {
        config::LostOffset::Stop => LostOffset::Stop,
        config::LostOffset::Advance => LostOffset::Advance,
    }
}

/// Tells health and metrics what happens on the log side.
pub struct Watch {
    health: Health,
    metrics: Arc<Metrics>,
}

impl Watch {
    pub fn new(parts: &Parts) -> Self {
        Self { health: parts.health.clone(), metrics: Arc::clone(&parts.metrics) }
    }
}

impl Observer for Watch {
    fn assigned(&self, partitions: &[i32]) {
        // Lanes are announced by the applier, with their positions; an empty assignment is an answer as well.
        if partitions.is_empty() {
            self.health.assigned([]);
        }
    }

    fn facts(&self, facts: &[PartitionFacts]) {
        for fact in facts {
            if let Some(committed) = fact.committed {
                self.health.committed(fact.partition, committed);
            }
            if let Some(end) = fact.high_watermark {
                self.health.partition_end(fact.partition, end);
            }
        }
    }

    fn started_at_earliest(&self, _: i32) {
        self.metrics.started_without_offset();
    }

    fn offsets_lost(&self, _: i32, _: i64, _: i64) {
        self.metrics.offset_lost();
    }

    fn commit_failed(&self) {
        self.metrics.commit_failed();
    }
}
