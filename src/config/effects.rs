//! `[efeitos.*]`: the effect types of a deployment, in the order of the file.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use toml::Value;
use url::Url;

use super::problem::nearest;
use super::reader::{Reader, Section, allowed_words, kind, shown};
use super::schema::{ANSWERS, EFFECT_KEYS, EFFECTS};
use super::{Answer, Authorities, DAY, Effect, HOUR, MILLISECOND};
use crate::domain::effect::{EffectPolicy, Mode, OnFailure};

/// How much longer than the call its reservation must live: time to write the outcome while it is still ours.
pub const LEASE_MARGIN: Duration = Duration::from_millis(500);

/// `EffectTypeId` is a `u16`, and every type is a label of several metrics: a thousand is beyond any deployment.
const TYPES_MAX: usize = 1_000;
const CALL_MAX: Duration = HOUR;
const LEASE_MAX: Duration = DAY;
const BACKOFF_MAX: Duration = DAY;
/// Ten years: longer than any provider remembers, and far from what a database interval can hold.
const KEY_MEMORY_MAX: Duration = Duration::from_hours(10 * 365 * 24);
const SLOTS_MAX: usize = 4_096;
/// Attempts and circuit limits beyond this are "without end", which is not what these settings are for.
const COUNT_MAX: u32 = 10_000;
const PER_SECOND_MAX: u32 = 1_000_000;

pub(super) fn read(reader: &mut Reader<'_>) -> Vec<Effect> {
    let layers = reader.layers;
    let Some(value) = layers.root.get(EFFECTS) else { return Vec::new() };
    let Some(table) = value.as_table() else {
        let remedy = "write every effect type as a section: [efeitos.notificar-vendedor]";
        reader.problem(EFFECTS, format!("{} is not a section", kind(value)), remedy.to_owned());
        return Vec::new();
    };
    if table.len() > TYPES_MAX {
        let what = format!("{} effect types", table.len());
        reader.problem(EFFECTS, what, format!("configure at most {TYPES_MAX}"));
        return Vec::new();
    }
    table.iter().filter_map(|(name, value)| effect(reader, name, value)).collect()
}

fn effect<'a>(reader: &mut Reader<'a>, name: &str, value: &'a Value) -> Option<Effect> {
    let path = format!("{EFFECTS}.{name}");
    let well_named = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(well_named) {
        let remedy = "use lower-case letters a to z, digits and dashes only".to_owned();
        reader.problem(&path, "is not a name for an effect type".to_owned(), remedy);
    }
    if !value.is_table() && nearest(name, EFFECT_KEYS).is_some() {
        let remedy = format!("put it under the effect type it is for: [{EFFECTS}.notificar-vendedor]");
        reader.problem(&path, "is a key without an effect type".to_owned(), remedy);
        return None;
    }
    let mut section = reader.table(path, Some(value), &EFFECT_KEYS);
    let url = section.required_text("url", "https://provider.example/notify").filter(|text| {
        let fault = http_url_fault(text);
        if let Some((what, remedy)) = &fault {
            section.reject("url", what, *remedy);
        }
        fault.is_none()
    });
    let deadline = section.duration("prazo", Duration::from_secs(5), &(Duration::from_millis(10)..=CALL_MAX));
    let policy = policy(&mut section, name);
    check_lease(&mut section, deadline, policy.as_ref().map(|policy| policy.lease));
    let answers = answers(&mut section);
    let signature_secret = section.secret(None, "assinatura_arquivo");
    let authorities = authorities(&mut section);
    Some(Effect { policy: policy?, url: url?, deadline: deadline?, answers, signature_secret, authorities })
}

fn policy(section: &mut Section<'_, '_>, name: &str) -> Option<EffectPolicy> {
    let mode =
        section.choice("modo", Mode::Apply, &[Mode::Apply, Mode::Suppress].map(|mode| (mode.as_str(), mode)));
    let on_failure = section.choice(
        "ao_falhar",
        OnFailure::Hold,
        &[OnFailure::Release, OnFailure::Hold].map(|choice| (choice.as_str(), choice)),
    );
    let upto = |most: Duration| MILLISECOND..=most;
    let lease = section.duration("reserva", Duration::from_secs(30), &upto(LEASE_MAX));
    let backoff_initial = section.duration("recuo_inicial", Duration::from_millis(200), &upto(BACKOFF_MAX));
    let backoff_max = section.duration("recuo_maximo", Duration::from_secs(30), &upto(BACKOFF_MAX));
    if let (Some(initial), Some(most)) = (backoff_initial, backoff_max)
        && initial > most
    {
        let what = format!(
            "recuo_maximo ({}) is less than recuo_inicial ({})",
            humantime::format_duration(most),
            humantime::format_duration(initial)
        );
        section.reject("recuo_maximo", what, "raise recuo_maximo or lower recuo_inicial");
    }
    let circuit_wait = section.duration("circuito_espera", Duration::from_secs(1), &upto(BACKOFF_MAX));
    let key_memory = section.duration("janela_idempotencia", DAY, &upto(KEY_MEMORY_MAX));
    let effective_from = effective_from(section);
    let max_attempts = section.integer("max_tentativas", &(1..=COUNT_MAX)).unwrap_or(5);
    let slots = section.integer("concorrencia", &(1..=SLOTS_MAX)).unwrap_or(64);
    let per_second = section.integer("limite_por_segundo", &(1..=PER_SECOND_MAX));
    let circuit_threshold = section.integer("circuito_limite", &(1..=COUNT_MAX)).unwrap_or(5);
    Some(EffectPolicy {
        name: name.to_owned(),
        mode,
        on_event: !crate::saga::machine::EFFECTS.contains(&name),
        on_failure,
        effective_from,
        lease: lease?,
        max_attempts,
        backoff_initial: backoff_initial?,
        backoff_max: backoff_max?,
        key_memory: key_memory?,
        slots,
        per_second,
        circuit_threshold,
        circuit_wait: circuit_wait?,
    })
}

fn check_lease(section: &mut Section<'_, '_>, deadline: Option<Duration>, lease: Option<Duration>) {
    let (Some(deadline), Some(lease)) = (deadline, lease) else { return };
    if lease < deadline + LEASE_MARGIN {
        let what = format!(
            "reserva ({}) must exceed prazo ({}) by 500ms, or a call outlives its lease",
            humantime::format_duration(lease),
            humantime::format_duration(deadline)
        );
        let enough = humantime::format_duration(deadline + LEASE_MARGIN);
        section.reject("reserva", what, format!("use at least {enough}, or shorten prazo"));
    }
}

/// Whether each certificate can be used is seen when the provider is set up.
fn authorities(section: &mut Section<'_, '_>) -> Option<Authorities> {
    let (path, pem) = section.file("ca_arquivo")?;
    if !pem.contains("-----BEGIN CERTIFICATE-----") {
        section.reject(
            "ca_arquivo",
            "holds no certificate",
            "name a PEM file with the authority's certificate",
        );
    }
    Some(Authorities { path, pem })
}

/// What is wrong with the address of a provider, and the remedy.
fn http_url_fault(text: &str) -> Option<(String, &'static str)> {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(error) => return Some((format!("is not an address: {error}"), "use https://host/path")),
    };
    if !matches!(url.scheme(), "http" | "https") {
        return Some((format!("{} cannot be called", url.scheme()), "use http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let what = "holds a user or password, which would not be sent".to_owned();
        return Some((what, "remove it; sign requests with assinatura_arquivo"));
    }
    let fragment = "has a fragment (#...), which is never sent".to_owned();
    url.fragment().map(|_| (fragment, "remove it"))
}

fn effective_from(section: &mut Section<'_, '_>) -> Option<Timestamp> {
    let value = section.get("vigente_desde")?;
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Datetime(date) => date.to_string(),
        _ => String::new(),
    };
    let parsed = text.parse::<Timestamp>().ok();
    if parsed.is_none() {
        let remedy = "write an instant with its offset, as \"2026-01-01T00:00:00-03:00\"";
        section.reject("vigente_desde", format!("{} is not an instant", shown(value)), remedy);
    }
    parsed
}

fn answers(section: &mut Section<'_, '_>) -> BTreeMap<u16, Answer> {
    let mut answers = BTreeMap::new();
    let Some(value) = section.get(ANSWERS) else { return answers };
    let Some(table) = value.as_table() else {
        section.reject(ANSWERS, format!("{} is not a table", kind(value)), "write { \"409\" = \"feito\" }");
        return answers;
    };
    for (status, word) in table {
        let key = format!("{ANSWERS}.{status}");
        let code = status.parse::<u16>().ok().filter(|code| (200..=599).contains(code));
        let meaning = word.as_str().and_then(Answer::parse);
        if code.is_none() {
            section.reject(&key, "is not the status of an answer", "use a status from 200 to 599");
        }
        if meaning.is_none() {
            let remedy = allowed_words(&Answer::ALL.map(Answer::as_str));
            section.reject(&key, format!("{} is not a value", shown(word)), remedy);
        }
        if let (Some(code), Some(meaning)) = (code, meaning) {
            answers.insert(code, meaning);
        }
    }
    answers
}
