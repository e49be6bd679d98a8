//! The shapes in which replays and dead letters are told, to programs on the command line and over HTTP alike.
//!
//! They are a contract: fields bear the words of the boundary, and more may be added.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Value, json};

use crate::pg::letters::StoredLetter;
use crate::pg::replay::{PartitionProgress, StoredRun};

/// Answers of `plan`, `run` and `status`.
#[derive(Debug, Serialize)]
pub struct Told {
    pub id: String,
    pub situacao: String,
    pub simular: bool,
    pub de: String,
    pub ate: Option<String>,
    pub fonte: &'static str,
    pub politicas: BTreeMap<String, String>,
    pub particoes: Vec<Part>,
    pub eventos: Value,
    pub estado: Value,
    pub efeitos: Value,
}

#[derive(Debug, Serialize)]
pub struct Part {
    pub particao: i32,
    pub inicio: i64,
    pub fim: i64,
    pub posicao: i64,
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
pub struct ListedRun {
    pub id: String,
    pub simular: bool,
    pub situacao: String,
    pub de: String,
    pub ate: Option<String>,
    pub pedido_por: Option<String>,
    pub criado_em: String,
    pub restante: i64,
}

impl From<&StoredRun> for ListedRun {
    fn from(run: &StoredRun) -> Self {
        Self {
            restante: run.partitions.iter().map(|p| (p.end - p.at).max(0)).sum(),
            id: run.id.clone(),
            simular: run.dry_run,
            situacao: run.situation.clone(),
            de: run.asked.from.to_string(),
            ate: run.asked.to.map(|to| to.to_string()),
            pedido_por: run.by.clone(),
            criado_em: run.created_at.clone(),
        }
    }
}

/// One dead letter, for listings.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedLetter {
    pub id: i64,
    pub motivo: String,
    pub mensagem: String,
    pub topico: String,
    pub particao: i32,
    pub offset: i64,
    pub pedido_id: Option<String>,
    pub efeito: Option<String>,
    pub rodadas: i32,
    pub situacao: String,
    pub criado_em: String,
}

impl From<&StoredLetter> for ListedLetter {
    fn from(letter: &StoredLetter) -> Self {
        Self {
            id: letter.id,
            motivo: letter.reason.clone(),
            mensagem: letter.message.clone(),
            topico: letter.raw.topic.to_string(),
            particao: letter.raw.partition,
            offset: letter.raw.offset,
            pedido_id: letter.order_id.clone(),
            efeito: letter.effect_type.clone(),
            rodadas: letter.rounds,
            situacao: letter.situation.clone(),
            criado_em: letter.created_at.clone(),
        }
    }
}

/// One dead letter with its record.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownLetter {
    #[serde(flatten)]
    pub listed: ListedLetter,
    pub execucao_id: String,
    pub tentativas: i32,
    pub primeira_falha_em: String,
    pub timestamp_ms: Option<i64>,
    pub chave: Option<String>,
    pub valor: Option<String>,
    pub tamanho: i64,
    pub sha256: String,
    pub truncado: bool,
    pub cabecalhos: Vec<(String, Option<String>)>,
}

impl From<&StoredLetter> for ShownLetter {
    fn from(letter: &StoredLetter) -> Self {
        Self {
            listed: ListedLetter::from(letter),
            execucao_id: letter.run_id.clone(),
            tentativas: letter.attempts,
            primeira_falha_em: letter.first_failed_at.clone(),
            timestamp_ms: letter.raw.timestamp_ms,
            chave: letter.raw.key.as_deref().map(readable),
            valor: letter.raw.value.as_deref().map(readable),
            tamanho: letter.size,
            sha256: letter.sha256.clone(),
            truncado: letter.is_cut(),
            cabecalhos: letter
                .raw
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), value.as_deref().map(readable)))
                .collect(),
        }
    }
}

/// Text as it is; other bytes as `base64:...`.
pub fn readable(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| format!("base64:{}", STANDARD.encode(bytes)), str::to_owned)
}
