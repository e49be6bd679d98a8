//! One run of a command of the binary.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::eventually;

/// Killed when dropped. Its output is in files; the end of it is shown when the test fails.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub struct Ended {
    /// `None`: by a signal.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    /// Starts `command` with its output in `dir`, in files named after `name`.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Self {
        let stdout = dir.join(format!("{name}.out"));
        let stderr = dir.join(format!("{name}.log"));
        let open = |path: &Path| Stdio::from(File::create(path).expect("a log file can be made"));
        let child = command
            .stdin(Stdio::null())
            .stdout(open(&stdout))
            .stderr(open(&stderr))
            .spawn()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", command.get_program().display()));
        Self { child, name: name.to_owned(), stdout, stderr }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.exited().is_none()
    }

    fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be asked for its state")
    }

    /// SIGKILL, as a node that goes away.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// SIGTERM; [`Self::ended`] waits for what follows.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// SIGSTOP: alive for its sessions and connections, but it does nothing.
    pub fn pause(&self) {
        self.signal("STOP");
    }

    /// Whether it is stopped, by us or by itself.
    pub fn is_paused(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // `pid (name) state ...`, where the name may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill is there");
        assert!(status.success(), "SIG{name} did not reach {} (pid {pid})", self.name);
    }

    pub async fn ended(&mut self, limit: Duration) -> Ended {
        let what = format!("{} ends", self.name);
        let status = eventually(&what, limit, async || self.exited()).await;
        Ended { code: status.code(), signal: status.signal(), stdout: self.stdout(), stderr: self.stderr() }
    }

    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL reaches a paused process too. It may be gone already; nothing to say then.
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("--- end of {}\n{}", self.stderr.display(), tail(&self.stderr(), 40));
        }
    }
}

fn read(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last `lines` lines.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
