//! Money and times as finance sees them: exact, reversible, and as of the event.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::event::{MIDNIGHT_MS, event, event_at};
use crate::support::kafka::{Outgoing, header};
use crate::support::{Setup, World};

const FROM: &str = "2026-10-14T00:00:00-03:00";

fn one_partition() -> Setup {
    Setup { partitions: 1, ..Setup::default() }
}

/// `ped-<n>`, with both numbers exactly as written.
fn priced(n: u32, cents: &str, percent: &str) -> Outgoing {
    let text = format!(
        r#"{{"id":"evt-{n}","tipo":"pedido.pago","pedidoId":"ped-{n}","versao":1,"payload":{{"valorCentavos":{cents},"percentual":{percent}}},"ocorridoEm":"2026-10-14T12:00:00Z"}}"#
    );
    Outgoing::raw(&format!("ped-{n}"), text.as_bytes())
}

#[tokio::test]
async fn b24_b67_a_reversal_undoes_to_the_cent_and_each_spelling_is_exact_or_refused() {
    let world = World::with(one_partition()).await;
    let records = [
        priced(1, "10050", "25"),
        priced(2, "-10050", "25"),
        priced(3, "5000", "0.57"),
        priced(4, "7000", r#""1.15""#),
        priced(5, "10000", "5.0"),
        priced(6, "10000", "5e0"),
        priced(7, "9223372036854775807", "100"),
        priced(8, "0", "100"),
        priced(20, "10000", "100.01"),
        priced(21, "10000", "-5"),
        priced(22, "-9223372036854775809", "5"),
        priced(23, "100.5", "5"),
    ];
    world.kafka.produce_all(&world.topic, records).await;
    let _live = world.live().await;
    world.settled().await;
    let wanted = [
        ("ped-1", 2_513),
        ("ped-2", -2_513),
        ("ped-3", 29),
        ("ped-4", 81),
        ("ped-5", 500),
        ("ped-6", 500),
        ("ped-7", i64::MAX),
        ("ped-8", 0),
    ];
    assert_eq!(
        world.commissions().await,
        BTreeMap::from(wanted.map(|(order, cents)| (order.to_owned(), cents)))
    );
    let sum: i64 = world
        .one("select sum(valor_centavos)::bigint from comissao where pedido_id in ('ped-1', 'ped-2')")
        .await;
    assert_eq!(sum, 0, "the books close");
    let told = &world.provider.calls_of("ped-2")[0].body;
    assert_eq!(told["valorCentavos"], json!(-2_513));
    let letters = world.dlq().await;
    let messages: Vec<String> = letters.iter().map(|letter| header(letter, "reprise-dlq-mensagem")).collect();
    assert_eq!(messages.len(), 4, "{messages:?}");
    for (message, field) in
        messages.iter().zip(["percentual", "percentual", "valorCentavos", "valorCentavos"])
    {
        assert!(message.contains(field), "{message:?} names {field}");
    }
}

#[tokio::test]
async fn b25_a_rate_that_changed_later_leaves_what_was_paid_before_as_it_was() {
    let world = World::with(one_partition()).await;
    let dated = |n: u32, percent: u32, at: &str| {
        let mut event = event(n);
        event["payload"]["percentual"] = json!(percent);
        event["ocorridoEm"] = json!(at);
        Outgoing::event(&event).at(MIDNIGHT_MS + i64::from(n) * 1_000)
    };
    let records = [dated(1, 5, "2026-10-20T12:00:00Z"), dated(2, 6, "2026-11-02T12:00:00Z")];
    world.kafka.produce_all(&world.topic, records).await;
    let _live = world.live().await;
    world.settled().await;
    let run = world.json(&["replay", "run", "--id", "replay-taxa", "--from", FROM, "--dry-run"]).await;
    assert_eq!(run["eventos"]["lidos"], json!(2));
    let diff = world.json(&["replay", "diff", "--id", "replay-taxa"]).await;
    assert_eq!(diff["totais"]["pedidosAlterados"], json!(0));
    assert_eq!((&diff["pedidos"], &diff["efeitos"]), (&json!([]), &json!([])));
    assert_eq!(world.commissions().await, BTreeMap::from([("ped-1".into(), 500), ("ped-2".into(), 600)]));
    assert_eq!(world.provider.count(), 2);
}

#[tokio::test]
async fn b66_rows_with_infinite_times_are_shown_and_met_again_without_a_panic() {
    let world = World::with(one_partition()).await;
    let mut live = world.live().await;
    world.feed(0, 3).await;
    world.settled().await;
    world.execute("update efeito_aplicado set criado_em = 'infinity', atualizado_em = 'infinity', reserva_ate = 'infinity', primeira_tentativa_em = '-infinity'").await;
    world.execute("update comissao set atualizado_em = '290000-01-01'").await;
    for args in [
        vec!["effects", "list", "--estado", "concluido"],
        vec!["effects", "show", "evt-0-1:notificar-vendedor"],
    ] {
        let ended = world.try_cli(&[&args[..], &["--output", "json"]].concat()).await;
        assert!(!ended.stderr.contains("panicked"), "{args:?}: {}", ended.stderr);
        assert!(
            ended.code == Some(0) || ended.code == Some(1),
            "{args:?}: {:?} {}",
            ended.code,
            ended.stderr
        );
    }
    world.feed(0, 3).await;
    world.send(&event_at(0, 2)).await;
    world.settled().await;
    assert!(live.is_alive());
    assert_eq!((world.done().await, world.provider.count()), (4, 4));
    let shown: Value = world.json(&["effects", "show", "evt-0-2:notificar-vendedor"]).await;
    assert_eq!(shown["estado"], json!("concluido"));
}
