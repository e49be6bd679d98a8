//! `manpage`: manual pages made from the definition of the commands.

use std::io::Write as _;
use std::path::PathBuf;

use super::failure::Failure;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write one page per command into this directory (made if need be); else the main page goes to stdout
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

pub fn run(args: &Args, definition: clap::Command) -> Result<(), Failure> {
    if let Some(directory) = &args.directory {
        std::fs::create_dir_all(directory)?;
        return Ok(clap_mangen::generate_to(definition, directory)?);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(definition).render(&mut page)?;
    Ok(std::io::stdout().write_all(&page)?)
}
