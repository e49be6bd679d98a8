//! # Reprise: the map
//!
//! A Kafka-native stream processor for events whose handling touches the outside world, and for handling them
//! again. It consumes `pedido.pago` in a consumer group, keeps the seller's commission in Postgres, and performs
//! external effects at most once per event and effect, through one ledger.
//!
//! ## Rooms
//!
//! Imports point one way; a line lives where its knowledge lives.
//!
//! ```text
//!   domain  <-  codec, pg, gateway  <-  applier, orders, outbox, projections, saga, windows  <-  stream  <-  run, cli, ops
//! ```
//!
//! One arrow points back, at plain values only: `pg` knows [`windows`].
//!
//! | room | what it knows |
//! |---|---|
//! | [`domain`] | pure values and decisions: event, money, effect, [`plan`](domain::plan), [`verdict`](domain::verdict) |
//! | [`codec`] | bytes to domain: JSON, Avro; every way a record can be poison, as a typed reason |
//! | [`pg`] | the only SQL: look-up, guarded upsert, waves, evidence, dead-letter index, error classes |
//! | [`gateway`] | the providers: one call, what its answer proves, the circuit |
//! | [`applier`] | the order of steps: plan, ledger, gateway, settle; the one road of every run |
//! | [`projections`] | read models: what an event changes in a row, generations, the runner |
//! | [`saga`] | an order gets a courier: steps, what is undone in which order, the workers |
//! | [`windows`] | by event time: orders per minute and hour, couriers that fell silent; lateness |
//! | [`outbox`] | the order side's way out: messages, the relay, what keeps their order |
//! | [`stream`] | the only rdkafka: consumer thread, starting places, commits, dead-letter topic |
//! | [`run`] | wiring: how a service is built from the rooms |
//! | [`cli`], [`ops`] | people and platforms: commands; admin HTTP |
//! | [`config`] | typed settings, every contradiction reported at once |
//! | [`orders`] | the write side of orders: events, the fold, commands, the anti-corruption layer |
//! | [`demo`] | the story of `make demo`: a provider, a morning, an incident |
//! | [`metrics`], [`health`] | leaves that everyone may tell: counters by name; what is true of this process now |
//! | [`telemetry`] | traces: spans by OpenTelemetry's conventions, and their way to a collector |
//! | [`crash`] | named crash points for the fault tests; nothing in a release binary |
//!
//! ## The path of one event
//!
//! 1. The Kafka thread ([`stream`]) pops a record, decodes it ([`codec`]) and plans it ([`domain::plan`]): one
//!    commission write and one request per effect type. Batches of what is there go over a small bounded channel;
//!    while it is full nothing is popped, but polling goes on.
//! 2. The batch step ([`applier`], `batch.rs`) asks in one statement what the ledger and the commissions say; only
//!    what differs comes back. States that must change are written in one guarded upsert.
//! 3. The coordinator books what is left: effects in chains by order and type, ready when it is their turn.
//! 4. A wave ([`pg::wave`]) settles what is finished and reserves what has a free call slot, in one durable
//!    transaction. Only after its commit are the reserved effects called ([`gateway`]).
//! 5. The answer becomes a fenced write of the next wave: done, waiting, uncertain, or gone and dead-lettered.
//! 6. The lane's position ([`applier::progress`]) moves over what is settled; the Kafka thread commits it.
//!
//! ## Invariants
//!
//! * **I1** No call without a durably committed reservation.
//! * **I2** A provider that does not deduplicate is never called again for a key after an attempt that may have
//!   reached it, unless a person says so.
//! * **I3** No effect is lost: at rest every event has, per effect, a row `concluido` or `incerto`, or a dead
//!   letter, or a policy that suppressed it.
//! * **I4** The committed offset never passes an unsettled event and never goes backwards.
//! * **I5** A replay never touches the live group and never ends early or hangs.
//! * **I6** A dry run changes nothing but its diff and calls nobody.
//! * **I7** Only what can never succeed is dead-lettered; an outage is waited out.
//! * **I8** An older version never overwrites a newer one.
//! * **I9** A person's decision is final, single and recorded.
//! * **I10** Memory is bounded whatever the backlog.
//! * **I11** A crash leaves no more effects uncertain than calls were in flight.
//!
//! ## Deliberately absent
//!
//! No exactly-once towards a provider (nobody has it): what may have been sent and has no answer is *uncertain*, and
//! a person decides. No second place that decides retry or poison. No clock but the database's in the ledger. No
//! pause and resume of partitions as back-pressure. No hidden retries in any client.

pub mod applier;
pub mod cli;
pub mod codec;
pub mod config;
pub mod crash;
pub mod demo;
pub mod domain;
pub mod gateway;
pub mod health;
pub mod metrics;
pub mod ops;
pub mod orders;
pub mod outbox;
pub mod pg;
pub mod projections;
#[cfg(test)]
mod reference;
pub mod run;
pub mod saga;
pub mod stream;
pub mod telemetry;
pub mod windows;
