//! Asking before something dangerous, and showing how far long work is.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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

/// A bar on a terminal; elsewhere nothing is drawn, and the caller logs a line now and then.
pub fn progress_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len}  {per_sec}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
