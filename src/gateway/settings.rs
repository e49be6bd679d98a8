//! One provider's settings, checked before the first call.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderValue;

use super::answer::Override;
use super::signature::{InvalidSecret, Secret};

/// A deadline beyond this is a mistake of units: a call holds a slot, its order and its partition's offset.
pub const DEADLINE_MAX: Duration = Duration::from_hours(1);

/// Transport settings of one effect type: `[efeitos.<name>]`.
#[derive(Clone)]
pub struct ProviderSettings {
    /// `tipo_efeito`, for errors.
    pub name: String,
    /// `url`; may carry a key in its query, so it is never shown.
    pub url: String,
    /// `prazo`: the whole call, connect to last byte.
    pub deadline: Duration,
    /// `concorrencia`: so many connections are kept.
    pub slots: usize,
    /// `respostas`
    pub answers: BTreeMap<u16, Override>,
    /// Content of `assinatura_arquivo`.
    pub signature_secret: Option<Secret>,
    /// Content of `ca_arquivo`: the only authorities that may vouch for the provider; else the public ones.
    pub authorities_pem: Option<String>,
}

/// A setting no call could be made with. Names the key and the remedy, never a value that may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("efeitos.{provider}.{problem}")]
pub struct InvalidProvider {
    pub provider: String,
    pub problem: InvalidSetting,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSetting {
    #[error("url is not an address; write http://host/path or https://host/path")]
    Url,
    #[error("url has no http or https scheme, or no host; write http://host/path or https://host/path")]
    UrlScheme,
    #[error("url carries a user or a password, which is not sent; take it out and use assinatura_arquivo")]
    UrlCredentials,
    #[error("prazo must be above 0 and at most 1h")]
    Deadline,
    #[error("respostas has status {0}; only 200 to 599 end a call")]
    Status(u16),
    #[error("assinatura_arquivo {0}")]
    Secret(#[from] InvalidSecret),
    #[error("ca_arquivo cannot be used: {0}; name a PEM file with the authority's certificate")]
    Authorities(String),
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

/// Where requests go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) uri: Uri,
    pub(super) host: HeaderValue,
}

impl ProviderSettings {
    pub(super) fn target(&self) -> Result<Target, InvalidSetting> {
        let uri: Uri = self.url.parse().map_err(|_| InvalidSetting::Url)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(InvalidSetting::UrlScheme);
        }
        let authority = uri.authority().ok_or(InvalidSetting::UrlScheme)?;
        if authority.as_str().contains('@') {
            return Err(InvalidSetting::UrlCredentials);
        }
        if authority.host().is_empty() {
            return Err(InvalidSetting::UrlScheme);
        }
        let default_port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let host = match authority.port_u16() {
            Some(port) if port != default_port => HeaderValue::from_str(authority.as_str()),
            _ => HeaderValue::from_str(authority.host()),
        };
        Ok(Target { host: host.map_err(|_| InvalidSetting::Url)?, uri })
    }

    pub(super) fn check_limits(&self) -> Result<(), InvalidSetting> {
        if self.deadline.is_zero() || self.deadline > DEADLINE_MAX {
            return Err(InvalidSetting::Deadline);
        }
        match self.answers.keys().find(|status| !(200..=599).contains(*status)) {
            Some(&status) => Err(InvalidSetting::Status(status)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::gateway) fn provider(url: impl Into<String>) -> ProviderSettings {
        ProviderSettings {
            name: "notificar-vendedor".to_owned(),
            url: url.into(),
            deadline: Duration::from_secs(5),
            slots: 4,
            answers: BTreeMap::new(),
            signature_secret: None,
            authorities_pem: None,
        }
    }

    #[test]
    fn an_address_that_cannot_be_called_is_refused_without_showing_it() {
        let problem = |url: &str| provider(url).target().err().map(|problem| problem.to_string());
        for url in ["/notificar", "ftp://host/", "host:9000"] {
            assert!(problem(url).is_some_and(|text| text.contains("http or https scheme")), "{url}");
        }
        assert!(problem("http://a b/").is_some_and(|text| text.starts_with("url is not an address")));
        assert!(problem("http://u:hunter2@host/").is_some_and(|text| !text.contains("hunter2")));
        assert_eq!(problem("https://host/path?key=1"), None);
    }

    #[test]
    fn the_host_header_names_the_port_only_where_it_is_unusual() {
        let host = |url: &str| provider(url).target().expect("a target").host;
        assert_eq!(host("http://host:9000/x"), "host:9000");
        assert_eq!(host("http://host:80/x"), "host");
        assert_eq!(host("https://host:443"), "host");
        assert_eq!(host("https://[::1]:8443/"), "[::1]:8443");
    }

    #[test]
    fn limits_are_checked() {
        let mut settings = provider("http://host/");
        assert_eq!(settings.check_limits(), Ok(()));
        settings.answers.insert(102, Override::Done);
        assert_eq!(settings.check_limits(), Err(InvalidSetting::Status(102)));
        settings.deadline = Duration::MAX;
        assert_eq!(settings.check_limits(), Err(InvalidSetting::Deadline));
    }
}
