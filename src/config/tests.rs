//! Every kind of problem, precedence, redaction. The texts asserted here are what a person reads at start.

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
    let [Effect { policy, url, deadline, answers, signature_secret }] = config.effects.as_slice() else {
        panic!("one effect type")
    };
    assert_eq!(url, "http://127.0.0.1:9000/notificar");
    assert_eq!(*deadline, Duration::from_secs(5));
    assert!(answers.is_empty() && signature_secret.is_none());
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

#[test]
fn all_problems_are_reported_at_once() {
    let text =
        LEAST.replace("brokers", "broker").replace("[postgres]", "[postgres]\nmax_conexoe = 8").replace(
            "[efeitos.notificar-vendedor]",
            "[efeitos.notificar-vendedor]\nprazo = \"1s\"\nreserva = \"500ms\"\nao_falhar = \"talvez\"",
        );
    assert_eq!(
        problems(&text, &[("REPRISE_LOTE__MAX_EVENTOS", "muitos")]),
        [
            "kafka.broker: there is no such key; did you mean brokers?",
            "kafka.brokers: is missing; add brokers = \"127.0.0.1:9092\" to [kafka]",
            "postgres.max_conexoe: there is no such key; did you mean max_conexoes?",
            "lote.max_eventos (REPRISE_LOTE__MAX_EVENTOS): \"muitos\" cannot be used; give a whole number from 1 to 4096, unquoted",
            "efeitos.notificar-vendedor.ao_falhar: \"talvez\" is not a value; use one of: liberar, manter",
            "efeitos.notificar-vendedor.reserva: reserva (500ms) must exceed prazo (1s) by 500ms, or a call outlives its lease; use at least 1s 500ms, or shorten prazo",
        ]
    );
}

#[test]
fn nothing_at_all_names_what_is_missing() {
    assert_eq!(
        problems("", &[]),
        [
            "kafka.brokers: is missing; add brokers = \"127.0.0.1:9092\" to [kafka]",
            "postgres.url: is missing; add url = \"postgres://user@host:5432/database\" to [postgres]",
        ]
    );
    assert_eq!(
        problem(&with("efeitos.b", ""), &[]),
        "efeitos.b.url: is missing; add url = \"https://provider.example/notify\" to [efeitos.b]"
    );
}

#[test]
fn unknown_sections_and_misplaced_keys_are_refused() {
    assert_eq!(problem(&with("kafca", "x = 1"), &[]), "kafca: there is no such section; did you mean kafka?");
    assert!(
        problem(&with("zzz", ""), &[])
            .contains("known here: kafka, postgres, http, lote, varredura, replay, efeitos")
    );
    assert!(
        problem(&with("efeitos", "prazo = \"1s\""), &[])
            .starts_with("efeitos.prazo: is a key without an effect type")
    );
    assert!(
        problem(&with("efeitos.Avisar", "url = \"http://a\""), &[])
            .starts_with("efeitos.Avisar: is not a name")
    );
    assert_eq!(
        problem(&format!("lote = 3\n{LEAST}"), &[]),
        "lote: is not a section; write it as a section: [lote]"
    );
}

#[test]
fn values_of_the_wrong_type_or_out_of_range_are_refused() {
    let cases = [
        (
            "postgres",
            "max_conexoes = 2",
            "postgres.max_conexoes: 2 cannot be used; give a whole number from 3 to 1000",
        ),
        ("postgres", "max_conexoes = \"8\"", "postgres.max_conexoes: \"8\" cannot be used"),
        ("lote", "max_eventos = -1", "lote.max_eventos: -1 cannot be used"),
        ("varredura", "intervalo = 5", "varredura.intervalo: 5 cannot be used; give a duration"),
        ("varredura", "intervalo = \"0s\"", "varredura.intervalo: \"0s\" cannot be used"),
        (
            "http",
            "endereco = \"localhost\"",
            "http.endereco: \"localhost\" cannot be used; write an IP address and a port",
        ),
        (
            "http",
            "endereco = \"0.0.0.0:9464\"",
            "http.endereco: 0.0.0.0:9464 can be reached from other machines",
        ),
        ("http", "token_arquivo = \"/not/there\"", "http.token_arquivo: cannot read /not/there"),
        ("kafka", "topico = 7", "kafka.topico: a whole number is not text; write it in quotes"),
        ("kafka", "grupo = \" \"", "kafka.grupo: is empty"),
        ("kafka", "grupo = \"replay-1\"", "kafka.grupo: \"replay-1\" would be taken for a replay's group"),
        ("kafka", "topico = \"a b\"", "kafka.topico: is not a topic name"),
        ("kafka", "topico_dlq = \"pedido.pago\"", "kafka.topico_dlq: is the topic itself"),
        (
            "kafka",
            "offset_perdido = \"seguir\"",
            "kafka.offset_perdido: \"seguir\" is not a value; use one of: parar, avancar",
        ),
        ("kafka", "registro_url = \"registry\"", "kafka.registro_url: is not an http address"),
        ("efeitos.notificar-vendedor", "modo = true", "efeitos.notificar-vendedor.modo: true is not a value"),
        (
            "efeitos.notificar-vendedor",
            "vigente_desde = \"2026-01-01\"",
            "efeitos.notificar-vendedor.vigente_desde: \"2026-01-01\" is not an instant",
        ),
        (
            "efeitos.notificar-vendedor",
            "vigente_desde = 2026-01-01",
            "efeitos.notificar-vendedor.vigente_desde: 2026-01-01 is not an instant",
        ),
        (
            "efeitos.notificar-vendedor",
            "recuo_maximo = \"100ms\"",
            "efeitos.notificar-vendedor.recuo_maximo: recuo_maximo (100ms) is less than recuo_inicial (200ms)",
        ),
        (
            "efeitos.notificar-vendedor",
            "respostas = { \"409\" = \"sim\" }",
            "efeitos.notificar-vendedor.respostas.409: \"sim\" is not a value; use one of: feito, recusado, agora-nao, desconhecido",
        ),
        (
            "efeitos.notificar-vendedor",
            "respostas = { \"4xx\" = \"feito\" }",
            "efeitos.notificar-vendedor.respostas.4xx: is not the status",
        ),
        (
            "efeitos.notificar-vendedor",
            "limite_por_segundo = 0",
            "efeitos.notificar-vendedor.limite_por_segundo: 0 cannot be used",
        ),
    ];
    for (section, line, expected) in cases {
        let message = problem(&with(section, line), &[]);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn addresses_are_checked() {
    for (url, expected) in [
        ("ftp://a/", "ftp cannot be called; use http:// or https://"),
        ("a.example/x", "is not an address"),
        ("http://u:p@a/", "holds a user or password, which would not be sent"),
        ("http://a/#x", "has a fragment"),
    ] {
        let message = problem(&LEAST.replace("http://127.0.0.1:9000/notificar", url), &[]);
        assert!(message.contains(expected) && !message.contains("u:p"), "{message}");
    }
    let message = problem(&LEAST.replace("postgres://", "mysql://"), &[]);
    assert!(
        message.starts_with("postgres.url: is not the address of a Postgres") && !message.contains("s3nha")
    );
    for brokers in ["127.0.0.1:", "a:9092,,b:9092", "a:99999", "a/b:1"] {
        let message = problem(&LEAST.replace("127.0.0.1:9092", brokers), &[]);
        assert!(message.starts_with("kafka.brokers: "), "{message}");
    }
}

#[test]
fn a_lease_of_exactly_the_margin_is_enough() {
    let lease = |reserva: &str| {
        with("efeitos.notificar-vendedor", &format!("prazo = \"1s\"\nreserva = \"{reserva}\""))
    };
    assert_eq!(load(&lease("1500ms"), &[]).effects[0].policy.lease, Duration::from_millis(1_500));
    assert!(problem(&lease("1499ms"), &[]).contains("reserva"));
}

#[test]
fn properties_that_would_break_an_invariant_are_refused_by_name() {
    for (property, value) in [
        ("enable.auto.commit", "true"),
        ("enable.auto.offset.store", "true"),
        ("group.id", "x"),
        ("group.instance.id", "x"),
        ("isolation.level", "read_uncommitted"),
        ("auto.offset.reset", "latest"),
        ("bootstrap.servers", "x"),
        ("enable.partition.eof", "false"),
        ("partition.assignment.strategy", "range"),
        ("acks", "1"),
        ("transactional.id", "x"),
        ("group.protocol", "next"),
    ] {
        let message = problem(&with("kafka.propriedades", &format!("\"{property}\" = \"{value}\"")), &[]);
        assert!(message.starts_with(&format!("kafka.propriedades.{property}: ")), "{message}");
    }
    let harmless =
        "\"enable.auto.commit\" = false\n\"partition.assignment.strategy\" = \"cooperative-sticky\"";
    assert_eq!(load(&with("kafka.propriedades", harmless), &[]).kafka.properties.len(), 2);
    let message = problem(LEAST, &[("REPRISE_KAFKA__PROPRIEDADES__ENABLE_AUTO_COMMIT", "true")]);
    assert!(message.starts_with(
        "kafka.propriedades.enable.auto.commit (REPRISE_KAFKA__PROPRIEDADES__ENABLE_AUTO_COMMIT)"
    ));
}

#[test]
fn the_consumer_protocol_excludes_classic_settings_and_warns_of_static_membership() {
    let both = "\"group.protocol\" = \"consumer\"\n\"session.timeout.ms\" = \"6000\"";
    assert!(
        problem(&with("kafka.propriedades", both), &[])
            .starts_with("kafka.propriedades.session.timeout.ms: ")
    );
    let text = with("kafka.propriedades", "\"group.protocol\" = \"consumer\"");
    let (_, none) = Config::from_text(&text, env(&[])).expect("valid");
    assert_eq!(none, []);
    let (_, warnings) =
        Config::from_text(&text, env(&[("REPRISE_KAFKA__INSTANCIA", "pod-0")])).expect("valid");
    let [warning] = warnings.as_slice() else { panic!("one warning") };
    assert!(warning.to_string().starts_with("kafka.instancia (REPRISE_KAFKA__INSTANCIA): after a kill"));
}

#[test]
fn the_environment_wins_over_the_file() {
    let text = with("kafka.propriedades", "session.timeout.ms = 6000");
    let config = load(
        &text,
        &[
            ("REPRISE_KAFKA__BROKERS", "kafka:9092"),
            ("REPRISE_KAFKA__PROPRIEDADES__SESSION_TIMEOUT_MS", "9000"),
            ("REPRISE_KAFKA__PROPRIEDADES__CLIENT_ID", "r1"),
            ("REPRISE_POSTGRES__MAX_CONEXOES", "5"),
            ("REPRISE_EFEITOS__NOTIFICAR_VENDEDOR__URL", "http://p/"),
            ("REPRISE_EFEITOS__NOTIFICAR_VENDEDOR__RESPOSTAS__409", "feito"),
            ("PATH", "/bin"),
        ],
    );
    assert_eq!(config.kafka.brokers, "kafka:9092");
    assert_eq!(config.kafka.properties["session.timeout.ms"], "9000");
    assert_eq!(config.kafka.properties["client.id"], "r1");
    assert_eq!(config.postgres.max_connections, 5);
    assert_eq!(config.effects[0].url, "http://p/");
    assert_eq!(config.effects[0].answers, BTreeMap::from([(409, Answer::Done)]));
}

#[test]
fn the_environment_alone_can_be_a_configuration() {
    let config = load("", &[("REPRISE_KAFKA__BROKERS", "k:1"), ("REPRISE_POSTGRES__URL", "postgres://h/d")]);
    assert_eq!((config.kafka.brokers.as_str(), config.effects.len()), ("k:1", 0));
}

#[test]
fn variables_that_are_not_settings_are_left_alone_and_misspelt_ones_are_refused() {
    let harmless = [
        ("REPRISE_CRASH", "after_reserve"),
        ("REPRISE_LOG", "debug"),
        ("REPRISE_TEST_A__B", "1"),
        ("REPRISE_DEV_X", "1"),
        ("REPRISE_BIN", "/usr/bin/reprise"),
        ("REPRISE_SERVICE_PORT", "80"),
    ];
    assert_eq!(load(LEAST, &harmless).effects.len(), 1);
    assert_eq!(
        problem(LEAST, &[("REPRISE_KAFKA_BROKERS", "x:1")]),
        "REPRISE_KAFKA_BROKERS: this environment variable names no setting; did you mean REPRISE_KAFKA__BROKERS?"
    );
    assert_eq!(
        problem(LEAST, &[("REPRISE_EFEITOS__NOTIFICAR_VENDEDO__URL", "http://x")]),
        "REPRISE_EFEITOS__NOTIFICAR_VENDEDO__URL: this environment variable names no setting; did you mean REPRISE_EFEITOS__NOTIFICAR_VENDEDOR__URL?"
    );
    assert!(problem(LEAST, &[("REPRISE_X__Y", "1")]).ends_with("effect types must stand in the file"));
}

#[test]
fn secrets_come_from_files_too_and_the_environment_wins() {
    let url = Scratch::new("postgres://file/db\n");
    let variable = ("REPRISE_POSTGRES__URL_FILE", url.path());
    assert_eq!(load(LEAST, &[variable]).postgres.url.expose(), "postgres://file/db");
    let both = problem(LEAST, &[variable, ("REPRISE_POSTGRES__URL", "postgres://h/d")]);
    assert_eq!(
        both,
        "postgres.url_arquivo (REPRISE_POSTGRES__URL_FILE): is set together with url; keep one of the two"
    );
    let password = Scratch::new("s3nha");
    let config = load(LEAST, &[("REPRISE_KAFKA__PROPRIEDADES__SASL_PASSWORD_FILE", password.path())]);
    assert_eq!(config.kafka.properties["sasl.password"], "s3nha");
    let empty = Scratch::new("\n");
    let message = problem(LEAST, &[("REPRISE_HTTP__TOKEN_FILE", empty.path())]);
    assert!(
        message.starts_with("http.token_arquivo (REPRISE_HTTP__TOKEN_FILE): ")
            && message.contains("is empty")
    );
}

#[test]
fn no_secret_is_shown() {
    let token = Scratch::new("s3nha-token");
    let text = with("kafka.propriedades", "\"sasl.password\" = \"s3nha-sasl\"");
    let config = load(
        &text,
        &[("REPRISE_HTTP__TOKEN_FILE", token.path()), ("REPRISE_KAFKA__REGISTRO_URL", "https://k:s3nha@r/")],
    );
    let shown = format!("{config:?} {:?}", config.settings());
    assert!(!shown.contains("s3nha"), "{shown}");
    let value = |key: &str| {
        config.settings().into_iter().find(|row| row.key == key).map(|row| (row.value, row.origin))
    };
    let row = |value: &str, origin: &str| Some((value.to_owned(), origin.to_owned()));
    assert_eq!(value("http.token_arquivo"), row("***", "REPRISE_HTTP__TOKEN_FILE"));
    assert_eq!(value("kafka.registro_url"), row("https://k:***@r/", "REPRISE_KAFKA__REGISTRO_URL"));
    assert_eq!(value("kafka.propriedades.sasl.password").map(|(value, _)| value).as_deref(), Some("***"));
    assert_eq!(
        value("postgres.url").map(|(value, _)| value).as_deref(),
        Some("postgres://ana:***@127.0.0.1/reprise")
    );
    assert_eq!(value("efeitos.notificar-vendedor.reserva"), row("30s", "default"));
    assert_eq!(value("replay.concorrencia"), row("", "default"));
}

#[test]
fn a_syntax_error_names_its_line_and_quotes_nothing() {
    let message = problems("[kafka]\nbrokers = \"a:1\"\n[postgres]\nurl = s3nha\n", &[]).remove(0);
    assert!(message.starts_with("line 4: not TOML: ") && !message.contains("s3nha"), "{message}");
}

#[test]
fn the_file_is_named_by_flag_then_by_variable() {
    let (flag, variable) = (Scratch::new(LEAST), Scratch::new(&LEAST.replace(":9092", ":1")));
    let named = [("REPRISE_CONFIG", variable.path())];
    let (config, _) = Config::load(Some(&flag.0), env(&named)).expect("valid");
    assert_eq!(config.kafka.brokers, "127.0.0.1:9092");
    let (config, _) = Config::load(None, env(&named)).expect("valid");
    assert_eq!(config.kafka.brokers, "127.0.0.1:1");
    let origin = config.settings().first().map(|row| row.origin.clone());
    assert_eq!(origin.as_deref(), Some(variable.path()));
    let errors = Config::load(Some(Path::new("/not/there.toml")), env(&named)).expect_err("no file");
    assert_eq!(errors.0.len(), 1);
    assert!(errors.to_string().contains("--config (/not/there.toml): cannot read /not/there.toml"));
}
