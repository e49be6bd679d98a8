use super::*;

const UP: Result<(), &str> = Ok(());

fn health() -> Health {
    Health::new(Run::live(), ["notificar-vendedor", "pagar-repasse"], Partitions::Expected)
}

fn ready() -> Health {
    let health = health();
    health.assigned([(0, 100), (1, 200)]);
    health.database(UP);
    health
}

fn reasons(health: &Health) -> Vec<&'static str> {
    health.readiness().err().unwrap_or_default().into_iter().map(|reason| reason.motivo).collect()
}

#[test]
fn readiness_table() {
    type Change = fn(&Health);
    let table: [(&str, Change, &[&str]); 15] = [
        ("assigned and answering", |_| {}, &[]),
        ("an open circuit is ready", |h| h.circuit_opened(EffectTypeId(0), Duration::from_secs(1)), &[]),
        ("a dead-letter topic that is away is ready", |h| h.dlq_away("topic gone"), &[]),
        ("all partitions given to others", |h| h.revoked([0, 1]), &[]),
        ("group lost", Health::assignment_lost, &["sem-atribuicao"]),
        ("database away", |h| h.database(Err("connection refused")), &["banco-indisponivel"]),
        (
            "database back",
            |h| {
                h.database(Err("connection refused"));
                h.database(UP);
            },
            &[],
        ),
        ("one lane stalled", |h| h.stalled(1, "no progress"), &["particao-parada"]),
        (
            "a lane moves again",
            |h| {
                h.stalled(1, "no progress");
                h.moving_again(1);
            },
            &[],
        ),
        (
            "a stalled lane is someone else's now",
            |h| {
                h.stalled(1, "no progress");
                h.revoked([1]);
            },
            &[],
        ),
        ("news of a lane that is not ours", |h| h.stalled(9, "no progress"), &[]),
        ("draining", Health::draining, &["encerrando"]),
        ("fatal", |h| h.fatal("fenced"), &["falha-fatal"]),
        (
            "fatal while draining",
            |h| {
                h.draining();
                h.fatal("fenced");
            },
            &["falha-fatal", "encerrando"],
        ),
        (
            "everything at once",
            |h| {
                h.stalled(0, "no progress");
                h.database(Err("down"));
            },
            &["banco-indisponivel", "particao-parada"],
        ),
    ];
    for (case, change, expected) in table {
        let health = ready();
        change(&health);
        assert_eq!(reasons(&health), expected, "{case}");
    }
}

#[test]
fn at_start_both_questions_are_open() {
    let health = health();
    assert_eq!(reasons(&health), ["banco-indisponivel", "sem-atribuicao"]);
    assert_eq!(health.status().situacao, Situation::Starting);
    health.database(UP);
    assert_eq!(reasons(&health), ["sem-atribuicao"]);
    health.assigned([]);
    assert_eq!(reasons(&health), [""; 0], "a group that gives this member nothing has answered");
    assert_eq!(health.status().atribuicao, "nenhuma");
    assert_eq!(health.status().situacao, Situation::Ready);
}

#[test]
fn a_process_without_a_consumer_waits_for_no_partitions() {
    let health = Health::new(Run::live(), [], Partitions::NotUsed);
    health.database(UP);
    assert_eq!(health.readiness(), Ok(()));
    assert_eq!(health.status().atribuicao, "nao-usada");
}

#[test]
fn silence_about_the_database_is_not_health() {
    let health = ready();
    let now = Instant::now();
    assert_eq!(health.readiness_at(now), Ok(()));
    let later = health.readiness_at(now + Duration::from_secs(11)).expect_err("nobody has told");
    assert_eq!(later[0].motivo, "banco-indisponivel");
    assert!(later[0].detalhe.starts_with("database no news since "), "{}", later[0].detalhe);
}

#[test]
fn an_outage_keeps_its_beginning_and_shows_its_latest_cause() {
    let health = ready();
    health.database(Err("connection refused"));
    let first = health.status().banco;
    health.database(Err("still starting up"));
    let second = health.status().banco;
    assert_eq!(first.desde, second.desde);
    assert!(first.desde.is_some());
    assert_eq!(second.causa.as_deref(), Some("still starting up"));
    assert_eq!(health.status().situacao, Situation::NotReady);
}

#[test]
fn the_first_fatal_cause_is_kept_and_long_causes_are_cut() {
    let health = ready();
    health.fatal("é".repeat(1_000));
    health.fatal("a consequence");
    let reasons = health.readiness().expect_err("failed");
    assert_eq!(reasons[0].detalhe, "é".repeat(300));
    assert_eq!(health.status().situacao, Situation::Failed);
}

#[test]
fn a_probe_that_failed_keeps_the_beginning_of_an_open_circuit() {
    let health = ready();
    health.circuit_opened(EffectTypeId(1), Duration::from_secs(1));
    let before = health.status().circuitos_abertos;
    health.circuit_opened(EffectTypeId(1), Duration::from_mins(1));
    let after = health.status().circuitos_abertos;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_eq!(after[0].efeito, "pagar-repasse");
    assert_eq!(before[0].desde, after[0].desde);
    assert!(after[0].proxima_sonda > before[0].proxima_sonda);
    assert_eq!(health.present().open_circuits, [EffectTypeId(1)]);
    health.circuit_closed(EffectTypeId(1));
    assert!(health.status().circuitos_abertos.is_empty());
}

#[test]
fn lag_counts_from_the_commit_and_is_unknown_without_an_end() {
    let health = ready();
    health.position(0, 130);
    health.partition_end(0, 150);
    assert_eq!(health.present().partitions[0].lag, Some(20), "no commit known yet: from the position");
    health.committed(0, 120);
    assert_eq!(
        health.present().partitions[0],
        PartitionReading { partition: 0, position: 130, committed: Some(120), lag: Some(30), stalled: false }
    );
    assert_eq!(health.present().partitions[1].lag, None);
    health.committed(0, 151);
    assert_eq!(health.present().partitions[0].lag, Some(0), "an end that is old news");
    health.revoked([0]);
    health.position(0, 999);
    assert_eq!(health.present().partitions.len(), 1, "late news does not bring a partition back");
}

#[test]
fn status_is_the_json_others_read() {
    let health = ready();
    health.committed(0, 100);
    health.partition_end(0, 103);
    health.events_in_flight(5);
    health.events_in_flight(-2);
    health.reservations(EffectTypeId(0), 4);
    health.reservations(EffectTypeId(9), 4);
    let mut json = serde_json::to_value(health.status()).expect("json");
    json["segundosNoAr"] = 0.into();
    let expected = r#"{
        "versao": "0.1.0", "segundosNoAr": 0, "execucao": {"tipo": "ao-vivo", "id": "ao-vivo"},
        "situacao": "pronto", "motivos": [], "atribuicao": "atribuida",
        "particoes": [
            {"particao": 0, "posicao": 100, "confirmado": 100, "lag": 3, "paradaDesde": null, "causa": null},
            {"particao": 1, "posicao": 200, "confirmado": null, "lag": null, "paradaDesde": null, "causa": null}
        ],
        "circuitosAbertos": [],
        "banco": {"disponivel": true, "desde": null, "causa": null},
        "dlq": {"disponivel": true, "desde": null, "causa": null},
        "emVoo": {"eventos": 3, "efeitos": [
            {"efeito": "notificar-vendedor", "reservas": 4}, {"efeito": "pagar-repasse", "reservas": 0}
        ]}
    }"#;
    assert_eq!(json, serde_json::from_str::<serde_json::Value>(expected).expect("json"));
}
