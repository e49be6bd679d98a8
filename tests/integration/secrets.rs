//! What is secret stays out of everything a person or a collector reads, whatever goes wrong.

use std::fs;

use crate::support::{LATER, Setup, World, until};

/// Part of every secret of the case, and of nothing else.
const MARK: &str = "s3nha";

/// A world in which every place that can hold a secret holds one.
async fn full_of_secrets() -> World {
    let mut world = World::bare(Setup::default()).await;
    let file = |name: &str, text: &str| {
        let path = world.dir().join(name);
        fs::write(&path, text).expect("a secret file");
        path.display().to_string()
    };
    let token = file("token", "s3nha-token");
    let signing = file("signing", "whsec_czNuaGEtYXNzaW5hdHVyYQ==");
    let provider = format!("{}?key=s3nha-key", world.provider.url());
    // Nobody listens there.
    world.set(&["postgres", "url"], "postgres://ana:s3nha-pg@127.0.0.1:9/reprise?password=s3nha-query");
    world.set(&["http", "token_arquivo"], token);
    world.set(&["kafka", "registro_url"], "http://k:s3nha-registry@127.0.0.1:9");
    world.set(&["kafka", "propriedades", "sasl.username"], "ana");
    world.set(&["kafka", "propriedades", "sasl.mechanism"], "PLAIN");
    world.set(&["kafka", "propriedades", "sasl.password"], "s3nha-kafka");
    world.set(&["kafka", "propriedades", "security.protocol"], "SASL_PLAINTEXT");
    world.set(&["efeitos", "notificar-vendedor", "url"], provider);
    world.set(&["efeitos", "notificar-vendedor", "assinatura_arquivo"], signing);
    world
}

fn assert_silent(what: &str, text: &str) {
    for secret in [MARK, "czNuaGEt"] {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{what} tells a secret");
    }
}

#[tokio::test]
async fn no_command_tells_a_secret_in_results_logs_or_errors() {
    let world = full_of_secrets().await;
    for (args, code) in [
        (vec!["config", "show"], 0),
        (vec!["config", "show", "--output", "json"], 0),
        (vec!["config", "check"], 0),
        (vec!["migrate"], 1),
        (vec!["doctor", "--timeout", "2s"], 1),
        (vec!["effects", "list"], 1),
        (vec!["replay", "plan", "--id", "replay-s", "--from", "2026-10-14T00:00:00Z"], 1),
    ] {
        let mut command = world.command(&args);
        command.env("REPRISE_LOG", "debug");
        let ended = world.spawn(command).ended(LATER).await;
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert_silent(&format!("{args:?} on stdout"), &ended.stdout);
        assert_silent(&format!("{args:?} on stderr"), &ended.stderr);
    }
}

#[tokio::test]
async fn live_tells_no_secret_while_nothing_it_needs_can_be_reached() {
    let world = full_of_secrets().await;
    let mut command = world.command(&["live"]);
    command.env("REPRISE_LOG", "debug");
    let mut live = world.spawn(command);
    until("live waits for the database", LATER, async || {
        live.stderr().contains("the database cannot be reached")
    })
    .await;
    for path in ["/status", "/readyz", "/metrics"] {
        assert_silent(path, &world.get(path).await.expect("an answer").body);
    }
    live.terminate();
    let ended = live.ended(LATER).await;
    assert_silent("live", &format!("{}{}", ended.stdout, ended.stderr));
}

#[tokio::test]
async fn a_setting_that_is_refused_is_not_repeated_where_it_may_be_secret() {
    let mut world = full_of_secrets().await;
    world.set(&["postgres", "url"], "postgres://ana:s3nha-pg@127.0.0.1:port/reprise");
    world.set(&["kafka", "registro_url"], "s3nha-registry");
    world.set(&["efeitos", "notificar-vendedor", "url"], "http://ana:s3nha-user@127.0.0.1/");
    let ended = world.try_cli(&["config", "check"]).await;
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    for key in ["postgres.url", "kafka.registro_url", "efeitos.notificar-vendedor.url"] {
        assert!(ended.stderr.contains(key), "{}", ended.stderr);
    }
    assert_silent("config check", &format!("{}{}", ended.stdout, ended.stderr));
}
