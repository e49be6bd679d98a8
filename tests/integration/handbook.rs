//! What the binary says of its own commands: completions and manual pages, without configuration or servers.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn reprise(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_reprise")).args(args).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn completions_of_every_shell_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(reprise(&["completions", shell]).stdout).expect("UTF-8");
        for word in ["redrive", "accept-gap", "manpage"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
}

#[test]
fn manual_pages_go_to_stdout_or_into_a_folder() {
    let page = String::from_utf8(reprise(&["manpage"]).stdout).expect("UTF-8");
    assert!(page.contains(".TH reprise 1") && page.contains("reprise\\-replay(1)"), "{page}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manpages");
    reprise(&["manpage", &folder.display().to_string()]);
    for name in ["reprise.1", "reprise-live.1", "reprise-replay-run.1", "reprise-dlq-redrive.1"] {
        let page = fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    fs::remove_dir_all(folder).expect("it can be removed");
}
