//! Reprise. (The map follows.)
pub mod applier;
pub mod codec;
pub mod domain;
pub mod pg;
