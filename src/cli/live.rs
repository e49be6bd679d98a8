//! `live`: the service.

use std::time::Duration;

use super::Context;
use super::args::duration;
use super::failure::Failure;
use crate::run::{self, LiveOptions};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Bring the database schema up to date first; without it a schema that is behind is refused
    #[arg(long)]
    pub migrate: bool,
    /// How long a stop may take before the process ends non-zero
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    pub grace: Duration,
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    Ok(run::live(&context.config()?, args.options(context)).await?)
}

impl Args {
    pub fn options(self, context: &Context) -> LiveOptions {
        LiveOptions { migrate: self.migrate, grace: self.grace, config_file: context.config_file() }
    }
}
