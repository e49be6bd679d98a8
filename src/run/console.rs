//! The console beside a run, or alone.
//!
//! Alone (`reprise console`) it consumes nothing and calls nobody: it reads the database and Kafka, and starts commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::parts::{self, Parts};
use super::{RunError, Signals};
use crate::config::Config;
use crate::domain::effect::Run;
use crate::health::{Health, Partitions};
use crate::ops::console::commands::Commands;
use crate::ops::console::{Console, Ground, samples};
use crate::ops::http::Admin;
use crate::ops::probe::watch_database;
use crate::pg::schema;

/// Requests that run when it is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// The console of a process with these parts. `config_file`: what its commands are to be given, if it was given one.
pub fn of(config: &Config, parts: &Parts, config_file: Option<PathBuf>) -> Result<Console, RunError> {
    Ok(Console::new(Ground {
        kafka: config.kafka.clone(),
        policies: parts.policies.clone(),
        database: parts.database.clone(),
        orders: super::orders::desk(config, parts.database.clone()),
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        token: parts::admin_token(config)?,
        commands: Commands::new(config_file),
    }))
}

/// Serves the console alone until it is told to stop.
pub async fn serve(config: &Config, config_file: Option<PathBuf>) -> Result<(), RunError> {
    let mut signals = Signals::listen()?;
    let mut parts = Parts::build(config, Run::live())?;
    let names: Vec<String> = parts.policies.iter().map(|(_, policy)| policy.name.clone()).collect();
    parts.health = Health::new(Run::live(), names.iter().map(String::as_str), Partitions::NotUsed);
    schema::check(&parts.database).await?;
    let stop = CancellationToken::new();
    let console = of(config, &parts, config_file)?;
    let admin = Admin {
        address: config.http.address,
        token: parts::admin_token(config)?,
        drain: DRAIN,
        health: parts.health.clone(),
        metrics: Arc::clone(&parts.metrics),
        protected: axum::Router::new(),
        console: console.router(),
        runtime: tokio::runtime::Handle::current(),
    };
    let server = admin.start(stop.clone())?;
    tracing::info!(endereco = %format!("http://{}/console", server.address()), "the console is open");
    let mut background = JoinSet::new();
    background.spawn(samples::look(console, stop.clone()));
    let (database, health, until) = (parts.database.clone(), parts.health.clone(), stop.clone());
    background.spawn(async move {
        let ping = || {
            let database = database.clone();
            async move { database.ping().await }
        };
        watch_database(health, until, ping).await;
    });
    let ended = server.ended();
    tokio::pin!(ended);
    tokio::select! {
        ended = &mut ended => {
            ended?;
            return Err(RunError::TaskLost("admin listener"));
        }
        Some(_) = background.join_next() => return Err(RunError::TaskLost("console")),
        () = signals.next() => {}
    }
    stop.cancel();
    Ok(ended.await?)
}
