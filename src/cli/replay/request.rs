//! What a replay is asked for, and everything that speaks against it: each refusal names its remedy.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::json;

use super::not_yet;
use crate::cli::args::instant;
use crate::cli::{Context, Failure};
use crate::config::{Config, REPLAY_GROUP_PREFIX};
use crate::domain::effect::{EffectPolicy, Mode};
use crate::domain::plan::Policies;
use crate::pg::archive::{self, Within};
use crate::pg::connect::Database;
use crate::pg::replay::{self, Asked, Origin, PartitionProgress, StoredRun};
use crate::pg::schema;
use crate::run::RunError;
use crate::run::selection::Period;
use crate::stream::range::{CapturedRange, PartitionRange, capture};

#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Consumer group of the replay; begins with `replay-`
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// Beginning by log time, with its offset: 2026-10-14T00:00:00-03:00
    #[arg(long, value_name = "T", value_parser = instant)]
    pub from: Timestamp,
    /// End by log time, exclusive; without it the end of the log now
    #[arg(long, value_name = "T", value_parser = instant)]
    pub to: Option<Timestamp>,
    /// Compare only: call nobody, write only the diff
    #[arg(long)]
    pub dry_run: bool,
    /// Policy of an effect type in this run
    #[arg(long = "effect", value_name = "TIPO=MODO")]
    pub effects: Vec<String>,
    /// Only these orders (repeatable)
    #[arg(long = "order", value_name = "ID")]
    pub orders: Vec<String>,
    /// Only the orders in this file, one a line
    #[arg(long, value_name = "F")]
    pub orders_file: Option<PathBuf>,
    /// At most so many events a second, of this process
    #[arg(long, value_name = "N")]
    pub rate: Option<NonZeroU32>,
    /// Go on although records of the period are gone
    #[arg(long)]
    pub accept_gap: bool,
    /// Go on although the topic is compacted
    #[arg(long)]
    pub accept_compacted: bool,
    /// Where the records come from: kafka, or arquivo for what the topic no longer has
    #[arg(long, value_name = "kafka|arquivo", default_value = "kafka", value_parser = origin)]
    pub source: Origin,
    /// Serve /metrics and health of this process there; without it nothing listens
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Who asks
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

pub(super) fn database(config: &Config) -> Result<Database, Failure> {
    Database::new(config.postgres.url.expose(), config.replay.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))
}

/// Everything that can be checked before a broker or database is asked.
pub(super) struct Request {
    pub config: Config,
    pub database: Database,
    pub policies: Policies,
    pub asked: Asked,
}

impl Request {
    pub fn check(args: &RunArgs, context: &Context) -> Result<Self, Failure> {
        let config = context.config()?;
        if args.to.is_some_and(|to| to <= args.from) {
            return Err(Failure::Usage("--to must be later than --from".to_owned()));
        }
        if !args.id.starts_with(REPLAY_GROUP_PREFIX) || args.id == config.kafka.group {
            return Err(Failure::Refused(format!(
                "{} cannot be a replay's id: it is its consumer group, and must begin with {REPLAY_GROUP_PREFIX} and not be live's; try {REPLAY_GROUP_PREFIX}{}",
                args.id, args.id
            )));
        }
        let policies = policies(&config, &args.effects)?;
        let asked = Asked {
            topic: config.kafka.topic.clone(),
            origin: args.source,
            from: micros(args.from),
            to: args.to.map(micros),
            policies: policies.iter().map(|(_, p)| (p.name.clone(), p.mode.as_str().to_owned())).collect(),
            orders: orders(args)?,
        };
        Ok(Self { database: database(&config)?, config, policies, asked })
    }

    /// The schema is what this program needs.
    pub async fn ready(&self) -> Result<(), Failure> {
        Ok(schema::check(&self.database).await.map_err(RunError::from)?)
    }

    pub fn period(&self) -> Period {
        Period { from: self.asked.from, to: self.asked.to }
    }

    /// The range, now; with everything that speaks against it.
    pub async fn captured(&self, args: &RunArgs) -> Result<CapturedRange, Failure> {
        let (kafka, from, to) = (self.config.kafka.clone(), self.asked.from, self.asked.to);
        let captured = match self.asked.origin {
            Origin::Log => {
                let captured = tokio::task::spawn_blocking(move || capture(&kafka, from, to)).await?;
                captured.map_err(Failure::failed)?
            }
            Origin::Archive => self.archived(args).await?,
        };
        if !captured.history_missing.is_empty() && !args.accept_gap {
            let (where_, remedy) = match self.asked.origin {
                Origin::Log => ("", "read the archive with --source arquivo, or "),
                Origin::Archive => (" of the archive", ""),
            };
            return Err(Failure::Refused(format!(
                "records of this period are gone from partitions {:?}{where_}: the oldest that is left is younger than --from; {remedy}give --accept-gap to go on without them",
                captured.history_missing
            )));
        }
        if captured.compacted && !args.accept_compacted {
            return Err(Failure::Refused(
                "the topic is compacted: superseded events are gone; give --accept-compacted to go on without them".to_owned(),
            ));
        }
        if !captured.open_transactions.is_empty() {
            tracing::warn!(partitions = ?captured.open_transactions, "open transactions: the range ends at the last stable offset there");
        }
        if captured.partitions.iter().all(|p| p.start == p.end) {
            let newest = captured.newest_ms.map(log_time);
            tracing::info!(de = %self.asked.from, newest, "0 events in that period; newest is the log's last record");
        }
        self.horizon().await?;
        Ok(captured)
    }

    /// The range in the archive, now.
    async fn archived(&self, args: &RunArgs) -> Result<CapturedRange, Failure> {
        let within = Within { from: self.asked.from, to: self.asked.to };
        let spans = archive::spans(self.database.pool(), &self.asked.topic, within).await?;
        if spans.is_empty() {
            return Err(Failure::Refused(format!(
                "the archive holds nothing of {}: `reprise archive` fills it, or read the topic with --source kafka",
                self.asked.topic
            )));
        }
        if !args.accept_gap {
            not_yet::refused(&self.config, &self.database, &self.asked).await?;
        }
        let from = self.asked.from.as_millisecond();
        // It began after the log did, and later than what is asked for.
        let missing =
            |span: &archive::Span| span.oldest_offset > 0 && span.oldest_ms.is_none_or(|ms| ms > from);
        Ok(CapturedRange {
            partitions: spans
                .iter()
                .map(|span| PartitionRange { partition: span.partition, start: span.start, end: span.end })
                .collect(),
            history_missing: spans.iter().filter(|span| missing(span)).map(|span| span.partition).collect(),
            newest_ms: spans.iter().filter_map(|span| span.newest_ms).max(),
            ..CapturedRange::default()
        })
    }

    /// Effects behind the ledger's horizon would be sent again.
    pub async fn horizon(&self) -> Result<(), Failure> {
        let suppressed = self.policies.iter().all(|(_, policy)| policy.mode == Mode::Suppress);
        let Some(purged) = replay::horizon(self.database.pool()).await? else { return Ok(()) };
        let until: Timestamp = purged.parse().unwrap_or(Timestamp::MAX);
        if suppressed || self.asked.from >= until {
            return Ok(());
        }
        Err(Failure::Refused(format!(
            "the ledger no longer knows effects before {purged}: they would be sent again; begin later, or suppress every effect with --effect TIPO=suprimir"
        )))
    }

    pub fn planned(&self, args: &RunArgs, dry_run: bool, captured: &CapturedRange) -> StoredRun {
        let part = |p: &PartitionRange| PartitionProgress {
            partition: p.partition,
            start: p.start,
            end: p.end,
            at: p.start,
        };
        StoredRun {
            id: args.id.clone(),
            dry_run,
            situation: "planejado".to_owned(),
            asked: self.asked.clone(),
            by: args.by.clone(),
            failure: None,
            created_at: String::new(),
            partitions: captured.partitions.iter().map(part).collect(),
            counts: json!({}),
        }
    }

    pub async fn load(&self, id: &str, dry_run: bool) -> Result<Option<StoredRun>, Failure> {
        Ok(replay::load(self.database.pool(), id, dry_run).await?)
    }
}

fn origin(text: &str) -> Result<Origin, String> {
    let all = [Origin::Log, Origin::Archive];
    all.into_iter().find(|origin| origin.as_str() == text).ok_or_else(|| "use kafka or arquivo".to_owned())
}

/// A producer's log time, however absurd.
fn log_time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| format!("{ms} ms after 1970"), |at| at.to_string())
}

/// The database keeps microseconds.
fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}

fn policies(config: &Config, overrides: &[String]) -> Result<Policies, Failure> {
    let mut policies: Vec<EffectPolicy> =
        config.policies().iter().map(|(_, policy)| policy.clone()).collect();
    for given in overrides {
        let usage = |what: String| Failure::Usage(format!("--effect {given}: {what}"));
        let (name, mode) =
            given.split_once('=').ok_or_else(|| usage("write TIPO=aplicar or TIPO=suprimir".into()))?;
        let mode = match mode {
            "aplicar" => Mode::Apply,
            "suprimir" => Mode::Suppress,
            other => return Err(usage(format!("{other} is no mode; use aplicar or suprimir"))),
        };
        let known: Vec<&str> = config.effects.iter().map(|effect| effect.policy.name.as_str()).collect();
        let unknown = || usage(format!("{name} is not configured; known are {}", known.join(", ")));
        policies.iter_mut().find(|policy| policy.name == name).ok_or_else(unknown)?.mode = mode;
    }
    for policy in &mut policies {
        policy.slots = config.replay.slots.unwrap_or(policy.slots);
    }
    Ok(Policies::new(policies))
}

/// `--order` and `--orders-file` together, sorted.
fn orders(args: &RunArgs) -> Result<Option<Vec<String>>, Failure> {
    let mut orders: HashSet<String> = args.orders.iter().cloned().collect();
    if let Some(path) = &args.orders_file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("--orders-file {}: {error}", path.display())))?;
        orders.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
    } else if orders.is_empty() {
        return Ok(None);
    }
    let mut sorted: Vec<String> = orders.into_iter().collect();
    sorted.sort();
    Ok(Some(sorted))
}

/// A run under this id that asks otherwise is another run.
pub(super) fn same(stored: &StoredRun, asked: &Asked, remedy: &str) -> Result<(), Failure> {
    let differs = stored.asked.differs(asked);
    if differs.is_empty() {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "{} was asked for with other parameters ({}); {remedy}",
        stored.id,
        differs.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = "[kafka]\nbrokers = \"127.0.0.1:1\"\n[postgres]\nurl = \"postgres://127.0.0.1/x\"\n\
                    [replay]\nconcorrencia = 7\n\
                    [efeitos.notificar-vendedor]\nurl = \"http://127.0.0.1:1/\"\nao_falhar = \"manter\"\n\
                    [efeitos.pagar]\nurl = \"http://127.0.0.1:1/\"\nao_falhar = \"liberar\"\n";
        Config::from_text(text, std::iter::empty()).expect("valid").0
    }

    fn modes(overrides: &[&str]) -> Result<Vec<(String, &'static str, usize)>, String> {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        let policies = policies(&config(), &overrides).map_err(|failure| failure.to_string())?;
        Ok(policies.iter().map(|(_, p)| (p.name.clone(), p.mode.as_str(), p.slots)).collect())
    }

    #[test]
    fn a_run_has_modes_and_slots_of_its_own() {
        let given = modes(&["pagar=suprimir"]);
        let expected = [("notificar-vendedor", "aplicar", 7), ("pagar", "suprimir", 7)];
        assert_eq!(given, Ok(expected.map(|(name, mode, slots)| (name.to_owned(), mode, slots)).to_vec()));
    }

    #[test]
    fn an_unknown_type_or_mode_is_refused_with_those_there_are() {
        assert_eq!(
            modes(&["pagr=suprimir"]),
            Err("--effect pagr=suprimir: pagr is not configured; known are notificar-vendedor, pagar"
                .to_owned())
        );
        assert_eq!(
            modes(&["pagar=talvez"]),
            Err("--effect pagar=talvez: talvez is no mode; use aplicar or suprimir".to_owned())
        );
        assert_eq!(modes(&["pagar"]), Err("--effect pagar: write TIPO=aplicar or TIPO=suprimir".to_owned()));
    }

    #[test]
    fn b35_an_absurd_log_time_is_told_all_the_same() {
        assert_eq!(log_time(1_791_946_800_000), "2026-10-14T03:00:00Z");
        assert_eq!(log_time(1_791_946_800_000_000), "1791946800000000 ms after 1970");
        assert_eq!(log_time(i64::MIN), "-9223372036854775808 ms after 1970");
    }
}
