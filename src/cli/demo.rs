//! `demo`: a morning of orders and an incident, on real servers.

use std::path::PathBuf;

use super::Context;
use super::failure::Failure;
use crate::demo::{self, Stage};

const BROKERS: &str = "127.0.0.1:29092";
const POSTGRES: &str = "postgres://postgres@127.0.0.1:25432/postgres";

/// Servers: `REPRISE_KAFKA__BROKERS` and `REPRISE_POSTGRES__URL`, else those of `make up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// About how many events the morning has
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u32).range(200..=200_000))]
    pub events: u32,
    /// Where configuration and logs are put
    #[arg(long, value_name = "FOLDER", default_value = ".dev/demo")]
    pub dir: PathBuf,
}

pub async fn run(args: Args, _: &Context) -> Result<(), Failure> {
    let given = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let stage = Stage {
        brokers: given("REPRISE_KAFKA__BROKERS", BROKERS),
        postgres: given("REPRISE_POSTGRES__URL", POSTGRES),
        events: usize::try_from(args.events).unwrap_or(usize::MAX),
        dir: args.dir,
    };
    let mut signals = crate::run::Signals::listen()?;
    // Dropping the play kills the service it started.
    tokio::select! {
        played = demo::play(stage) => played.map_err(Failure::failed),
        () = signals.next() => Err(Failure::failed("interrupted; the service of the demo was ended")),
    }
}
