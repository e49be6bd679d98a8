//! `make bench-micro`: what one event costs before the database is asked, and what its position costs after.
//!
//! * `decode`: bytes to an event, with every check
//! * `plan`: an event to its commission, request body and digests
//! * `watermark`: a record taken in and settled, in order and in the worst order

use std::time::Duration;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use reprise::applier::intake::{RecordOffset, ResumeAt};
use reprise::applier::progress::{Lane, Tally};
use reprise::codec::{Decoded, Decoder};
use reprise::domain::effect::{EffectPolicy, Mode, OnFailure};
use reprise::domain::event::Event;
use reprise::domain::plan::{Policies, plan};

const RECORD: &str = r#"{"id":"0f8fad5b-d9cb-469f-a165-70867728950e","tipo":"pedido.pago","pedidoId":"7c9e6679-7425-40de-944b-e07fc1f90ae7","versao":1,"payload":{"valorCentavos":10050,"percentual":2.5},"ocorridoEm":"2026-10-14T09:00:00-03:00"}"#;

fn main() {
    divan::main();
}

fn event() -> Option<Event> {
    match Decoder::new().decode(Some(RECORD.as_bytes())) {
        Ok(Decoded::Event(event)) => Some(event),
        _ => None,
    }
}

fn policies(count: usize) -> Policies {
    let policy = |n| EffectPolicy {
        name: format!("efeito-{n}"),
        mode: Mode::Apply,
        on_event: true,
        on_failure: OnFailure::Hold,
        effective_from: None,
        lease: Duration::from_secs(30),
        max_attempts: 5,
        backoff_initial: Duration::from_millis(200),
        backoff_max: Duration::from_secs(30),
        key_memory: Duration::from_hours(24),
        slots: 64,
        per_second: None,
        circuit_threshold: 5,
        circuit_wait: Duration::from_secs(1),
    };
    Policies::new((0..count).map(policy).collect())
}

#[divan::bench]
fn decode(bencher: Bencher<'_, '_>) {
    let decoder = Decoder::new();
    bencher
        .counter(ItemsCount::new(1_usize))
        .bench_local(|| decoder.decode(black_box(Some(RECORD.as_bytes()))));
}

#[divan::bench(args = [0, 1, 3])]
fn plan_with_effects(bencher: Bencher<'_, '_>, effects: usize) {
    let policies = policies(effects);
    bencher
        .counter(ItemsCount::new(1_usize))
        .with_inputs(event)
        .bench_local_values(|event| event.map(|event| plan(event, &policies)));
}

/// Records of one lane that are open at once.
const OPEN: i64 = 4096;

#[divan::bench]
fn watermark_in_order(bencher: Bencher<'_, '_>) {
    settle_all(bencher, |n| n);
}

/// The oldest record is settled last: nothing may pass it until then.
#[divan::bench]
fn watermark_oldest_last(bencher: Bencher<'_, '_>) {
    settle_all(bencher, |n| (n + 1) % OPEN);
}

fn settle_all(bencher: Bencher<'_, '_>, nth: impl Fn(i64) -> i64) {
    bencher.counter(ItemsCount::new(4096_usize)).bench_local(|| {
        let mut lane = Lane::new(ResumeAt(0), None, false);
        (0..OPEN).for_each(|n| {
            lane.received(RecordOffset(n));
        });
        (0..OPEN).for_each(|n| lane.settled(RecordOffset(nth(n)), Tally::default()));
        lane.resume_at()
    });
}
