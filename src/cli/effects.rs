//! `effects`: uncertain effects, their evidence, and a person's decision.

use std::sync::Arc;
use std::time::Instant;

use clap::Subcommand;
use sqlx::PgConnection;
use uuid::Uuid;

use super::Context;
use super::failure::Failure;
use super::output::Row;
use crate::applier::recall::{Ended, Session, call_reserved};
use crate::domain::effect::{Decision, EffectState, Mode, Run};
use crate::pg::connect::{Database, within};
use crate::pg::error::StoreError;
use crate::pg::review::{self, Dossier, Filter, NewRuling, Resend, Summary};
use crate::pg::schema;
use crate::pg::stored;
use crate::run::RunError;
use crate::run::parts::Parts;

/// Effects in one listing; more are cut, with a word about it.
const LIST_MAX: usize = 1_000;

#[derive(Debug, Subcommand)]
pub enum Args {
    /// List effects; the uncertain ones if no filter is given
    List(ListArgs),
    /// Show one effect with its request, evidence and decisions
    Show(ShowArgs),
    /// Decide an uncertain effect, once and for all
    Resolve(ResolveArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// reservado, concluido or incerto
    #[arg(long, value_name = "ESTADO", value_parser = state)]
    pub estado: Option<EffectState>,
    /// Effect type, as in the configuration
    #[arg(long, value_name = "TIPO")]
    pub tipo: Option<String>,
    /// Order (`pedidoId`)
    #[arg(long, value_name = "ID")]
    pub order: Option<String>,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// `<evento_id>:<tipo_efeito>`
    #[arg(value_name = "CHAVE")]
    pub key: String,
}

#[derive(Debug, clap::Args)]
pub struct ResolveArgs {
    /// `<evento_id>:<tipo_efeito>`
    #[arg(value_name = "CHAVE")]
    pub key: String,
    /// What is now known
    #[arg(long = "as", value_name = "concluido|nao-enviado|descartado", value_parser = decision)]
    pub decision: Decision,
    /// Who decides
    #[arg(long, value_name = "NAME", value_parser = review::name)]
    pub by: String,
    /// Why
    #[arg(long, value_name = "TEXT", value_parser = review::reason)]
    pub reason: String,
    /// With nao-enviado: send it now and report the answer, instead of leaving it to the sweeper
    #[arg(long)]
    pub resend: bool,
}

fn state(text: &str) -> Result<EffectState, String> {
    EffectState::parse(text)
        .ok_or_else(|| format!("use one of: {}", EffectState::ALL.map(EffectState::as_str).join(", ")))
}

fn decision(text: &str) -> Result<Decision, String> {
    Decision::parse(text)
        .ok_or_else(|| format!("use one of: {}", Decision::ALL.map(Decision::as_str).join(", ")))
}

impl Row for Summary {
    const COLUMNS: &'static [&'static str] =
        &["chave", "estado", "execucaoId", "tentativas", "criadoEm", "atualizadoEm", "reservaAte"];
}

impl Row for Dossier {
    const COLUMNS: &'static [&'static str] = &[
        "chave",
        "estado",
        "pedidoId",
        "eventoId",
        "versaoEvento",
        "execucaoId",
        "tentativas",
        "talvezEnviado",
        "criadoEm",
        "atualizadoEm",
        "reservaAte",
        "tentarEm",
        "requisicao",
        "resultado",
        "comissao",
        "evidencia",
        "revisoes",
    ];
}

pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args {
        Args::List(args) => list(&args, context).await,
        Args::Show(args) => show(&args.key, context).await,
        Args::Resolve(args) if args.resend => resend(&args, context).await,
        Args::Resolve(args) => resolve(&args, context).await,
    }
}

/// A pinned connection: whatever is asked here is found by its key, however large the ledger is.
async fn connection(context: &Context) -> Result<PgConnection, Failure> {
    let config = context.config()?;
    let database = Database::new(config.postgres.url.expose(), config.postgres.max_connections)
        .map_err(|error| Failure::Usage(format!("postgres.url: {error}")))?;
    schema::check(&database).await.map_err(RunError::from)?;
    Ok(database.dedicated().await?)
}

async fn list(args: &ListArgs, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let filter = Filter {
        state: args.estado.unwrap_or(EffectState::Uncertain),
        effect_type: args.tipo.as_deref(),
        order_id: args.order.as_deref(),
    };
    let one_more = i64::try_from(LIST_MAX + 1).unwrap_or(i64::MAX);
    let mut found = within(review::list(&mut connection, filter, one_more)).await?;
    if found.len() > LIST_MAX {
        found.truncate(LIST_MAX);
        tracing::warn!(shown = LIST_MAX, "there are more; narrow the list with --tipo or --order");
    }
    context.output.rows(&found)
}

async fn show(key: &str, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    context.output.one(&known(&mut connection, key).await?)
}

async fn known(connection: &mut PgConnection, key: &str) -> Result<Dossier, Failure> {
    let found = within(review::dossier(connection, key)).await?;
    found.ok_or_else(|| {
        Failure::NotFound(format!("no effect {key:?} in the ledger; keys are <event>:<effect type>"))
    })
}

async fn resolve(args: &ResolveArgs, context: &Context) -> Result<(), Failure> {
    let mut connection = connection(context).await?;
    let won = within(review::decide(&mut connection, ruling(args))).await?;
    let dossier = known(&mut connection, &args.key).await?;
    if !won {
        return Err(lost(&dossier));
    }
    context.output.one(&dossier)
}

fn ruling(args: &ResolveArgs) -> NewRuling<'_> {
    NewRuling { key: &args.key, decision: args.decision, by: &args.by, reason: &args.reason }
}

fn lost(dossier: &Dossier) -> Failure {
    Failure::NotFound(dossier.why_not_decided())
}

/// Decides and reserves in one, calls, and reports the answer.
async fn resend(args: &ResolveArgs, context: &Context) -> Result<(), Failure> {
    if args.decision != Decision::NotSent {
        let text = format!("--resend sends again: it goes with --as {}", Decision::NotSent.as_str());
        return Err(Failure::Usage(text));
    }
    let config = context.config()?;
    let parts = Parts::build(&config, Run::live())?;
    schema::check(&parts.database).await.map_err(RunError::from)?;
    let mut session = Session::new(parts.database.clone(), Arc::clone(&parts.instance));
    let mut connection = session.take().await?;
    let dossier = known(&mut connection, &args.key).await?;
    let lease = sendable_for(&dossier, &parts)?;
    let reservation = Resend { token: Uuid::new_v4(), owner: session.owner(), lease };
    let asked = Instant::now();
    let won = within(review::decide_and_reserve(&mut connection, ruling(args), reservation)).await?;
    if !won {
        return Err(lost(&known(&mut connection, &args.key).await?));
    }
    let row = within(stored::find(&mut connection, &args.key)).await?;
    session.keep(connection);
    let row = row.ok_or_else(|| Failure::failed("the reservation is gone from the ledger"))?;
    let ended =
        call_reserved(&mut session, &*parts.gateway, &parts.policies, row, reservation.token, asked).await?;
    let mut connection = session.take().await?;
    context.output.one(&known(&mut connection, &args.key).await?)?;
    match ended {
        Ended::Done => Ok(()),
        Ended::Uncertain(seen) => Err(Failure::failed(format!("sent, and uncertain again: {seen}"))),
        Ended::Waiting { seen, .. } => {
            Err(Failure::failed(format!("not done; it waits, and the sweeper tries it again: {seen}")))
        }
        Ended::TakenOver => Err(Failure::failed("somebody took the effect over meanwhile; see its evidence")),
    }
}

/// The lease of its type, where the configuration lets it be sent.
fn sendable_for(dossier: &Dossier, parts: &Parts) -> Result<std::time::Duration, Failure> {
    let name = &dossier.summary.effect_type;
    let Some(id) = parts.policies.id_of(name) else {
        return Err(Failure::Usage(format!("efeitos.{name} is not configured: it cannot be sent from here")));
    };
    let policy = parts.policies.get(id);
    if policy.mode == Mode::Suppress {
        let text =
            format!("efeitos.{name}.modo is suprimir: nothing of this type is sent; nothing was decided");
        return Err(Failure::Refused(text));
    }
    Ok(policy.lease)
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Probe {
        #[command(subcommand)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Probe::try_parse_from(line.split(' ')).map(|probe| probe.args)
    }

    #[test]
    fn a_decision_needs_a_name_a_reason_and_a_known_word() {
        let args =
            parse("effects resolve e:t --as nao-enviado --by ana --reason x --resend").expect("complete");
        let Args::Resolve(args) = args else { panic!("resolve") };
        assert_eq!(
            (args.decision, args.resend, args.decision.as_str()),
            (Decision::NotSent, true, "nao-enviado")
        );
        for line in [
            "effects resolve e:t --as concluido --reason y",
            "effects resolve e:t --as concluido --by ana",
            "effects resolve e:t --as talvez --by ana --reason y",
            "effects list --estado talvez",
        ] {
            assert_eq!(parse(line).expect_err("refused").exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn listing_filters_by_state_type_and_order() {
        let Args::List(args) = parse("effects list --estado incerto --tipo t --order p").expect("complete")
        else {
            panic!("list")
        };
        assert_eq!(args.estado, Some(EffectState::Uncertain));
        assert_eq!((args.tipo.as_deref(), args.order.as_deref()), (Some("t"), Some("p")));
    }
}
