//! Who may use the routes that change or show business data.
//!
//! With a token: `Authorization: Bearer <token>`, compared in constant time. Without one: only on a loopback
//! address, and only for requests that name a loopback host, because a web page opened on this machine can reach
//! loopback too (test `without_a_token_a_web_page_cannot_reach_protected_routes`). A listener that others can
//! reach is refused without a token.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::problem::Problem;
use crate::domain::event::{Digest, digest_of};

/// The admin token, kept as a digest: comparing digests tells neither content nor length by its duration,
/// and nothing that prints this value can leak it.
#[derive(Debug, Clone)]
pub struct AdminToken(Digest);

/// What is wrong with the admin listener's address or token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error(
        "http.endereco: {0} can be reached from other machines and there is no token; \
         set http.token_arquivo, or listen on 127.0.0.1"
    )]
    TokenRequired(SocketAddr),
    #[error("http.token_arquivo: the token must be one word of visible ASCII characters, and not empty")]
    MalformedToken,
}

impl AdminToken {
    /// A key that only who knows the token can derive; neither the token nor what it is compared by.
    pub(super) fn derive(&self, purpose: &str) -> Digest {
        digest_of(&[purpose.as_bytes(), &self.0[..]].concat())
    }

    /// White space around the token (the line end of its file) does not belong to it.
    pub fn new(text: &str) -> Result<Self, AccessError> {
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AccessError::MalformedToken);
        }
        Ok(Self(digest_of(token.as_bytes())))
    }

    pub(super) fn matches(&self, offered: &[u8]) -> bool {
        self.0[..].ct_eq(&digest_of(offered)[..]).into()
    }
}

/// The rule for protected routes.
#[derive(Debug, Clone)]
pub(super) enum Access {
    Token(AdminToken),
    Loopback,
}

impl Access {
    pub(super) fn decide(address: SocketAddr, token: Option<AdminToken>) -> Result<Self, AccessError> {
        match token {
            Some(token) => Ok(Self::Token(token)),
            None if address.ip().to_canonical().is_loopback() => Ok(Self::Loopback),
            None => Err(AccessError::TokenRequired(address)),
        }
    }

    fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        match self {
            Self::Token(token) if bearer(headers).is_some_and(|offered| token.matches(offered)) => Ok(()),
            Self::Token(_) => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "send the admin token: Authorization: Bearer <token>",
            )),
            Self::Loopback if names_loopback(headers) => Ok(()),
            Self::Loopback => Err(Problem::new(
                StatusCode::FORBIDDEN,
                "foreign-origin",
                "without http.token_arquivo only requests to and from loopback names are served",
            )),
        }
    }
}

/// Middleware of every protected route.
pub(super) async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    match access.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let unauthorized = problem.status == StatusCode::UNAUTHORIZED;
            let mut response = problem.into_response();
            if unauthorized {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

pub(super) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// `Host` (against DNS rebinding) and `Origin` (against forms and scripts of other sites), where they are sent.
pub(super) fn names_loopback(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).is_none_or(|value| {
        let authority = value.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        authority.is_some_and(|authority| is_loopback_name(authority.host()))
    });
    let origin = headers.get(header::ORIGIN).is_none_or(|value| {
        let uri = value.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
        uri.as_ref().and_then(Uri::host).is_some_and(is_loopback_name)
    });
    host && origin
}

fn is_loopback_name(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("name"), HeaderValue::from_static(value)))
            .collect()
    }

    fn decide(address: &str, token: Option<&str>) -> Result<Access, AccessError> {
        Access::decide(
            address.parse().expect("an address"),
            token.map(|t| AdminToken::new(t).expect("a token")),
        )
    }

    #[test]
    fn an_address_that_others_reach_needs_a_token() {
        for address in ["0.0.0.0:9464", "[::]:9464", "10.1.2.3:9464", "[::ffff:10.1.2.3]:9464"] {
            let refused = decide(address, None).expect_err("reachable");
            assert_eq!(refused, AccessError::TokenRequired(address.parse().expect("an address")));
            assert!(decide(address, Some("s3cret")).is_ok());
        }
        for address in ["127.0.0.1:9464", "127.8.8.8:1", "[::1]:9464", "[::ffff:127.0.0.1]:9464"] {
            assert!(decide(address, None).is_ok(), "{address}");
        }
        assert_eq!(
            decide("0.0.0.0:9464", None).expect_err("reachable").to_string(),
            "http.endereco: 0.0.0.0:9464 can be reached from other machines and there is no token; \
             set http.token_arquivo, or listen on 127.0.0.1"
        );
    }

    #[test]
    fn only_the_whole_token_opens() {
        let access = decide("127.0.0.1:1", Some("s3cret\n")).expect("a token");
        for (value, code) in [
            ("Bearer s3cret", None),
            ("bearer s3cret", None),
            ("Bearer  s3cret", None),
            ("Bearer s3cre", Some("unauthorized")),
            ("Bearer s3cret2", Some("unauthorized")),
            ("Bearer ", Some("unauthorized")),
            ("Basic s3cret", Some("unauthorized")),
            ("s3cret", Some("unauthorized")),
            ("", Some("unauthorized")),
        ] {
            let got = access.check(&headers(&[("authorization", value)])).err().map(|problem| problem.code);
            assert_eq!(got, code, "{value:?}");
        }
        assert!(access.check(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_token_that_cannot_be_sent_is_refused_and_a_token_is_never_printed() {
        for text in ["", " \n", "two words", "sénha", "a\nb"] {
            assert_eq!(AdminToken::new(text).expect_err(text), AccessError::MalformedToken);
        }
        assert!(!format!("{:?}", AdminToken::new("s3cret")).contains("s3cret"));
    }

    #[test]
    fn without_a_token_a_web_page_cannot_reach_protected_routes() {
        let access = decide("127.0.0.1:9464", None).expect("loopback");
        for (pairs, open) in [
            (vec![], true),
            (vec![("host", "127.0.0.1:9464")], true),
            (vec![("host", "LOCALHOST:9464")], true),
            (vec![("host", "[::1]:9464")], true),
            (vec![("host", "rebound.example:9464")], false),
            (vec![("host", "127.0.0.1.example:9464")], false),
            (vec![("host", "127.0.0.1:9464"), ("origin", "http://127.0.0.1:9464")], true),
            (vec![("host", "127.0.0.1:9464"), ("origin", "https://elsewhere.example")], false),
            (vec![("host", "127.0.0.1:9464"), ("origin", "null")], false),
        ] {
            assert_eq!(access.check(&headers(&pairs)).is_ok(), open, "{pairs:?}");
        }
    }
}
