//! Postgres: the only SQL of the house.
//!
//! * [`connect`]: connection settings, the pool for slow work and the pinned connections of the hot path
//! * [`error`]: failures classified by SQLSTATE and connection state; nobody downstream reads message text
//! * [`schema`]: migrations and the check that the schema is not behind
//! * [`lookup`]: one statement per batch: what the ledger and the commissions say about it
//! * [`commission`]: one statement per batch: the guarded upsert
//! * [`wave`]: settle what is finished and reserve what can start, in one durable transaction
//! * [`owner`]: session locks, by which a dead owner is known at once
//! * [`dead_letter`], [`letters`]: the index of dead letters, written and read
//! * [`doctor`]: what the server is and how it is set
//! * [`stored`]: a ledger row with everything it takes to go on without its event
//! * [`sweep`]: what is due and whose event does not come back, from the small tables
//! * [`review`]: what a person sees of an effect, and decides
//! * [`archive`]: every record of the topic, byte for byte, beyond its retention
//! * [`days`]: partitions by day, made ahead and dropped when they are over
//! * [`inbox`]: messages that a consumer has handled, in the transaction of what it did
//! * [`outbox`]: messages to publish, added in the transaction of the append
//! * [`retention`]: taking away what is old enough, never what is open
//! * `pooler`: refuses connections that several clients share
//! * [`gauges`]: what is pending, from the small tables
//! * [`dry_run`]: the draft of a dry run, until it becomes its diff
//! * [`replay_diff`]: the diff of a replay or dry run, as a stream
//! * [`orders`], [`order_snapshots`]: the event store, and folds of streams as a cache
//! * [`order_feed`]: all events in order, for readers that must not pass over one
//! * [`projections`], [`projection_rows`]: read models, written by their runner and asked over HTTP
//! * [`kpi_rows`]: what windows counted, as it is asked
//! * [`order_streams`]: migration of streams into parallel ones
//!
//! Rules that hold everywhere: keys are sorted before they are locked, arrays travel with `unnest`, time is the
//! database's, and a query future is never dropped half-way on a connection that is used again.

pub mod archive;
pub mod commission;
pub mod connect;
pub mod days;
pub mod dead_letter;
pub mod demo;
pub mod doctor;
pub mod dry_run;
pub mod error;
pub mod gauges;
mod headers;
pub mod inbox;
mod isolate;
pub mod kpi_rows;
pub mod letters;
pub mod lookup;
mod moves;
pub mod order_feed;
pub mod order_snapshots;
pub mod order_streams;
pub mod orders;
pub mod outbox;
pub mod outbox_parked;
pub mod owner;
mod pooler;
mod projection_changes;
pub mod projection_offsets;
pub mod projection_rows;
pub mod projections;
pub mod replay;
pub mod replay_diff;
pub mod retention;
pub mod review;
pub mod saga;
pub mod schema;
pub mod stored;
pub mod sweep;
pub mod wave;
pub mod window_rows;
pub mod windows;
