use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use super::super::consumer::{Decoding, StreamFailure};
use super::super::settings::{Commits, Membership};
use super::super::starts::{CommittedStarts, LostOffset, StoredStarts};
use super::bed::{Bed, FREE, LIMIT, StandIn, kafka, name, skip_all};
use crate::applier::intake::{LaneId, RawRecord, ResumeAt};

const LIVE: CommittedStarts = CommittedStarts { on_lost: LostOffset::Stop };

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b41_b47_every_record_once_and_in_order_while_a_member_joins_and_leaves() {
    let bed = Bed::new(4).await;
    let mut settings = bed.settings();
    settings.max_events = 7;
    let mut first = StandIn::start(settings.clone(), LIVE, 40, skip_all).unwrap();
    for partition in 0..4 {
        bed.produce_numbered(partition, 300).await;
    }
    first.notes.until("the first reads under back-pressure", |seen| seen.records.len() > 100).await;
    let mut second = StandIn::start(settings, LIVE, FREE, skip_all).unwrap();
    second.notes.until("the second has partitions", |seen| !seen.assigned.is_empty()).await;
    first.permits.add_permits(30);
    second.notes.until("the second reads", |seen| seen.records.len() >= 50).await;
    second.close().await;
    first.permits.add_permits(FREE);
    first
        .notes
        .until("all is read", |seen| seen.records.len() + second.notes.now().records.len() >= 1200)
        .await;
    first.close().await;
    let mut by_partition: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for (lane, offset) in first.notes.now().records.into_iter().chain(second.notes.now().records) {
        by_partition.entry(lane.partition).or_default().push(offset);
    }
    for seen in [first.notes.now(), second.notes.now()] {
        for partition in 0..4 {
            assert!(seen.offsets(partition).is_sorted(), "partition {partition} in order");
        }
    }
    for (partition, mut offsets) in by_partition {
        offsets.sort_unstable();
        assert_eq!(offsets, (0..300).collect::<Vec<i64>>(), "partition {partition}: every record once");
        assert_eq!(bed.committed(partition), Some(300));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i4_b42_the_commit_is_the_watermark_and_a_restart_goes_on_there() {
    let bed = Bed::new(1).await;
    bed.produce_numbered(0, 20).await;
    let mut first = StandIn::live(bed.settings());
    first.hold_at.send_replace(10);
    first.notes.until("all 20 are read", |seen| seen.records.len() == 20).await;
    first
        .notes
        .until("the commit is known", |seen| {
            seen.facts.first().is_some_and(|facts| facts.committed == Some(10))
        })
        .await;
    assert_eq!(first.notes.now().facts[0].high_watermark, Some(20));
    assert_eq!(first.notes.now().facts[0].position, 20);
    assert_eq!(first.notes.now().facts[0].lag, Some(10));
    first.close().await;
    assert_eq!(bed.committed(0), Some(10));

    let mut second = StandIn::live(bed.settings());
    second.notes.until("the rest is read", |seen| seen.records.len() == 10).await;
    second.close().await;
    assert_eq!(second.notes.now().offsets(0), (10..20).collect::<Vec<i64>>());
    assert_eq!(bed.committed(0), Some(20));

    let mut third = StandIn::live(bed.settings());
    let seen = third
        .notes
        .until("the end is reached", |seen| seen.facts.iter().any(|facts| facts.lag == Some(0)))
        .await;
    assert_eq!(
        seen.assigned.iter().map(|(_, start, end)| (*start, *end)).collect::<Vec<_>>(),
        vec![(20, None)]
    );
    assert_eq!(seen.records, vec![]);
    third.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_records_are_not_read_and_the_commit_passes_the_last_marker() {
    let bed = Bed::new(1).await;
    let (topic, id) = (bed.topic.clone(), name("tx"));
    tokio::task::spawn_blocking(move || {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", kafka()).set("transactional.id", id);
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(LIMIT).unwrap();
        for commit in [false, true] {
            producer.begin_transaction().unwrap();
            let value = if commit { "good" } else { "aborted" };
            producer.send(BaseRecord::<(), _>::to(&topic).payload(value)).unwrap();
            producer.flush(LIMIT).unwrap();
            if commit { producer.commit_transaction(LIMIT) } else { producer.abort_transaction(LIMIT) }
                .unwrap();
        }
    })
    .await
    .unwrap();
    let mut consumer = StandIn::live(bed.settings());
    // 0 aborted, 1 its marker, 2 good, 3 its marker.
    consumer
        .notes
        .until("the position passes the marker", |seen| seen.positions.iter().any(|(_, at)| *at == 4))
        .await;
    consumer
        .notes
        .until("the commit too", |seen| seen.facts.first().is_some_and(|facts| facts.committed == Some(4)))
        .await;
    consumer.close().await;
    assert_eq!(consumer.notes.now().offsets(0), vec![2]);
    assert_eq!(bed.committed(0), Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn b36_a_lost_offset_stops_naming_the_range_or_advances_and_says_so() {
    let bed = Bed::new(1).await;
    bed.produce_numbered(0, 10).await;
    bed.commit(0, 2);
    bed.delete_below(0, 6).await;
    let stopping = StandIn::live(bed.settings());
    let end = tokio::time::timeout(LIMIT, stopping.handle.as_ref().unwrap().ended()).await.unwrap();
    assert_eq!(end, Err(StreamFailure::LostOffsets { partition: 0, from: 2, to: 6 }));
    assert_eq!(
        end.unwrap_err().to_string(),
        "partition 0: records from offset 2 to 5 no longer exist; set kafka.offset_perdido = \"avancar\" to go on at 6"
    );
    assert_eq!(stopping.notes.now().records, vec![]);

    let advancing = CommittedStarts { on_lost: LostOffset::Advance };
    let mut advancing = StandIn::start(bed.settings(), advancing, FREE, skip_all).unwrap();
    let seen = advancing.notes.until("it goes on", |seen| seen.records.len() == 4).await;
    assert_eq!(seen.offsets(0), vec![6, 7, 8, 9]);
    assert_eq!(seen.lost, vec![(0, 2, 6)]);
    advancing.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b36_offsets_lost_while_reading_are_claimed_anew_behind_the_gap() {
    let bed = Bed::new(1).await;
    bed.produce(0, (0..60).map(|number| format!("{number:5000}"))).await;
    let mut settings = bed.settings();
    settings.max_events = 2;
    settings.properties.insert("queued.max.messages.kbytes".into(), "16".into());
    settings.properties.insert("max.partition.fetch.bytes".into(), "8000".into());
    let advancing = CommittedStarts { on_lost: LostOffset::Advance };
    let mut consumer = StandIn::start(settings, advancing, 1, skip_all).unwrap();
    consumer.notes.until("reading has begun and is held", |seen| !seen.records.is_empty()).await;
    bed.delete_below(0, 55).await;
    consumer.permits.add_permits(FREE);
    let seen = consumer.notes.until("the tail is read", |seen| seen.offsets(0).last() == Some(&59)).await;
    assert_eq!(seen.offsets(0)[0], 0);
    assert!(seen.offsets(0).is_sorted());
    assert_eq!(seen.lost.len(), 1);
    assert_eq!(seen.lost[0].2, 55);
    assert_eq!(seen.assigned.len(), 2);
    assert_eq!(seen.assigned[1].1, 55);
    consumer.close().await;
    assert_eq!(bed.committed(0), Some(60));
}

#[tokio::test(flavor = "multi_thread")]
async fn b31_b33_a_range_is_read_to_its_end_and_nothing_beyond_and_a_fixed_run_leaves_no_offset() {
    let bed = Bed::new(6).await;
    bed.produce_numbered(0, 30).await;
    bed.produce_numbered(1, 3).await;
    let mut settings = bed.settings();
    settings.membership = Membership::Fixed((0..6).collect());
    settings.commits = Commits::Never;
    let starts = StoredStarts {
        lookup: |partitions: &[i32]| {
            Ok(partitions
                .iter()
                .map(|partition| match partition {
                    0 => (0, (ResumeAt(5), Some(ResumeAt(12)))),
                    1 => (1, (ResumeAt(1), Some(ResumeAt(3)))),
                    other => (*other, (ResumeAt(0), Some(ResumeAt(0)))),
                })
                .collect::<HashMap<_, _>>())
        },
    };
    let mut consumer = StandIn::start(settings, starts, FREE, skip_all).unwrap();
    let seen = consumer
        .notes
        .until("both ranges end", |seen| seen.offsets(0).len() == 7 && seen.offsets(1).len() == 2)
        .await;
    assert_eq!(seen.offsets(0), (5..12).collect::<Vec<i64>>());
    assert_eq!(seen.offsets(1), vec![1, 2]);
    assert_eq!(seen.assigned.len(), 6);
    assert_eq!(seen.assignment, Some(vec![0, 1, 2, 3, 4, 5]));
    bed.produce_numbered(1, 5).await;
    consumer.close().await;
    assert_eq!(consumer.notes.now().records.len(), 9);
    assert_eq!(bed.committed(0), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn b43_b80_added_partitions_are_read_from_their_beginning() {
    let bed = Bed::new(1).await;
    let mut settings = bed.settings();
    settings.properties.insert("topic.metadata.refresh.interval.ms".into(), "500".into());
    let mut consumer = StandIn::live(settings);
    consumer.notes.until("assigned", |seen| seen.assignment == Some(vec![0])).await;
    bed.grow(3).await;
    for partition in 1..3 {
        bed.produce_numbered(partition, 5).await;
    }
    let seen = consumer.notes.until("the new ones are read", |seen| seen.records.len() == 10).await;
    assert_eq!(seen.offsets(1), vec![0, 1, 2, 3, 4]);
    assert_eq!(seen.offsets(2), vec![0, 1, 2, 3, 4]);
    let mut earliest = seen.earliest;
    earliest.sort_unstable();
    assert_eq!(earliest, vec![0, 1, 2]);
    consumer.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_decoded_yet_holds_its_own_partition_only() {
    let bed = Bed::new(2).await;
    bed.produce(0, ["wait".to_owned(), "after".to_owned()]).await;
    bed.produce_numbered(1, 3).await;
    let known = Arc::new(AtomicBool::new(false));
    let schema = Arc::clone(&known);
    let decode = move |lane: LaneId, raw: Box<RawRecord>| {
        if raw.value.as_deref() == Some(b"wait") && !schema.load(Ordering::SeqCst) {
            return Decoding::Wait(raw);
        }
        skip_all(lane, raw)
    };
    let mut consumer = StandIn::start(bed.settings(), LIVE, FREE, decode).unwrap();
    let seen = consumer.notes.until("the other partition goes on", |seen| seen.offsets(1).len() == 3).await;
    assert_eq!(seen.offsets(0), Vec::<i64>::new());
    known.store(true, Ordering::SeqCst);
    let seen = consumer.notes.until("the partition goes on", |seen| seen.offsets(0).len() == 2).await;
    assert_eq!(seen.offsets(0), vec![0, 1]);
    consumer.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_to_which_the_group_gives_nothing_knows_it_and_takes_over_later() {
    tokio::join!(given_nothing("classic"), given_nothing("consumer"));
}

async fn given_nothing(protocol: &str) {
    let bed = Bed::new(1).await;
    let mut settings = bed.settings();
    settings.properties.insert("group.protocol".into(), protocol.into());
    let mut first = StandIn::live(settings.clone());
    first.notes.until("the first has it", |seen| seen.assignment == Some(vec![0])).await;
    let mut second = StandIn::live(settings);
    second.notes.until("the second is in", |seen| seen.assignment == Some(vec![])).await;
    first.close().await;
    second.notes.until("the second takes over", |seen| seen.assignment == Some(vec![0])).await;
    second.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_group_protocol_hands_partitions_over_as_well() {
    let bed = Bed::new(2).await;
    bed.produce_numbered(0, 20).await;
    bed.produce_numbered(1, 20).await;
    let mut settings = bed.settings();
    settings.properties.insert("group.protocol".into(), "consumer".into());
    let mut first = StandIn::live(settings.clone());
    first.notes.until("the first reads all", |seen| seen.records.len() == 40).await;
    let mut second = StandIn::live(settings);
    second
        .notes
        .until("the second has one", |seen| seen.assignment.as_ref().is_some_and(|all| all.len() == 1))
        .await;
    first.notes.until("the first gave one", |seen| seen.revoked.len() == 1).await;
    bed.produce_numbered(0, 5).await;
    bed.produce_numbered(1, 5).await;
    first.notes.until("the first goes on", |seen| seen.records.len() == 45).await;
    second.notes.until("the second goes on", |seen| seen.records.len() == 5).await;
    tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(first.close(), second.close()) })
        .await
        .unwrap();
    assert_eq!((bed.committed(0), bed.committed(1)), (Some(25), Some(25)));
}
