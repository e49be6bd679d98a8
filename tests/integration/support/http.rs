//! Asking the admin interface of a process under test.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// A process that is paused never answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Status and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.body))
    }
}

/// `None` where nobody answers.
pub async fn request(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> Option<Reply> {
    let mut request = hyper::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if body.is_some() {
        request = request.header("content-type", "application/json");
    }
    let bytes = body.map(|b| Bytes::from(b.to_string())).unwrap_or_default();
    let request = request.body(Full::new(bytes)).expect("a request of the test is well formed");
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let whole = async {
        let answer = client.request(request).await.ok()?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        Some(Reply { status, body: String::from_utf8_lossy(&body).into_owned() })
    };
    tokio::time::timeout(ANSWER_LIMIT, whole).await.ok().flatten()
}

/// The sum of a metric's series that carry all of `labels`; `None` where there is no such series.
pub fn metric(exposition: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let mut total = None;
    for line in exposition.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if !rest.starts_with(['{', ' ']) {
            continue;
        }
        if labels.iter().all(|(label, value)| {
            rest.contains(&format!("{{{label}=\"{value}\""))
                || rest.contains(&format!(",{label}=\"{value}\""))
        }) {
            let (_, value) = line.rsplit_once(' ').expect("a sample has a value");
            let value: f64 = value.parse().expect("a sample's value is a number");
            total = Some(total.unwrap_or(0.0) + value);
        }
    }
    total
}
