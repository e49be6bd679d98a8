//! Reprise. (The map follows.)
pub mod applier;
pub mod domain;
pub mod health;
pub mod metrics;
pub mod ops;
