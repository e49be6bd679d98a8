//! Servers that a case starts for itself.

use std::path::PathBuf;
use std::process::Command;

/// A command that refuses to run as root, run as the user that the packages bring.
pub fn as_postgres(program: impl Into<PathBuf>) -> Command {
    let program = program.into();
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    if !is_root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    command
}

pub fn port_of(url: &str) -> u16 {
    url::Url::parse(url).ok().and_then(|url| url.port()).expect("an address with a port")
}

/// A program of the newest Postgres that is installed.
pub fn postgres_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("Debian's Postgres (make deps)");
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .collect();
    found.sort();
    found.pop().expect("a Postgres").1.join("bin").join(name)
}
