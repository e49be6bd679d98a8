//! `[telemetria]`: whether and where traces go.

use hyper::header::{HeaderName, HeaderValue};
use url::Url;

use super::Secret;
use super::reader::{Reader, Section};
use super::schema::keys_of;

/// `[telemetria]`
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// The collector. Without it there are no traces.
    pub endpoint: Option<String>,
    pub protocol: TraceProtocol,
    /// `amostra`: share of the traces that begin here; 0 is off.
    pub sample: f64,
    /// `cabecalhos_arquivo`: sent with every request.
    pub headers: Vec<(String, Secret)>,
    /// `nome_servico`
    pub service: Option<String>,
}

/// `protocolo`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceProtocol {
    Http,
    Grpc,
}

impl TraceProtocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Telemetry {
    let mut section = reader.section("telemetria", keys_of("telemetria"));
    let endpoint = section.text("endpoint");
    if let Some((what, remedy)) = endpoint.as_deref().and_then(endpoint_fault) {
        section.reject("endpoint", what, remedy);
    }
    let words = [TraceProtocol::Http, TraceProtocol::Grpc].map(|choice| (choice.as_str(), choice));
    let protocol = section.choice("protocolo", TraceProtocol::Http, &words);
    let sample = section.share("amostra").unwrap_or(1.0);
    let headers = headers(&mut section);
    Telemetry { endpoint, protocol, sample, headers, service: section.text("nome_servico") }
}

/// What is wrong with a collector's address, without repeating what may be secret in it.
fn endpoint_fault(text: &str) -> Option<(&'static str, &'static str)> {
    match Url::parse(text) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            Some(("is not an http address", "write http://collector:4318, or :4317 for protocolo = \"grpc\""))
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => Some((
            "holds a user or password",
            "put an Authorization header into telemetria.cabecalhos_arquivo",
        )),
        Ok(_) => None,
        Err(_) => Some(("is not an address", "write http://collector:4318")),
    }
}

/// Lines `Name: value`. A line is never repeated in a message: its value is secret.
fn headers(section: &mut Section<'_, '_>) -> Vec<(String, Secret)> {
    const KEY: &str = "cabecalhos_arquivo";
    let Some(text) = section.secret(None, KEY) else { return Vec::new() };
    let mut headers = Vec::new();
    for (at, line) in text.expose().lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let parts = line.split_once(':').map(|(name, value)| (name.trim(), value.trim()));
        match parts {
            Some((name, value))
                if HeaderName::try_from(name).is_ok() && HeaderValue::try_from(value).is_ok() =>
            {
                headers.push((name.to_owned(), Secret::new(value)));
            }
            _ => {
                let what = format!("line {} is not a header", at + 1);
                section.reject(KEY, what, "write one header a line, as \"Authorization: Bearer ...\"");
            }
        }
    }
    headers
}
