//! What can be done at the console: one function per operation, for the pages and the JSON API alike.
//!
//! What reads asks the same functions of `pg` as the commands do; what takes long is the command itself
//! ([`Commands`](super::commands::Commands)).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::Console;
use super::commands::Said;
use crate::domain::effect::{Decision, EffectState};
use crate::ops::problem::Problem;
use crate::pg::connect::within;
use crate::pg::error::StoreError;
use crate::pg::letters::{self, Selection, StoredLetter};
use crate::pg::replay::{self, Change, StoredRun};
use crate::pg::review::{self, Dossier, Filter, NewRuling, Summary};
use crate::stream::range::histogram;

/// How long a refusal of a command that goes on is waited for; its plan takes a second or two.
const BEGUN_WITHIN: Duration = Duration::from_secs(4);
/// Launches that are remembered; the oldest are forgotten.
const LAUNCHES: usize = 64;
/// Bars of a timeline; each is a question to the brokers.
pub const BARS_MAX: usize = 400;

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if matches!(error, StoreError::Transient(_)) {
            tracing::warn!(%error, "the console cannot ask the database");
            let text = format!("the database does not answer ({error}); try again");
            return Self::new(StatusCode::SERVICE_UNAVAILABLE, "database-away", text);
        }
        tracing::error!(%error, "the console cannot ask the database");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    }
}

pub fn invalid(text: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", text.into())
}

pub fn unknown(text: impl Into<String>) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", text.into())
}

/// What a replay is asked for, as on the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReplayAsk {
    /// Consumer group of the replay; begins with `replay-`.
    pub id: String,
    /// Beginning by log time, RFC 3339 with its offset.
    #[schema(value_type = String)]
    pub de: Timestamp,
    /// End by log time, exclusive; absent: the end of the log now.
    #[schema(value_type = Option<String>)]
    pub ate: Option<Timestamp>,
    /// Compare only: call nobody, write only the diff.
    #[serde(default)]
    pub simular: bool,
    /// Policies of this run: `TIPO=aplicar` or `TIPO=suprimir`.
    #[serde(default)]
    pub efeitos: Vec<String>,
    /// Only these orders.
    #[serde(default)]
    pub pedidos: Vec<String>,
    /// At most so many events a second.
    #[schema(value_type = Option<u32>)]
    pub ritmo: Option<NonZeroU32>,
    #[serde(default)]
    pub aceitar_lacuna: bool,
    #[serde(default)]
    pub aceitar_compactado: bool,
    /// Who asks.
    pub por: Option<String>,
}

impl ReplayAsk {
    /// What a stored run was asked for, to run it or go on with it.
    pub fn again(run: &StoredRun, by: Option<&str>) -> Self {
        Self {
            id: run.id.clone(),
            de: run.asked.from,
            ate: run.asked.to,
            simular: false,
            efeitos: run.asked.policies.iter().map(|(name, mode)| format!("{name}={mode}")).collect(),
            pedidos: run.asked.orders.clone().unwrap_or_default(),
            ritmo: None,
            // It was accepted when its range was captured, and only a new capture asks again.
            aceitar_lacuna: true,
            aceitar_compactado: true,
            por: by.map(str::to_owned).or_else(|| run.by.clone()),
        }
    }

    fn args(&self, verb: &str) -> Vec<String> {
        let mut args = vec!["replay".to_owned(), verb.to_owned(), format!("--id={}", self.id)];
        args.push(format!("--from={}", self.de));
        args.extend(self.ate.map(|to| format!("--to={to}")));
        args.extend(self.efeitos.iter().map(|effect| format!("--effect={effect}")));
        args.extend(self.pedidos.iter().map(|order| format!("--order={order}")));
        args.extend(self.ritmo.map(|rate| format!("--rate={rate}")));
        args.extend(self.por.iter().map(|by| format!("--by={by}")));
        let flags = [
            (self.simular, "--dry-run"),
            (self.aceitar_lacuna, "--accept-gap"),
            (self.aceitar_compactado, "--accept-compacted"),
        ];
        args.extend(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| (*flag).to_owned()));
        args
    }
}

/// A run that this process began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    Running,
    Ended(Said),
}

/// Runs that this process began, by id and whether it is a dry run.
#[derive(Default)]
pub struct Launches(Mutex<HashMap<(String, bool), Launch>>);

impl Launches {
    fn set(&self, id: &str, dry_run: bool, launch: Launch) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= LAUNCHES {
            all.retain(|_, launch| *launch == Launch::Running);
        }
        all.insert((id.to_owned(), dry_run), launch);
    }

    pub fn of(&self, id: &str, dry_run: bool) -> Option<Launch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(id.to_owned(), dry_run)).cloned()
    }
}

/// A decision about one or more effects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruled {
    pub decision: Decision,
    pub by: String,
    pub reason: String,
    /// Send at once and wait for the answer.
    pub resend: bool,
}

impl Console {
    /// A pinned connection: whatever is asked here is found by its key, however large the ledger is.
    pub(super) async fn connection(&self) -> Result<PgConnection, Problem> {
        Ok(self.database.dedicated().await?)
    }

    pub async fn effects(&self, filter: Filter<'_>, limit: usize) -> Result<Vec<Summary>, Problem> {
        let mut connection = self.connection().await?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        Ok(within(review::list(&mut connection, filter, limit)).await?)
    }

    pub async fn effect(&self, key: &str) -> Result<Dossier, Problem> {
        let mut connection = self.connection().await?;
        let found = within(review::dossier(&mut connection, key)).await?;
        found.ok_or_else(|| {
            unknown(format!("no effect {key:?} in the ledger; keys are <event>:<effect type>"))
        })
    }

    /// One winner per effect: who loses is told how it stands.
    pub async fn decide(&self, key: &str, ruled: &Ruled) -> Result<Dossier, Problem> {
        let by = review::name(&ruled.by).map_err(|what| invalid(format!("por {what}")))?;
        let reason = review::reason(&ruled.reason).map_err(|what| invalid(format!("motivo {what}")))?;
        if ruled.resend {
            return self.resend(key, ruled.decision, &by, &reason).await;
        }
        let mut connection = self.connection().await?;
        let ruling = NewRuling { key, decision: ruled.decision, by: &by, reason: &reason };
        let won = within(review::decide(&mut connection, ruling)).await?;
        let dossier = within(review::dossier(&mut connection, key)).await?;
        let dossier = dossier.ok_or_else(|| unknown(format!("no effect {key:?} in the ledger")))?;
        if won {
            return Ok(dossier);
        }
        Err(Problem::new(StatusCode::CONFLICT, "lost", dossier.why_not_decided()))
    }

    async fn resend(
        &self,
        key: &str,
        decision: Decision,
        by: &str,
        reason: &str,
    ) -> Result<Dossier, Problem> {
        let args = [
            "effects".to_owned(),
            "resolve".to_owned(),
            format!("--as={}", decision.as_str()),
            format!("--by={by}"),
            format!("--reason={reason}"),
            "--resend".to_owned(),
            "--".to_owned(),
            key.to_owned(),
        ];
        match self.commands.run(&args, Duration::MAX).await? {
            Some(said) if said.code != 0 => Err(said.problem()),
            Some(_) | None => self.effect(key).await,
        }
    }

    pub async fn letters(&self, wanted: &Selection, limit: i64) -> Result<(Vec<StoredLetter>, i64), Problem> {
        let pool = self.database.pool();
        let found = letters::newest(pool, wanted, limit).await?;
        Ok((found, letters::count(pool, wanted).await?))
    }

    pub async fn letter(&self, id: i64) -> Result<StoredLetter, Problem> {
        let wanted = Selection { ids: Some(vec![id]), ..Selection::default() };
        let found = letters::newest(self.database.pool(), &wanted, 1).await?;
        found.into_iter().next().ok_or_else(|| unknown(format!("there is no dead letter {id}")))
    }

    /// Handles the selected open letters again, or (`rehearse`) says what would come of it.
    pub async fn redrive(&self, wanted: &Selection, rehearse: bool) -> Result<Value, Problem> {
        let mut args = vec!["dlq".to_owned(), "redrive".to_owned()];
        let ids = wanted.ids.iter().flatten();
        args.extend(ids.map(|id| format!("--id={id}")));
        args.extend(wanted.reason.iter().map(|reason| format!("--reason={reason}")));
        args.extend(wanted.order.iter().map(|order| format!("--order={order}")));
        args.extend(wanted.from.iter().map(|from| format!("--from={from}")));
        args.extend(wanted.to.iter().map(|to| format!("--to={to}")));
        if args.len() == 2 {
            args.push("--all".to_owned());
        }
        args.push(if rehearse { "--dry-run" } else { "--yes" }.to_owned());
        self.commands.json(args).await
    }

    /// Every run, newest first.
    pub async fn replays(&self) -> Result<Vec<StoredRun>, Problem> {
        const SHOWN: usize = 100;
        let mut runs = Vec::new();
        for (id, dry_run) in replay::list(self.database.pool()).await?.into_iter().take(SHOWN) {
            runs.extend(replay::load(self.database.pool(), &id, dry_run).await?);
        }
        Ok(runs)
    }

    pub async fn run_of(&self, id: &str, dry_run: bool) -> Result<Option<StoredRun>, Problem> {
        Ok(replay::load(self.database.pool(), id, dry_run).await?)
    }

    /// The dry run, if it is asked for; else the real run if there is one, else the dry run.
    pub async fn replay(&self, id: &str, dry_run: bool) -> Result<StoredRun, Problem> {
        let real = if dry_run { None } else { self.run_of(id, false).await? };
        let found = match real {
            Some(run) => Some(run),
            None => self.run_of(id, true).await?,
        };
        found.ok_or_else(|| unknown(format!("there is no replay {id}")))
    }

    /// What a replay would cover; changes nothing.
    pub async fn plan(&self, ask: &ReplayAsk) -> Result<Value, Problem> {
        self.commands.json(ask.args("plan")).await
    }

    /// Begins a replay or dry run, or takes part in one; refusals of its plan are told, then it goes on by itself.
    pub async fn begin(&self, ask: &ReplayAsk) -> Result<(), Problem> {
        let mut args = ask.args("run");
        args.push("--yes".to_owned());
        args.push("--output=json".to_owned());
        self.launch(&ask.id, ask.simular, args).await
    }

    /// Begins a command that goes on by itself; refusals of its first seconds are told.
    pub(super) async fn launch(&self, id: &str, dry_run: bool, args: Vec<String>) -> Result<(), Problem> {
        self.launches.set(id, dry_run, Launch::Running);
        let (console, id) = (self.clone(), id.to_owned());
        let followed = tokio::spawn(async move {
            let said = console.commands.to_the_end(&args).await;
            let launch = match &said {
                Ok(said) => Launch::Ended(said.clone()),
                Err(problem) => Launch::Ended(Said {
                    code: 1,
                    answer: String::new(),
                    refusal: problem.detail.clone().into_owned(),
                }),
            };
            console.launches.set(&id, dry_run, launch);
            said
        });
        match tokio::time::timeout(BEGUN_WITHIN, followed).await {
            Ok(Ok(Ok(said))) if said.code != 0 => Err(said.problem()),
            Ok(Ok(Err(problem))) => Err(problem),
            Ok(Err(lost)) => Err(Problem::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                format!("the command was lost: {lost}"),
            )),
            Ok(Ok(Ok(_))) | Err(_) => Ok(()),
        }
    }

    pub async fn change(&self, id: &str, dry_run: bool, change: Change) -> Result<StoredRun, Problem> {
        let run = self.replay(id, dry_run).await?;
        let to = change.to();
        let moved = replay::transition(self.database.pool(), id, run.dry_run, change.from(), to).await?;
        let now = self.replay(id, run.dry_run).await?;
        if moved || now.situation == to {
            return Ok(now);
        }
        let text = format!("nothing was changed: {id} is {} and cannot become {to}", now.situation);
        Err(Problem::new(StatusCode::CONFLICT, "lost", text))
    }

    /// The whole diff in a format of the command line, as it is read.
    pub fn diff(&self, run: &StoredRun, format: &str) -> Result<axum::body::Body, Problem> {
        let mut args = vec!["replay".to_owned(), "diff".to_owned(), format!("--id={}", run.id)];
        if run.dry_run {
            args.push("--dry-run".to_owned());
        }
        args.push(format!("--output={format}"));
        self.commands.stream(&args)
    }

    /// How much of the topic lies between each two edges.
    pub async fn timeline(&self, edges: Vec<Timestamp>) -> Result<Vec<i64>, Problem> {
        if edges.is_empty() || edges.len() > BARS_MAX {
            return Err(invalid(format!(
                "a timeline has 1 to {BARS_MAX} bars; choose a shorter period or wider bars"
            )));
        }
        let kafka = self.kafka.clone();
        let counted = tokio::task::spawn_blocking(move || histogram(&kafka, &edges)).await;
        let away = |error: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "kafka-away", error);
        counted.map_err(|error| away(error.to_string()))?.map_err(|error| away(error.to_string()))
    }
}

/// A state of effects by its word; the uncertain ones where none is given.
pub fn state_of(word: Option<&str>) -> Result<EffectState, Problem> {
    let Some(word) = word else { return Ok(EffectState::Uncertain) };
    EffectState::parse(word)
        .ok_or_else(|| invalid(format!("estado: {word:?}; use reservado, concluido or incerto")))
}

pub fn decision_of(word: &str) -> Result<Decision, Problem> {
    Decision::parse(word)
        .ok_or_else(|| invalid(format!("decisao: {word:?}; use concluido, nao-enviado or descartado")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_can_become_an_option_of_the_command() {
        let ask = ReplayAsk {
            id: "replay-x --yes".into(),
            de: "2026-10-14T03:00:00Z".parse().expect("an instant"),
            ate: None,
            simular: true,
            efeitos: vec!["notificar-vendedor=suprimir".into()],
            pedidos: vec!["--all".into()],
            ritmo: NonZeroU32::new(5),
            aceitar_lacuna: true,
            aceitar_compactado: false,
            por: Some("ana".into()),
        };
        assert_eq!(
            ask.args("run"),
            [
                "replay",
                "run",
                "--id=replay-x --yes",
                "--from=2026-10-14T03:00:00Z",
                "--effect=notificar-vendedor=suprimir",
                "--order=--all",
                "--rate=5",
                "--by=ana",
                "--dry-run",
                "--accept-gap"
            ]
        );
    }
}
