//! The command line: one file per command, one exit code per kind of end.
//!
//! Results go to stdout, in the format of `--output`; logs, progress and refusals go to stderr. Exit codes:
//! 0 done, 1 failed, 2 usage or configuration, 3 refused by a safety check, 4 not found or lost to someone else
//! ([`Failure`]). A closed stdout (`reprise ... | head`) is not an error.
//!
//! A command is a file here with `Args` and `pub async fn run(args: Args, context: &Context) -> Result<(), Failure>`,
//! and a line in [`Command`].

pub mod all;
pub mod archive;
pub mod args;
pub mod ask;
pub mod completions;
pub mod config;
pub mod console;
pub mod context;
pub mod demo;
pub mod dlq;
pub mod doctor;
pub mod effects;
pub mod failure;
pub mod live;
pub mod logging;
pub mod manpage;
pub mod migrate;
pub mod orders;
pub mod outbox;
pub mod output;
pub mod progress;
pub mod projections;
#[cfg(test)]
mod reference;
pub mod relay;
pub mod replay;
pub mod replay_diff;
pub mod retention;
pub mod saga;
pub mod sweep;
pub mod windows;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use context::Context;
pub use failure::Failure;

/// Reprise handles order-paid events, keeps commissions, calls providers at most once, and handles it all again.
#[derive(Debug, Parser)]
#[command(name = "reprise", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    global: context::Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Consume order-paid events until told to stop
    Live(live::Args),
    /// Publish the outbox until told to stop
    Relay(live::Args),
    /// Everything in one process: live, relay, API and what comes later
    All(live::Args),
    /// Orders: serve the API, show an order now or as it was, its history
    #[command(subcommand)]
    Orders(orders::Args),
    /// Messages of the outbox that the broker refused for good: list, publish after all, discard
    #[command(subcommand)]
    Outbox(outbox::Args),
    /// Read models: run, list, rebuild, compare, cut over, drop
    #[command(subcommand)]
    Projections(projections::Args),
    /// Sagas: run, list, show, retry
    #[command(subcommand)]
    Saga(saga::Args),
    /// Windows over orders and heartbeats: run, list
    #[command(subcommand)]
    Windows(windows::Args),
    /// Bring the database schema up to date
    Migrate,
    /// Review effects that nobody knows about
    #[command(subcommand)]
    Effects(effects::Args),
    /// Settle effects whose event never comes back
    Sweep(sweep::Args),
    /// Play a morning of orders and an incident on real servers
    Demo(demo::Args),
    /// Rewind by timestamp: plan, dry run, run, diff
    #[command(subcommand)]
    Replay(replay::Args),
    /// Keep every record beyond the topic's retention
    Archive(archive::Args),
    /// Take away what is older than its retention
    Retention(retention::Args),
    /// Dead letters: list, show, redrive
    #[command(subcommand)]
    Dlq(dlq::Args),
    /// Serve the web console alone, beside whatever runs
    Console(console::Args),
    /// Check or show the configuration
    #[command(subcommand)]
    Config(config::Args),
    /// Check everything the service needs: Kafka, Postgres, providers, files
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Print the manual page, or write the pages of all commands into a directory
    Manpage(manpage::Args),
}

/// The command line as it is defined, for what is made from it.
fn definition() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// Runs the command in `argv` and says how it ended.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(answer) => return say_usage(&answer),
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Where stderr is closed, the exit code alone has to tell.
            writeln!(std::io::stderr(), "reprise: {failure}")
                .map_or(failure.exit_code(), |()| failure.exit_code())
        }
    }
}

/// Help and version go to stdout and are a success; a usage error goes to stderr and is not.
fn say_usage(answer: &clap::Error) -> ExitCode {
    let code = if answer.use_stderr() { ExitCode::from(failure::USAGE) } else { ExitCode::SUCCESS };
    // A reader that has gone away changes nothing about how the command ended.
    answer.print().map_or(code, |()| code)
}

fn run(cli: Cli) -> Result<(), Failure> {
    let context = Context::new(cli.global)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(dispatch(cli.command, &context));
    // A blocking call that outlived its time limit must not hold the exit.
    runtime.shutdown_background();
    done
}

async fn dispatch(command: Command, context: &Context) -> Result<(), Failure> {
    match command {
        Command::Live(args) => live::run(args, context).await,
        Command::Relay(args) => relay::run(args, context).await,
        Command::All(args) => all::run(args, context).await,
        Command::Orders(args) => orders::run(args, context).await,
        Command::Outbox(args) => outbox::run(args, context).await,
        Command::Projections(args) => projections::run(args, context).await,
        Command::Saga(args) => saga::run(args, context).await,
        Command::Windows(args) => windows::run(args, context).await,
        Command::Migrate => migrate::run(context).await,
        Command::Effects(args) => effects::run(args, context).await,
        // Large, and only once.
        Command::Sweep(args) => Box::pin(sweep::run(args, context)).await,
        Command::Demo(args) => demo::run(args, context).await,
        Command::Replay(args) => replay::run(args, context).await,
        Command::Archive(args) => archive::run(args, context).await,
        Command::Retention(args) => retention::run(args, context).await,
        Command::Dlq(args) => dlq::run(args, context).await,
        Command::Console(args) => console::run(args, context).await,
        Command::Config(args) => config::run(args, context).await,
        Command::Doctor(args) => doctor::run(args, context).await,
        Command::Completions(args) => completions::run(&args, &mut definition()),
        Command::Manpage(args) => manpage::run(&args, definition()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in
            ["reprise --config a.toml --output json doctor", "reprise doctor --output json --config a.toml"]
        {
            let cli = Cli::try_parse_from(line.split(' ')).expect("both orders");
            assert_eq!(cli.global.config.as_deref(), Some(std::path::Path::new("a.toml")));
            assert_eq!(cli.global.output, output::Format::Json);
        }
    }

    #[test]
    fn unknown_commands_and_values_are_usage_errors() {
        let error = Cli::try_parse_from(["reprise", "dance"]).expect_err("no such command");
        assert_eq!(error.kind(), ErrorKind::InvalidSubcommand);
        let error =
            Cli::try_parse_from(["reprise", "doctor", "--output", "xml"]).expect_err("no such format");
        assert_eq!((error.kind(), error.exit_code()), (ErrorKind::InvalidValue, 2));
    }
}
