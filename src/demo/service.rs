//! This very binary as the service: started, asked, stopped by its own process id.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::DemoError;
use super::place::Place;
use crate::domain::effect::Outcome;
use crate::metrics::EventResult;

/// Stopping includes finishing calls, committing and leaving the group.
const STOP_MAX: Duration = Duration::from_secs(30);

/// The demo's configuration, and how to run commands with it.
pub struct Service {
    config: PathBuf,
    log: PathBuf,
    port: u16,
}

/// What `live` counted, as its metrics say.
#[derive(Debug, Default)]
pub struct Numbers {
    pub events: Vec<(String, i64)>,
    pub effects: Vec<(String, i64)>,
    pub lag: u64,
}

impl Service {
    /// Writes the configuration into `dir`. It may hold a password: it is for its owner alone.
    pub fn new(dir: &Path, brokers: &str, place: &Place, provider: &str) -> std::io::Result<Self> {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let config = dir.join("reprise.toml");
        let text = configuration(brokers, place, provider);
        let mut file = std::fs::OpenOptions::new();
        file.write(true).create(true).truncate(true).mode(0o600).open(&config)?.write_all(text.as_bytes())?;
        Ok(Self { config, log: dir.join("service.log"), port })
    }

    pub fn config_path(&self) -> String {
        self.config.display().to_string()
    }

    pub fn log(&self) -> String {
        self.log.display().to_string()
    }

    fn command(&self, args: &[&str]) -> std::io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        // Overrides in the environment would beat the demo's own file.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("REPRISE_") {
                command.env_remove(name);
            }
        }
        command.arg("--config").arg(&self.config).args(args).stdin(Stdio::null()).kill_on_drop(true);
        Ok(command)
    }

    /// `live`, in the background, on a port of its own.
    pub fn live(&self) -> std::io::Result<Live> {
        self.start("live")
    }

    /// `all`: with the API of orders and the relay.
    pub fn all(&self) -> std::io::Result<Live> {
        self.start("all")
    }

    fn start(&self, command: &str) -> std::io::Result<Live> {
        let log = std::fs::File::create(&self.log)?;
        let child = self
            .command(&[command])?
            .env("REPRISE_HTTP__ENDERECO", format!("127.0.0.1:{}", self.port))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Live { child })
    }

    /// A command to its end, its JSON on stdout.
    pub async fn json(&self, args: &[&str]) -> Result<serde_json::Value, DemoError> {
        let output = self.command(args)?.args(["--output", "json"]).output().await?;
        let failed = |words: String| DemoError::Command(args.join(" "), words);
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
    }

    /// Records committed so far, over all partitions.
    pub async fn committed(&self) -> Option<u64> {
        let metrics = self.metrics().await?;
        Some(sum(&metrics, "reprise_particao_confirmado{"))
    }

    /// What the service counted; `None` if it does not say.
    pub async fn numbers(&self) -> Option<Numbers> {
        let metrics = self.metrics().await?;
        let by = |family: &str, label: &str, words: &[&str]| -> Vec<(String, i64)> {
            let counts = words.iter().map(|word| {
                let wanted = format!("{label}=\"{word}\"");
                let mine = |line: &&str| {
                    line.starts_with(family)
                        && line.contains("execucao=\"ao-vivo\"")
                        && line.contains(&wanted)
                };
                ((*word).to_owned(), whole(metrics.lines().filter(mine)).cast_signed())
            });
            counts.filter(|(_, count)| *count > 0).collect()
        };
        Some(Numbers {
            events: by("reprise_eventos_total{", "resultado", &EventResult::ALL.map(EventResult::as_str)),
            effects: by("reprise_efeitos_total{", "desfecho", &Outcome::ALL.map(Outcome::as_str)),
            lag: sum(&metrics, "reprise_particao_lag{"),
        })
    }

    /// Is it ready for work?
    pub async fn ready(&self) -> bool {
        let url = format!("http://127.0.0.1:{}/readyz", self.port);
        reqwest::get(url).await.is_ok_and(|answer| answer.status().is_success())
    }

    /// A command on orders, through the API.
    pub async fn command_on(
        &self,
        path: &str,
        key: &str,
        body: &serde_json::Value,
    ) -> Result<serde_json::Value, DemoError> {
        let failed = |words: String| DemoError::Command(format!("POST /api/v1/orders{path}"), words);
        let url = format!("http://127.0.0.1:{}/api/v1/orders{path}", self.port);
        let request =
            reqwest::Client::new().post(url).header("Idempotency-Key", key).header("X-Actor", "demo");
        let answer = request.json(body).send().await.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| failed(error.to_string()))?;
        if !status.is_success() {
            return Err(failed(format!("{status}: {text}")));
        }
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    async fn metrics(&self) -> Option<String> {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let answer = reqwest::get(url).await.ok()?;
        answer.text().await.ok()
    }
}

fn sum(metrics: &str, prefix: &str) -> u64 {
    whole(metrics.lines().filter(|line| line.starts_with(prefix)))
}

/// The values of the lines, added up.
fn whole<'a>(lines: impl Iterator<Item = &'a str>) -> u64 {
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts of a demo")]
    let total = values.sum::<f64>().max(0.0) as u64;
    total
}

/// `reprise.toml` of the demo. Values are written by the writer of the format: a password may hold a quotation mark.
fn configuration(brokers: &str, place: &Place, provider: &str) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let (brokers, provider) = (quoted(brokers), quoted(provider));
    let (topic, dlq, group) =
        (quoted(&place.names.topic), quoted(&place.names.dlq), quoted(&place.names.group));
    let postgres = quoted(&place.database_url);
    let (events, events_dlq) = (quoted(&place.names.events), quoted(&place.names.events_dlq));
    let windows = quoted(&format!("{}-windows", place.names.group));
    let saga_effects = saga_effects(&provider);
    // The address is the usual one, for whoever runs `live` with this file afterwards.
    format!(
        r#"# Written by `reprise demo`: its own topics, group and database.
[kafka]
brokers = {brokers}
topico = {topic}
grupo = {group}
topico_dlq = {dlq}

[kafka.propriedades]
"session.timeout.ms" = "6000"

[postgres]
url = {postgres}

[http]
endereco = "127.0.0.1:9464"

[orders]
topic = {events}
dlq_topic = {events_dlq}
format = "json"

[efeitos.notificar-vendedor]
url = {provider}
ao_falhar = "manter"
prazo = "2s"
reserva = "5s"
concorrencia = 64

[windows]
group = {windows}
{saga_effects}"#
    )
}

/// The effects of a saga, at the same provider.
fn saga_effects(provider: &str) -> String {
    crate::saga::machine::EFFECTS
        .map(|effect| {
            format!("\n[efeitos.{effect}]\nurl = {provider}\nao_falhar = \"manter\"\nprazo = \"2s\"\nreserva = \"5s\"\n")
        })
        .concat()
}

/// A running `live`. Dropped, it is killed: the demo leaves nothing behind.
pub struct Live {
    child: Child,
}

impl Live {
    pub fn has_ended(&mut self) -> std::io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// SIGTERM, and its orderly end.
    pub async fn stop(mut self) -> Result<(), DemoError> {
        if let Some(pid) = self.child.id() {
            Command::new("kill").args(["-TERM", &pid.to_string()]).status().await?;
        }
        let ended = tokio::time::timeout(STOP_MAX, self.child.wait()).await;
        match ended {
            Ok(status) if status.as_ref().is_ok_and(std::process::ExitStatus::success) => Ok(()),
            Ok(status) => Err(DemoError::Expectation(format!("an orderly stop ended with {status:?}"))),
            Err(_) => Err(DemoError::Expectation(format!("the service did not stop within {STOP_MAX:?}"))),
        }
    }
}
