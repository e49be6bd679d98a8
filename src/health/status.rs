//! What [`Health`](super::Health) answers: reasons for not being ready, and the JSON of `/status`.
//! The shapes are a contract (camelCase; fields may be added), so their fields bear the words of the boundary.

use std::sync::atomic::Ordering;
use std::time::Instant;

use jiff::Timestamp;
use serde::Serialize;

use super::{Database, Facts, Inner, Outage, Partitions};

/// One reason why nothing may be expected of this process. `motivo` is a stable code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotReady {
    pub motivo: &'static str,
    pub detalhe: String,
}

/// The process in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Situation {
    /// Waiting for its first assignment or the first answer of its database.
    #[serde(rename = "iniciando")]
    Starting,
    #[serde(rename = "pronto")]
    Ready,
    #[serde(rename = "indisponivel")]
    NotReady,
    #[serde(rename = "encerrando")]
    Draining,
    #[serde(rename = "falhou")]
    Failed,
}

/// The JSON of `/status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub versao: &'static str,
    pub segundos_no_ar: u64,
    pub execucao: RunStatus,
    pub situacao: Situation,
    pub motivos: Vec<NotReady>,
    pub atribuicao: &'static str,
    pub particoes: Vec<PartitionStatus>,
    pub circuitos_abertos: Vec<CircuitStatus>,
    pub banco: DependencyStatus,
    pub dlq: DependencyStatus,
    pub em_voo: InFlight,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    pub tipo: &'static str,
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PartitionStatus {
    pub particao: i32,
    pub posicao: i64,
    pub confirmado: Option<i64>,
    pub lag: Option<i64>,
    pub parada_desde: Option<Timestamp>,
    pub causa: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CircuitStatus {
    pub efeito: String,
    pub desde: Timestamp,
    pub proxima_sonda: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DependencyStatus {
    pub disponivel: bool,
    /// Since when it is not.
    pub desde: Option<Timestamp>,
    pub causa: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InFlight {
    pub eventos: i64,
    pub efeitos: Vec<EffectsInFlight>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectsInFlight {
    pub efeito: String,
    pub reservas: i64,
}

/// Every reason against readiness, gravest first. Empty: ready.
pub(super) fn reasons(facts: &Facts, partitions: Partitions, now: Instant) -> Vec<NotReady> {
    let mut reasons = Vec::new();
    if let Some(cause) = &facts.fatal {
        reasons.push(NotReady { motivo: "falha-fatal", detalhe: cause.clone() });
    }
    if facts.draining {
        reasons.push(NotReady { motivo: "encerrando", detalhe: "no new work is begun".to_owned() });
    }
    if let Err(detalhe) = facts.database.answers(now) {
        reasons.push(NotReady { motivo: "banco-indisponivel", detalhe: format!("database {detalhe}") });
    }
    if partitions == Partitions::Expected && !facts.assignment_known {
        let detalhe = "the consumer group has not said which partitions are ours".to_owned();
        reasons.push(NotReady { motivo: "sem-atribuicao", detalhe });
    }
    for (partition, lane) in &facts.lanes {
        if let Some(Outage { since, cause }) = &lane.stalled {
            let detalhe = format!("partition {partition} stalled since {since}: {cause}");
            reasons.push(NotReady { motivo: "particao-parada", detalhe });
        }
    }
    reasons
}

pub(super) fn status(process: &Inner, facts: &Facts, now: Instant) -> Status {
    let motivos = reasons(facts, process.partitions, now);
    Status {
        versao: env!("CARGO_PKG_VERSION"),
        segundos_no_ar: now.saturating_duration_since(process.started).as_secs(),
        execucao: RunStatus { tipo: process.run.kind.as_str(), id: process.run.id.clone() },
        situacao: situation(facts, process.partitions, &motivos),
        motivos,
        atribuicao: assignment(facts, process.partitions),
        particoes: partition_statuses(facts),
        circuitos_abertos: circuit_statuses(process, facts),
        banco: database_status(&facts.database, now),
        dlq: dependency_status(facts.dlq.as_ref()),
        em_voo: InFlight {
            eventos: process.events_in_flight.load(Ordering::Relaxed),
            efeitos: process
                .effects
                .iter()
                .zip(&process.reservations)
                .map(|(efeito, count)| EffectsInFlight {
                    efeito: efeito.clone(),
                    reservas: count.load(Ordering::Relaxed),
                })
                .collect(),
        },
    }
}

fn situation(facts: &Facts, partitions: Partitions, reasons: &[NotReady]) -> Situation {
    let starting = matches!(facts.database, Database::NeverHeard)
        || (partitions == Partitions::Expected && !facts.assignment_known);
    if facts.fatal.is_some() {
        Situation::Failed
    } else if facts.draining {
        Situation::Draining
    } else if reasons.is_empty() {
        Situation::Ready
    } else if starting {
        Situation::Starting
    } else {
        Situation::NotReady
    }
}

fn assignment(facts: &Facts, partitions: Partitions) -> &'static str {
    match (partitions, facts.assignment_known, facts.lanes.is_empty()) {
        (Partitions::NotUsed, ..) => "nao-usada",
        (Partitions::Expected, false, _) => "desconhecida",
        (Partitions::Expected, true, true) => "nenhuma",
        (Partitions::Expected, true, false) => "atribuida",
    }
}

fn partition_statuses(facts: &Facts) -> Vec<PartitionStatus> {
    let status = |(partition, lane): (&i32, &super::Lane)| {
        let reading = lane.reading(*partition);
        PartitionStatus {
            particao: reading.partition,
            posicao: reading.position,
            confirmado: reading.committed,
            lag: reading.lag,
            parada_desde: lane.stalled.as_ref().map(|outage| outage.since),
            causa: lane.stalled.as_ref().map(|outage| outage.cause.clone()),
        }
    };
    facts.lanes.iter().map(status).collect()
}

fn circuit_statuses(process: &Inner, facts: &Facts) -> Vec<CircuitStatus> {
    facts
        .circuits
        .iter()
        .filter_map(|(id, circuit)| {
            Some(CircuitStatus {
                efeito: process.effects.get(usize::from(id.0))?.clone(),
                desde: circuit.since,
                proxima_sonda: circuit.next_probe,
            })
        })
        .collect()
}

fn database_status(database: &Database, now: Instant) -> DependencyStatus {
    match (database, database.answers(now)) {
        (Database::Away(outage), _) => dependency_status(Some(outage)),
        (_, Ok(())) => dependency_status(None),
        (Database::Up { at, .. }, Err(cause)) => {
            DependencyStatus { disponivel: false, desde: Some(*at), causa: Some(cause) }
        }
        (Database::NeverHeard, Err(cause)) => {
            DependencyStatus { disponivel: false, desde: None, causa: Some(cause) }
        }
    }
}

fn dependency_status(outage: Option<&Outage>) -> DependencyStatus {
    DependencyStatus {
        disponivel: outage.is_none(),
        desde: outage.map(|outage| outage.since),
        causa: outage.map(|outage| outage.cause.clone()),
    }
}
