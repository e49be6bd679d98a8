//! Dead letters: a topic of another shape, a topic that is away, and a copy that is the original.

use serde_json::json;

use crate::support::event::event;
use crate::support::kafka::{self, Outgoing, header};
use crate::support::{SOON, Setup, World, kafka_servers, until};

#[tokio::test]
async fn b19_a_letter_lands_in_a_narrower_topic_and_waits_for_one_that_is_away() {
    let world = World::with(Setup { partitions: 12, ..Setup::default() }).await;
    let _live = world.live().await;
    world.kafka.produce(&world.topic, &Outgoing::raw("torto", b"{").on(7)).await;
    world.settled().await;
    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(header(&letters[0], "reprise-dlq-particao"), "7");

    kafka::remove(&kafka_servers(), &[&world.dlq_topic], &[]).await;
    world.kafka.produce(&world.topic, &Outgoing::raw("torto", b"[").on(3)).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(1)).on(3)).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(2)).on(4)).await;
    until("the alert rises", SOON, async || {
        world.metric("reprise_dlq_tentativas_falhas_total", &[]).await.is_some_and(|n| n >= 1.0)
    })
    .await;
    assert_eq!(world.metric("reprise_dlq_indisponivel", &[]).await, Some(1.0));
    until("other partitions go on", SOON, async || world.committed().await[&4] == Some(1)).await;
    assert_eq!(world.committed().await[&3].unwrap_or(0), 0, "the record waits, and its offset with it");

    world.kafka.recreate_topic(&world.dlq_topic, 1).await;
    world.settled().await;
    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1, "exactly one copy");
    assert_eq!(kafka::payload(&letters[0]), b"[");
    assert_eq!((world.done().await, world.provider.count()), (2, 2));
    until("the alert falls", SOON, async || world.metric("reprise_dlq_indisponivel", &[]).await == Some(0.0))
        .await;
}

#[tokio::test]
async fn b58_the_copy_is_the_original_in_key_value_and_headers() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let headers: Vec<(String, Option<Vec<u8>>)> = [
        ("origem", Some(b"loja".to_vec())),
        ("nulo", None),
        ("vazio", Some(Vec::new())),
        ("origem", Some(vec![0xff, 0x00, 0xfe])),
        ("traceparent", Some(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_vec())),
        ("nulo", None),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let (key, value) = (vec![0x00, 0x80, 0xff], vec![0xff, 0xfe, 0x00, 0x7b]);
    let poison = Outgoing {
        key: Some(key.clone()),
        value: Some(value.clone()),
        headers: headers.clone(),
        ..Outgoing::default()
    };
    world.kafka.produce(&world.topic, &poison).await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(1))).await;
    let _live = world.live().await;
    world.settled().await;

    let letters = world.dlq().await;
    assert_eq!(letters.len(), 1);
    let (found, ours) = split_headers(&letters[0]);
    assert_eq!(found, headers, "order, duplicates and nulls as they were");
    assert_eq!(
        ours.iter().filter(|name| *name == "reprise-dlq-motivo").count(),
        1,
        "our facts are extra headers: {ours:?}"
    );
    assert_eq!(rdkafka::Message::key(&letters[0]), Some(&key[..]));
    assert_eq!(kafka::payload(&letters[0]), value);
    let kept: Vec<(Vec<u8>, Vec<u8>)> = world.rows("select chave, valor from carta_morta").await;
    assert_eq!(kept, [(key, value)]);
    assert_eq!(world.done().await, 1);
}

type Named = (String, Option<Vec<u8>>);

/// The original's headers, and the names of ours.
fn split_headers(letter: &rdkafka::message::OwnedMessage) -> (Vec<Named>, Vec<String>) {
    let headers = rdkafka::Message::headers(letter).expect("headers");
    let (ours, theirs): (Vec<_>, Vec<_>) =
        rdkafka::message::Headers::iter(headers).partition(|header| header.key.starts_with("reprise-dlq-"));
    let theirs = theirs.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect();
    (theirs, ours.iter().map(|h| h.key.to_owned()).collect())
}

#[tokio::test]
async fn b21_a_nul_is_kept_in_the_letter_and_harmless_where_nobody_reads_it() {
    let world = World::with(Setup { partitions: 1, ..Setup::default() }).await;
    let mut noted = event(1);
    noted["nota"] = json!("antes\u{0}depois");
    let mut named = event(2);
    named["id"] = json!("evt\u{0}2");
    world.send(&noted).await;
    world.send(&named).await;
    world.send(&event(3)).await;
    let _live = world.live().await;
    world.settled().await;
    assert_eq!(world.done().await, 2);
    let letters: Vec<(String, String, Vec<u8>)> =
        world.rows("select motivo, mensagem, valor from carta_morta").await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].0, "texto-invalido");
    assert!(letters[0].1.contains("id"), "the field is named: {}", letters[0].1);
    assert_eq!(letters[0].2, named.to_string().into_bytes());
}
