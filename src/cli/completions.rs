//! `completions`: a script that teaches a shell the commands and options, made from their definition.

use std::io::Write as _;

use clap_complete::Shell;

use super::failure::Failure;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

pub fn run(args: &Args, definition: &mut clap::Command) -> Result<(), Failure> {
    // In memory first: writing to a closed stdout would panic in there.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, definition, "reprise", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
