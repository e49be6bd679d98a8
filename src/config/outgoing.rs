//! `[http_saida]`: where providers may be.
//!
//! With `permitidos` an effect whose `url` points elsewhere is refused at start. Nothing else is called: redirects are
//! never followed, so the configured address is the only one. Names are compared, not the addresses they resolve to.

use std::fmt;

use url::{Host, Url};

use super::Effect;
use super::reader::Reader;
use super::schema::{EFFECTS, keys_of};

/// A host that may be called: `api.example`, `*.example` (any name below it), either with `:port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    name: String,
    below: bool,
    /// `None`: every port.
    port: Option<u16>,
}

impl AllowedHost {
    fn parse(text: &str) -> Option<Self> {
        let (below, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        let (name, port) = match rest.rsplit_once(':') {
            // A bare IPv6 address has colons of its own.
            Some((name, port)) if !rest.ends_with(']') => (name, Some(port.parse().ok()?)),
            _ => (rest, None),
        };
        let name = Host::parse(name).ok()?.to_string();
        Some(Self { name, below, port })
    }

    fn admits(&self, url: &Url) -> bool {
        let Some(host) = url.host_str() else { return false };
        let named = if self.below {
            host.strip_suffix(self.name.as_str()).is_some_and(|front| front.len() > 1 && front.ends_with('.'))
        } else {
            host == self.name
        };
        named && self.port.is_none_or(|port| url.port_or_known_default() == Some(port))
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let below = if self.below { "*." } else { "" };
        write!(f, "{below}{}", self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// `None` where nothing is restricted.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Vec<AllowedHost>> {
    let mut section = reader.section("http_saida", keys_of("http_saida"));
    let texts = section.texts("permitidos")?;
    let mut hosts = Vec::with_capacity(texts.len());
    for text in texts {
        match AllowedHost::parse(&text) {
            Some(host) => hosts.push(host),
            None => section.reject(
                "permitidos",
                format!("{text:?} is not a host"),
                "write provider.example, *.provider.example or provider.example:8443",
            ),
        }
    }
    Some(hosts)
}

/// Every provider must be where it may be.
pub(super) fn check(reader: &mut Reader<'_>, allowed: Option<&[AllowedHost]>, effects: &[Effect]) {
    let Some(allowed) = allowed else { return };
    for effect in effects {
        let Ok(url) = Url::parse(&effect.url) else { continue };
        if !allowed.iter().any(|host| host.admits(&url)) {
            let host = url.host_str().unwrap_or_default();
            let what = format!("{host} is not among http_saida.permitidos");
            let remedy = format!("add {host:?} to http_saida.permitidos, or correct the address");
            reader.problem(&format!("{EFFECTS}.{}.url", effect.policy.name), what, remedy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(allowed: &str, url: &str) -> bool {
        let allowed = AllowedHost::parse(allowed).expect("a host");
        allowed.admits(&Url::parse(url).expect("an address"))
    }

    #[test]
    fn a_host_admits_itself_and_a_star_what_is_below() {
        for (allowed, url, expected) in [
            ("api.example", "https://api.example/x", true),
            ("API.example", "https://api.EXAMPLE/x", true),
            ("api.example", "https://api.example.evil/x", false),
            ("api.example", "https://b.api.example/x", false),
            ("api.example", "https://api.example@evil/x", false),
            ("*.example", "https://a.b.example/x", true),
            ("*.example", "https://example/x", false),
            ("*.example", "https://evilexample/x", false),
            ("api.example:443", "https://api.example/x", true),
            ("api.example:443", "http://api.example/x", false),
            ("127.0.0.1:9000", "http://127.0.0.1:9000/x", true),
            ("127.0.0.1", "http://2130706433/x", true),
            ("[::1]", "http://[::1]:8080/x", true),
        ] {
            assert_eq!(admits(allowed, url), expected, "{allowed} {url}");
        }
        for text in ["", "*.", "a b", "host:port", "http://host"] {
            assert_eq!(AllowedHost::parse(text), None, "{text}");
        }
    }
}
