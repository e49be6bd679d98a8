//! Who is at the console: the admin token once, then a cookie that is not the token.
//!
//! * The cookie holds an end, a nonce and their HMAC under a key derived from the token. It needs no memory: every
//!   process with the same token takes it, and a new token ends every session.
//! * A form is taken only with the session's own `csrf` value, and from our own origin where one is named. The cookie
//!   is `SameSite=Strict` and `HttpOnly` besides.
//! * The JSON API takes the token as a bearer; the cookie opens only what reads.

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use super::Console;
use super::fields::{Fields, encode};
use super::frame::{self, View};
use crate::ops::access::{AdminToken, bearer, names_loopback};
use crate::ops::problem::Problem;

/// A working day: who is away longer signs in again.
const LASTS: SignedDuration = SignedDuration::from_hours(12);
const COOKIE: &str = "reprise_console";
const NONCE: usize = 16;
const BODY_MAX: usize = 1024 * 1024;

/// A session that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The value that forms of this session carry.
    pub csrf: String,
}

/// Makes and checks cookies of one token.
#[derive(Clone)]
pub(super) struct Sessions {
    token: AdminToken,
    key: [u8; 32],
}

impl Sessions {
    pub(super) fn new(token: AdminToken) -> Self {
        let key = token.derive("reprise console session");
        Self { token, key }
    }

    /// The `Set-Cookie` of a new session, if this is the token.
    pub(super) fn open(&self, offered: &str, headers: &HeaderMap) -> Option<String> {
        if !self.token.matches(offered.trim().as_bytes()) {
            return None;
        }
        let nonce: [u8; NONCE] = rand::random();
        let end = Timestamp::now().saturating_add(LASTS).unwrap_or(Timestamp::MAX);
        let value = self.value(end.as_second(), nonce);
        Some(cookie(&value, LASTS.as_secs(), headers))
    }

    fn value(&self, end: i64, nonce: [u8; NONCE]) -> String {
        let mut signed = [&end.to_be_bytes()[..], &nonce].concat();
        let tag = self.tag(b"session", &signed);
        signed.extend_from_slice(&tag);
        URL_SAFE_NO_PAD.encode(signed)
    }

    fn tag(&self, purpose: &[u8], of: &[u8]) -> Vec<u8> {
        // HMAC takes keys of every length.
        Hmac::<Sha256>::new_from_slice(&self.key).map_or_else(
            |_| Vec::new(),
            |mut mac| {
                mac.update(purpose);
                mac.update(of);
                mac.finalize().into_bytes().to_vec()
            },
        )
    }

    /// The session of this cookie value, if it is ours and not over.
    fn read(&self, value: &str, now: Timestamp) -> Option<Session> {
        let bytes = URL_SAFE_NO_PAD.decode(value).ok()?;
        let (signed, tag) = bytes.split_at_checked(8 + NONCE)?;
        let expected = self.tag(b"session", signed);
        if !bool::from(expected.ct_eq(tag)) {
            return None;
        }
        let (end, nonce) = signed.split_at_checked(8)?;
        let end = i64::from_be_bytes(end.try_into().ok()?);
        (now.as_second() < end).then(|| Session { csrf: URL_SAFE_NO_PAD.encode(self.tag(b"csrf", nonce)) })
    }

    pub(super) fn of(&self, headers: &HeaderMap) -> Option<Session> {
        self.read(cookie_of(headers, COOKIE)?, Timestamp::now())
    }
}

/// The `Set-Cookie` that ends a session.
pub(super) fn closed(headers: &HeaderMap) -> String {
    cookie("", 0, headers)
}

fn cookie(value: &str, seconds: i64, headers: &HeaderMap) -> String {
    let https = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let secure = if https { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// The value of a cookie that was sent.
pub(super) fn cookie_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let sent = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    sent.flat_map(|text| text.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(key, value)| (key == name).then_some(value))
}

/// Middleware of every page that shows or changes business data.
pub(super) async fn pages(State(console): State<Console>, mut request: Request, next: Next) -> Response {
    let view = View::of(request.headers(), None);
    let Some(sessions) = &console.sessions else {
        return (StatusCode::FORBIDDEN, frame::without_token(&view)).into_response();
    };
    let Some(session) = sessions.of(request.headers()) else {
        let reads = request.method() == Method::GET;
        let to = request.uri().path_and_query().map_or("/console", |path| path.as_str());
        let next = if reads { encode(to) } else { encode("/console") };
        return Redirect::to(&format!("/console/login?next={next}")).into_response();
    };
    request.extensions_mut().insert(session);
    next.run(request).await
}

/// Middleware of the JSON API.
pub(super) async fn api(State(console): State<Console>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let Some(sessions) = &console.sessions else {
        return Problem::new(
            StatusCode::FORBIDDEN,
            "no-token",
            "business data needs a token: write one to a file, name it in http.token_arquivo, and restart",
        )
        .into_response();
    };
    let by_token = bearer(headers).is_some_and(|offered| sessions.token.matches(offered));
    let by_cookie = request.method() == Method::GET && sessions.of(headers).is_some();
    if by_token || by_cookie {
        return next.run(request).await;
    }
    let problem = Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "send the admin token: Authorization: Bearer <token>; a console session may only read",
    );
    let mut response = problem.into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    response
}

/// Whether a form may come from where it says it comes from.
pub(super) fn same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    match (host, origin.as_ref().and_then(Uri::authority)) {
        (Some(host), Some(origin)) => host == *origin,
        _ => false,
    }
}

/// Whether a request without a session may be answered at all: a name that was rebound to us may not be.
pub(super) fn answerable(console: &Console, headers: &HeaderMap) -> bool {
    console.sessions.is_some() || names_loopback(headers)
}

/// A form of this session: its fields, once they are known to be its own.
pub struct Signed(pub Fields);

impl FromRequest<Console> for Signed {
    type Rejection = Response;

    async fn from_request(request: Request, _: &Console) -> Result<Self, Response> {
        let view = View::of(request.headers(), None);
        let refused = |status: StatusCode, key: &str| (status, frame::notice(&view, key)).into_response();
        let session = request.extensions().get::<Session>().cloned();
        if !same_origin(request.headers()) {
            return Err(refused(StatusCode::FORBIDDEN, "refused.origin"));
        }
        let body = axum::body::to_bytes(request.into_body(), BODY_MAX).await;
        let Ok(body) = body else { return Err(refused(StatusCode::BAD_REQUEST, "refused.form")) };
        let fields = Fields::parse(&body);
        let csrf = fields.get("csrf").unwrap_or_default();
        match session {
            Some(session) if bool::from(session.csrf.as_bytes().ct_eq(csrf.as_bytes())) => Ok(Self(fields)),
            _ => Err(refused(StatusCode::FORBIDDEN, "refused.csrf")),
        }
    }
}

impl FromRequestParts<Console> for View {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Console) -> Result<Self, Self::Rejection> {
        Ok(Self::of(&parts.headers, parts.extensions.get::<Session>().cloned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(token: &str) -> Sessions {
        Sessions::new(AdminToken::new(token).expect("a token"))
    }

    fn value_of(set_cookie: &str) -> &str {
        let (pair, _) = set_cookie.split_once(';').expect("attributes");
        pair.split_once('=').expect("a value").1
    }

    #[test]
    fn a_session_is_opened_by_the_whole_token_and_does_not_hold_it() {
        let sessions = sessions("s3cret-token");
        assert_eq!(sessions.open("s3cret-toke", &HeaderMap::new()), None);
        let cookie = sessions.open("s3cret-token", &HeaderMap::new()).expect("the token");
        assert!(
            cookie.contains("; HttpOnly; SameSite=Strict") && cookie.contains("Max-Age=43200"),
            "{cookie}"
        );
        let bytes = URL_SAFE_NO_PAD.decode(value_of(&cookie)).expect("base64");
        assert!(!bytes.windows(6).any(|window| window == b"s3cret"));
        assert!(sessions.read(value_of(&cookie), Timestamp::now()).is_some());
    }

    #[test]
    fn a_session_ends_and_a_changed_one_or_another_tokens_never_began() {
        let ours = sessions("s3cret-token");
        let value = ours.value(1_000, [7; NONCE]);
        let at = |second| Timestamp::from_second(second).expect("an instant");
        assert!(ours.read(&value, at(999)).is_some());
        assert_eq!(ours.read(&value, at(1_000)), None);
        assert_eq!(sessions("another").read(&value, at(999)), None);
        let mut bytes = URL_SAFE_NO_PAD.decode(&value).expect("base64");
        bytes[7] = bytes[7].wrapping_add(1);
        assert_eq!(ours.read(&URL_SAFE_NO_PAD.encode(bytes), at(999)), None);
        for value in ["", "AAAA", "%%%"] {
            assert_eq!(ours.read(value, at(0)), None, "{value}");
        }
    }

    #[test]
    fn every_session_has_a_csrf_value_of_its_own() {
        let sessions = sessions("s3cret-token");
        let at = Timestamp::from_second(0).expect("an instant");
        let csrf = |nonce| sessions.read(&sessions.value(9, [nonce; NONCE]), at).expect("ours").csrf;
        assert_ne!(csrf(1), csrf(2));
        assert_eq!(csrf(1), csrf(1));
    }

    #[test]
    fn a_form_of_another_origin_is_seen() {
        let headers = |host: &'static str, origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a host"));
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().expect("an origin"));
            }
            headers
        };
        assert!(same_origin(&headers("ops.example:9464", None)));
        assert!(same_origin(&headers("ops.example:9464", Some("http://ops.example:9464"))));
        assert!(!same_origin(&headers("ops.example:9464", Some("http://ops.example:8080"))));
        assert!(!same_origin(&headers("ops.example:9464", Some("https://evil.example"))));
        assert!(!same_origin(&headers("ops.example:9464", Some("null"))));
    }
}
