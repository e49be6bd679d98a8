use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::dead_letter::KafkaDeadLetters;
use super::bed::{Bed, LIMIT, StandIn, kafka};
use crate::applier::intake::{DeadLetter, DeadLetterTopic, PublishError, RawRecord};
use crate::domain::effect::Run;
use crate::domain::poison::Reason;

fn letters(bed: &Bed) -> KafkaDeadLetters {
    KafkaDeadLetters::new(&kafka(), &bed.topic, "comissao", &BTreeMap::new()).unwrap()
}

fn letter(raw: RawRecord) -> Arc<DeadLetter> {
    Arc::new(DeadLetter {
        raw: RawRecord { topic: Arc::from("pedido.pago"), partition: 7, offset: 42, ..raw },
        reason: Reason::InvalidJson,
        message: "not an object".into(),
        event_id: None,
        order_id: None,
        effect_type: None,
        attempts: 1,
        run: Run::live(),
        first_failed_at: "2026-10-14T03:00:00Z".parse().unwrap(),
    })
}

async fn stored(bed: &Bed, count: usize) -> Vec<RawRecord> {
    let mut reader = StandIn::live(bed.settings());
    let seen = reader.notes.until("the letters are there", |seen| seen.raws.len() >= count).await;
    reader.close().await;
    seen.raws
}

fn header<'a>(raw: &'a RawRecord, name: &str) -> Option<&'a [u8]> {
    raw.headers.iter().find(|(key, _)| key == name).and_then(|(_, value)| value.as_deref())
}

#[tokio::test(flavor = "multi_thread")]
async fn b19_b20_b58_a_letter_is_the_original_byte_for_byte_even_in_a_topic_of_one_partition() {
    let bed = Bed::new(1).await;
    let letters = letters(&bed);
    let original = RawRecord {
        key: Some(Box::from(&[0xff, 0x00, 0xfe][..])),
        value: Some(Box::from(&[0xc3, 0x28][..])),
        headers: vec![
            ("z".into(), None),
            ("same".into(), Some(b"1".to_vec())),
            ("same".into(), Some(b"1".to_vec())),
            ("empty".into(), Some(vec![])),
            ("reprise-dlq-motivo".into(), Some(b"old".to_vec())),
        ],
        ..RawRecord::default()
    };
    letters.publish(letter(original.clone())).await.unwrap();
    letters.publish(letter(RawRecord { key: None, value: None, ..RawRecord::default() })).await.unwrap();
    let empty = RawRecord { key: Some(Box::default()), value: Some(Box::default()), ..RawRecord::default() };
    letters.publish(letter(empty)).await.unwrap();
    let stored = stored(&bed, 3).await;
    assert_eq!(stored.len(), 3);
    assert_eq!(stored[0].key, original.key);
    assert_eq!(stored[0].value, original.value);
    assert_eq!(stored[0].headers[..4], original.headers[..4]);
    assert_eq!(stored[0].headers[4], ("reprise-dlq-motivo".into(), Some(b"json-invalido".to_vec())));
    assert_eq!(header(&stored[0], "reprise-dlq-particao"), Some(&b"7"[..]));
    assert_eq!(header(&stored[0], "reprise-dlq-offset"), Some(&b"42"[..]));
    assert_eq!((&stored[1].key, &stored[1].value), (&None, &None));
    assert_eq!((&stored[2].key, &stored[2].value), (&Some(Box::default()), &Some(Box::default())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_too_large_is_cut_and_keeps_its_size_and_digest_while_its_neighbours_stay_whole() {
    let bed = Bed::without_topic();
    bed.create(1, &[("max.message.bytes", "20000")]).await;
    let letters = letters(&bed);
    let large = RawRecord { value: Some(vec![b'a'; 3_000_000].into()), ..RawRecord::default() };
    let small = || letter(RawRecord { value: Some(Box::from(&b"small"[..])), ..RawRecord::default() });
    let heavy =
        vec![("heavy".to_owned(), Some(vec![b'h'; 50_000])), ("light".to_owned(), Some(b"l".to_vec()))];
    let heavy = RawRecord { value: Some(Box::from(&b"v"[..])), headers: heavy, ..RawRecord::default() };
    let all = vec![small(), letter(large), small(), letter(heavy)];
    for published in futures::future::join_all(all.into_iter().map(|letter| letters.publish(letter))).await {
        published.unwrap();
    }
    let stored = stored(&bed, 4).await;
    let of = |size: &str| {
        stored.iter().find(|raw| header(raw, "reprise-dlq-tamanho") == Some(size.as_bytes())).unwrap()
    };
    assert_eq!(stored.iter().filter(|raw| raw.value.as_deref() == Some(b"small")).count(), 2);
    let large = of("3000000");
    assert_eq!(large.value.as_ref().unwrap().len(), 11_718);
    assert_eq!(header(large, "reprise-dlq-truncado"), Some(&b"true"[..]));
    assert_eq!(
        header(large, "reprise-dlq-sha256"),
        Some(&b"2a152c894398719c0570f83fac34ac03a0f6e8e474b995c2403aa5434f7b9dd4"[..])
    );
    let heavy = of("1");
    assert_eq!(header(heavy, "heavy"), None);
    assert_eq!(header(heavy, "light"), Some(&b"l"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn b19_while_the_topic_is_away_nothing_is_stored_and_once_it_is_back_one_copy_is() {
    let bed = Bed::new(1).await;
    let letters = letters(&bed);
    let value =
        |text: &str| letter(RawRecord { value: Some(text.as_bytes().into()), ..RawRecord::default() });
    letters.publish(value("before")).await.unwrap();
    bed.delete().await;
    let away = letters.publish(value("away")).await.unwrap_err();
    assert!(matches!(&away, PublishError::Away { topic, .. } if *topic == bed.topic), "{away}");
    bed.create(1, &[]).await;
    let until_back = async {
        while let Err(error) = letters.publish(value("away")).await {
            assert!(matches!(error, PublishError::Away { .. }), "{error}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, until_back).await.unwrap();
    let stored = stored(&bed, 1).await;
    let values: Vec<_> = stored.iter().map(|raw| raw.value.as_deref()).collect();
    assert_eq!(values, vec![Some(&b"away"[..])]);
}
