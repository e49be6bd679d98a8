//! The live road, situation by situation; tests bear the numbers of the cases they are about.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::support::event::{event, event_at};
use crate::support::http;
use crate::support::kafka::{Kafka, Outgoing, header};
use crate::support::{Answer, Gate, LATER, Link, SOON, Setup, World, crash, kafka_servers, until};

const HOLD: &str = "notificar-vendedor";
const RELEASE: &str = "pagar-repasse";

fn table(settings: &[(&str, toml::Value)]) -> toml::Table {
    settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

fn one_partition() -> Setup {
    Setup { partitions: 1, ..Setup::default() }
}

async fn reasons(world: &World) -> Vec<String> {
    let mut reasons: Vec<String> =
        world.dlq().await.iter().map(|letter| header(letter, "reprise-dlq-motivo")).collect();
    reasons.sort();
    reasons
}

#[tokio::test]
async fn b01_after_an_offset_reset_the_ledger_answers_and_nobody_is_called() {
    let mut world = World::start().await;
    let mut live = world.live().await;
    world.feed(0, 500).await;
    world.settled().await;
    let (commissions, calls) = (world.commissions().await, world.provider.count());
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    // A group without offsets reads everything again; two instances share it.
    let mut again = world.config.clone();
    again["kafka"]
        .as_table_mut()
        .expect("a section")
        .insert("grupo".into(), format!("{}-2", world.group).into());
    world.config = again;
    world.group = format!("{}-2", world.group);
    world.write_config();
    let _live = world.live().await;
    let (path, port) = world.second_instance();
    let mut command = world.command(&["live"]);
    command.arg("--config").arg(&path);
    let _other = world.live_as(command, port).await;
    let both = async |name: &str, labels: &[(&str, &str)]| {
        let url = format!("http://127.0.0.1:{port}/metrics");
        let other =
            http::request("GET", &url, &[], None).await.and_then(|r| http::metric(&r.body, name, labels));
        world.metric(name, labels).await.unwrap_or(0.0) + other.unwrap_or(0.0)
    };
    let known = [("desfecho", "ja-registrado"), ("execucao", "ao-vivo")];
    until("everything is known", SOON, async || both("reprise_efeitos_total", &known).await >= 500.0).await;
    world.settled().await;
    assert_eq!(world.provider.count(), calls);
    assert_eq!(world.commissions().await, commissions);
    assert!(both("reprise_sem_offset_total", &[]).await >= 3.0, "B80: it is said");
}

#[tokio::test]
async fn b11_a_stalled_record_holds_the_offset_and_its_neighbours_are_not_called_again() {
    let mut world = World::with(one_partition()).await;
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200)), Answer::Status(200)]);
    let mut live = world.live().await;
    world.feed(0, 6).await;
    until("the neighbours are done", SOON, async || world.done().await == 5).await;
    assert!(world.committed().await[&0].unwrap_or(0) == 0);
    live.kill();
    gate.open();
    let _live = world.live().await;
    world.settled().await;
    // Nobody knows about the first: it was in flight when the process died.
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 5), ("incerto".into(), 1)]));
    assert!(world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn b12_keys_are_made_of_events_and_survive_a_topic_made_anew() {
    let mut world = World::with(Setup {
        effects: vec![(HOLD, toml::Table::new()), (RELEASE, table(&[("ao_falhar", "liberar".into())]))],
        ..Setup::default()
    })
    .await;
    world.set(&["kafka", "offset_perdido"], "avancar");
    world.provider.script(&format!("ped-9/{RELEASE}"), [Answer::Status(500), Answer::Status(200)]);
    let mut live = world.live().await;
    for (n, partition) in [(1, 0), (2, 1), (9, 2)] {
        world.kafka.produce(&world.topic, &Outgoing::event(&event(n)).on(partition)).await;
    }
    world.settled().await;
    assert_eq!(world.done().await, 6);
    assert_eq!(world.provider.calls_of("ped-9").iter().filter(|call| call.effect == HOLD).count(), 1);
    live.terminate();
    live.ended(LATER).await;
    crate::support::kafka::remove(&crate::support::kafka_servers(), &[&world.topic], &[]).await;
    world.kafka.recreate_topic(&world.topic, 3).await;
    let _live = world.live().await;
    world.kafka.produce(&world.topic, &Outgoing::event(&event(50)).on(0)).await;
    until("new orders at old offsets are applied", SOON, async || world.done().await == 8).await;
}

#[tokio::test]
async fn b14_a_redelivery_with_another_request_is_divergent_and_not_sent_again() {
    let world = World::with(one_partition()).await;
    let _live = world.live().await;
    world.feed(0, 1).await;
    world.settled().await;
    world.execute("update efeito_aplicado set resumo_requisicao = decode(repeat('00', 32), 'hex')").await;
    world.feed(0, 1).await;
    world.settled().await;
    let divergent = [("desfecho", "divergente")];
    until("it is counted", SOON, async || {
        world.metric("reprise_efeitos_total", &divergent).await == Some(1.0)
    })
    .await;
    assert_eq!(world.provider.count(), 1);
}

#[tokio::test]
async fn b16_a_database_that_is_away_is_waited_out() {
    let world = World::start().await;
    let _live = world.live().await;
    world.feed(0, 20).await;
    world.settled().await;
    world.database_away().await;
    world.feed(100, 100).await;
    until("readiness turns", SOON, async || world.get("/readyz").await.is_some_and(|r| r.status == 503))
        .await;
    assert_eq!(world.get("/livez").await.map(|r| r.status), Some(200));
    world.database_back().await;
    until("all applied", LATER, async || world.done().await == 120).await;
    world.settled().await;
    assert!(world.dlq().await.is_empty() && world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn b20_tombstones_empty_values_and_null_keys_stop_nothing() {
    let world = World::with(one_partition()).await;
    let records = [
        Outgoing { key: Some(b"t".to_vec()), ..Outgoing::default() },
        Outgoing::raw("vazio", b""),
        Outgoing { key: None, ..Outgoing::event(&event(1)) },
        Outgoing::event(&event(2)),
    ];
    world.kafka.produce_all(&world.topic, records).await;
    let _live = world.live().await;
    world.settled().await;
    assert_eq!(world.done().await, 2);
    assert_eq!(reasons(&world).await, ["json-invalido"]);
    assert_eq!(world.metric("reprise_eventos_total", &[("resultado", "tombstone")]).await, Some(1.0));
}

#[tokio::test]
async fn b21_b66_b67_numbers_times_and_texts_are_exact_or_refused() {
    let world = World::with(one_partition()).await;
    let with = |n: u32, valor: &str, rest: &str| {
        let text = format!(
            r#"{{"id":"e-{n}","tipo":"pedido.pago","pedidoId":"p-{n}","versao":1,"nota":123456789012345678901,{rest}"payload":{{"valorCentavos":{valor},"percentual":100}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
        );
        Outgoing::raw(&format!("p-{n}"), text.as_bytes())
    };
    let mut late = event(7);
    late["ocorridoEm"] = json!("300000-01-01T00:00:00Z");
    let mut nul = event(8);
    nul["pedidoId"] = json!("ped\u{0}8");
    let records = [
        with(1, "1e2", ""),
        with(2, "9007199254740993", r#""fundo":[[[{"a":1e308}]]],"#),
        with(3, r#""100.00""#, ""),
        with(4, "9223372036854775808", ""),
        Outgoing::event(&late),
        Outgoing::event(&nul),
    ];
    world.kafka.produce_all(&world.topic, records).await;
    let _live = world.live().await;
    world.settled().await;
    let wanted = BTreeMap::from([("p-1".to_owned(), 100), ("p-2".to_owned(), 9_007_199_254_740_993)]);
    assert_eq!(world.commissions().await, wanted);
    assert_eq!(
        reasons(&world).await,
        ["campo-invalido", "texto-invalido", "valor-fora-do-limite", "valor-fora-do-limite"]
    );
}

#[tokio::test]
async fn b27_b29_versions_in_one_batch_and_conflicts() {
    let world = World::with(one_partition()).await;
    let mut other = event_at(1, 7);
    other["id"] = json!("evt-intruso");
    other["payload"]["valorCentavos"] = json!(777);
    let mut unversioned = event(2);
    unversioned.as_object_mut().expect("an object").remove("versao");
    for sent in [event_at(1, 3), event_at(1, 4), event_at(1, 7), event_at(1, 5), other, unversioned] {
        world.send(&sent).await;
    }
    let _live = world.live().await;
    world.settled().await;
    let rows: Vec<(i64, i64)> = world.rows("select valor_centavos, versao_evento from comissao").await;
    assert_eq!(rows, [(500, 7)]);
    assert_eq!(reasons(&world).await, ["campo-ausente", "conflito-de-versao"]);
    assert_eq!(world.done().await, 4, "effects derive from events, also of ignored ones");
}

#[tokio::test]
async fn b28_two_instances_that_meet_the_same_events_call_once() {
    let world = World::with(Setup { partitions: 2, ..Setup::default() }).await;
    // The same events on both partitions: two owners reserve the same keys at the same time.
    let twice = (0..1000).flat_map(|n| [0, 1].map(|partition| Outgoing::event(&event(n)).on(partition)));
    world.kafka.produce_all(&world.topic, twice).await;
    let (path, port) = world.second_instance();
    let mut command = world.command(&["live"]);
    command.arg("--config").arg(&path);
    let first = world.run(&["live"]);
    let _second = world.live_as(command, port).await;
    until("all is settled", LATER, async || world.caught_up().await).await;
    drop(first);
    assert_eq!(world.done().await, 1000);
    assert_eq!(world.provider.count(), 1000);
    assert!(world.provider.repeated_calls().is_empty() && world.dlq().await.is_empty());
}

#[tokio::test]
async fn b39_b48_a_call_longer_than_the_poll_interval_survives_a_rebalance() {
    let mut world = World::with(one_partition()).await;
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    world.set(&["kafka", "propriedades", "max.poll.interval.ms"], "6000");
    world.provider.script("ped-0", [Answer::slow(Duration::from_secs(8), Answer::Status(200))]);
    let _first = world.live().await;
    world.feed(0, 5).await;
    until("the call is out", SOON, async || world.provider.count_of("ped-0") == 1).await;
    let (path, port) = world.second_instance();
    let mut command = world.command(&["live"]);
    command.arg("--config").arg(&path);
    let _second = world.live_as(command, port).await;
    until("all is settled", LATER, async || world.caught_up().await).await;
    assert_eq!(world.states().await, BTreeMap::from([("concluido".into(), 5)]));
    assert!(world.provider.repeated_calls().is_empty());
}

#[tokio::test]
async fn b40_a_stop_finishes_the_call_or_leaves_it_to_the_ledger() {
    let mut world = World::with(one_partition()).await;
    world.set(&["efeitos", HOLD, "prazo"], "8s");
    world.set(&["efeitos", HOLD, "reserva"], "12s");
    world.provider.script("ped-0", [Answer::slow(Duration::from_secs(2), Answer::Status(200))]);
    let mut live = world.live().await;
    world.feed(0, 1).await;
    until("the call is out", SOON, async || world.provider.count() == 1).await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    assert_eq!(world.done().await, 1);
    assert!(world.caught_up().await);

    let gate = Gate::default();
    world.provider.script("ped-1", [Answer::hang(&gate, Answer::Status(200))]);
    let mut live = world.live_as(world.command(&["live", "--grace", "5s"]), world.http_port).await;
    world.feed(1, 1).await;
    until("the second call is out", SOON, async || world.provider.count() == 2).await;
    live.terminate();
    assert_ne!(live.ended(LATER).await.code, Some(0), "the grace is over");
    gate.open();
    let _live = world.live().await;
    until("nobody knows", LATER, async || world.states().await.get("incerto") == Some(&1)).await;
    assert_eq!(world.provider.count(), 2);
}

#[tokio::test]
async fn b42_a_restart_with_nothing_new_processes_nothing() {
    let world = World::start().await;
    let mut live = world.live().await;
    world.feed(0, 30).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    let _live = world.live().await;
    world.settled().await;
    assert_eq!(world.metric("reprise_efeitos_total", &[("execucao", "ao-vivo")]).await, Some(0.0));
    assert_eq!(world.provider.count(), 30);
}

#[tokio::test]
async fn b49_a_stop_ends_in_time_with_the_broker_unreachable() {
    let mut world = World::start().await;
    world.set(&["kafka", "brokers"], "127.0.0.1:1");
    let mut live = world.run(&["live", "--grace", "6s"]);
    until("it lives", SOON, async || world.get("/livez").await.is_some_and(|r| r.status == 200)).await;
    live.terminate();
    live.ended(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn b51_every_answer_proves_what_the_table_says() {
    let world = World::start().await;
    let answers: [(u16, &str); 12] = [
        (200, "concluido"),
        (202, "concluido"),
        (204, "concluido"),
        (301, "carta"),
        (307, "carta"),
        (400, "carta"),
        (404, "carta"),
        (409, "carta"),
        (410, "carta"),
        (422, "carta"),
        (500, "incerto"),
        (408, "incerto"),
    ];
    for (n, (status, _)) in answers.iter().enumerate() {
        world.provider.script(&format!("ped-{n}"), [Answer::Status(*status)]);
    }
    world.provider.script("ped-20", [Answer::with_header(429, "retry-after", "1"), Answer::Status(200)]);
    world.provider.script("ped-21", [Answer::with_header(503, "retry-after", "1"), Answer::Status(200)]);
    world.provider.script("ped-22", [Answer::Status(401), Answer::Status(200)]);
    let _live = world.live().await;
    // One after the other: several unknown answers in a row would be an outage.
    for n in [0, 10, 1, 11, 2, 3, 4, 5, 6, 7, 8, 9, 20, 21, 22] {
        world.feed(n, 1).await;
    }
    world.settled().await;
    let rows: BTreeMap<String, String> = world
        .rows::<(String, String)>("select pedido_id, estado from efeito_aplicado")
        .await
        .into_iter()
        .collect();
    for (n, (status, wanted)) in answers.iter().enumerate() {
        let found = rows.get(&format!("ped-{n}")).map_or("carta", String::as_str);
        assert_eq!(found, *wanted, "{status}");
        assert_eq!(world.provider.count_of(&format!("ped-{n}")), 1, "{status}");
    }
    for order in ["ped-20", "ped-21", "ped-22"] {
        assert_eq!(rows.get(order).map(String::as_str), Some("concluido"), "{order}");
        assert_eq!(world.provider.count_of(order), 2, "{order}");
    }
    assert_eq!(reasons(&world).await, vec!["efeito-recusado"; 7]);
}

#[tokio::test]
async fn b52_in_progress_is_asked_again_with_the_same_key_and_body() {
    let setup =
        Setup { effects: vec![(RELEASE, table(&[("ao_falhar", "liberar".into())]))], ..one_partition() };
    let world = World::with(setup).await;
    world.provider.script("ped-0", [Answer::Status(409), Answer::Status(425), Answer::Status(200)]);
    let _live = world.live().await;
    world.feed(0, 1).await;
    world.settled().await;
    let calls = world.provider.calls_of("ped-0");
    assert_eq!(calls.len(), 3);
    assert!(calls.iter().all(|call| call.key == calls[0].key && call.body == calls[0].body));
    assert_eq!(world.done().await, 1);
}

#[tokio::test]
async fn b53_attempts_are_counted_across_a_restart() {
    let settings = [
        ("ao_falhar", "liberar".into()),
        ("recuo_inicial", "400ms".into()),
        ("recuo_maximo", "400ms".into()),
    ];
    let world = World::with(Setup { effects: vec![(RELEASE, table(&settings))], ..one_partition() }).await;
    world.provider.script("ped-0", [Answer::Status(500)]);
    let mut live = world.live().await;
    world.feed(0, 3).await;
    until("three attempts", SOON, async || world.provider.count_of("ped-0") >= 3).await;
    live.terminate();
    live.ended(LATER).await;
    let _live = world.live().await;
    world.settled().await;
    assert_eq!(world.provider.count_of("ped-0"), 5);
    assert_eq!(reasons(&world).await, ["efeito-esgotado"]);
    assert_eq!(world.done().await, 2, "others are not delayed");
}

#[tokio::test]
async fn b59_poison_first_last_and_in_the_middle_of_a_batch() {
    for at in [0, 4, 9] {
        let world = World::with(one_partition()).await;
        let records =
            (0..10).map(|n| if n == at { Outgoing::raw("x", b"{") } else { Outgoing::event(&event(n)) });
        world.kafka.produce_all(&world.topic, records).await;
        let _live = world.live().await;
        world.settled().await;
        assert_eq!((world.done().await, reasons(&world).await.len()), (9, 1), "poison at {at}");
    }
}

#[tokio::test]
async fn b43_partitions_added_to_a_running_topic_are_read_from_their_beginning() {
    let mut world = World::start().await;
    world.set(&["kafka", "propriedades", "topic.metadata.refresh.interval.ms"], "1000");
    let _live = world.live().await;
    world.feed(0, 3).await;
    world.settled().await;
    world.kafka.add_partitions(&world.topic, 6).await;
    until("the broker shows them", SOON, async || world.kafka.ends(&world.topic).await.len() == 6).await;
    // A producer that does not know the topic as it was.
    let producer = Kafka::connect(&kafka_servers());
    for n in 10..20_u32 {
        let partition = 3 + i32::try_from(n % 3).expect("small");
        producer.produce(&world.topic, &Outgoing::event(&event(n)).on(partition)).await;
    }
    until("all applied without a restart", LATER, async || world.done().await == 13).await;
}

#[tokio::test]
async fn b05_b63_calls_hold_no_connection_and_a_refused_row_costs_no_call() {
    let mut world = World::with(one_partition()).await;
    world.set(&["postgres", "max_conexoes"], 3);
    world.set(&["varredura", "intervalo"], "200ms");
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    let gate = Gate::default();
    for n in 0..20 {
        world.provider.script(&format!("ped-{n}"), [Answer::hang(&gate, Answer::Status(200))]);
    }
    let _live = world.live().await;
    world.feed(0, 60).await;
    until("the others are applied at normal speed", SOON, async || world.done().await == 40).await;
    let idle: i64 = world
        .one(
            "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'reprise'
             and state like 'idle in%' and now() - state_change > interval '1 second'",
        )
        .await;
    assert_eq!(idle, 0);
    let held = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'reprise'";
    let mut most = world.one::<i64>(held).await;
    gate.open();
    until("all are done", SOON, async || {
        most = most.max(world.one::<i64>(held).await);
        world.done().await == 60
    })
    .await;
    world.settled().await;
    assert!(most <= 3, "{most} connections, where 3 are allowed");
}

#[tokio::test]
async fn a_row_the_database_refuses_stands_alone() {
    let world = World::with(one_partition()).await;
    world.execute("alter table comissao add constraint teste check (valor_centavos <> 666)").await;
    let mut bad = event(7);
    bad["payload"]["valorCentavos"] = json!(13_320);
    for n in 0..20 {
        world.send(&if n == 7 { bad.clone() } else { event(n) }).await;
    }
    let _live = world.live().await;
    world.settled().await;
    assert_eq!(reasons(&world).await, ["dado-recusado-pelo-banco"]);
    assert_eq!((world.done().await, world.provider.count_of("ped-7")), (19, 0));
}

#[tokio::test]
async fn b68_what_is_kept_for_a_redrive_is_the_record_byte_for_byte() {
    let world = World::with(one_partition()).await;
    let value = br#"{"id":"e","tipo":"pedido.pago","pedidoId":"p","versao":1,"nota":1.10e308,"payload":{"valorCentavos":1.5,"percentual":5},"ocorridoEm":"2026-10-14T12:00:00Z"}"#;
    world.kafka.produce(&world.topic, &Outgoing::raw("p", value)).await;
    let _live = world.live().await;
    world.settled().await;
    let kept: Vec<u8> = world.one("select valor from carta_morta").await;
    assert_eq!(kept, value);
}

#[tokio::test]
async fn a_silent_database_is_an_outage_and_results_in_hand_are_written_later() {
    let mut world = World::with(one_partition()).await;
    let link = Link::to_url(&world.database_url).await;
    world.set(&["postgres", "url"], link.url(&world.database_url));
    let gate = Gate::default();
    world.provider.script("ped-0", [Answer::hang(&gate, Answer::Status(200)), Answer::Status(200)]);
    world.set(&["efeitos", HOLD, "prazo"], "20s");
    world.set(&["efeitos", HOLD, "reserva"], "25s");
    let _live = world.live().await;
    world.feed(0, 1).await;
    until("the call is out", SOON, async || world.provider.count() == 1).await;
    link.cut();
    gate.open();
    until("readiness turns", SOON, async || world.get("/readyz").await.is_some_and(|r| r.status == 503))
        .await;
    link.restore();
    world.settled().await;
    assert_eq!((world.done().await, world.provider.count()), (1, 1));
}

#[tokio::test]
async fn b57_a_redrive_feeds_the_applier_counts_rounds_and_survives_a_kill() {
    let world = World::with(one_partition()).await;
    for n in 0..5 {
        world.provider.script(&format!("ped-{n}"), [Answer::Status(422)]);
    }
    let _live = world.live().await;
    world.feed(0, 5).await;
    world.send(&event_at(0, 2)).await;
    world.settled().await;
    let (ends, copies) = (world.kafka.ends(&world.topic).await, world.dlq().await.len());
    assert_eq!(copies, 6);
    let redrive = ["dlq", "redrive", "--all", "--yes", "--output", "json"];
    let back = world.try_cli(&redrive).await;
    assert_eq!(back.code, Some(1), "all came back");
    for n in 0..5 {
        let slow = Answer::slow(Duration::from_millis(300), Answer::Status(200));
        world.provider.script(&format!("ped-{n}"), [slow, Answer::Status(200)]);
    }
    let before = world.provider.count();
    let mut killed = world.run(&redrive);
    until("a call is out", SOON, async || world.provider.count() > before).await;
    killed.kill();
    let again = world.try_cli(&redrive).await;
    let open: i64 = world.one("select count(*) from carta_morta where situacao = 'aberta'").await;
    let uncertain = world.states().await.get("incerto").copied().unwrap_or(0);
    assert_eq!(open, uncertain, "what was in flight at the kill is for review: {}", again.stdout);
    assert_eq!(world.done().await + uncertain, 6);
    let rounds: i64 = world.one("select max(rodadas)::bigint from carta_morta").await;
    assert!(rounds >= 1);
    assert_eq!(world.kafka.ends(&world.topic).await, ends, "nothing is put on the shared topic");
    assert_eq!(world.dlq().await.len(), copies, "a letter that fails again makes no new copy");
    assert_eq!(world.commissions().await["ped-0"], 500);
}

/// The process dies at a point between two durable steps; a new one goes on.
async fn dies_at(point: &str, on_failure: &str) {
    let setup = Setup {
        effects: vec![(HOLD, table(&[("ao_falhar", on_failure.into()), ("concorrencia", 4.into())]))],
        ..one_partition()
    };
    let mut world = World::with(setup).await;
    // A static member has its partition back at once.
    world.set(&["kafka", "instancia"], "pod-0");
    world.feed(0, 20).await;
    world.kafka.produce(&world.topic, &Outgoing::raw("torto", b"{")).await;
    let mut command = world.command(&["live"]);
    let (name, value) = crash(point);
    command.env(name, value);
    let mut dying = world.spawn(command);
    let ended = dying.ended(LATER).await;
    assert_eq!(ended.code, None, "{point}: it dies by a signal");
    let _live = world.live().await;
    until("it is worked off", LATER, async || world.caught_up().await).await;
    let states = world.states().await;
    assert_eq!(states.get("reservado"), None, "{point} {on_failure}: nothing is left in flight");
    assert_eq!(states.values().sum::<i64>(), 20, "{point} {on_failure}: I3");
    let uncertain = states.get("incerto").copied().unwrap_or(0);
    if on_failure == "manter" {
        assert!(world.provider.repeated_calls().is_empty(), "{point}: I2");
        assert!(uncertain <= 4, "{point}: I11, {uncertain} uncertain");
    } else {
        assert_eq!(uncertain, 0, "{point}: asked again with the same key");
    }
    let known: Vec<(String,)> =
        world.rows("select chave from efeito_aplicado where estado = 'concluido'").await;
    let called: Vec<String> = world.provider.calls().into_iter().map(|call| call.key).collect();
    assert!(
        known.iter().all(|(key,)| called.contains(key)),
        "{point}: I1, nothing is done that was not called"
    );
    let letters: i64 = world.one("select count(*) from carta_morta").await;
    assert_eq!(letters, 1, "{point}: one row per dead letter");
}

macro_rules! crash_points {
    ($($name:ident: $point:literal;)*) => { $(
        #[cfg(feature = "crash-points")]
        #[tokio::test]
        async fn $name() {
            for on_failure in ["manter", "liberar"] {
                dies_at($point, on_failure).await;
            }
        }
    )* };
}

crash_points! {
    i2_i3_killed_after_the_state_is_written: "after_state";
    i2_i3_killed_after_the_reservations_are_durable: "after_wave";
    i2_i3_killed_just_before_the_call: "before_call";
    b03_i2_i3_killed_after_the_provider_answered: "after_call";
    i3_i7_killed_after_the_broker_has_the_dead_letter: "after_dlq_ack";
    i3_i7_killed_after_the_dead_letter_has_its_row: "after_dlq_index";
}
