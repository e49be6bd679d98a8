//! argv -> cli -> exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    reprise::cli::main(std::env::args_os())
}
