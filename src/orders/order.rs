//! The order: the fold of its events, and the commands that it takes or refuses.
//!
//! ```text
//!   placed ─pay─► paid ─assign─► assigned ─► picked_up ─► out_for_delivery ─► delivered
//!      └───────────┴───────────────┴────────────┴──────────────┴──request──► cancellation_requested
//!      └───────────┴───────────────┴─────────────────cancel──► cancelled ◄──cancel──┘
//! ```
//!
//! Folding never judges: what is recorded has happened, whatever the rules say today ([`audit`](super::audit) tells
//! the difference). Deciding never acts: it answers with the event that is to be recorded, or a [`Refusal`].

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::event::{CourierAssigned, Event, Item, OrderPaid, OrderPlaced, Reason, Recorded};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Placed,
    Paid,
    Assigned,
    PickedUp,
    OutForDelivery,
    Delivered,
    CancellationRequested,
    Cancelled,
}

impl Status {
    /// Boundary word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Paid => "paid",
            Self::Assigned => "assigned",
            Self::PickedUp => "picked_up",
            Self::OutForDelivery => "out_for_delivery",
            Self::Delivered => "delivered",
            Self::CancellationRequested => "cancellation_requested",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An order as its events make it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    pub order_id: Uuid,
    pub tenant_id: String,
    pub status: Status,
    pub version: u32,
    pub customer_id: String,
    pub seller_id: String,
    pub items: Vec<Item>,
    /// What the items cost.
    pub amount_cents: i64,
    pub commission_percent: String,
    pub paid_cents: Option<i64>,
    pub courier_id: Option<String>,
    pub vehicle_type: Option<String>,
    pub cancellation_reason: Option<String>,
    pub placed_at: Timestamp,
    pub paid_at: Option<Timestamp>,
    pub updated_at: Timestamp,
}

/// Events that are no history of an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenHistory {
    #[error("version {0} does not follow version {1}")]
    Gap(u32, u32),
    #[error("it begins with {0}, not with OrderPlaced")]
    Beginning(&'static str),
}

impl Order {
    /// The fold of a whole history; `None` of an empty one.
    pub fn from_events<'a>(
        order_id: Uuid,
        tenant_id: &str,
        events: impl IntoIterator<Item = &'a Recorded>,
    ) -> Result<Option<Self>, BrokenHistory> {
        events
            .into_iter()
            .try_fold(None, |order, recorded| Self::after(order, order_id, tenant_id, recorded).map(Some))
    }

    /// One step of the fold.
    pub fn after(
        order: Option<Self>,
        order_id: Uuid,
        tenant_id: &str,
        recorded: &Recorded,
    ) -> Result<Self, BrokenHistory> {
        let Some(mut order) = order else {
            return Self::begin(order_id, tenant_id, recorded);
        };
        if recorded.version != order.version + 1 {
            return Err(BrokenHistory::Gap(recorded.version, order.version));
        }
        order.apply(recorded);
        Ok(order)
    }

    fn begin(order_id: Uuid, tenant_id: &str, recorded: &Recorded) -> Result<Self, BrokenHistory> {
        if recorded.version != 1 {
            return Err(BrokenHistory::Gap(recorded.version, 0));
        }
        let Event::OrderPlaced(placed) = &recorded.event else {
            return Err(BrokenHistory::Beginning(recorded.event.name()));
        };
        Ok(Self {
            order_id,
            tenant_id: tenant_id.to_owned(),
            status: Status::Placed,
            version: 1,
            customer_id: placed.customer_id.clone(),
            seller_id: placed.seller_id.clone(),
            // A history that holds an amount beyond 64 bits was never accepted; it must not panic either.
            amount_cents: total(&placed.items).unwrap_or(i64::MAX),
            items: placed.items.clone(),
            commission_percent: placed.commission_percent.clone(),
            paid_cents: None,
            courier_id: None,
            vehicle_type: None,
            cancellation_reason: None,
            placed_at: recorded.at,
            paid_at: None,
            updated_at: recorded.at,
        })
    }

    fn apply(&mut self, recorded: &Recorded) {
        self.version = recorded.version;
        self.updated_at = recorded.at;
        self.status = match &recorded.event {
            Event::OrderPlaced(_) => Status::Placed,
            Event::OrderPaid(paid) => {
                self.paid_cents = Some(paid.amount_cents);
                self.paid_at = Some(recorded.at);
                Status::Paid
            }
            Event::CourierAssigned(assigned) => {
                self.courier_id = Some(assigned.courier_id.clone());
                self.vehicle_type = Some(assigned.vehicle_type.clone());
                Status::Assigned
            }
            Event::PickedUp => Status::PickedUp,
            Event::OutForDelivery => Status::OutForDelivery,
            Event::Delivered => Status::Delivered,
            Event::CancellationRequested(why) => {
                self.cancellation_reason = Some(why.reason.clone());
                Status::CancellationRequested
            }
            Event::Cancelled(why) => {
                self.cancellation_reason = Some(why.reason.clone());
                Status::Cancelled
            }
        };
    }
}

/// What the items cost together; `None` beyond 64 bits.
pub fn total(items: &[Item]) -> Option<i64> {
    items
        .iter()
        .try_fold(0_i64, |sum, item| sum.checked_add(item.quantity.checked_mul(item.unit_price_cents)?))
}

/// What somebody wants done with an order. Serialized, it is what a repetition must equal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Command {
    Place { tenant_id: String, placed: OrderPlaced },
    Pay { amount_cents: i64 },
    Assign { courier_id: String, vehicle_type: String },
    MarkPickedUp,
    MarkOutForDelivery,
    MarkDelivered,
    RequestCancellation { reason: String },
    Cancel { reason: String },
}

/// An invariant that a command would break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such order")]
    NoSuchOrder,
    #[error("the order is already placed; place another one under another orderId")]
    AlreadyPlaced,
    #[error("the order costs {0} cents; amountCents must be exactly that")]
    AmountDiffers(i64),
    #[error("the order is {}; {needs}", .status.as_str())]
    Status { status: Status, code: &'static str, needs: &'static str },
}

impl Refusal {
    /// Stable, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoSuchOrder => "order-not-found",
            Self::AlreadyPlaced => "already-placed",
            Self::AmountDiffers(_) => "amount-differs",
            Self::Status { code, .. } => code,
        }
    }
}

/// What is to be recorded because of `command`.
pub fn decide(order: Option<&Order>, command: &Command) -> Result<Event, Refusal> {
    if let Command::Place { placed, .. } = command {
        return match order {
            None => Ok(Event::OrderPlaced(placed.clone())),
            Some(_) => Err(Refusal::AlreadyPlaced),
        };
    }
    let order = order.ok_or(Refusal::NoSuchOrder)?;
    match command {
        Command::Place { .. } => Err(Refusal::AlreadyPlaced),
        Command::Pay { amount_cents } => {
            expect(order, Status::Placed, "not-payable", "only a placed order is paid, once")?;
            if *amount_cents != order.amount_cents {
                return Err(Refusal::AmountDiffers(order.amount_cents));
            }
            Ok(Event::OrderPaid(OrderPaid {
                seller_id: order.seller_id.clone(),
                amount_cents: *amount_cents,
                commission_percent: order.commission_percent.clone(),
            }))
        }
        Command::Assign { courier_id, vehicle_type } => {
            expect(order, Status::Paid, "not-assignable", "a courier is assigned once it is paid, and once")?;
            Ok(Event::CourierAssigned(CourierAssigned {
                courier_id: courier_id.clone(),
                vehicle_type: vehicle_type.clone(),
            }))
        }
        Command::MarkPickedUp => {
            expect(order, Status::Assigned, "not-assigned", "a courier must be assigned first")?;
            Ok(Event::PickedUp)
        }
        Command::MarkOutForDelivery => {
            expect(order, Status::PickedUp, "not-picked-up", "the courier must have picked it up first")?;
            Ok(Event::OutForDelivery)
        }
        Command::MarkDelivered => {
            expect(
                order,
                Status::OutForDelivery,
                "not-out-for-delivery",
                "it must be out for delivery first",
            )?;
            Ok(Event::Delivered)
        }
        Command::RequestCancellation { reason } => {
            if matches!(order.status, Status::Delivered | Status::CancellationRequested | Status::Cancelled) {
                let needs = "a cancellation can be requested once, before delivery";
                return Err(Refusal::Status { status: order.status, code: "not-cancellable", needs });
            }
            Ok(Event::CancellationRequested(Reason { reason: reason.clone() }))
        }
        Command::Cancel { reason } => {
            if matches!(
                order.status,
                Status::PickedUp | Status::OutForDelivery | Status::Delivered | Status::Cancelled
            ) {
                let needs = "it is cancelled before it is picked up, or after a cancellation was requested";
                return Err(Refusal::Status { status: order.status, code: "not-cancellable", needs });
            }
            Ok(Event::Cancelled(Reason { reason: reason.clone() }))
        }
    }
}

fn expect(order: &Order, wanted: Status, code: &'static str, needs: &'static str) -> Result<(), Refusal> {
    if order.status == wanted {
        return Ok(());
    }
    Err(Refusal::Status { status: order.status, code, needs })
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
