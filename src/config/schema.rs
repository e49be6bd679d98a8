//! The names that exist: sections, keys, and the environment variable of each.
//!
//! Everything that asks "is this a setting?" asks here: the check for unknown keys, the environment, `config show`.

/// Sections with a fixed set of keys.
pub(super) const SECTIONS: [(&str, &[&str]); 16] = [
    (
        "kafka",
        &[
            "brokers",
            "topico",
            "grupo",
            "topico_dlq",
            "instancia",
            "offset_perdido",
            "registro_url",
            PROPERTIES,
        ],
    ),
    ("postgres", &["url", "url_arquivo", "max_conexoes"]),
    ("http", &["endereco", "token_arquivo", "atras_de_proxy"]),
    ("http_saida", &["permitidos"]),
    ("lote", &["max_eventos"]),
    ("varredura", &["intervalo"]),
    ("replay", &["concorrencia", "max_conexoes"]),
    ("arquivo", &["grupo"]),
    ("telemetria", &["endpoint", "protocolo", "amostra", "cabecalhos_arquivo", "nome_servico"]),
    (
        "orders",
        &[
            "topic",
            "dlq_topic",
            "format",
            "registry_url",
            "snapshot_every",
            "courier_assigned_v1",
            "foreign_topic",
            "foreign_group",
        ],
    ),
    ("outbox", &["publisher", "workers", "poll_interval", "batch", "max_attempts", "retention"]),
    ("inbox", &["retention"]),
    ("projections", &["batch", "poll_interval"]),
    ("saga", &["workers", "poll_interval", "step_deadline", "backoff_initial", "backoff_max", "fee_cents"]),
    (
        "windows",
        &[
            "heartbeats_topic",
            "status_topic",
            "allowed_lateness",
            "courier_offline_after",
            "group",
            "retention",
        ],
    ),
    ("retencao", &["livro", "evidencia", "arquivo"]),
];

/// The section of effect types, each a table of [`EFFECT_KEYS`].
pub(super) const EFFECTS: &str = "efeitos";

/// Inside `[kafka]`: librdkafka's own settings, whose names are not ours.
pub(super) const PROPERTIES: &str = "propriedades";

/// Inside an effect: HTTP statuses, whose meaning is overridden.
pub(super) const ANSWERS: &str = "respostas";

pub(super) const EFFECT_KEYS: [&str; 17] = [
    "url",
    "modo",
    "ao_falhar",
    "prazo",
    "reserva",
    "max_tentativas",
    "recuo_inicial",
    "recuo_maximo",
    "concorrencia",
    "limite_por_segundo",
    "circuito_limite",
    "circuito_espera",
    "janela_idempotencia",
    "vigente_desde",
    ANSWERS,
    "assinatura_arquivo",
    "ca_arquivo",
];

/// A key ending in this names a file that holds the secret; its variable may end in `_FILE` too.
pub(super) const FILE_KEY: &str = "_arquivo";

pub(super) fn keys_of(section: &str) -> &'static [&'static str] {
    SECTIONS.iter().find(|(name, _)| *name == section).map_or(&[], |(_, keys)| keys)
}

pub(super) fn section_names() -> Vec<&'static str> {
    SECTIONS.iter().map(|(name, _)| *name).chain([EFFECTS]).collect()
}

/// A path as an environment variable: `efeitos`, `notificar-vendedor`, `url` is
/// `REPRISE_EFEITOS__NOTIFICAR_VENDEDOR__URL`.
pub(super) fn variable(path: &[&str]) -> String {
    let parts: Vec<String> = path.iter().map(|part| part.to_uppercase().replace(['-', '.'], "_")).collect();
    format!("REPRISE_{}", parts.join("__"))
}

/// librdkafka settings that hold a secret: never shown, and readable from a file by `..._FILE`.
pub(super) fn is_secret_property(name: &str) -> bool {
    ["password", "passphrase", "secret", "pem", "sasl.oauthbearer.config"]
        .iter()
        .any(|word| name.contains(word))
}
