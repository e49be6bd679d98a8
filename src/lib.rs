//! Reprise. (The map follows.)
pub mod applier;
pub mod cli;
pub mod codec;
pub mod config;
pub mod crash;
pub mod domain;
pub mod gateway;
pub mod health;
pub mod metrics;
pub mod ops;
pub mod pg;
pub mod run;
pub mod stream;
