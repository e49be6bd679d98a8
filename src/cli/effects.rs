//! `effects`: uncertain effects, their evidence, and a person's decision.

use clap::{Subcommand, ValueEnum};

use crate::domain::effect::EffectState;

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
    #[arg(long = "as", value_name = "DECISION", value_enum)]
    pub decision: Decision,
    /// Who decides
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub by: String,
    /// Why
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub reason: String,
    /// With nao-enviado: send it now and report the answer, instead of leaving it to the sweeper
    #[arg(long)]
    pub resend: bool,
}

/// A person's decision about an uncertain effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Decision {
    /// The provider did it
    #[value(name = "concluido")]
    Done,
    /// The provider never got it: it will be sent
    #[value(name = "nao-enviado")]
    NotSent,
    /// It is not wanted any more: settled without sending
    #[value(name = "descartado")]
    Discarded,
}

impl Decision {
    /// `revisao_efeito.decisao`
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "concluido",
            Self::NotSent => "nao-enviado",
            Self::Discarded => "descartado",
        }
    }
}

fn state(text: &str) -> Result<EffectState, String> {
    EffectState::parse(text)
        .ok_or_else(|| format!("use one of: {}", EffectState::ALL.map(EffectState::as_str).join(", ")))
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
