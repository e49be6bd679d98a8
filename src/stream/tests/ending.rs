use std::time::{Duration, Instant};

use super::super::consumer::StreamFailure;
use super::super::starts::{CommittedStarts, LostOffset};
use super::bed::{Bed, LIMIT, StandIn, skip_all};

#[tokio::test(flavor = "multi_thread")]
async fn b49_closing_ends_within_its_deadline_with_the_broker_gone() {
    let mut settings = Bed::without_topic().settings();
    settings.brokers = "127.0.0.1:1".into();
    let mut consumer = StandIn::live(settings);
    let handle = consumer.handle.take().unwrap();
    let begun = Instant::now();
    handle.stop();
    handle.close(vec![], Duration::from_secs(3)).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn b49_closing_ends_within_its_deadline_after_the_topic_was_deleted() {
    let bed = Bed::new(1).await;
    bed.produce_numbered(0, 3).await;
    let mut consumer = StandIn::live(bed.settings());
    consumer.notes.until("reading", |seen| seen.records.len() == 3).await;
    bed.delete().await;
    let handle = consumer.handle.take().unwrap();
    let begun = Instant::now();
    handle.stop();
    handle.close(consumer.positions(), Duration::from_secs(5)).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applier_that_ends_first_loses_no_final_position() {
    let bed = Bed::new(1).await;
    bed.produce_numbered(0, 10).await;
    let mut settings = bed.settings();
    settings.max_events = 1;
    let starts = CommittedStarts { on_lost: LostOffset::Stop };
    let mut consumer = StandIn::start(settings, starts, 1, skip_all).unwrap();
    consumer.notes.until("one was taken, more wait", |seen| seen.records.len() == 1).await;
    let handle = consumer.handle.take().unwrap();
    handle.stop();
    consumer.permits.close();
    let ended = tokio::time::timeout(Duration::from_millis(300), handle.ended()).await;
    assert!(ended.is_err(), "it waits for the final positions: {ended:?}");
    let closed = handle.close(consumer.positions(), Duration::from_secs(10)).await;
    assert!(closed.committed && closed.left_group, "{closed:?}");
    assert_eq!(bed.committed(0), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn b45_a_fenced_static_member_ends_with_a_failure() {
    let bed = Bed::new(1).await;
    let mut settings = bed.settings();
    settings.instance = Some("pod-0".into());
    let first = StandIn::live(settings.clone());
    first.notes.until("the first is in", |seen| seen.assignment == Some(vec![0])).await;
    let mut second = StandIn::live(settings);
    second.notes.until("the second took over", |seen| seen.assignment == Some(vec![0])).await;
    let end = tokio::time::timeout(LIMIT, first.handle.as_ref().unwrap().ended()).await.unwrap();
    assert!(matches!(&end, Err(StreamFailure::Client { cause }) if cause.contains("fenced")), "{end:?}");
    second.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_property_the_client_does_not_know_is_refused_by_name() {
    let mut settings = Bed::without_topic().settings();
    settings.properties.insert("no.such.property".into(), "1".into());
    let starts = CommittedStarts { on_lost: LostOffset::Stop };
    let Err(failure) = StandIn::start(settings, starts, 1, skip_all) else {
        panic!("accepted");
    };
    assert!(failure.to_string().contains("no.such.property"), "{failure}");
}
