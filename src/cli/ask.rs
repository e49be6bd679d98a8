//! Asking before something dangerous.

use std::io::{IsTerminal as _, Write as _};

use super::failure::Failure;

/// Asks on the terminal. Where nobody can be asked the answer is no, with exit code 3.
pub fn confirm(question: &str) -> Result<(), Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::Refused(format!("{question} Nobody can be asked here; say so with --yes")));
    }
    write!(std::io::stderr(), "{question} [y/N] ")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes" | "s" | "S" | "sim") {
        Ok(())
    } else {
        Err(Failure::Refused("nothing was done".to_owned()))
    }
}
