//! Every kind of problem, and all at once.

use super::*;

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
    assert!(problem(&with("zzz", ""), &[]).contains(
        "known here: kafka, postgres, http, http_saida, lote, varredura, replay, arquivo, telemetria, orders, outbox, inbox, projections, saga, windows, retencao, efeitos"
    ));
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
fn a_syntax_error_names_its_line_and_quotes_nothing() {
    let message = problem("[kafka]\nbrokers = \"a:1\"\n[postgres]\nurl = s3nha\n", &[("REPRISE_A__B", "1")]);
    assert!(message.starts_with("line 4: not TOML: ") && !message.contains("s3nha"), "{message}");
}
