//! What comes with a request in its headers: who asks, for whom, and under which key.

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;

use super::body::bad;
use crate::codec::traceparent;
use crate::ops::problem::Problem;

/// Bytes of a key, a name, a tenant.
const TEXT_MAX: usize = 200;
/// Who, where nobody says.
const NOBODY: &str = "api";

/// The giving of a command.
pub struct Given {
    pub command_id: String,
    pub tenant_id: Option<String>,
    pub actor: String,
    pub reason: Option<String>,
    pub traceparent: Option<String>,
}

/// Who reads.
pub struct Reader {
    pub tenant_id: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Given {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let headers = &parts.headers;
        let key = text(headers, "Idempotency-Key")?;
        Ok(Self {
            command_id: key.ok_or_else(|| {
                bad("Idempotency-Key", "is missing; send one of your own with every new command")
            })?,
            tenant_id: text(headers, "X-Tenant-Id")?,
            actor: text(headers, "X-Actor")?.unwrap_or_else(|| NOBODY.to_owned()),
            reason: None,
            traceparent: traceparent(headers.get("traceparent").map(axum::http::HeaderValue::as_bytes)),
        })
    }
}

impl<S: Sync> FromRequestParts<S> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Ok(Self { tenant_id: text(&parts.headers, "X-Tenant-Id")? })
    }
}

fn text(headers: &HeaderMap, name: &'static str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| bad(name, "must be UTF-8"))?.trim();
    if text.is_empty() || text.len() > TEXT_MAX || text.contains(char::is_control) {
        return Err(bad(name, "must have 1 to 200 bytes, without control characters"));
    }
    Ok(Some(text.to_owned()))
}
