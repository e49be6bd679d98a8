//! `console`: the web console alone, for who operates the service.

use super::Context;
use super::failure::Failure;
use crate::run::console;

#[derive(Debug, clap::Args)]
pub struct Args {}

pub async fn run(_: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    // Large, and only once.
    Ok(Box::pin(console::serve(&config, context.config_file())).await?)
}
