//! What can be looked at and done on the order side, for the pages and the JSON API alike.
//!
//! Orders are folded from their events, as their own API does it; read models are steered by the commands of the same
//! name.

use std::num::NonZeroU32;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::Value;
use uuid::Uuid;

use super::Console;
use super::desk::{Launch, unknown};
use crate::domain::effect::EffectState;
use crate::ops::problem::Problem;
use crate::orders::desk::{DeskError, History};
use crate::orders::order::{Order, Refusal};
use crate::pg::connect::within;
use crate::pg::error::StoreError;
use crate::pg::kpi_rows::{self, Kpis};
use crate::pg::orders::Until;
use crate::pg::projection_rows::{self as rows, DashboardRow, OrderRow, Wanted};
use crate::pg::projections::{self, Lag};
use crate::pg::review::{self, Filter, Summary};
use crate::pg::saga::{self, Shown, ShownStep};
use crate::projections::Name;

/// Where a saga can be.
pub const SAGA_STATES: [&str; 4] = ["started", "compensating", "succeeded", "failed"];
/// Effects of one order that its page shows.
const EFFECTS: i64 = 100;

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        match error {
            DeskError::Store(error) => error.into(),
            DeskError::Refused(Refusal::NoSuchOrder) => {
                unknown("there is no such order, or it has not had this version; look it up in the list")
            }
            error => {
                tracing::error!(%error, "the console cannot show an order");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable-history", error.to_string())
            }
        }
    }
}

/// Where a rebuild reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Store,
    Kafka,
}

impl Source {
    pub const ALL: [Self; 2] = [Self::Store, Self::Kafka];

    /// The word of the command's option.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Kafka => "kafka",
        }
    }

    /// The store, where nothing is said.
    pub fn of(word: Option<&str>) -> Option<Self> {
        word.map_or(Some(Self::Store), |word| Self::ALL.into_iter().find(|source| source.as_str() == word))
    }
}

/// What is done with the generations of a read model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steer {
    Rebuild {
        shards: u8,
        from: Source,
        /// At most so many events a second.
        rate: Option<NonZeroU32>,
    },
    /// Goes on with a rebuild that was stopped or killed.
    Resume {
        rate: Option<NonZeroU32>,
    },
    Compare {
        generation: Option<i32>,
    },
    CutOver {
        generation: Option<i32>,
    },
    Drop {
        generation: Option<i32>,
    },
}

impl Steer {
    /// Goes on by itself, and has no answer yet.
    pub const fn is_long(self) -> bool {
        matches!(self, Self::Rebuild { .. } | Self::Resume { .. })
    }

    fn args(self, name: Name) -> Vec<String> {
        let one = |generation: Option<i32>| -> Vec<String> {
            generation.map(|n| format!("--generation={n}")).into_iter().collect()
        };
        let rated = |rate: Option<NonZeroU32>| rate.map(|n| format!("--rate={n}"));
        let (verb, options) = match self {
            Self::Rebuild { shards, from, rate } => {
                let mut options = vec![format!("--shards={shards}"), format!("--source={}", from.as_str())];
                options.extend(rated(rate));
                ("rebuild", options)
            }
            Self::Resume { rate } => {
                let mut options = vec!["--resume".to_owned()];
                options.extend(rated(rate));
                ("rebuild", options)
            }
            Self::Compare { generation } => ("compare", one(generation)),
            Self::CutOver { generation } => ("cut-over", one(generation)),
            Self::Drop { generation } => ("drop", one(generation)),
        };
        let mut args = vec!["projections".to_owned(), verb.to_owned()];
        args.extend(options);
        args.push("--output=json".to_owned());
        args.push(name.as_str().to_owned());
        args
    }
}

/// Under which a rebuild is remembered.
fn launch_of(name: Name) -> String {
    format!("projections rebuild {}", name.as_str())
}

impl Console {
    pub async fn orders(&self, wanted: &Wanted) -> Result<Vec<OrderRow>, Problem> {
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        Ok(rows::orders(&mut connection, wanted).await?)
    }

    pub async fn dashboard(&self, tenant: Option<&str>) -> Result<Vec<DashboardRow>, Problem> {
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        Ok(rows::dashboard(&mut connection, tenant).await?)
    }

    pub async fn order(&self, id: Uuid, until: Until) -> Result<Order, Problem> {
        Ok(self.orders.show(id, until, None).await?)
    }

    pub async fn history(&self, id: Uuid, after: u32, limit: u32) -> Result<History, Problem> {
        Ok(self.orders.history(id, after, limit, None).await?)
    }

    /// The effects of an order, whatever their state.
    pub async fn effects_of(&self, order: &str) -> Result<Vec<Summary>, Problem> {
        let mut connection = self.connection().await?;
        let mut all = Vec::new();
        for state in [EffectState::Uncertain, EffectState::Reserved, EffectState::Done] {
            let filter = Filter { state, effect_type: None, order_id: Some(order) };
            all.extend(within(review::list(&mut connection, filter, EFFECTS)).await?);
        }
        Ok(all)
    }

    /// Every shard of every generation, and how far it is behind.
    pub async fn lags(&self) -> Result<Vec<Lag>, Problem> {
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        Ok(projections::lags(&mut connection).await?)
    }

    /// A rebuild that this process began, as it stands.
    pub fn rebuild_of(&self, name: Name) -> Option<Launch> {
        self.launches.of(&launch_of(name), false)
    }

    /// Runs the command; a rebuild goes on by itself and has no answer yet.
    pub async fn steer(&self, name: Name, steer: Steer) -> Result<Option<Value>, Problem> {
        let args = steer.args(name);
        if steer.is_long() {
            self.launch(&launch_of(name), false, args).await?;
            return Ok(None);
        }
        let said = self.commands.run(&args, Duration::MAX).await?.ok_or_else(|| {
            let text = "the command goes on in the background; look at the read models in a while";
            Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", text)
        })?;
        let answer: Option<Value> = serde_json::from_str(&said.answer).ok();
        match (said.code, answer) {
            (0, answer) => Ok(answer),
            // That rows differ is what a comparison was asked for.
            (3, Some(answer)) if matches!(steer, Steer::Compare { .. }) => Ok(Some(answer)),
            (4, _) => Err(unknown(said.refusal)),
            _ => Err(said.problem()),
        }
    }

    /// The newest first.
    pub async fn sagas(&self, wanted: saga::Wanted<'_>, limit: usize) -> Result<Vec<Shown>, Problem> {
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        Ok(saga::list(&mut connection, wanted, i64::try_from(limit).unwrap_or(i64::MAX)).await?)
    }

    /// A saga and its story.
    pub async fn saga(&self, id: &str) -> Result<(Shown, Vec<ShownStep>), Problem> {
        let missing = || unknown(format!("there is no saga {id:?}; look it up in the list"));
        let key = id.parse().map_err(|_| missing())?;
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        saga::find(&mut connection, key).await?.ok_or_else(missing)
    }

    pub async fn kpis(&self, tenant: Option<&str>) -> Result<Kpis, Problem> {
        let mut connection = self.database.pool().acquire().await.map_err(StoreError::from)?;
        Ok(kpi_rows::kpis(&mut connection, tenant).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_the_command_of_its_name() {
        let rebuild = Steer::Rebuild { shards: 4, from: Source::Kafka, rate: NonZeroU32::new(9) };
        let options = ["--shards=4", "--source=kafka", "--rate=9", "--output=json", "orders_view"];
        assert_eq!(rebuild.args(Name::OrdersView), [&["projections", "rebuild"], &options[..]].concat());
        let resume = Steer::Resume { rate: None }.args(Name::OrdersView);
        assert_eq!(resume, ["projections", "rebuild", "--resume", "--output=json", "orders_view"]);
        let drop = Steer::Drop { generation: Some(2) }.args(Name::DeliveryEta);
        assert_eq!(drop, ["projections", "drop", "--generation=2", "--output=json", "delivery_eta"]);
        let newest = Steer::CutOver { generation: None }.args(Name::DashboardAggregate);
        assert_eq!(newest, ["projections", "cut-over", "--output=json", "dashboard_aggregate"]);
    }
}
