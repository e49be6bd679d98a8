//! Integration tests: the built binary against a real Kafka and a real Postgres, with a scripted provider.
//!
//! The servers are those of `make up`, unless `REPRISE_TEST_KAFKA` and `REPRISE_TEST_PG` name others. Every test
//! has its own topics, group and database, so that all of them run at once. One binary, to link once.

mod amounts;
mod archive;
mod avro;
mod broker;
mod cdc;
mod chaos;
mod console;
mod crashes;
mod demo;
mod deployment;
mod documented;
mod dry_run;
mod fuzz;
mod groups;
mod handbook;
mod inbox;
mod interruptions;
mod kit;
mod late;
mod letters;
mod live;
mod logs;
mod monitoring;
mod orders;
mod outages;
mod outbox;
mod pooler;
mod projections;
mod proofs;
mod replay;
mod retention;
mod review;
mod rewind;
mod rewind_any;
mod saga;
mod secrets;
mod secure;
#[allow(dead_code, reason = "a kit has every tool, whether or not a case needs it today")]
mod support;
mod traces;
mod windows;
