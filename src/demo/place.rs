//! What belongs to one demo: topics, groups, a replay's id and a database, all named after its number.
//!
//! A demo touches nothing else. What it made stays, to look around in, until the next one clears it away; a demo that
//! is still running is known by the lock on its number and left alone.

use super::{DemoError, Stage};
use crate::pg::demo::{Claim, beside, number_of};
use crate::stream::produce::{create_topics, delete_groups, delete_topics, topic_names};

const TOPIC: &str = "pedido.pago.demo-";
pub const PARTITIONS: i32 = 6;

/// The names of one demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    pub topic: String,
    pub dlq: String,
    pub group: String,
    /// Topic of `[orders]`.
    pub events: String,
    pub events_dlq: String,
    /// Also the replay's consumer group.
    pub replay: String,
}

impl Names {
    fn of(number: u32) -> Self {
        Self {
            topic: format!("{TOPIC}{number}"),
            dlq: format!("{TOPIC}{number}.dlq"),
            group: format!("comissao-demo-{number}"),
            events: format!("orders.events.demo-{number}"),
            events_dlq: format!("orders.events.demo-{number}.dlq"),
            replay: format!("replay-2026-10-14-demo-{number}"),
        }
    }
}

/// A place of this demo's own, made on the servers.
pub struct Place {
    pub names: Names,
    /// Of the demo's own database.
    pub database_url: String,
    /// Demos cleared away.
    pub cleared: usize,
    /// Held to the end: this is what keeps another demo from clearing this one away.
    _claim: Claim,
}

impl Place {
    /// Clears away what ended demos left, and makes a new place.
    pub async fn make(stage: &Stage) -> Result<Self, DemoError> {
        let kafka = |cause: String| DemoError::Kafka { brokers: stage.brokers.clone(), cause };
        let at =
            |database: &str| beside(&stage.postgres, database).map_err(|e| DemoError::Url(e.to_string()));
        // A URL that cannot be read is told before anything is made.
        at("postgres")?;
        let brokers = stage.brokers.clone();
        let known = tokio::task::spawn_blocking(move || topic_names(&brokers))
            .await
            .map_err(|error| kafka(error.to_string()))?
            .map_err(|error| kafka(error.to_string()))?;
        let taken = known.iter().filter_map(|name| number_of(name, TOPIC)).max().unwrap_or(0);
        let mut claim = Claim::take(&stage.postgres, taken).await?;
        let cleared = claim.leftovers.clone();
        clear(stage, &mut claim, &cleared, &known).await?;
        let names = Names::of(claim.number);
        // First the database: by it an interrupted demo is found, and its topics with it.
        let database = claim.create_database().await?;
        let topics = [
            (names.topic.as_str(), PARTITIONS),
            (&names.dlq, 1),
            (&names.events, PARTITIONS),
            (&names.events_dlq, 1),
        ];
        create_topics(&stage.brokers, &topics).await.map_err(|error| kafka(error.to_string()))?;
        let database_url = at(&database)?;
        Ok(Self { names, database_url, cleared: cleared.len(), _claim: claim })
    }
}

async fn clear(stage: &Stage, claim: &mut Claim, numbers: &[u32], known: &[String]) -> Result<(), DemoError> {
    let kafka = |cause: String| DemoError::Kafka { brokers: stage.brokers.clone(), cause };
    for number in numbers {
        let names = Names::of(*number);
        let topics: Vec<&str> = [&names.topic, &names.dlq, &names.events, &names.events_dlq]
            .into_iter()
            .filter(|name| known.contains(name))
            .map(String::as_str)
            .collect();
        if !topics.is_empty() {
            delete_topics(&stage.brokers, &topics).await.map_err(|e| kafka(e.to_string()))?;
            delete_groups(&stage.brokers, &[&names.group, &names.replay])
                .await
                .map_err(|e| kafka(e.to_string()))?;
        }
        claim.drop_leftover(*number).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_bears_the_number_and_a_dead_letter_topic_is_no_place() {
        let names = Names::of(7);
        assert_eq!(names.topic, "pedido.pago.demo-7");
        assert_eq!(names.dlq, "pedido.pago.demo-7.dlq");
        assert_eq!(names.group, "comissao-demo-7");
        assert_eq!(names.events, "orders.events.demo-7");
        assert_eq!(names.replay, "replay-2026-10-14-demo-7");
        assert_eq!(number_of(&names.topic, TOPIC), Some(7));
        assert_eq!(number_of(&names.dlq, TOPIC), None);
    }
}
