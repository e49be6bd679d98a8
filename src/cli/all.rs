//! `all`: the whole service in one process.

use super::Context;
use super::failure::Failure;
use super::live::Args;
use crate::run;

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    Ok(run::relay::all(&context.config()?, args.options(context)).await?)
}
