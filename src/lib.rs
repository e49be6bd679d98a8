//! Reprise. (The map follows.)
pub mod applier;
pub mod codec;
pub mod crash;
pub mod domain;
pub mod gateway;
pub mod health;
pub mod metrics;
pub mod ops;
pub mod pg;
