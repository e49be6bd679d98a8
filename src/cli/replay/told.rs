//! How a replay stands, as programs and people read it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output::Row;
use crate::pg::replay::{PartitionProgress, StoredRun};

/// Answers of `plan`, `run` and `status`.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    id: String,
    situacao: String,
    simular: bool,
    de: String,
    ate: Option<String>,
    fonte: &'static str,
    politicas: BTreeMap<String, String>,
    particoes: Vec<Part>,
    eventos: Value,
    estado: Value,
    efeitos: Value,
}

#[derive(Debug, Serialize)]
pub(super) struct Part {
    particao: i32,
    inicio: i64,
    fim: i64,
    posicao: i64,
}

impl Row for Told {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "situacao",
        "simular",
        "de",
        "ate",
        "fonte",
        "politicas",
        "particoes",
        "eventos",
        "estado",
        "efeitos",
    ];
}

impl From<&StoredRun> for Told {
    fn from(run: &StoredRun) -> Self {
        let counted = |name: &str| match &run.counts[name] {
            Value::Null => json!({}),
            counts => counts.clone(),
        };
        let mut events = json!({
            "lidos": 0, "aplicados": 0, "cartasMortas": 0, "ignorados": 0, "antesDoPeriodo": 0, "depoisDoPeriodo": 0
        });
        for (name, count) in counted("eventos").as_object().into_iter().flatten() {
            events[name] = count.clone();
        }
        let part = |p: &PartitionProgress| Part {
            particao: p.partition,
            inicio: p.start,
            fim: p.end,
            posicao: p.at,
        };
        Self {
            id: run.id.clone(),
            situacao: run.situation.clone(),
            simular: run.dry_run,
            de: run.asked.from.to_string(),
            ate: run.asked.to.map(|to| to.to_string()),
            fonte: run.asked.origin.as_str(),
            politicas: run.asked.policies.clone(),
            particoes: run.partitions.iter().map(part).collect(),
            eventos: events,
            estado: counted("estado"),
            efeitos: counted("efeitos"),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    pub id: String,
    pub simular: bool,
    pub situacao: String,
    pub de: String,
    pub ate: Option<String>,
    pub pedido_por: Option<String>,
    pub criado_em: String,
    pub restante: i64,
}

impl Row for Listed {
    const COLUMNS: &'static [&'static str] =
        &["id", "simular", "situacao", "de", "ate", "restante", "pedidoPor", "criadoEm"];
}
