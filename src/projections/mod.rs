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

pub use change::Change;

use std::str::FromStr;

/// The projections that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    OrdersView,
    DashboardAggregate,
    DeliveryEta,
}

impl Name {
    pub const ALL: [Self; 3] = [Self::OrdersView, Self::DashboardAggregate, Self::DeliveryEta];

    /// Boundary word: the view, and the prefix of its tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OrdersView => "orders_view",
            Self::DashboardAggregate => "dashboard_aggregate",
            Self::DeliveryEta => "delivery_eta",
        }
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|name| name.as_str() == text);
        known.ok_or_else(|| {
            format!("{text:?} is no projection: write orders_view, dashboard_aggregate or delivery_eta")
        })
    }
}

/// One of the parts that are followed apart from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    pub name: Name,
    pub generation: i32,
    pub shard: i32,
}
