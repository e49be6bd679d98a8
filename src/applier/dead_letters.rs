//! Dead letters on their way: the broker's acknowledgement, then the index row, then whoever sent it is told.
//!
//! A letter that has a row already (a redelivery, a replay) gets no second copy. While the topic or the database
//! is away the letters wait, and the records they belong to stay unsettled: nothing is lost, and it is said aloud.
//! A crash between acknowledgement and row makes a second copy, never none.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::mpsc;

use super::LetterRoute;
use super::batch::Store;
use super::intake::{DeadLetter, DeadLetterTopic, PublishError};
use crate::pg::dead_letter;
use crate::telemetry::Open;

/// Letters taken together. Bounded by the applier's own limit of unsettled events.
const TOGETHER: usize = 128;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A letter and whom it belongs to.
pub(super) struct Posted {
    pub event: usize,
    pub letter: Arc<DeadLetter>,
    /// Open until the letter is stored.
    pub trace: Open,
}

/// Runs until the sender is gone. A fatal producer error is returned: the process must end.
pub(super) async fn run(
    store: Store,
    route: LetterRoute,
    mut letters: mpsc::UnboundedReceiver<Posted>,
    stored: mpsc::UnboundedSender<usize>,
) -> Result<(), PublishError> {
    let mut batch = Vec::with_capacity(TOGETHER);
    while letters.recv_many(&mut batch, TOGETHER).await > 0 {
        let waiting: Vec<Arc<DeadLetter>> = batch.iter().map(|posted| Arc::clone(&posted.letter)).collect();
        match &route {
            LetterRoute::Topic(topic) => deliver(&store, topic.as_ref(), waiting).await?,
            LetterRoute::Collected(collect) => {
                for letter in waiting {
                    // Nobody collects any more: it was interrupted, and the letter keeps its row as it is.
                    collect.send(letter).unwrap_or_default();
                }
            }
        }
        for posted in batch.drain(..) {
            store.metrics.dead_letter(posted.letter.reason);
            drop(posted.trace);
            if stored.send(posted.event).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn deliver(
    store: &Store,
    topic: &dyn DeadLetterTopic,
    letters: Vec<Arc<DeadLetter>>,
) -> Result<(), PublishError> {
    let known = keep_asking(store, async || dead_letter::known(store.database.pool(), &letters).await).await;
    let mut waiting: Vec<Arc<DeadLetter>> =
        letters.iter().zip(known).filter(|(_, known)| !known).map(|(letter, _)| Arc::clone(letter)).collect();
    let mut pause = FIRST_PAUSE;
    while !waiting.is_empty() {
        let results = join_all(waiting.iter().map(|letter| topic.publish(Arc::clone(letter)))).await;
        let mut left = Vec::new();
        for (letter, result) in waiting.into_iter().zip(results) {
            match result {
                Ok(()) => announce(&letter),
                Err(error @ PublishError::Fatal { .. }) => return Err(error),
                Err(PublishError::Away { topic, cause }) => {
                    store.metrics.dlq_attempt_failed();
                    store.health.dlq_away(&cause);
                    tracing::error!(
                        topic,
                        cause,
                        kafka.partition = letter.raw.partition,
                        kafka.offset = letter.raw.offset,
                        "dead-letter topic cannot be written; the record waits and its partition with it"
                    );
                    left.push(letter);
                }
            }
        }
        waiting = left;
        if !waiting.is_empty() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
    store.health.dlq_back();
    crate::crash::point("after_dlq_ack");
    keep_asking(store, async || dead_letter::record(store.database.pool(), &letters).await).await;
    crate::crash::point("after_dlq_index");
    Ok(())
}

async fn keep_asking<T>(
    store: &Store,
    mut step: impl AsyncFnMut() -> Result<T, crate::pg::error::StoreError>,
) -> T {
    loop {
        match store.persist("dead letter", &mut step).await {
            Ok(done) => return done,
            Err(error) => store.failed("dead letter", error),
        }
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
}

/// Without the letter's message: it may quote the record or the provider, which have no place in a log. The index
/// row holds it (`reprise dlq list`).
fn announce(letter: &DeadLetter) {
    tracing::warn!(
        motivo = letter.reason.code(),
        evento.id = letter.event_id,
        efeito = letter.effect_type,
        pedido.id = letter.order_id,
        kafka.topic = &*letter.raw.topic,
        kafka.partition = letter.raw.partition,
        kafka.offset = letter.raw.offset,
        "dead-lettered"
    );
}
