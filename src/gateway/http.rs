//! Providers over HTTP/1.1: keep-alive connections per effect type, no retries, no redirects, one deadline.
//!
//! Where a call can end, and what is then known:
//!
//!   connecting ──► handed to a connection ──► head of the answer ──► end of its body
//!       │ error, deadline    │ reset, closed, deadline    │ the same       │
//!       ▼                    ▼                            ▼                ▼
//!    not sent             unknown                      unknown        the status decides
//!
//! The line between the first two is drawn by `handover`, not by error kinds: a request that hyper gives back from a
//! connection that had closed is not sent either, one that met the closing half-way is unknown.
//!
//! The body of an answer is read to its end, however long, with a bounded part kept: only a complete answer proves
//! anything, and the deadline bounds the reading. An answer that ends with its connection (neither length nor chunks)
//! is complete when the connection is closed in order.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::{Instant as Deadline, timeout_at};

use super::answer::{Override, Verdict, retry_after};
use super::connections::Connections;
use super::handover::{Departure, GuardedBody, Handover};
use super::kept::{KeptBody, sentence};
use super::settings::{InvalidProvider, InvalidSetting, ProviderSettings};
use super::signature::{Signer, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP};
use super::{Answer, Call, EffectGateway, Evidence, Proof, Reached};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("reprise/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Calls the providers of the configuration; an effect type's position there is its index here.
pub struct HttpGateway {
    providers: Vec<Arc<Provider>>,
}

struct Provider {
    connections: Connections,
    host: HeaderValue,
    path: Uri,
    deadline: Duration,
    answers: BTreeMap<u16, Override>,
    signer: Option<Signer>,
}

impl HttpGateway {
    /// In the order of the configuration. Opens no connection.
    pub fn new(providers: Vec<ProviderSettings>) -> Result<Self, InvalidProvider> {
        let providers = providers
            .into_iter()
            .map(|settings| {
                let provider = settings.name.clone();
                Provider::new(settings).map(Arc::new).map_err(|problem| InvalidProvider { provider, problem })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { providers })
    }
}

impl EffectGateway for HttpGateway {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        match self.providers.get(usize::from(call.effect_type.0)) {
            Some(provider) => Arc::clone(provider).perform(call).boxed(),
            None => std::future::ready(no_such_provider()).boxed(),
        }
    }
}

/// Settings and policies come from one configuration, so this is a wiring mistake; it costs no effect.
fn no_such_provider() -> Answer {
    let detail = "no provider is configured for this effect type".to_owned();
    let evidence = Evidence { reached: Reached::NotConnected, status: None, detail, elapsed: Duration::ZERO };
    Answer { proof: Proof::NotSent, evidence }
}

/// Says nothing of the provider: neither its circuit nor its attempts count it.
fn too_late() -> Answer {
    let detail = "not begun: its reservation could have ended before the call".to_owned();
    let evidence = Evidence { reached: Reached::NotConnected, status: None, detail, elapsed: Duration::ZERO };
    Answer { proof: Proof::NotNow { retry_after: None }, evidence }
}

impl Provider {
    fn new(settings: ProviderSettings) -> Result<Self, InvalidSetting> {
        settings.check_limits()?;
        let target = settings.target()?;
        Ok(Self {
            connections: Connections::new(connector(&settings)?, target.uri.clone(), settings.slots),
            path: origin_form(&target.uri),
            host: target.host,
            deadline: settings.deadline,
            signer: settings.signature_secret.as_ref().map(Signer::new).transpose()?,
            answers: settings.answers,
        })
    }

    async fn perform(self: Arc<Self>, call: Call) -> Answer {
        let started = Instant::now();
        if started + self.deadline > call.lease_ends {
            return too_late();
        }
        let deadline = Deadline::from_std(started + self.deadline);
        let late = || format!("the deadline of {:?} passed", self.deadline);
        let mut connection = match timeout_at(deadline, self.connections.lend()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => return not_connected(&described(&*error), started),
            Err(_) => return not_connected(&late(), started),
        };
        let (request, handover) = self.request(call);
        let response = match timeout_at(deadline, connection.send(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return unanswered(handover.revoke(), &described(&error), started),
            Err(_) => return unanswered(handover.revoke(), &late(), started),
        };
        let answer = self.judge(response, deadline, started).await;
        if answer.evidence.reached == Reached::Body {
            self.connections.keep(connection);
        }
        answer
    }

    fn request(&self, call: Call) -> (Request<GuardedBody>, Handover) {
        let body = Bytes::from(call.body);
        let key = key_header(call.key);
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(USER_AGENT, AGENT);
        if let Some(trace) = call.traceparent.and_then(|text| HeaderValue::try_from(text).ok()) {
            headers.insert(TRACEPARENT, trace);
        }
        if let Some((timestamp, signature)) =
            self.signer.as_ref().and_then(|signer| signer.headers(key.as_bytes(), unix_seconds(), &body))
        {
            headers.insert(WEBHOOK_ID, key.clone());
            headers.insert(WEBHOOK_TIMESTAMP, timestamp);
            headers.insert(WEBHOOK_SIGNATURE, signature);
        }
        headers.insert(IDEMPOTENCY_KEY, key);

        let (handover, body) = Handover::new(body);
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        *request.headers_mut() = headers;
        (request, handover)
    }

    /// Reads the answer to its end; only then its status counts.
    async fn judge(&self, response: Response<Incoming>, deadline: Deadline, started: Instant) -> Answer {
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let wait = wait.and_then(|text| retry_after(text, SystemTime::now()));
        let mut kept = KeptBody::default();
        let broken_off = match timeout_at(deadline, read_to_end(response.into_body(), &mut kept)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(described(&error)),
            Err(_) => Some(format!("the deadline of {:?} passed", self.deadline)),
        };
        let evidence = |reached, detail| Evidence {
            reached,
            status: Some(status.as_u16()),
            detail,
            elapsed: started.elapsed(),
        };
        if let Some(reason) = broken_off {
            let detail = kept.describe(&format!("HTTP {status}, but the answer did not end ({reason})"));
            return Answer { proof: Proof::Unknown, evidence: evidence(Reached::Head, detail) };
        }
        let verdict = Verdict::of(status.as_u16(), wait, &self.answers);
        let detail =
            if verdict == Verdict::Done { String::new() } else { kept.describe(&format!("HTTP {status}")) };
        Answer { proof: verdict.into_proof(|| kept.into_result()), evidence: evidence(Reached::Body, detail) }
    }
}

fn connector(settings: &ProviderSettings) -> Result<HttpsConnector<HttpConnector>, InvalidSetting> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // Shared among a name's addresses, so that a dead one leaves time for the others.
    tcp.set_connect_timeout(Some(settings.deadline));
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| InvalidSetting::Tls(error.to_string()))?;
    let tls = match &settings.authorities_pem {
        Some(pem) => tls.with_root_certificates(authorities(pem)?),
        None => tls.with_webpki_roots(),
    };
    let tls = tls.with_no_client_auth();
    Ok(HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp))
}

/// What stands in the request line: path and query.
fn origin_form(uri: &Uri) -> Uri {
    uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()))
}

/// The certificates of a PEM text, as the only roots of trust.
fn authorities(pem: &str) -> Result<RootCertStore, InvalidSetting> {
    let refused = |error: String| InvalidSetting::Authorities(error);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| refused(error.to_string()))?;
        roots.add(certificate).map_err(|error| refused(error.to_string()))?;
    }
    if roots.is_empty() { Err(refused("it holds no certificate".to_owned())) } else { Ok(roots) }
}

/// The key as a header value. Two keys never share one: a provider that deduplicates would lose an effect.
///
/// Usually its bytes as they are, UTF-8 included (legal as opaque bytes). What HTTP cannot carry, control characters
/// and outer white space (which receivers strip), is percent-encoded, and so is `%` itself wherever it stands.
fn key_header(key: String) -> HeaderValue {
    let outer = |c: Option<&u8>| matches!(c, Some(b' ' | b'\t'));
    let plain = !key.bytes().any(|b| b == b'%' || b.is_ascii_control())
        && !outer(key.as_bytes().first())
        && !outer(key.as_bytes().last());
    let text = if plain { key } else { percent_encoded(&key) };
    // Neither branch leaves a control character, so this cannot fail; and if it did, the body holds the key too.
    HeaderValue::from_maybe_shared(Bytes::from(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn percent_encoded(key: &str) -> String {
    let mut text = String::with_capacity(key.len() + 8);
    for c in key.chars() {
        if c == '%' || c == ' ' || c.is_ascii_control() {
            const HEX: [char; 16] =
                ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
            let byte = c as usize;
            text.extend(['%', HEX[byte / 16], HEX[byte % 16]]);
        } else {
            text.push(c);
        }
    }
    text
}

/// Reads an answer to its end. `Ok` only if it is complete.
async fn read_to_end(mut body: Incoming, kept: &mut KeptBody) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            kept.push(data);
        }
    }
    Ok(())
}

/// There was no connection to send it on.
fn not_connected(reason: &str, started: Instant) -> Answer {
    let detail = sentence(&format!("not sent: {reason}"));
    let evidence =
        Evidence { reached: Reached::NotConnected, status: None, detail, elapsed: started.elapsed() };
    Answer { proof: Proof::NotSent, evidence }
}

/// No answer began.
fn unanswered(departure: Departure, reason: &str, started: Instant) -> Answer {
    let (proof, reached, summary) = match departure {
        Departure::Revoked => (Proof::NotSent, Reached::Connected, "not sent"),
        Departure::MayHaveLeft => (Proof::Unknown, Reached::Sent, "sent, no answer"),
    };
    let detail = sentence(&format!("{summary}: {reason}"));
    Answer { proof, evidence: Evidence { reached, status: None, detail, elapsed: started.elapsed() } }
}

/// An error with its causes.
fn described(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
