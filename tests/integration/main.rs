//! Integration tests: the built binary against a real Kafka and a real Postgres, with a scripted provider.
//!
//! The servers are those of `make up`, unless `REPRISE_TEST_KAFKA` and `REPRISE_TEST_PG` name others. Every test
//! has its own topics, group and database, so that all of them run at once. One binary, to link once.

mod amounts;
mod broker;
mod chaos;
mod console;
mod crashes;
mod demo;
mod dry_run;
mod groups;
mod kit;
mod late;
mod letters;
mod live;
mod proofs;
mod replay;
mod review;
mod rewind;
#[allow(dead_code, reason = "a kit has every tool, whether or not a case needs it today")]
mod support;
