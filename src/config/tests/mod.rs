//! Defaults and every key; in the files beside it every kind of problem, and precedence and redaction.
//! The texts asserted here are what a person reads at start.

mod outside;
mod problems;
mod sources;

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::*;
use crate::domain::effect::{Mode, OnFailure};

const LEAST: &str = r#"
[kafka]
brokers = "127.0.0.1:9092"
[postgres]
url = "postgres://ana:s3nha@127.0.0.1/reprise"
[efeitos.notificar-vendedor]
url = "http://127.0.0.1:9000/notificar"
"#;

fn env(pairs: &[(&str, &str)]) -> std::vec::IntoIter<(String, String)> {
    let owned: Vec<_> = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    owned.into_iter()
}

fn load(text: &str, pairs: &[(&str, &str)]) -> Config {
    Config::from_text(text, env(pairs)).map_or_else(|errors| panic!("{errors}"), |(config, _)| config)
}

fn problems(text: &str, pairs: &[(&str, &str)]) -> Vec<String> {
    let errors = Config::from_text(text, env(pairs)).expect_err("a configuration with problems");
    errors.0.iter().map(ToString::to_string).collect()
}

/// The one problem of a configuration.
fn problem(text: &str, pairs: &[(&str, &str)]) -> String {
    let mut all = problems(text, pairs);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// `LEAST` with lines added to a section.
fn with(section: &str, lines: &str) -> String {
    let head = format!("[{section}]");
    if LEAST.contains(&head) {
        LEAST.replace(&head, &format!("{head}\n{lines}"))
    } else {
        format!("{LEAST}\n{head}\n{lines}\n")
    }
}

/// A file of its own, removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("reprise-config-{}", uuid::Uuid::now_v7()));
        let mut file = std::fs::File::create(&path).expect("a scratch file");
        file.write_all(content.as_bytes()).expect("written");
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("the scratch file is still there");
    }
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = load(LEAST, &[]);
    assert_eq!(config.kafka.topic, "pedido.pago");
    assert_eq!(config.kafka.group, "comissao");
    assert_eq!(config.kafka.dlq_topic, "pedido.pago.dlq");
    assert_eq!(config.kafka.lost_offset, LostOffset::Stop);
    assert_eq!((config.kafka.instance, config.kafka.registry_url), (None, None));
    assert!(config.kafka.properties.is_empty());
    assert_eq!(config.postgres.max_connections, 8);
    assert_eq!(config.http.address, SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)));
    assert_eq!(config.batch.max_events, 512);
    assert_eq!(config.sweep.interval, Duration::from_secs(5));
    assert_eq!((config.replay.slots, config.replay.max_connections), (None, 8));
    let [Effect { policy, url, deadline, answers, signature_secret, authorities }] =
        config.effects.as_slice()
    else {
        panic!("one effect type")
    };
    assert_eq!(url, "http://127.0.0.1:9000/notificar");
    assert_eq!(*deadline, Duration::from_secs(5));
    assert!(answers.is_empty() && signature_secret.is_none() && authorities.is_none());
    assert_eq!(config.retention, Retention::default());
    assert_eq!(config.allowed_hosts, None);
    assert!(!config.http.behind_proxy);
    assert_eq!(policy.name, "notificar-vendedor");
    assert_eq!((policy.mode, policy.on_failure), (Mode::Apply, OnFailure::Hold));
    assert_eq!((policy.effective_from, policy.per_second), (None, None));
    assert_eq!((policy.max_attempts, policy.slots, policy.circuit_threshold), (5, 64, 5));
    assert_eq!(policy.lease, Duration::from_secs(30));
    assert_eq!(policy.backoff_initial, Duration::from_millis(200));
    assert_eq!(policy.backoff_max, Duration::from_secs(30));
    assert_eq!(policy.circuit_wait, Duration::from_secs(1));
    assert_eq!(policy.key_memory, Duration::from_hours(24));
}

#[test]
fn every_key_of_the_contract_is_read() {
    let secret = Scratch::new("whsec_c2Vncm\n");
    let text = format!(
        r#"
[kafka]
brokers = "a:9092, SSL://b:9093,[::1]:9092,c"
topico = "t"
grupo = "g"
instancia = "pod-0"
offset_perdido = "avancar"
registro_url = "https://k:s@registry.example"
[kafka.propriedades]
session.timeout.ms = 6000
"enable.ssl.certificate.verification" = true
"auto.offset.reset" = "earliest"
[postgres]
url_arquivo = "{0}"
max_conexoes = 3
[http]
endereco = "0.0.0.0:80"
token_arquivo = "{0}"
[lote]
max_eventos = 100
[varredura]
intervalo = "1s"
[replay]
concorrencia = 16
max_conexoes = 4
[efeitos.pagar-repasse]
url = "https://bank.example/p"
modo = "suprimir"
ao_falhar = "liberar"
prazo = "1s 500ms"
reserva = "2s"
max_tentativas = 7
recuo_inicial = "1ms"
recuo_maximo = "2ms"
concorrencia = 512
limite_por_segundo = 10
circuito_limite = 9
circuito_espera = "3s"
janela_idempotencia = "48h"
vigente_desde = 2026-01-01T00:00:00-03:00
respostas = {{ "409" = "feito", "500" = "agora-nao" }}
assinatura_arquivo = "{0}"
[efeitos.a]
url = "http://a/"
"#,
        secret.path()
    );
    let failed = problem(&text, &[]);
    assert!(failed.starts_with("postgres.url: is not an address"), "{failed}");
    assert!(!failed.contains("whsec"), "{failed}");
    let config = load(&text, &[("REPRISE_POSTGRES__URL", "postgresql:///x?host=/run/pg")]);
    assert_eq!(config.kafka.dlq_topic, "t.dlq");
    assert_eq!(config.kafka.lost_offset, LostOffset::Advance);
    assert_eq!(config.kafka.instance.as_deref(), Some("pod-0"));
    assert_eq!(config.kafka.properties["session.timeout.ms"], "6000");
    assert_eq!(config.kafka.properties["enable.ssl.certificate.verification"], "true");
    assert_eq!(config.postgres.url.expose(), "postgresql:///x?host=/run/pg");
    assert_eq!(config.http.token.as_ref().map(Secret::expose), Some("whsec_c2Vncm"));
    assert_eq!((config.replay.slots, config.replay.max_connections), (Some(16), 4));
    let [first, second] = config.effects.as_slice() else { panic!("two effect types") };
    assert_eq!((first.policy.name.as_str(), second.policy.name.as_str()), ("pagar-repasse", "a"));
    assert_eq!((first.policy.mode, first.policy.on_failure), (Mode::Suppress, OnFailure::Release));
    assert_eq!(first.deadline, Duration::from_millis(1_500));
    assert_eq!(first.policy.per_second, Some(10));
    assert_eq!(first.policy.effective_from.map(|t| t.to_string()).as_deref(), Some("2026-01-01T03:00:00Z"));
    assert_eq!(first.answers, BTreeMap::from([(409, Answer::Done), (500, Answer::NotNow)]));
    assert_eq!(first.signature_secret.as_ref().map(Secret::expose), Some("whsec_c2Vncm"));
}
