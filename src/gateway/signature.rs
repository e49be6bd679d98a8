//! Standard Webhooks signatures, so that a provider can tell our requests from anybody's.
//!
//! `webhook-id` is the effect's key as sent (the same in every attempt), `webhook-timestamp` the Unix second of this
//! attempt, `webhook-signature` is `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use hyper::header::{HeaderName, HeaderValue};
use sha2::Sha256;

pub(super) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(super) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(super) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Marks a secret whose rest is base64, as the standard writes them.
const BASE64_PREFIX: &str = "whsec_";

/// Text that must never be shown. It has no `Display`, and its `Debug` says nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// Why a secret cannot sign. Says nothing of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("is empty; put the provider's signing secret into the file")]
    Empty,
    #[error("starts with whsec_ but does not go on in base64; copy the whole secret again")]
    NotBase64,
}

/// Signs requests with one key, prepared once.
#[derive(Clone)]
pub(super) struct Signer(Hmac<Sha256>);

impl Signer {
    /// Takes the content of the secret's file: outer white space (an editor's last newline) is no part of it.
    pub(super) fn new(secret: &Secret) -> Result<Self, InvalidSecret> {
        let text = secret.0.trim();
        let key = match text.strip_prefix(BASE64_PREFIX) {
            Some(encoded) => {
                STANDARD_NO_PAD.decode(encoded.trim_end_matches('=')).map_err(|_| InvalidSecret::NotBase64)?
            }
            None => text.as_bytes().to_vec(),
        };
        if key.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        // HMAC takes keys of every length; the error type is for other algorithms.
        Hmac::new_from_slice(&key).map(Self).map_err(|_| InvalidSecret::Empty)
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &[u8], timestamp: &str, body: &[u8]) -> String {
        let mut mac = self.0.clone();
        for part in [id, b".", timestamp.as_bytes(), b".", body] {
            mac.update(part);
        }
        let mut value = String::with_capacity(48);
        value.push_str("v1,");
        STANDARD.encode_string(mac.finalize().into_bytes(), &mut value);
        value
    }

    /// `webhook-timestamp` and `webhook-signature`; `None` only if they were no header values, which digits and
    /// base64 always are.
    pub(super) fn headers(
        &self,
        id: &[u8],
        unix_seconds: u64,
        body: &[u8],
    ) -> Option<(HeaderValue, HeaderValue)> {
        let timestamp = unix_seconds.to_string();
        let signature = HeaderValue::try_from(self.sign(id, &timestamp, body)).ok()?;
        Some((HeaderValue::from(unix_seconds), signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standards_own_example_is_reproduced() {
        let signer = Signer::new(&Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")).expect("a secret");
        let body = br#"{"test": 2432232314}"#;
        assert_eq!(
            signer.sign(b"msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_plain_secret_is_its_own_key() {
        let signer = Signer::new(&Secret::new("key\n")).expect("a secret");
        // HMAC-SHA256("key", "a.1.b")
        assert_eq!(signer.sign(b"a", "1", b"b"), "v1,x5tOcy8TSmcrIlScag+jdQEcfzV2fwdz8mSFheg7RaQ=");
    }

    #[test]
    fn a_secret_is_never_shown_and_a_bad_one_is_named() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(***)");
        assert_eq!(Signer::new(&Secret::new(" \n")).err(), Some(InvalidSecret::Empty));
        assert_eq!(Signer::new(&Secret::new("whsec_")).err(), Some(InvalidSecret::Empty));
        assert_eq!(Signer::new(&Secret::new("whsec_a b")).err(), Some(InvalidSecret::NotBase64));
    }
}
