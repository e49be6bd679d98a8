//! Rebuild, compare, cut over, roll back, drop: what a person does with generations.
//!
//! Whatever looks at two generations first holds all cursors of the projection and brings both to one floor, in one
//! transaction: then both are what the same events make, and readers go from one to the other without a step back.

use sqlx::{Connection as _, PgConnection};

use super::Name;
use super::runner::{Batch, ProjectionError, move_on};
use crate::pg::error::StoreError;
use crate::pg::order_feed;
use crate::pg::projection_offsets::{self, Place};
use crate::pg::projections::{self as store, Cursor, FedBy};

/// Further behind than this a generation is not caught up while others wait.
const NEAR: i64 = 20_000;
const BATCH: Batch = Batch::of(2_000);

#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    #[error(transparent)]
    Projection(#[from] ProjectionError),
    #[error("{0} has no generation to do that with; see `reprise projections list`")]
    NoGeneration(&'static str),
    #[error("generation {generation} of {name} is still {behind} events behind; wait until it is at the tip")]
    Behind { name: &'static str, generation: i32, behind: i64 },
    #[error(
        "{0} has a generation that is being built; go on with it (--resume), cut over to it, or drop it first"
    )]
    Building(&'static str),
    #[error(
        "generation {generation} of {name} is not built yet; finish it with `projections rebuild {name} --resume`"
    )]
    Unfinished { name: &'static str, generation: i32 },
}

impl From<StoreError> for SteerError {
    fn from(error: StoreError) -> Self {
        Self::Projection(error.into())
    }
}

impl From<sqlx::Error> for SteerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Projection(error.into())
    }
}

fn active(cursors: &[Cursor], name: Name) -> Result<i32, SteerError> {
    let active = cursors.iter().find(|cursor| cursor.state == "active");
    active.map(|cursor| cursor.shard.generation).ok_or(SteerError::NoGeneration(name.as_str()))
}

/// The newest generation that is not the active one, unless one was named.
fn other(cursors: &[Cursor], name: Name, wanted: Option<i32>) -> Result<i32, SteerError> {
    let candidates = cursors.iter().filter(|cursor| cursor.state != "active");
    let generations = candidates.map(|cursor| cursor.shard.generation);
    let found = generations.filter(|generation| wanted.is_none_or(|wanted| wanted == *generation)).max();
    found.ok_or(SteerError::NoGeneration(name.as_str()))
}

/// Begins a new generation and says its number.
///
/// With `places` it is read from the topic of orders first.
pub async fn begin(
    connection: &mut PgConnection,
    name: Name,
    shards: i32,
    places: Option<&[Place]>,
) -> Result<i32, SteerError> {
    let mut transaction = connection.begin().await?;
    let cursors = store::take_all(&mut transaction, name).await?;
    if cursors.iter().any(|cursor| cursor.state == "building") {
        return Err(SteerError::Building(name.as_str()));
    }
    let model = active(&cursors, name)?;
    let newest = cursors.iter().map(|cursor| cursor.shard.generation).max().unwrap_or(model);
    let fed_by = if places.is_some() { FedBy::Kafka } else { FedBy::Rebuild };
    store::create(&mut transaction, name, (model, newest + 1), (shards, fed_by)).await?;
    if let Some(places) = places {
        projection_offsets::plan(&mut transaction, (name, newest + 1), shards, places).await?;
    }
    transaction.commit().await?;
    Ok(newest + 1)
}

/// The cursors of the generation that a rebuild began and did not finish.
pub async fn unfinished(connection: &mut PgConnection, name: Name) -> Result<Vec<Cursor>, SteerError> {
    let mut cursors = store::cursors(connection).await?;
    cursors.retain(|cursor| {
        cursor.shard.name == name && cursor.state == "building" && cursor.fed_by != FedBy::Runner
    });
    if cursors.is_empty() { Err(SteerError::NoGeneration(name.as_str())) } else { Ok(cursors) }
}

/// Hands a generation on; the caller has brought every shard to where that is right.
pub async fn feed(
    connection: &mut PgConnection,
    name: Name,
    generation: i32,
    fed_by: FedBy,
) -> Result<(), SteerError> {
    let mut transaction = connection.begin().await?;
    store::take_all(&mut transaction, name).await?;
    store::feed(&mut transaction, name, generation, fed_by).await?;
    transaction.commit().await?;
    Ok(())
}

/// Brings the two generations to one floor.
async fn level(
    connection: &mut PgConnection,
    mut cursors: Vec<Cursor>,
    generations: [i32; 2],
) -> Result<(), SteerError> {
    let ours = |cursor: &&Cursor| generations.contains(&cursor.shard.generation);
    if let Some(cursor) = cursors.iter().filter(ours).find(|cursor| cursor.fed_by != FedBy::Runner) {
        let (name, generation) = (cursor.shard.name.as_str(), cursor.shard.generation);
        return Err(SteerError::Unfinished { name, generation });
    }
    let floor = order_feed::floor(connection).await?.0;
    for cursor in cursors.iter_mut().filter(|cursor| generations.contains(&cursor.shard.generation)) {
        let behind = floor - cursor.position;
        if behind > NEAR {
            let (name, generation) = (cursor.shard.name.as_str(), cursor.shard.generation);
            return Err(SteerError::Behind { name, generation, behind });
        }
        while move_on(connection, cursor, floor, BATCH).await?.is_some() {}
    }
    Ok(())
}

/// How many rows differ between the active generation and another at one position: (active, other, rows).
pub async fn compare(
    connection: &mut PgConnection,
    name: Name,
    wanted: Option<i32>,
) -> Result<(i32, i32, i64), SteerError> {
    let mut transaction = connection.begin().await?;
    let cursors = store::take_all(&mut transaction, name).await?;
    let (active, other) = (active(&cursors, name)?, other(&cursors, name, wanted)?);
    level(&mut transaction, cursors, [active, other]).await?;
    let different = store::differences(&mut transaction, name, (active, other)).await?;
    transaction.commit().await?;
    Ok((active, other, different))
}

/// Lets readers see another generation: a newly built one, or an older one again.
pub async fn cut_over(
    connection: &mut PgConnection,
    name: Name,
    wanted: Option<i32>,
) -> Result<i32, SteerError> {
    let mut transaction = connection.begin().await?;
    let cursors = store::take_all(&mut transaction, name).await?;
    let (active, other) = (active(&cursors, name)?, other(&cursors, name, wanted)?);
    level(&mut transaction, cursors, [active, other]).await?;
    store::swap(&mut transaction, name, other).await?;
    transaction.commit().await?;
    Ok(other)
}

/// Ends every generation that readers do not see, or the one named.
pub async fn drop_old(
    connection: &mut PgConnection,
    name: Name,
    wanted: Option<i32>,
) -> Result<Vec<i32>, SteerError> {
    let mut transaction = connection.begin().await?;
    let cursors = store::take_all(&mut transaction, name).await?;
    let unseen = cursors.iter().filter(|cursor| cursor.state != "active");
    let mut generations: Vec<i32> = unseen.map(|cursor| cursor.shard.generation).collect();
    generations.dedup();
    generations.retain(|generation| wanted.is_none_or(|wanted| wanted == *generation));
    if generations.is_empty() {
        return Err(SteerError::NoGeneration(name.as_str()));
    }
    for generation in &generations {
        store::remove(&mut transaction, name, *generation).await?;
    }
    transaction.commit().await?;
    Ok(generations)
}
