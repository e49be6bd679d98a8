//! Read models of orders: what an event changes in a row, and the runner that keeps rows up to date.
//!
//! * [`change`]: pure; an event in, the change of one row out; live and rebuild use the same
//! * [`runner`]: follows the feed for every shard of every generation
//! * [`steer`]: rebuild, compare, cut over, drop
//!
//! Promises:
//! * A row depends on the events of its order alone: killed, repeated or rebuilt, it comes out the same. Rows and
//!   cursor move in one transaction, a row never goes back to an older version, and counters change only together
//!   with the row they count.
//! * Readers see a whole generation, the old or the new one: a name is a view, and it is swapped in the transaction
//!   that brings the new generation to the old one's position.
//! * An event that cannot be read holds its shard, loudly; it is never passed over.

pub mod change;
pub mod runner;
pub mod steer;

pub use crate::domain::read_model::{Change, Fact, Name, Shard};
