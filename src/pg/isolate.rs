//! A wave that Postgres refuses for its data, carried out item by item, so that the guilty one stands alone.
//!
//! * What a provider said is never thrown away: a 'done' that cannot be stored with its text is stored without it;
//!   one that cannot be stored at all goes to review, with what the provider and the database said as evidence.
//! * What even that cannot be written of is reported, not retried here: the caller holds it and says so.
//! * A reservation that is refused was never called: it is dead-lettered.

use sqlx::PgConnection;

use super::error::StoreError;
use super::wave::{Claimed, Destination, Evidence, Move, Settle, Wave, WaveDone, Writer, attempt};

/// `resultado` of an effect that is done and whose answer the database does not take.
const OMITTED: &str = r#"{"omitido":true}"#;

pub(super) async fn one_by_one(
    connection: &mut PgConnection,
    writer: &Writer,
    wave: &Wave,
) -> Result<WaveDone, StoreError> {
    let mut done = WaveDone::default();
    let mut alone = Alone { connection, writer, empty: Wave::empty(wave.token) };
    for (index, item) in wave.settle.iter().enumerate() {
        match alone.settle(item).await? {
            Settled::Done => {}
            Settled::Fenced => done.fenced.push(index),
            Settled::Reviewed => done.reviewed.push(index),
            Settled::Refused(words) => done.unsettled.push((index, words)),
        }
    }
    for (index, item) in wave.moves.iter().enumerate() {
        match alone.transition(item).await {
            Ok(one) => done.not_moved.extend(one.not_moved.iter().map(|_| index)),
            Err(error @ StoreError::Data(_)) => done.unmoved.push((index, error.database_message())),
            Err(error) => return Err(error),
        }
    }
    for (index, item) in wave.reserve.iter().enumerate() {
        match alone.attempt(|wave| wave.reserve.push(item.clone())).await {
            Ok(one) => {
                done.not_reserved.extend(one.not_reserved.iter().map(|_| index));
                done.claimed.extend(one.claimed.into_iter().map(|c| Claimed { index, ..c }));
            }
            Err(error @ StoreError::Data(_)) => done.refused.push((index, error.database_message())),
            Err(error) => return Err(error),
        }
    }
    alone.attempt(|alone| alone.closed.clone_from(&wave.closed)).await?;
    Ok(done)
}

enum Settled {
    Done,
    Fenced,
    /// The database does not take 'done' in any form; a person will decide.
    Reviewed,
    /// Nor that.
    Refused(String),
}

struct Alone<'a> {
    connection: &'a mut PgConnection,
    writer: &'a Writer,
    empty: Wave,
}

impl Alone<'_> {
    async fn attempt(&mut self, fill: impl FnOnce(&mut Wave)) -> Result<WaveDone, StoreError> {
        let mut wave = self.empty.clone();
        fill(&mut wave);
        attempt(self.connection, self.writer, &wave).await
    }

    async fn settle(&mut self, item: &Settle) -> Result<Settled, StoreError> {
        let mut words = String::new();
        for form in [item.clone(), Settle { result: OMITTED.to_owned(), ..item.clone() }] {
            match self.attempt(|wave| wave.settle.push(form)).await {
                Ok(one) if one.fenced.is_empty() => return Ok(Settled::Done),
                Ok(_) => return Ok(Settled::Fenced),
                Err(error @ StoreError::Data(_)) => words = error.database_message(),
                Err(error) => return Err(error),
            }
        }
        let key = item.target.key();
        tracing::error!(chave = key, cause = %words, "an effect is done and the ledger cannot say so; to review");
        let evidence = Evidence {
            answer: "feito",
            reached: "corpo",
            status: None,
            detail: format!("the provider said done; the database refuses to store it: {words}"),
            elapsed: None,
        };
        let review = Move {
            target: item.target.clone(),
            token: Some(item.token),
            to: Destination::Uncertain,
            evidence: Some(evidence),
            result: None,
        };
        match self.attempt(|wave| wave.moves.push(review)).await {
            Ok(one) if one.not_moved.is_empty() => Ok(Settled::Reviewed),
            Ok(_) => Ok(Settled::Fenced),
            Err(error @ StoreError::Data(_)) => Ok(Settled::Refused(error.database_message())),
            Err(error) => Err(error),
        }
    }

    /// The transition counts more than the words about it.
    async fn transition(&mut self, item: &Move) -> Result<WaveDone, StoreError> {
        match self.attempt(|wave| wave.moves.push(item.clone())).await {
            Err(StoreError::Data(error)) => {
                tracing::error!(chave = item.target.key(), %error, "evidence cannot be stored; its text is dropped");
                let evidence = item.evidence.as_ref().map(|evidence| Evidence {
                    detail: "text dropped: the database refuses it".to_owned(),
                    ..evidence.clone()
                });
                let result = item.result.as_ref().map(|_| OMITTED.to_owned());
                self.attempt(|wave| wave.moves.push(Move { evidence, result, ..item.clone() })).await
            }
            result => result,
        }
    }
}
