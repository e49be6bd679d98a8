//! Which source wins, where secrets come from, and that none is shown.

use super::*;

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
