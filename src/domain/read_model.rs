//! Read models as plain values: their names and parts, the fact that a handler is given, what it changes in a row.

use std::str::FromStr;

use jiff::Timestamp;
use uuid::Uuid;

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

/// An event as handlers see it, wherever it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact<'a> {
    pub order_id: Uuid,
    /// From 1.
    pub version: u32,
    pub tenant_id: &'a str,
    pub at: Timestamp,
    pub name: &'a str,
    /// Version of the form of its payload.
    pub form: u32,
    /// JSON.
    pub payload: &'a str,
}

/// What changes in the row of one order, up to `version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub order_id: Uuid,
    pub tenant_id: String,
    /// The first version that is merged in it.
    pub first: u32,
    pub version: u32,
    pub at: Timestamp,
    /// Boundary word.
    pub status: &'static str,
    pub seller_id: Option<String>,
    pub amount_cents: Option<i64>,
    pub courier_id: Option<String>,
    pub vehicle_type: Option<String>,
    pub placed_at: Option<Timestamp>,
    pub paid_at: Option<Timestamp>,
    pub picked_up_at: Option<Timestamp>,
    pub expected_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
}

impl Change {
    /// Lays another change over this one. The same version again wins, so that a newer form of the same fact may
    /// follow an older one; what is older than what is there changes nothing.
    pub fn then(&mut self, later: Self) {
        if later.version < self.version {
            return;
        }
        let first = self.first;
        let earlier = std::mem::replace(self, later);
        self.first = first;
        self.seller_id = self.seller_id.take().or(earlier.seller_id);
        self.amount_cents = self.amount_cents.or(earlier.amount_cents);
        self.courier_id = self.courier_id.take().or(earlier.courier_id);
        self.vehicle_type = self.vehicle_type.take().or(earlier.vehicle_type);
        self.placed_at = self.placed_at.or(earlier.placed_at);
        self.paid_at = self.paid_at.or(earlier.paid_at);
        self.picked_up_at = self.picked_up_at.or(earlier.picked_up_at);
        self.expected_at = self.expected_at.or(earlier.expected_at);
        self.delivered_at = self.delivered_at.or(earlier.delivered_at);
    }
}
