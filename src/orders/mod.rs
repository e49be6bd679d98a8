//! The write side of orders: what happened is kept as events, and only what happened.
//!
//! ```text
//!   HTTP, saga ──command──► desk ──load──► fold of events ──decide──► event
//!                             │                                         │
//!                             └───── one transaction: order_events + outbox ──► relay ──► topics
//! ```
//!
//! * [`event`]: the facts, how they are stored, and how old forms are read
//! * [`order`]: the aggregate: the fold of its events, and the commands that it takes or refuses
//! * [`audit`]: which events of a history today's rules would have refused
//! * [`snapshot`]: the fold as a cache
//! * [`desk`]: commands and queries on the store: load, decide, append; idempotency, conflicts, time travel
//! * [`translate`]: the anti-corruption layer: the only place that knows both vocabularies
//! * [`streams`]: lazy migration of streams with old events into parallel ones
//!
//! [`event`], [`order`], [`audit`] and [`translate`] are pure.
//!
//! Promises:
//! * A command takes effect at most once per stream and `command_id`; its repetition answers with its first result.
//!   (test `the_same_command_twice_answers_with_its_first_result`)
//! * Two commands that meet never overwrite one another: the later one decides again on what the earlier one did.
//!   (test `twenty_hands_at_once_pay_once`)
//! * An event and its messages are written in one transaction. (test `an_append_brings_its_messages_or_nothing`)
//! * A snapshot, whatever is in it, changes nothing but speed. (test `a_damaged_snapshot_changes_nothing`)
//!
//! Only orders are kept this way. Customers, couriers and tenants are plain tables: nobody asks for their history.

pub mod audit;
pub mod desk;
pub mod event;
pub mod order;
pub mod snapshot;
pub mod streams;
pub mod translate;
