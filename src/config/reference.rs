//! `docs/reference/configuration.md`: every key that exists, described; a key without a description fails the test.

use std::collections::BTreeMap;

use super::Config;
use super::schema::{EFFECT_KEYS, EFFECTS, SECTIONS, variable};
use crate::reference::{check, row};

/// Key, type, default, meaning.
type Described = (&'static str, &'static str, &'static str, &'static str);

const KAFKA: &[Described] = &[
    ("brokers", "text", "required", "Addresses `host:port`, separated by commas"),
    ("topico", "text", "pedido.pago", "The topic of paid orders"),
    ("grupo", "text", "comissao", "Consumer group of `live`; must not start with `replay-`"),
    (
        "topico_dlq",
        "text",
        "pedido.pago.dlq",
        "Topic of dead letters; the topic's name with `.dlq` behind it",
    ),
    (
        "instancia",
        "text",
        "",
        "Static membership (`group.instance.id`): a restart has its partitions back at once",
    ),
    (
        "offset_perdido",
        "parar, avancar",
        "parar",
        "What to do when the committed offset no longer exists: end non-zero, or go on at the oldest record",
    ),
    ("registro_url", "address, secret", "", "The schema registry for Avro; may hold a user and password"),
    (
        "propriedades",
        "table",
        "",
        "Passed to librdkafka as they are; keys that would break an invariant are refused by name",
    ),
];
const POSTGRES: &[Described] = &[
    ("url", "address, secret", "required", "`postgres://user:password@host:5432/database`"),
    ("url_arquivo", "file", "", "A file that holds the address, in place of `url`"),
    ("max_conexoes", "number, 3 to 1000", "8", "Connections of one process"),
];
const HTTP: &[Described] = &[
    (
        "endereco",
        "address",
        "127.0.0.1:9464",
        "Where metrics, health and administration are served; other than loopback needs a token",
    ),
    ("token_arquivo", "file, secret", "", "The token for everything that changes or shows business data"),
    (
        "atras_de_proxy",
        "true, false",
        "false",
        "A proxy or mesh before it ends TLS: no warning about an address that others can reach",
    ),
];
const OUTGOING: &[Described] = &[(
    "permitidos",
    "list of text",
    "",
    "Hosts that providers may have: `api.example`, `*.example`, either with `:port`; without it any",
)];
const WINDOWS: &[Described] = &[
    ("heartbeats_topic", "text", "courier.heartbeats", "Heartbeats of couriers"),
    (
        "status_topic",
        "text",
        "courier.status",
        "Where couriers that fell silent, and that are back, are told",
    ),
    (
        "allowed_lateness",
        "duration, 0s to 7days",
        "2m",
        "What is later is in no window, and listed in `kpi_late`",
    ),
    (
        "courier_offline_after",
        "duration, 1s to 1day",
        "10m",
        "A courier that was silent for longer is offline",
    ),
    ("group", "text", "reprise-windows", "The consumer groups have `-kpi` and `-couriers` behind it"),
    (
        "retention",
        "duration, 1day to 3650days",
        "90days",
        "Windows, and what recognises repetitions, are kept so long",
    ),
];
const SAGA: &[Described] = &[
    ("workers", "number, 1 to 32", "4", "Sagas that this process takes a step of at the same time"),
    ("poll_interval", "duration, 10ms to 1m", "100ms", "How often due sagas are looked for"),
    (
        "step_deadline",
        "duration, 100ms to 30days",
        "15m",
        "A step that has not come to an end within it is not begun any more; what it did is undone",
    ),
    ("backoff_initial", "duration, 10ms to 1h", "200ms", "Between attempts of a step; doubles each time"),
    ("backoff_max", "duration, 10ms to 1h", "1m", "The longest of them"),
    ("fee_cents", "number, 0 to 100000000", "500", "What a courier is charged for an order"),
];
const PROJECTIONS: &[Described] = &[
    ("batch", "number, 1 to 10000", "1000", "Events of one transaction"),
    ("poll_interval", "duration, 10ms to 1m", "100ms", "The longest a read model waits whose hint was lost"),
];
const RETENTION: &[Described] = &[
    (
        "livro",
        "duration, from 1d",
        "",
        "Age of settled ledger rows that `retention` takes away; without it none",
    ),
    ("evidencia", "duration, from 1d", "", "The same of attempts and of resolved dead letters"),
    ("arquivo", "duration, from 1d", "", "The same of archived records"),
];
const BATCH: &[Described] = &[("max_eventos", "number, 1 to 4096", "512", "Most events taken together")];
const SWEEP: &[Described] = &[(
    "intervalo",
    "duration, 100ms to 1h",
    "5s",
    "How often effects are looked for whose event never comes back",
)];
const REPLAY: &[Described] = &[
    (
        "concorrencia",
        "number, 1 to 4096",
        "",
        "Call slots of every effect type in a replay; else each type's own",
    ),
    ("max_conexoes", "number, 3 to 1000", "8", "Connections of a replay; else those of `postgres`"),
];
const ARCHIVE: &[Described] =
    &[("grupo", "text", "comissao-arquivo", "Consumer group of `archive`; live's with `-arquivo` behind it")];
const TELEMETRY: &[Described] = &[
    (
        "endpoint",
        "address",
        "",
        "The OTLP collector, as `http://collector:4318`; without it there are no traces",
    ),
    (
        "protocolo",
        "http, grpc",
        "http",
        "Protobuf over HTTP (`/v1/traces` is added where the address has no path), or gRPC",
    ),
    (
        "amostra",
        "share, 0.0 to 1.0",
        "1",
        "Share of the traces that begin here; a trace that comes with an event is followed as its producer decided; 0 is off",
    ),
    ("cabecalhos_arquivo", "file, secret", "", "Headers for the collector, one `Name: value` a line"),
    ("nome_servico", "text", "", "`service.name`; else `OTEL_SERVICE_NAME`, else `reprise`"),
];
const EFFECT: &[Described] = &[
    ("url", "address", "required", "Where requests are sent, by POST; no user or password in it"),
    ("modo", "aplicar, suprimir", "aplicar", "`suprimir`: nothing is called"),
    (
        "ao_falhar",
        "manter, liberar",
        "manter",
        "`manter`: an unanswered call is never repeated by the program, a person decides. `liberar`: the provider deduplicates by our key, so it is called again",
    ),
    ("prazo", "duration, 10ms to 1h", "5s", "The whole call, from connecting to the last byte"),
    (
        "reserva",
        "duration, up to 24h",
        "30s",
        "The reservation's lease; must exceed `prazo` by half a second",
    ),
    ("max_tentativas", "number", "5", "Attempts that may have reached the provider, under `liberar`"),
    ("recuo_inicial", "duration, up to 24h", "200ms", "First pause between attempts; it doubles"),
    ("recuo_maximo", "duration, up to 24h", "30s", "Longest pause between attempts"),
    (
        "concorrencia",
        "number, 1 to 4096",
        "64",
        "Calls of this type in flight in one process: what a crash leaves uncertain at most",
    ),
    ("limite_por_segundo", "number", "", "Calls a second of one process; without it as many as there are"),
    (
        "circuito_limite",
        "number",
        "5",
        "Events in a row without a definite answer after which the circuit opens",
    ),
    ("circuito_espera", "duration", "1s", "First wait of an open circuit; it doubles up to `recuo_maximo`"),
    ("janela_idempotencia", "duration", "24h", "How long the provider remembers a key, under `liberar`"),
    ("vigente_desde", "instant", "", "Events that occurred earlier are suppressed"),
    (
        "respostas",
        "table",
        "",
        "What single HTTP statuses mean, in place of the rule: `{ \"409\" = \"feito\" }`; `feito`, `recusado`, `agora-nao`, `desconhecido`",
    ),
    ("assinatura_arquivo", "file, secret", "", "Signs every request (Standard Webhooks, HMAC-SHA256)"),
    (
        "ca_arquivo",
        "file",
        "",
        "The only authority that is trusted for this provider, PEM; else the public ones",
    ),
];

const ORDERS: &[Described] = &[
    ("topic", "text", "orders.events", "Topic of the order side's events; not `kafka.topico`"),
    ("dlq_topic", "text", "orders.events.dlq", "Its dead letters; the topic's name with `.dlq` behind it"),
    ("format", "avro, json", "avro", "How messages are written; Avro needs a schema registry"),
    ("registry_url", "address, secret", "", "The schema registry; else `kafka.registro_url`"),
    ("snapshot_every", "number, 1 to 100000", "50", "A snapshot of an order after so many events"),
    (
        "courier_assigned_v1",
        "omit, publish",
        "omit",
        "Publish `CourierAssigned` in its first form too, for consumers that are not ready for the second",
    ),
    (
        "foreign_topic",
        "text",
        "",
        "Messages `pedido.*` of another system, taken as commands on orders; absent: none are",
    ),
    ("foreign_group", "text", "orders-foreign", "The consumer group that reads it"),
];
const OUTBOX: &[Described] = &[
    (
        "publisher",
        "relay, cdc",
        "relay",
        "Who reads the table: our relay, or Debezium by logical replication",
    ),
    ("workers", "number, 1 to 32", "2", "Workers of one relay"),
    ("poll_interval", "duration, 10ms to 1m", "200ms", "The longest a message waits whose hint was lost"),
    ("batch", "number, 1 to 10000", "500", "Rows read, sent and marked together"),
    ("max_attempts", "number, 1 to 1000", "8", "Refusals of one message by the broker until it is parked"),
    (
        "retention",
        "duration, 1h to 365d",
        "2d",
        "Published rows are kept so long, and then until their day is over",
    ),
];
const INBOX: &[Described] = &[(
    "retention",
    "duration, 1h to 365d",
    "2d",
    "A repetition is recognised for so long after the message was handled",
)];

/// What each section is for, and its keys.
const DESCRIBED: [(&str, &str, &[Described]); 16] = [
    ("kafka", "Where events come from.", KAFKA),
    ("postgres", "Where commissions and the ledger are.", POSTGRES),
    ("http", "Metrics, health, administration.", HTTP),
    ("http_saida", "Where providers may be.", OUTGOING),
    ("lote", "Batches.", BATCH),
    ("varredura", "The sweeper.", SWEEP),
    ("replay", "Replays.", REPLAY),
    ("arquivo", "The archive.", ARCHIVE),
    ("telemetria", "Traces.", TELEMETRY),
    ("orders", "The write side of orders.", ORDERS),
    ("outbox", "From the order side's transactions to Kafka.", OUTBOX),
    ("inbox", "Messages handled by the order side.", INBOX),
    ("projections", "Read models of orders.", PROJECTIONS),
    ("saga", "Sagas on orders.", SAGA),
    ("windows", "Windows by event time.", WINDOWS),
    ("retencao", "How long what is kept stays.", RETENTION),
];

#[test]
fn the_reference_of_the_configuration_is_what_the_code_says() {
    let mut page = String::from(
        "# Configuration\n\nGenerated from the code. Read from `--config FILE`, else `REPRISE_CONFIG`, else \
         `./reprise.toml`; every key can be set by its environment variable as well, which wins. Secrets can be read \
         from files. Unknown keys are refused. `reprise config check` tells every problem at once, `reprise config \
         show` the effective values without secrets. Durations are written `250ms`, `5s`, `24h`.\n\n",
    );
    for (section, keys) in SECTIONS {
        let (_, purpose, described) =
            DESCRIBED.iter().find(|(name, ..)| *name == section).unwrap_or_else(|| panic!("[{section}]"));
        assert_same(section, keys, described);
        for part in ["## `[", section, "]`\n\n", purpose, "\n\n", &table(section, described)] {
            page += part;
        }
    }
    assert_same(EFFECTS, &EFFECT_KEYS, EFFECT);
    page += "## `[efeitos.NAME]`\n\nOne effect type: one request per event. The name has lower-case letters, digits and \
             dashes.\n\n";
    page += &table("efeitos.NAME", EFFECT);
    check("configuration.md", &page);
}

fn assert_same(section: &str, keys: &[&str], described: &[Described]) {
    let found: Vec<&str> = described.iter().map(|(key, ..)| *key).collect();
    assert_eq!(keys, found, "[{section}]: every key is described, in the order of the schema");
}

fn table(section: &str, described: &[Described]) -> String {
    let mut text = row(&["key", "type", "default", "meaning", "variable"]);
    text += &row(&["---", "---", "---", "---", "---"]);
    for (key, kind, default, meaning) in described {
        let path: Vec<&str> = section.split('.').chain([*key]).collect();
        text += &row(&[&format!("`{key}`"), kind, default, meaning, &format!("`{}`", variable(&path))]);
    }
    text + "\n"
}

#[test]
fn the_described_defaults_are_the_real_ones() {
    let text = "[kafka]\nbrokers = \"k:9092\"\n[postgres]\nurl = \"postgres://db/x\"\n\
                [efeitos.e]\nurl = \"http://p/n\"\n";
    let (config, _) = Config::from_text(text, std::iter::empty()).expect("a configuration");
    let real: BTreeMap<String, String> =
        config.settings().into_iter().map(|setting| (setting.key, setting.value)).collect();
    let sections =
        DESCRIBED.iter().map(|(section, _, keys)| (*section, *keys)).chain([("efeitos.e", EFFECT)]);
    for (section, keys) in sections {
        for (key, _, default, _) in keys.iter().filter(|(_, _, default, _)| *default != "required") {
            // Another key of the same secret, or a table: it has no row of its own.
            let Some(real) = real.get(&format!("{section}.{key}")) else { continue };
            let spelt = humantime::parse_duration(default)
                .map_or_else(|_| (*default).to_owned(), |d| humantime::format_duration(d).to_string());
            assert_eq!(*real, spelt, "{section}.{key}");
        }
    }
}
