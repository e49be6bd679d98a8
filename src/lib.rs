//! Reprise. (The map follows.)
pub mod applier;
pub mod cli;
pub mod config;
pub mod domain;
pub mod pg;
pub mod stream;
