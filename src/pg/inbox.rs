//! The inbox: a consumer that only touches this database handles every message once.
//!
//! The claim is a row in the transaction of the work. If the transaction commits, a repetition finds the row and is
//! left out; if it does not, there is no row, and the repetition is the first. Nothing is done twice and nothing is
//! lost, however often a message comes and whatever is killed.
//!
//! The key is the producer's `message_id`, never made by the consumer: an offset changes with a republished record,
//! a digest is shared by two messages that say the same. It lasts `[inbox] retention` after the handling; what is
//! redelivered later counts as new.
//!
//! Not here: calls to the outside. They cannot be rolled back, and belong to the effect ledger.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use sqlx::PgConnection;
use uuid::Uuid;

use super::error::StoreError;

/// For ids that carry no time: their rows lie in the default partition.
const NO_DAY: &str = "1970-01-01";

/// Claims messages in the transaction that is open on `connection`; says for each, in order, whether it is new and
/// is to be handled now. An id that stands twice in `ids` is new once.
///
/// Another transaction that has claimed the same message is waited for. Claim once per transaction: keys are locked
/// in one order, so two consumers cannot wait for each other.
pub async fn claim(
    connection: &mut PgConnection,
    consumer: &str,
    topic: &str,
    ids: &[&str],
) -> Result<Vec<bool>, StoreError> {
    let distinct: BTreeSet<(String, &str)> = ids.iter().map(|id| (day(id), *id)).collect();
    let days: Vec<&str> = distinct.iter().map(|(day, _)| day.as_str()).collect();
    let keys: Vec<&str> = distinct.iter().map(|(_, id)| *id).collect();
    let inserted: Vec<String> = sqlx::query_scalar(
        "insert into inbox (message_day, consumer, topic, message_id)
         select day::date, $3, $4, id from unnest($1::text[], $2::text[]) as messages(day, id) order by 1, 4
         on conflict do nothing returning message_id",
    )
    .bind(days)
    .bind(keys)
    .bind(consumer)
    .bind(topic)
    .fetch_all(connection)
    .await?;
    let mut new: HashSet<&str> = inserted.iter().map(String::as_str).collect();
    Ok(ids.iter().map(|id| new.remove(id)).collect())
}

/// The day that a `UUIDv7` carries, in UTC.
fn day(id: &str) -> String {
    let carried = Uuid::parse_str(id).ok().filter(|uuid| uuid.get_version_num() == 7);
    let seconds = carried.and_then(|uuid| uuid.get_timestamp()).map(|timestamp| timestamp.to_unix().0);
    let instant = seconds.and_then(|seconds| Timestamp::from_second(i64::try_from(seconds).ok()?).ok());
    instant.map_or_else(|| NO_DAY.to_owned(), |instant| instant.strftime("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_day_of_a_message_stands_in_its_id() {
        // 0x019a_0000_0000 ms = 2025-10-20T06:45:44.192Z
        assert_eq!(day("019a0000-0000-7000-8000-000000000000"), "2025-10-20");
        assert_eq!(day("3f2c1c9e-5f0a-4e57-9d3c-1c1a2b3c4d5e"), "1970-01-01", "version 4 carries no time");
        assert_eq!(day("pedido-1"), "1970-01-01");
    }
}
