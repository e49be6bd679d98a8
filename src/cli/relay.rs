//! `relay`: publishes the outbox.

use super::Context;
use super::failure::Failure;
use super::live::Args;
use crate::run;

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    Ok(run::relay::relay(&context.config()?, args.options(context)).await?)
}
