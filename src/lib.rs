//! Reprise. (The map follows.)
pub mod applier;
pub mod domain;
pub mod stream;
