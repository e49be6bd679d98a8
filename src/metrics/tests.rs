use super::*;

const NOTIFY: EffectTypeId = EffectTypeId(0);

fn metrics() -> Metrics {
    Metrics::new(["notificar-vendedor", "pagar-repasse"]).expect("valid names")
}

fn series(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

fn assert_line(text: &str, line: &str) {
    assert!(text.lines().any(|l| l == line), "missing: {line}");
}

#[test]
fn every_series_exists_before_anything_happened() {
    let text = metrics().render().expect("text");
    for outcome in [
        "aplicado",
        "ja-registrado",
        "suprimido",
        "seria-aplicado",
        "incerto",
        "recusado",
        "falhou",
        "divergente",
    ] {
        for run in ["ao-vivo", "replay", "simulacao", "redrive"] {
            for effect in ["notificar-vendedor", "pagar-repasse"] {
                assert_line(
                    &text,
                    &format!(
                        r#"reprise_efeitos_total{{desfecho="{outcome}",efeito="{effect}",execucao="{run}"}} 0"#
                    ),
                );
            }
        }
    }
    for line in [
        r#"reprise_estado_total{desfecho="gravado",execucao="ao-vivo"} 0"#,
        r#"reprise_estado_total{desfecho="inalterado",execucao="replay"} 0"#,
        r#"reprise_estado_total{desfecho="ignorado-versao-mais-nova",execucao="simulacao"} 0"#,
        r#"reprise_estado_total{desfecho="conflito-de-versao",execucao="redrive"} 0"#,
        r#"reprise_eventos_total{execucao="ao-vivo",resultado="aplicado"} 0"#,
        r#"reprise_eventos_total{execucao="ao-vivo",resultado="carta-morta"} 0"#,
        r#"reprise_eventos_total{execucao="ao-vivo",resultado="tombstone"} 0"#,
        r#"reprise_eventos_total{execucao="ao-vivo",resultado="outro-tipo"} 0"#,
        r#"reprise_eventos_total{execucao="replay",resultado="nao-selecionado"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="json-invalido"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="avro-invalido"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="campo-ausente"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="campo-invalido"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="valor-fora-do-limite"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="texto-invalido"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="conflito-de-versao"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="conflito-de-conteudo"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="efeito-recusado"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="efeito-esgotado"} 0"#,
        r#"reprise_cartas_mortas_total{motivo="dado-recusado-pelo-banco"} 0"#,
        r#"reprise_efeitos_pendentes{efeito="notificar-vendedor",estado="reservado"} 0"#,
        r#"reprise_efeitos_pendentes{efeito="pagar-repasse",estado="incerto"} 0"#,
        r#"reprise_efeito_mais_antigo_segundos{efeito="notificar-vendedor",estado="incerto"} 0"#,
        r#"reprise_chamada_segundos_count{efeito="pagar-repasse"} 0"#,
        r#"reprise_chamada_segundos_bucket{efeito="pagar-repasse",le="0.001"} 0"#,
        r#"reprise_chamada_segundos_bucket{efeito="pagar-repasse",le="60"} 0"#,
        "reprise_transacao_segundos_count 0",
        "reprise_evento_segundos_count 0",
        "reprise_lote_eventos_count 0",
        r#"reprise_circuito_aberto{efeito="notificar-vendedor"} 0"#,
        r#"reprise_reservas_vivas{efeito="notificar-vendedor"} 0"#,
        "reprise_sem_offset_total 0",
        "reprise_offset_perdido_total 0",
        "reprise_chave_divergente_total 0",
        "reprise_dlq_indisponivel 0",
        "reprise_dlq_tentativas_falhas_total 0",
        "reprise_banco_disponivel 0",
        r#"reprise_banco_erros_total{classe="transitorio"} 0"#,
        r#"reprise_banco_erros_total{classe="dado"} 0"#,
        r#"reprise_banco_erros_total{classe="defeito"} 0"#,
        "reprise_commits_falhos_total 0",
        "reprise_transacao_mais_antiga_segundos 0",
        r#"reprise_rastros_total{resultado="entregue"} 0"#,
        r#"reprise_rastros_total{resultado="descartado"} 0"#,
        r#"reprise_rastros_total{resultado="falhou"} 0"#,
        r#"reprise_versao_info{versao="0.1.0"} 1"#,
    ] {
        assert_line(&text, line);
    }
}

#[test]
fn each_count_lands_on_its_own_series() {
    let m = metrics();
    m.effect(NOTIFY, Outcome::Applied, RunKind::Live, 7);
    m.effect(EffectTypeId(1), Outcome::Divergent, RunKind::Redrive, 2);
    m.state(StateOutcome::VersionConflict, RunKind::Replay, 3);
    m.event(EventResult::NotSelected, RunKind::DryRun, 4);
    m.dead_letter(Reason::RefusedByDatabase);
    m.database_error(DatabaseErrorClass::Broken);
    m.call_seconds(NOTIFY, Duration::from_millis(20));
    m.batch(512);
    m.pending(NOTIFY, PendingState::Uncertain, 3, Some(Duration::from_secs(90)));
    let text = m.render().expect("text");
    for line in [
        r#"reprise_efeitos_total{desfecho="aplicado",efeito="notificar-vendedor",execucao="ao-vivo"} 7"#,
        r#"reprise_efeitos_total{desfecho="divergente",efeito="pagar-repasse",execucao="redrive"} 2"#,
        r#"reprise_estado_total{desfecho="conflito-de-versao",execucao="replay"} 3"#,
        r#"reprise_eventos_total{execucao="simulacao",resultado="nao-selecionado"} 4"#,
        r#"reprise_cartas_mortas_total{motivo="dado-recusado-pelo-banco"} 1"#,
        r#"reprise_banco_erros_total{classe="defeito"} 1"#,
        r#"reprise_chamada_segundos_bucket{efeito="notificar-vendedor",le="0.01"} 0"#,
        r#"reprise_chamada_segundos_bucket{efeito="notificar-vendedor",le="0.025"} 1"#,
        r#"reprise_lote_eventos_bucket{le="256"} 0"#,
        r#"reprise_lote_eventos_bucket{le="512"} 1"#,
        r#"reprise_efeitos_pendentes{efeito="notificar-vendedor",estado="incerto"} 3"#,
        r#"reprise_efeito_mais_antigo_segundos{efeito="notificar-vendedor",estado="incerto"} 90"#,
    ] {
        assert_line(&text, line);
    }
    let counted =
        series(&text).into_iter().filter(|l| l.starts_with("reprise_efeitos_total") && !l.ends_with(" 0"));
    assert_eq!(counted.count(), 2);
}

#[test]
fn handles_stand_at_the_place_of_their_label() {
    // Handles are found by discriminant; a reordered enum would count under another label.
    for (i, outcome) in Outcome::ALL.into_iter().enumerate() {
        assert_eq!(outcome as usize, i);
    }
    for (i, run) in RunKind::ALL.into_iter().enumerate() {
        assert_eq!(run as usize, i);
    }
    for (i, outcome) in StateOutcome::ALL.into_iter().enumerate() {
        assert_eq!(outcome as usize, i);
    }
    for (i, result) in EventResult::ALL.into_iter().enumerate() {
        assert_eq!(result as usize, i);
    }
    for (i, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, i);
    }
    for (i, state) in PendingState::ALL.into_iter().enumerate() {
        assert_eq!(state as usize, i);
    }
    for (i, class) in DatabaseErrorClass::ALL.into_iter().enumerate() {
        assert_eq!(class as usize, i);
    }
}

#[test]
fn b76_the_number_of_series_does_not_depend_on_what_is_processed() {
    let m = metrics();
    let before = series(&m.render().expect("text")).len();
    // No method takes an order, an event, an error text or a run's id: there is nothing to pass but this.
    for order in 0..20_000_u32 {
        let reason = Reason::ALL[order as usize % 11];
        m.event(EventResult::Applied, RunKind::Live, 1);
        m.state(StateOutcome::Written, RunKind::Live, 1);
        m.effect(NOTIFY, Outcome::Applied, RunKind::Live, 1);
        m.call_seconds(NOTIFY, Duration::from_micros(u64::from(order)));
        m.event_seconds(Duration::from_micros(u64::from(order)));
        m.dead_letter(reason);
    }
    for replay in 0..30 {
        m.replays(&[]);
        m.effect(NOTIFY, Outcome::AlreadyRecorded, RunKind::Replay, replay);
    }
    let text = m.render().expect("text");
    assert_eq!(series(&text).len(), before);
    assert_line(&text, r#"reprise_eventos_total{execucao="ao-vivo",resultado="aplicado"} 20000"#);
}

#[test]
fn an_unknown_effect_type_is_counted_nowhere_and_does_not_panic() {
    let m = metrics();
    m.effect(EffectTypeId(9), Outcome::Applied, RunKind::Live, 1);
    m.call_seconds(EffectTypeId(9), Duration::from_secs(1));
    let text = m.render().expect("text");
    assert!(
        series(&text).iter().filter(|l| l.starts_with("reprise_efeitos_total")).all(|l| l.ends_with(" 0"))
    );
}

#[test]
fn partition_series_leave_with_their_partition() {
    let m = metrics();
    let reading = |partition| PartitionReading {
        partition,
        position: 12,
        committed: Some(10),
        lag: Some(5),
        stalled: partition == 7,
    };
    m.present(&Present { partitions: vec![reading(0), reading(7)], ..Present::default() });
    let text = m.render().expect("text");
    assert_line(&text, r#"reprise_particao_lag{particao="7"} 5"#);
    assert_line(&text, r#"reprise_particao_posicao{particao="7"} 12"#);
    assert_line(&text, r#"reprise_particao_confirmado{particao="7"} 10"#);
    assert_line(&text, r#"reprise_particao_parada{particao="0"} 0"#);
    assert_line(&text, r#"reprise_particao_parada{particao="7"} 1"#);

    let unknown = PartitionReading { partition: 0, position: 13, committed: None, lag: None, stalled: false };
    m.present(&Present { partitions: vec![unknown], ..Present::default() });
    let text = m.render().expect("text");
    assert_line(&text, r#"reprise_particao_posicao{particao="0"} 13"#);
    assert!(!text.contains(r#"{particao="7"}"#), "{text}");
    assert!(!text.contains("reprise_particao_lag{"), "an unknown lag is not shown as a number");
}

#[test]
fn present_facts_replace_earlier_ones() {
    let m = metrics();
    m.present(&Present {
        database_up: true,
        dlq_away: true,
        open_circuits: vec![EffectTypeId(1)],
        reservations: vec![3, 0],
        partitions: vec![],
    });
    let text = m.render().expect("text");
    assert_line(&text, "reprise_banco_disponivel 1");
    assert_line(&text, "reprise_dlq_indisponivel 1");
    assert_line(&text, r#"reprise_circuito_aberto{efeito="notificar-vendedor"} 0"#);
    assert_line(&text, r#"reprise_circuito_aberto{efeito="pagar-repasse"} 1"#);
    assert_line(&text, r#"reprise_reservas_vivas{efeito="notificar-vendedor"} 3"#);
    m.present(&Present::default());
    let text = m.render().expect("text");
    assert_line(&text, "reprise_banco_disponivel 0");
    assert_line(&text, r#"reprise_circuito_aberto{efeito="pagar-repasse"} 0"#);
    assert_line(&text, r#"reprise_reservas_vivas{efeito="notificar-vendedor"} 0"#);
}

#[test]
fn several_replays_share_a_partition_without_a_label_for_their_ids() {
    let m = metrics();
    m.replays(&[
        ReplayReading { partition: 2, position: 500, remaining: 100 },
        ReplayReading { partition: 2, position: 40, remaining: 60 },
    ]);
    let text = m.render().expect("text");
    assert_line(&text, r#"reprise_replay_posicao{particao="2"} 40"#);
    assert_line(&text, r#"reprise_replay_restante{particao="2"} 160"#);
    m.replays(&[]);
    assert!(!m.render().expect("text").contains("reprise_replay_posicao{"));
}
