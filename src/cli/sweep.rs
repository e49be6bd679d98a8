//! `sweep`: settles effects whose event never comes back, outside of `live`.

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sweep once and end (the service sweeps by itself, so there is no other way)
    #[arg(long, required = true)]
    pub once: bool,
}
