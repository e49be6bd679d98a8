//! The effective configuration as rows, secrets redacted: what `config show` prints.

use std::fmt::Display;
use std::time::Duration;

use super::schema::{EFFECTS, is_secret_property};
use super::secret::{REDACTED, redacted_url};
use super::{Config, Effect};

/// One setting with its effective value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Setting {
    pub key: String,
    /// Empty where the setting has no value.
    pub value: String,
    /// A file, an environment variable, or `default`.
    pub origin: String,
}

/// Collects rows of one section.
struct Rows<'a> {
    config: &'a Config,
    rows: Vec<Setting>,
}

impl Rows<'_> {
    fn push(&mut self, section: &str, key: &str, value: impl Display) {
        let key = format!("{section}.{key}");
        let origin = self.config.origins.get(&key).map_or_else(|| "default".to_owned(), ToString::to_string);
        self.rows.push(Setting { key, value: value.to_string(), origin });
    }

    fn push_optional(&mut self, section: &str, key: &str, value: Option<impl Display>) {
        self.push(section, key, value.map_or_else(String::new, |value| value.to_string()));
    }

    fn push_duration(&mut self, section: &str, key: &str, value: Duration) {
        self.push(section, key, humantime::format_duration(value));
    }

    /// A secret that may have been given in a file: the row stands under the key that was used.
    fn push_secret(&mut self, section: &str, keys: &[&str], value: Option<impl Display>) {
        let used = keys.iter().find(|key| self.config.origins.contains_key(&format!("{section}.{key}")));
        if let Some(key) = used.or_else(|| keys.first()) {
            self.push_optional(section, key, value);
        }
    }

    fn push_effect(&mut self, effect: &Effect) {
        let Effect { policy, url, deadline, answers, signature_secret, authorities } = effect;
        let section = format!("{EFFECTS}.{}", policy.name);
        let section = section.as_str();
        self.push(section, "url", redacted_url(url));
        self.push(section, "modo", policy.mode.as_str());
        self.push(section, "ao_falhar", policy.on_failure.as_str());
        self.push_duration(section, "prazo", *deadline);
        self.push_duration(section, "reserva", policy.lease);
        self.push(section, "max_tentativas", policy.max_attempts);
        self.push_duration(section, "recuo_inicial", policy.backoff_initial);
        self.push_duration(section, "recuo_maximo", policy.backoff_max);
        self.push(section, "concorrencia", policy.slots);
        self.push_optional(section, "limite_por_segundo", policy.per_second);
        self.push(section, "circuito_limite", policy.circuit_threshold);
        self.push_duration(section, "circuito_espera", policy.circuit_wait);
        self.push_duration(section, "janela_idempotencia", policy.key_memory);
        self.push_optional(section, "vigente_desde", policy.effective_from);
        for (status, meaning) in answers {
            self.push(section, &format!("respostas.{status}"), meaning.as_str());
        }
        self.push_secret(section, &["assinatura_arquivo"], signature_secret.as_ref().map(|_| REDACTED));
        self.push_optional(section, "ca_arquivo", authorities.as_ref().map(|file| file.path.display()));
    }
}

impl Rows<'_> {
    fn push_telemetry(&mut self) {
        let telemetry = &self.config.telemetry;
        self.push_optional("telemetria", "endpoint", telemetry.endpoint.as_ref());
        self.push("telemetria", "protocolo", telemetry.protocol.as_str());
        self.push("telemetria", "amostra", telemetry.sample);
        let headers = (!telemetry.headers.is_empty()).then_some(REDACTED);
        self.push_secret("telemetria", &["cabecalhos_arquivo"], headers);
        self.push_optional("telemetria", "nome_servico", telemetry.service.as_ref());
    }

    fn push_order_side(&mut self) {
        let Config { orders, outbox, inbox, projections, saga, windows, .. } = self.config;
        self.push("orders", "topic", &orders.topic);
        self.push("orders", "dlq_topic", &orders.dlq_topic);
        self.push("orders", "format", orders.format.as_str());
        let registry = orders.registry_url.as_ref().map(|url| redacted_url(url.expose()));
        self.push_optional("orders", "registry_url", registry);
        self.push("orders", "snapshot_every", orders.snapshot_every);
        let first_form = if orders.courier_assigned_v1 { "publish" } else { "omit" };
        self.push("orders", "courier_assigned_v1", first_form);
        self.push_optional("orders", "foreign_topic", orders.foreign_topic.clone());
        self.push("orders", "foreign_group", &orders.foreign_group);
        self.push("outbox", "publisher", outbox.publisher.as_str());
        self.push("outbox", "workers", outbox.workers);
        self.push_duration("outbox", "poll_interval", outbox.poll_interval);
        self.push("outbox", "batch", outbox.batch);
        self.push("outbox", "max_attempts", outbox.max_attempts);
        self.push_duration("outbox", "retention", outbox.retention);
        self.push_duration("inbox", "retention", inbox.retention);
        self.push("projections", "batch", projections.batch);
        self.push_duration("projections", "poll_interval", projections.poll_interval);
        self.push("saga", "workers", saga.workers);
        self.push_duration("saga", "poll_interval", saga.poll_interval);
        self.push_duration("saga", "step_deadline", saga.step_deadline);
        self.push_duration("saga", "backoff_initial", saga.backoff_initial);
        self.push_duration("saga", "backoff_max", saga.backoff_max);
        self.push("saga", "fee_cents", saga.fee_cents);
        self.push("windows", "heartbeats_topic", &windows.heartbeats_topic);
        self.push("windows", "status_topic", &windows.status_topic);
        self.push_duration("windows", "allowed_lateness", windows.allowed_lateness);
        self.push_duration("windows", "courier_offline_after", windows.courier_offline_after);
        self.push("windows", "group", &windows.group);
        self.push_duration("windows", "retention", windows.retention);
    }
}

impl Config {
    /// Every setting with its effective value and where it came from. No secret is in it.
    pub fn settings(&self) -> Vec<Setting> {
        let mut rows = Rows { config: self, rows: Vec::new() };
        let kafka = &self.kafka;
        rows.push("kafka", "brokers", &kafka.brokers);
        rows.push("kafka", "topico", &kafka.topic);
        rows.push("kafka", "grupo", &kafka.group);
        rows.push("kafka", "topico_dlq", &kafka.dlq_topic);
        rows.push_optional("kafka", "instancia", kafka.instance.as_ref());
        rows.push("kafka", "offset_perdido", kafka.lost_offset.as_str());
        let registry = kafka.registry_url.as_ref().map(|url| redacted_url(url.expose()));
        rows.push_optional("kafka", "registro_url", registry);
        for (name, value) in &kafka.properties {
            let value = if is_secret_property(name) { REDACTED } else { value };
            rows.push("kafka", &format!("propriedades.{name}"), value);
        }
        let url = Some(redacted_url(self.postgres.url.expose()));
        rows.push_secret("postgres", &["url", "url_arquivo"], url);
        rows.push("postgres", "max_conexoes", self.postgres.max_connections);
        rows.push("http", "endereco", self.http.address);
        rows.push_secret("http", &["token_arquivo"], self.http.token.as_ref().map(|_| REDACTED));
        rows.push("http", "atras_de_proxy", self.http.behind_proxy);
        let allowed = self
            .allowed_hosts
            .as_ref()
            .map(|hosts| hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        rows.push_optional("http_saida", "permitidos", allowed);
        rows.push("lote", "max_eventos", self.batch.max_events);
        rows.push_duration("varredura", "intervalo", self.sweep.interval);
        rows.push_optional("replay", "concorrencia", self.replay.slots);
        rows.push("replay", "max_conexoes", self.replay.max_connections);
        rows.push("arquivo", "grupo", &self.archive.group);
        let ages = &self.retention;
        for (key, age) in [("livro", ages.ledger), ("evidencia", ages.evidence), ("arquivo", ages.archive)] {
            rows.push_optional("retencao", key, age.map(humantime::format_duration));
        }
        rows.push_telemetry();
        rows.push_order_side();
        for effect in &self.effects {
            rows.push_effect(effect);
        }
        rows.rows
    }
}
