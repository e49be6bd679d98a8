//! This very binary as the service: started, asked, stopped by its own process id.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

use super::{DLQ, DemoError, TOPIC};

/// Stopping includes finishing calls, committing and leaving the group.
const STOP_MAX: Duration = Duration::from_secs(30);

/// The demo's configuration, and how to run commands with it.
pub struct Service {
    config: PathBuf,
    log: PathBuf,
    port: u16,
}

impl Service {
    pub fn new(
        dir: &Path,
        brokers: &str,
        postgres: &str,
        group: &str,
        provider: &str,
    ) -> std::io::Result<Self> {
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let config = dir.join("reprise.toml");
        // The port in the file is the usual one, for whoever runs `live` with it afterwards.
        let text = format!(
            r#"# Written by `reprise demo`: its own topics, group and database.
[kafka]
brokers = "{brokers}"
topico = "{TOPIC}"
grupo = "{group}"
topico_dlq = "{DLQ}"

[kafka.propriedades]
"session.timeout.ms" = "6000"

[postgres]
url = "{postgres}"

[http]
endereco = "127.0.0.1:9464"

[efeitos.notificar-vendedor]
url = "{provider}"
ao_falhar = "manter"
prazo = "2s"
reserva = "5s"
concorrencia = 64
"#
        );
        std::fs::write(&config, text)?;
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
        let log = std::fs::File::create(&self.log)?;
        let child = self
            .command(&["live"])?
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

    /// Effects by outcome, as the service counted them.
    pub async fn outcomes(&self) -> Vec<(String, i64)> {
        let metrics = self.metrics().await.unwrap_or_default();
        let mut rows = Vec::new();
        for outcome in crate::domain::effect::Outcome::ALL {
            let label = format!("desfecho=\"{}\"", outcome.as_str());
            let lines = metrics.lines().filter(|line| {
                line.starts_with("reprise_efeitos_total{")
                    && line.contains(&label)
                    && line.contains("ao-vivo")
            });
            let count: f64 = lines.filter_map(value).sum();
            if count > 0.0 {
                #[expect(clippy::cast_possible_truncation, reason = "counts of a demo")]
                rows.push((outcome.as_str().to_owned(), count as i64));
            }
        }
        rows
    }

    async fn metrics(&self) -> Option<String> {
        let url = format!("http://127.0.0.1:{}/metrics", self.port);
        let answer = reqwest::get(url).await.ok()?;
        answer.text().await.ok()
    }
}

fn value(line: &str) -> Option<f64> {
    line.rsplit_once(' ').and_then(|(_, value)| value.parse().ok())
}

fn sum(metrics: &str, prefix: &str) -> u64 {
    let total: f64 = metrics.lines().filter(|line| line.starts_with(prefix)).filter_map(value).sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "offsets of a demo")]
    let total = total.max(0.0) as u64;
    total
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
