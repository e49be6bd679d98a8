//! Where each partition begins. Never at a guess: what cannot be looked up now is looked up again.
//!
//! | committed position        | live start                                               |
//! |---------------------------|----------------------------------------------------------|
//! | none                      | beginning of the log, said and counted                   |
//! | inside the log            | there                                                    |
//! | below its beginning       | records are gone: stop, or advance to the beginning      |
//! | above its end             | the topic was made anew: stop, or begin at its beginning |
//!
//! A replay starts where its stored progress says, and never advances over records that are gone.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::consumer::StreamFailure;
use crate::applier::intake::ResumeAt;

/// `kafka.offset_perdido`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostOffset {
    /// `parar`
    Stop,
    /// `avancar`
    Advance,
}

/// Where one partition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub partition: i32,
    pub at: ResumeAt,
    /// Exclusive. `at >= end`: nothing to read.
    pub end: Option<ResumeAt>,
    /// What the group has committed, where it is known.
    pub committed: Option<ResumeAt>,
}

/// Something a person should hear about a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    Earliest {
        partition: i32,
    },
    /// Records `from..to` no longer exist.
    Lost {
        partition: i32,
        from: i64,
        to: i64,
    },
    /// `at` lies above the end of the log.
    Recreated {
        partition: i32,
        at: i64,
        end: i64,
    },
    /// Not part of the plan: ours in the group, but nothing of it is read.
    NotCovered {
        partition: i32,
    },
}

/// What is known now. A partition in neither list is asked for again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub starts: Vec<Start>,
    pub news: Vec<News>,
}

#[derive(Debug)]
pub enum StartsError {
    /// Nothing is known yet; ask again shortly.
    Later(String),
    Stop(StreamFailure),
}

/// Finds starting places. Called on the polling thread: every wait in it must be bounded, well below the session
/// timeout.
pub trait Starts: Send {
    fn find(&mut self, log: &dyn LogOffsets, partitions: &[i32]) -> Result<Found, StartsError>;
}

/// What the broker knows, looked up within a limit. Partitions whose answer failed are absent.
pub trait LogOffsets {
    /// The group's committed offsets; `None` where there is none.
    fn committed(&self, partitions: &[i32]) -> Result<HashMap<i32, Option<i64>>, String>;
    /// First offset and end of each partition.
    fn bounds(&self, partitions: &[i32]) -> Result<HashMap<i32, (i64, i64)>, String>;
}

/// The live group: its committed offsets.
#[derive(Debug)]
pub struct CommittedStarts {
    pub on_lost: LostOffset,
}

impl Starts for CommittedStarts {
    fn find(&mut self, log: &dyn LogOffsets, partitions: &[i32]) -> Result<Found, StartsError> {
        let committed = log.committed(partitions).map_err(StartsError::Later)?;
        // Asked after the commits, so that an end can only be newer than a commit.
        let bounds = log.bounds(partitions).map_err(StartsError::Later)?;
        let mut found = Found::default();
        for &partition in partitions {
            let (Some(&committed), Some(&(low, high))) = (committed.get(&partition), bounds.get(&partition))
            else {
                continue;
            };
            let (at, news) = match committed {
                None => (low, Some(News::Earliest { partition })),
                Some(at) if at < low => (low, Some(News::Lost { partition, from: at, to: low })),
                Some(at) if at > high => (low, Some(News::Recreated { partition, at, end: high })),
                Some(at) => (at, None),
            };
            if self.on_lost == LostOffset::Stop
                && let Some(failure) = news.and_then(failure)
            {
                return Err(StartsError::Stop(failure));
            }
            found.news.extend(news);
            let committed = committed.map(ResumeAt);
            found.starts.push(Start { partition, at: ResumeAt(at), end: None, committed });
        }
        Ok(found)
    }
}

/// Start and end (exclusive) by partition, as stored for a run.
pub type StoredRanges = HashMap<i32, (ResumeAt, Option<ResumeAt>)>;

/// A replay: the positions kept in the database. The supplied look-up must be bounded.
pub struct StoredStarts<F> {
    pub lookup: F,
}

impl<F: FnMut(&[i32]) -> Result<StoredRanges, String> + Send> Starts for StoredStarts<F> {
    fn find(&mut self, log: &dyn LogOffsets, partitions: &[i32]) -> Result<Found, StartsError> {
        let stored = (self.lookup)(partitions).map_err(StartsError::Later)?;
        let to_read =
            |partition: &i32| stored.get(partition).is_some_and(|(at, end)| end.is_none_or(|end| *at < end));
        let reading: Vec<i32> = partitions.iter().copied().filter(to_read).collect();
        let bounds = log.bounds(&reading).map_err(StartsError::Later)?;
        let mut found = Found::default();
        for &partition in partitions {
            let Some(&(at, end)) = stored.get(&partition) else {
                found.news.push(News::NotCovered { partition });
                continue;
            };
            if reading.contains(&partition) {
                let Some(&(low, high)) = bounds.get(&partition) else { continue };
                let gone = match at.0 {
                    at if at < low => failure(News::Lost { partition, from: at, to: low }),
                    at if at > high => failure(News::Recreated { partition, at, end: high }),
                    _ => None,
                };
                if let Some(failure) = gone {
                    return Err(StartsError::Stop(failure));
                }
            }
            found.starts.push(Start { partition, at, end, committed: None });
        }
        Ok(found)
    }
}

/// A consumer that keeps its places beside its state: those, and the beginning of the log where it has none. Places
/// whose records are gone are passed over, and told. The supplied look-up must be bounded.
pub struct UnboundedStarts<F> {
    pub lookup: F,
}

impl<F: FnMut(&[i32]) -> Result<HashMap<i32, ResumeAt>, String> + Send> Starts for UnboundedStarts<F> {
    fn find(&mut self, log: &dyn LogOffsets, partitions: &[i32]) -> Result<Found, StartsError> {
        let stored = (self.lookup)(partitions).map_err(StartsError::Later)?;
        let bounds = log.bounds(partitions).map_err(StartsError::Later)?;
        let mut found = Found::default();
        for &partition in partitions {
            let Some(&(low, high)) = bounds.get(&partition) else { continue };
            let (at, news) = match stored.get(&partition) {
                None => (low, Some(News::Earliest { partition })),
                Some(at) if at.0 < low => (low, Some(News::Lost { partition, from: at.0, to: low })),
                Some(at) if at.0 > high => (low, Some(News::Recreated { partition, at: at.0, end: high })),
                Some(at) => (at.0, None),
            };
            found.news.extend(news);
            found.starts.push(Start { partition, at: ResumeAt(at), end: None, committed: None });
        }
        Ok(found)
    }
}

fn failure(news: News) -> Option<StreamFailure> {
    match news {
        News::Lost { partition, from, to } => Some(StreamFailure::LostOffsets { partition, from, to }),
        News::Recreated { partition, at, end } => Some(StreamFailure::TopicRecreated { partition, at, end }),
        News::Earliest { .. } | News::NotCovered { .. } => None,
    }
}

/// The broker, asked through the consumer itself, with one deadline for the whole look-up.
pub(super) struct ClientOffsets<'a, C: ConsumerContext> {
    pub consumer: &'a BaseConsumer<C>,
    pub topic: &'a str,
    pub deadline: Instant,
}

impl<C: ConsumerContext> ClientOffsets<'_, C> {
    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    fn list(&self, partitions: &[i32], offset: Offset) -> Result<TopicPartitionList, String> {
        let mut list = TopicPartitionList::with_capacity(partitions.len());
        for &partition in partitions {
            list.add_partition_offset(self.topic, partition, offset).map_err(|error| error.to_string())?;
        }
        Ok(list)
    }

    /// `Beginning` and `End` are what the protocol itself uses as special timestamps; `End` is the last stable
    /// offset for a reader of committed records.
    fn edge(&self, partitions: &[i32], edge: Offset) -> Result<HashMap<i32, i64>, String> {
        let list = self.list(partitions, edge)?;
        let answer = self.consumer.offsets_for_times(list, self.remaining()).map_err(|error| told(&error))?;
        Ok(answer
            .elements()
            .iter()
            .filter(|element| element.error().is_ok())
            .filter_map(|element| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            })
            .collect())
    }
}

impl<C: ConsumerContext> LogOffsets for ClientOffsets<'_, C> {
    fn committed(&self, partitions: &[i32]) -> Result<HashMap<i32, Option<i64>>, String> {
        let list = self.list(partitions, Offset::Invalid)?;
        let answer = self.consumer.committed_offsets(list, self.remaining()).map_err(|error| told(&error))?;
        Ok(answer
            .elements()
            .iter()
            .filter(|element| element.error().is_ok())
            .map(|element| match element.offset() {
                Offset::Offset(offset) => (element.partition(), Some(offset)),
                _ => (element.partition(), None),
            })
            .collect())
    }

    fn bounds(&self, partitions: &[i32]) -> Result<HashMap<i32, (i64, i64)>, String> {
        if partitions.is_empty() {
            return Ok(HashMap::new());
        }
        let low = self.edge(partitions, Offset::Beginning)?;
        let high = self.edge(partitions, Offset::End)?;
        Ok(low
            .into_iter()
            .filter_map(|(partition, low)| Some((partition, (low, *high.get(&partition)?))))
            .collect())
    }
}

fn told(error: &KafkaError) -> String {
    error.rdkafka_error_code().map_or_else(|| error.to_string(), |code| code.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Log {
        committed: HashMap<i32, Option<i64>>,
        bounds: HashMap<i32, (i64, i64)>,
    }

    impl LogOffsets for Log {
        fn committed(&self, _: &[i32]) -> Result<HashMap<i32, Option<i64>>, String> {
            Ok(self.committed.clone())
        }

        fn bounds(&self, _: &[i32]) -> Result<HashMap<i32, (i64, i64)>, String> {
            Ok(self.bounds.clone())
        }
    }

    fn log(committed: Option<i64>, low: i64, high: i64) -> Log {
        Log { committed: HashMap::from([(0, committed)]), bounds: HashMap::from([(0, (low, high))]) }
    }

    fn live(on_lost: LostOffset, log: &Log) -> Result<Found, StartsError> {
        CommittedStarts { on_lost }.find(log, &[0])
    }

    #[test]
    fn b80_without_a_commit_the_beginning_is_taken_and_said() {
        let found = live(LostOffset::Stop, &log(None, 3, 9)).unwrap();
        assert_eq!(found.starts, vec![Start { partition: 0, at: ResumeAt(3), end: None, committed: None }]);
        assert_eq!(found.news, vec![News::Earliest { partition: 0 }]);
    }

    #[test]
    fn b36_a_commit_below_the_log_stops_or_advances_naming_the_range() {
        let gone = log(Some(200), 500, 900);
        let stopped = live(LostOffset::Stop, &gone).unwrap_err();
        assert!(matches!(
            stopped,
            StartsError::Stop(StreamFailure::LostOffsets { partition: 0, from: 200, to: 500 })
        ));
        let found = live(LostOffset::Advance, &gone).unwrap();
        assert_eq!(found.starts[0].at, ResumeAt(500));
        assert_eq!(found.news, vec![News::Lost { partition: 0, from: 200, to: 500 }]);
    }

    #[test]
    fn a_commit_above_the_end_means_a_topic_made_anew() {
        let anew = log(Some(200), 0, 10);
        assert!(matches!(
            live(LostOffset::Stop, &anew).unwrap_err(),
            StartsError::Stop(StreamFailure::TopicRecreated { partition: 0, at: 200, end: 10 })
        ));
        assert_eq!(live(LostOffset::Advance, &anew).unwrap().starts[0].at, ResumeAt(0));
    }

    #[test]
    fn a_partition_that_did_not_answer_is_left_for_later() {
        let silent = Log { committed: HashMap::new(), bounds: HashMap::from([(0, (0, 1))]) };
        assert_eq!(live(LostOffset::Stop, &silent).unwrap(), Found::default());
    }

    fn stored(ranges: StoredRanges, log: &Log, partitions: &[i32]) -> Result<Found, StartsError> {
        StoredStarts { lookup: move |_: &[i32]| Ok(ranges.clone()) }.find(log, partitions)
    }

    #[test]
    fn b43_a_replay_says_which_partitions_its_plan_does_not_cover() {
        let ranges = HashMap::from([(0, (ResumeAt(4), Some(ResumeAt(8))))]);
        let found = stored(ranges, &log(None, 0, 9), &[0, 5]).unwrap();
        let start = Start { partition: 0, at: ResumeAt(4), end: Some(ResumeAt(8)), committed: None };
        assert_eq!(found.starts, vec![start]);
        assert_eq!(found.news, vec![News::NotCovered { partition: 5 }]);
    }

    #[test]
    fn b36_a_replay_never_advances_over_records_that_are_gone() {
        let ranges = HashMap::from([(0, (ResumeAt(4), Some(ResumeAt(8))))]);
        assert!(matches!(
            stored(ranges, &log(None, 6, 9), &[0]).unwrap_err(),
            StartsError::Stop(StreamFailure::LostOffsets { partition: 0, from: 4, to: 6 })
        ));
        let finished = HashMap::from([(0, (ResumeAt(8), Some(ResumeAt(8))))]);
        assert_eq!(stored(finished, &log(None, 9, 9), &[0]).unwrap().starts[0].at, ResumeAt(8));
    }
}
