//! `doctor`: everything the service needs, looked at without changing anything or calling a provider.
//!
//! Each line is a fact with a verdict and, unless it is `ok`, a remedy. `warn` works, but not as people usually
//! mean it; `fail` keeps the service from working safely, and makes the exit code 1. All checks run, whatever
//! the others say. Gathering facts (`stream::admin`, `pg::doctor`) is apart from judging them (the files here).

mod kafka;
mod outbox;
mod postgres;
mod providers;

use std::time::Duration;

use serde::Serialize;

use super::args::duration;
use super::context::Context;
use super::failure::Failure;
use super::output::Row;
use crate::config::Http;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long each server may take to answer
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    #[serde(rename = "check")]
    subject: String,
    status: Status,
    detail: String,
    /// Empty where nothing is to be done.
    remedy: String,
}

impl Row for Check {
    const COLUMNS: &'static [&'static str] = &["check", "status", "detail", "remedy"];
}

impl Check {
    fn ok(subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { subject: subject.into(), status: Status::Ok, detail: detail.into(), remedy: String::new() }
    }

    fn warn(subject: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject: subject.into(), status: Status::Warn, detail: detail.into(), remedy: remedy.into() }
    }

    fn fail(subject: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { subject: subject.into(), status: Status::Fail, detail: detail.into(), remedy: remedy.into() }
    }
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let limit = args.timeout;
    let broker = config.kafka.clone();
    let asking = tokio::task::spawn_blocking(move || kafka::Facts::gather(&broker, limit));
    let (of_kafka, of_postgres, of_providers) = tokio::join!(
        asking,
        postgres::check(&config.postgres, limit),
        providers::check(&config.effects, limit)
    );
    let mut checks = kafka::judge(&of_kafka?, &config.kafka);
    checks.extend(of_postgres);
    checks.extend(outbox::check(&config, limit).await);
    checks.extend(of_providers);
    checks.push(token(&config.http));
    context.output.rows(&checks)?;
    match checks.iter().filter(|check| check.status == Status::Fail).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 check failed")),
        failed => Err(Failure::failed(format!("{failed} checks failed"))),
    }
}

/// That the file can be read was checked with the configuration.
fn token(http: &Http) -> Check {
    if http.token.is_some() {
        return Check::ok("http token", format!("the token for {} can be read", http.address));
    }
    Check::warn(
        "http token",
        "there is none: requests that change or show business data are refused",
        "set http.token_arquivo, if they are to be used",
    )
}
