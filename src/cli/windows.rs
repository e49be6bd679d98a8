//! `windows`: keep windows, and see how far they are.

use clap::Subcommand;

use super::failure::Failure;
use super::output::Row;
use super::{Context, live};
use crate::pg::connect::Database;
use crate::pg::schema;
use crate::pg::windows::{self as store, Progress};
use crate::run::{self, RunError};

#[derive(Debug, Subcommand)]
pub enum Args {
    /// Keep windows until told to stop
    Run(live::Args),
    /// Place, event-time clock, late and unreadable records of every partition
    List,
}

impl Row for Progress {
    const COLUMNS: &'static [&'static str] =
        &["consumer", "topic", "partition", "next", "watermark", "late", "rejected"];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    match args {
        Args::Run(args) => Ok(run::windows::windows(&config, args.options(context)).await?),
        Args::List => {
            let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
                .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
            schema::check(&database).await.map_err(RunError::from)?;
            let mut connection = database.plain().await?;
            context.output.rows(&store::progress(&mut connection).await?)
        }
    }
}
