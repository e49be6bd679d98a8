//! The console works by the commands of the same binary: one road, whoever walks it.
//!
//! What takes long or changes much (a plan, a dry run, a replay, a redrive, a decision that sends) is a process of its
//! own, as if it had been typed: the same checks, refusals and exit codes, a memory and connection budget of its own,
//! signals of its own. A replay so begun goes on when the console ends (test
//! `a_replay_begun_over_http_outlives_the_process_that_began_it`); where the whole container ends, anybody resumes it.
//! Nothing passes through a shell, and every value is bound to its option (`--id=...`).

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::ops::problem::Problem;

/// Commands that answer while the browser waits. Below the limit of every request.
const ANSWER_MAX: Duration = Duration::from_secs(25);
/// Commands at once; each is a process with connections of its own.
const AT_ONCE: usize = 8;
/// Lines of a command's words that are kept for its refusal.
const LINES_KEPT: usize = 40;
/// Answers are a few kilobytes; a diff is streamed and not kept.
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;

/// How to run the commands of this binary.
#[derive(Clone)]
pub struct Commands {
    program: PathBuf,
    config: Option<PathBuf>,
    slots: Arc<Semaphore>,
}

/// What a command said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub code: i32,
    pub answer: String,
    pub refusal: String,
}

impl Commands {
    /// `config`: the file that this process was told to use, if it was told one.
    pub fn new(config: Option<PathBuf>) -> Self {
        // Through /proc also after the file was replaced by an upgrade: the same program as this one.
        let own = PathBuf::from("/proc/self/exe");
        let program =
            if own.exists() { own } else { std::env::current_exe().unwrap_or_else(|_| "reprise".into()) };
        Self { program, config, slots: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Begins a command. It ends when it ends, whoever still listens.
    fn spawn(&self, args: &[String]) -> Result<(Child, OwnedSemaphorePermit), Problem> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| {
            let text = format!("{AT_ONCE} commands of this console are running; wait for one to end");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", text)
        })?;
        let mut command = Command::new(&self.program);
        command.arg0("reprise");
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C at the console's terminal is not for it.
        command.process_group(0);
        let child = command.spawn().map_err(|error| {
            tracing::error!(%error, "a command of the console does not start");
            Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                format!("the command does not start: {error}"),
            )
        })?;
        Ok((child, slot))
    }

    /// What the command says once it has ended, however long that takes.
    pub async fn to_the_end(&self, args: &[String]) -> Result<Said, Problem> {
        let (child, slot) = self.spawn(args)?;
        watch(child, slot, args.get(..2).unwrap_or_default().join(" "))
            .await
            .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the command was lost"))
    }

    /// What the command says once it has ended; `None` if it goes on.
    pub async fn run(&self, args: &[String], patience: Duration) -> Result<Option<Said>, Problem> {
        let (child, slot) = self.spawn(args)?;
        let ended = watch(child, slot, args.get(..2).unwrap_or_default().join(" "));
        match tokio::time::timeout(patience.min(ANSWER_MAX), ended).await {
            Ok(Ok(said)) => Ok(Some(said)),
            Ok(Err(_)) => {
                Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the command was lost"))
            }
            Err(_) => Ok(None),
        }
    }

    /// The JSON that a command answers with; a refusal is a problem.
    pub async fn json(&self, mut args: Vec<String>) -> Result<Value, Problem> {
        args.push("--output=json".to_owned());
        let said = self.run(&args, ANSWER_MAX).await?.ok_or_else(|| {
            let text = "the command goes on in the background; look at its result in a while";
            Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", text)
        })?;
        let answer = serde_json::from_str(&said.answer);
        match (said.code, answer) {
            // With 1, 'some came back' is an answer, too.
            (0 | 1, Ok(answer)) => Ok(answer),
            _ => Err(said.problem()),
        }
    }

    /// What a command writes, as it writes it.
    pub fn stream(&self, args: &[String]) -> Result<Body, Problem> {
        let (mut child, slot) = self.spawn(args)?;
        let (out, body) = mpsc::channel::<Result<Bytes, std::io::Error>>(4);
        let stdout = child.stdout.take();
        tokio::spawn(async move {
            if let Some(mut stdout) = stdout {
                let mut chunk = vec![0; CHUNK];
                while let Ok(read @ 1..) = stdout.read(&mut chunk).await {
                    if out.send(Ok(Bytes::copy_from_slice(&chunk[..read]))).await.is_err() {
                        break;
                    }
                }
            }
            let said = watch(child, slot, "stream".to_owned()).await;
            if let Ok(said) = said
                && said.code != 0
            {
                // The head was sent long ago: a body that breaks off is how the reader learns of it.
                let broken = std::io::Error::other(said.refusal);
                out.send(Err(broken))
                    .await
                    .unwrap_or_else(|_| tracing::debug!("the reader of a download left"));
            }
        });
        Ok(Body::from_stream(futures::stream::unfold(body, async |mut body| {
            body.recv().await.map(|chunk| (chunk, body))
        })))
    }
}

impl Said {
    /// The refusal as a problem: exit codes are the contract of the commands.
    pub fn problem(&self) -> Problem {
        let (status, code) = match self.code {
            2 => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            3 => (StatusCode::CONFLICT, "refused"),
            4 => (StatusCode::CONFLICT, "lost"),
            _ => (StatusCode::BAD_GATEWAY, "failed"),
        };
        let text = if self.refusal.is_empty() { "the command failed without a word" } else { &self.refusal };
        Problem::new(status, code, text.to_owned())
    }
}

/// Follows a command to its end in a task of its own, so that its pipes stay open whoever stops waiting.
fn watch(mut child: Child, slot: OwnedSemaphorePermit, name: String) -> oneshot::Receiver<Said> {
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (answer, refusal) = tokio::join!(whole(stdout), last_words(stderr));
        let code = child.wait().await.ok().and_then(|status| status.code()).unwrap_or(1);
        drop(slot);
        if code != 0 {
            tracing::warn!(comando = name, code, "a command of the console ended: {refusal}");
        }
        if tell.send(Said { code, answer, refusal }).is_err() {
            tracing::debug!(comando = name, code, "nobody waits for this command any more");
        }
    });
    told
}

async fn whole(out: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(out) = out
        && let Err(error) = out.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await
    {
        tracing::warn!(%error, "the answer of a command was not read to its end");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What it said against it: from the line that begins with the program's name.
async fn last_words(err: Option<impl AsyncRead + Unpin>) -> String {
    let Some(err) = err else { return String::new() };
    let (mut lines, mut kept) = (BufReader::new(err).lines(), std::collections::VecDeque::new());
    while let Ok(Some(line)) = lines.next_line().await {
        if kept.len() == LINES_KEPT {
            kept.pop_front();
        }
        tracing::debug!(linha = line, "a command of the console says");
        kept.push_back(line);
    }
    let kept: Vec<String> = kept.into();
    let from = kept.iter().rposition(|line| line.starts_with("reprise: ") || line.starts_with("error: "));
    let words = from.and_then(|from| kept.get(from..)).unwrap_or_default().join("\n");
    words.trim_start_matches("reprise: ").trim_start_matches("error: ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refusal_is_told_without_the_log_before_it() {
        let log = "2026-10-14 WARN something\nreprise: replay-x was cancelled;\ngive a new one an id\n";
        let words = last_words(Some(log.as_bytes())).await;
        assert_eq!(words, "replay-x was cancelled;\ngive a new one an id");
        assert_eq!(last_words(Some("INFO all is well\n".as_bytes())).await, "");
    }

    #[test]
    fn exit_codes_are_statuses() {
        let status =
            |code| Said { code, answer: String::new(), refusal: "no".to_owned() }.problem().status.as_u16();
        assert_eq!([1, 2, 3, 4].map(status), [502, 422, 409, 409]);
    }
}
