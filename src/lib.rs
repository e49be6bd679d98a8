//! Reprise. (The map follows.)
pub mod domain;
