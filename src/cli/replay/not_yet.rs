//! Events of a period that the topic has and the archive does not have yet: a replay of the archive would miss them
//! without a word, and so would the one who believes that the period was replayed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cli::Failure;
use crate::config::{Config, Kafka};
use crate::pg::archive;
use crate::pg::connect::Database;
use crate::pg::replay::Asked;
use crate::stream::admin::Admin;
use crate::stream::range::capture;

const LIMIT: Duration = Duration::from_secs(15);

/// Refuses a period that is not archived to its end. By log time: what the topic has of it must lie below the
/// archive's committed position, which passes transaction markers too.
pub(super) async fn refused(config: &Config, database: &Database, asked: &Asked) -> Result<(), Failure> {
    let kafka = Kafka { group: config.archive.group.clone(), ..config.kafka.clone() };
    let (from, to) = (asked.from, asked.to);
    let asking = tokio::task::spawn_blocking(move || -> Result<_, Failure> {
        let range = capture(&kafka, from, to).map_err(Failure::failed)?;
        let admin = Admin::connect(&kafka, LIMIT).map_err(Failure::failed)?;
        let partitions = admin.partitions(&kafka.topic).map_err(Failure::failed)?.unwrap_or_default();
        let positions = admin.positions(&kafka.topic, &partitions).map_err(Failure::failed)?;
        Ok((range, positions))
    });
    let (range, positions) = asking.await??;
    let mut archived: BTreeMap<i32, i64> =
        positions.iter().filter_map(|at| Some((at.partition, at.committed?))).collect();
    let in_range = || range.partitions.iter().filter(|part| part.start < part.end);
    if in_range().any(|part| !archived.contains_key(&part.partition)) {
        // The group is forgotten, or another one now: the rows tell.
        for (partition, _, until) in archive::extent(database.pool(), &asked.topic).await? {
            archived.entry(partition).or_insert(until);
        }
    }
    let behind = |part: &crate::stream::range::PartitionRange| {
        let until = archived.get(&part.partition).copied().unwrap_or(0).max(part.start);
        (until < part.end).then(|| format!("partition {}: {until} to {}", part.partition, part.end - 1))
    };
    let behind: Vec<String> = in_range().filter_map(behind).collect();
    if behind.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "not everything of this period is archived yet ({}); let `reprise archive` catch up, or give --accept-gap to go on without it",
        behind.join(", ")
    )))
}
