//! The providers: whether something listens there. Nothing is sent, for a request could be an effect.

use std::time::Duration;

use futures::future::join_all;
use tokio::net::TcpStream;
use url::Url;

use super::Check;
use crate::config::Effect;
use crate::domain::effect::Mode;

pub(super) async fn check(effects: &[Effect], limit: Duration) -> Vec<Check> {
    if effects.is_empty() {
        let remedy = "add [efeitos.<name>] for every call that an event should make";
        return vec![Check::warn("effects", "none is configured: only commissions are kept", remedy)];
    }
    join_all(effects.iter().map(|effect| provider(effect, limit))).await
}

async fn provider(effect: &Effect, limit: Duration) -> Check {
    let what = format!("provider of {}", effect.policy.name);
    let Some((host, port)) = address(&effect.url) else {
        return Check::fail(what, "its url names no host", "correct the url");
    };
    let connected = tokio::time::timeout(limit, TcpStream::connect((host.as_str(), port))).await;
    let why = match connected {
        Ok(Ok(_)) => return Check::ok(what, format!("{host}:{port} accepts connections (nothing was sent)")),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {}", humantime::format_duration(limit)),
    };
    let detail = format!("{host}:{port}: {why}");
    match effect.policy.mode {
        Mode::Apply => {
            Check::fail(what, detail, "check the url and the network; effects wait until it is there")
        }
        Mode::Suppress => Check::warn(what, detail, "nothing is called while modo = suprimir"),
    }
}

/// Host and port to connect to; an IPv6 address without its brackets.
fn address(url: &str) -> Option<(String, u16)> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, url.port_or_known_default()?))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;
    use crate::config::Config;

    async fn checked(port: u16, mode: &str) -> Check {
        let text = format!(
            "[kafka]\nbrokers = \"127.0.0.1:1\"\n[postgres]\nurl = \"postgres://127.0.0.1/x\"\n\
             [efeitos.a]\nurl = \"http://127.0.0.1:{port}/\"\nmodo = \"{mode}\"\n"
        );
        let (config, _) = Config::from_text(&text, std::iter::empty()).expect("valid");
        check(&config.effects, Duration::from_secs(5)).await.remove(0)
    }

    #[tokio::test]
    async fn a_provider_is_reached_without_sending_a_byte() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let check = checked(port, "aplicar").await;
        assert_eq!((check.status, check.subject.as_str()), (Status::Ok, "provider of a"));
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut received = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut received).await.expect("closed");
        assert_eq!(received, b"");
        drop((stream, listener));
        assert_eq!(checked(port, "aplicar").await.status, Status::Fail);
        assert_eq!(checked(port, "suprimir").await.status, Status::Warn);
    }

    #[test]
    fn ports_and_ipv6_addresses_are_understood() {
        assert_eq!(address("https://p.example/x"), Some(("p.example".to_owned(), 443)));
        assert_eq!(address("http://[::1]:81/"), Some(("::1".to_owned(), 81)));
    }
}
