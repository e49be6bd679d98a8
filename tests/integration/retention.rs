//! Retention: what is old goes, what is open stays, and what is gone is remembered.

use serde_json::{Value, json};

use crate::support::kafka::Outgoing;
use crate::support::{Answer, LATER, World, until};

/// 2025-10-14T03:00:00Z, in ms.
const MIDNIGHT_MS: i64 = 1_760_410_800_000;

/// Ten settled effects, all of them made to look as if live had handled them long ago.
async fn old_ledger() -> World {
    let world = World::start().await;
    let _live = world.live().await;
    world.feed_from(0, 10, MIDNIGHT_MS).await;
    world.settled().await;
    until("all are done", LATER, async || world.done().await == 10).await;
    world.execute("update efeito_aplicado set criado_em = '2025-01-10T00:00:00Z'").await;
    world
}

fn taken(lines: &Value, table: &str) -> (u64, u64) {
    let line =
        lines.as_array().expect("lines").iter().find(|line| line["tabela"] == table).expect("the table");
    (line["apagaveis"].as_u64().expect("a count"), line["apagadas"].as_u64().expect("a count"))
}

const BEFORE: &str = "2025-02-01T00:00:00Z";

#[tokio::test]
async fn what_is_open_stays_however_old_and_what_is_settled_goes() {
    let world = old_ledger().await;
    world.execute("update efeito_aplicado set estado = 'incerto' where pedido_id = 'ped-0'").await;
    world.execute("update efeito_aplicado set estado = 'reservado' where pedido_id = 'ped-1'").await;
    world
        .execute("update efeito_aplicado set criado_em = '2025-01-31T23:30:00Z' where pedido_id = 'ped-2'")
        .await;
    world
        .execute("update efeito_aplicado set criado_em = '2025-02-02T00:00:00Z' where pedido_id = 'ped-3'")
        .await;
    // An open dead letter of the order: its redrive would call again what the ledger forgot.
    world
        .execute(
            r#"insert into carta_morta (topico, particao, "offset", motivo, mensagem, pedido_id, execucao_id, resumo, primeira_falha_em)
               values ('t', 0, 1, 'efeito-recusado', 'x', 'ped-4', 'ao-vivo', '\x00', now())"#,
        )
        .await;
    let said = world.json(&["retention", "--ledger-before", BEFORE, "--dry-run"]).await;
    assert_eq!(taken(&said, "efeito_aplicado"), (5, 0));
    assert_eq!(world.one::<i64>("select count(*) from efeito_aplicado").await, 10);
    assert_eq!(world.one::<i64>("select count(*) from livro_horizonte").await, 0);

    let asked = world.try_cli(&["retention", "--ledger-before", BEFORE]).await;
    assert_eq!(asked.code, Some(3), "{}", asked.stderr);
    assert!(
        asked.stderr.contains("5 rows of efeito_aplicado before 2025-02-01T00:00:00Z"),
        "{}",
        asked.stderr
    );

    let said = world.json(&["retention", "--ledger-before", BEFORE, "--yes", "--by", "ana"]).await;
    assert_eq!(taken(&said, "efeito_aplicado"), (5, 5));
    let left: Vec<(String,)> = world.rows("select pedido_id from efeito_aplicado order by 1").await;
    let left: Vec<&str> = left.iter().map(|(order,)| order.as_str()).collect();
    assert_eq!(left, ["ped-0", "ped-1", "ped-2", "ped-3", "ped-4"]);
    assert_eq!(world.commissions().await.len(), 10);
    let record: (Option<String>, String, bool) = world
        .rows("select por, apagadas::text, terminada_em is not null from retencao_execucao")
        .await
        .remove(0);
    assert_eq!(record, (Some("ana".to_owned()), r#"{"efeito_aplicado": 5}"#.to_owned(), true));
}

#[tokio::test]
async fn a_replay_behind_the_horizon_is_refused_unless_it_suppresses_every_effect() {
    let world = old_ledger().await;
    let horizon = "2025-10-14T03:00:05Z";
    world.cli(&["retention", "--ledger-before", horizon, "--yes"]).await;
    assert_eq!(world.one::<i64>("select count(*) from efeito_aplicado").await, 0);
    let from = "2025-10-14T03:00:00Z";
    let refused = world.try_cli(&["replay", "run", "--id", "replay-a", "--from", from]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("before 2025-10-14T03:00:05Z"), "{}", refused.stderr);
    let calls = world.provider.count();
    let quiet =
        ["replay", "run", "--id", "replay-b", "--from", from, "--effect", "notificar-vendedor=suprimir"];
    let said = world.json(&quiet).await;
    assert_eq!(said["situacao"], "concluido");
    assert_eq!(world.provider.count(), calls);
    // An earlier horizon does not bring back what is gone.
    let _live = world.live().await;
    world.feed(20, 1).await;
    until("another is done", LATER, async || world.done().await == 1).await;
    world.execute("update efeito_aplicado set criado_em = '2025-01-10T00:00:00Z'").await;
    let said = world.json(&["retention", "--ledger-before", BEFORE, "--yes"]).await;
    assert_eq!(taken(&said, "efeito_aplicado"), (1, 1));
    let kept: String = world.one("select purgado_ate::text from livro_horizonte").await;
    assert_eq!(kept, "2025-10-14 03:00:05+00");
}

#[tokio::test]
async fn a_replay_that_is_not_finished_keeps_what_it_reads() {
    let world = old_ledger().await;
    world
        .execute(
            "insert into reprocessamento (execucao_id, simular, situacao, topico, de, fonte, politicas)
             values ('replay-x', false, 'pausado', 't', '2025-01-15T00:00:00Z', 'arquivo', '{}')",
        )
        .await;
    for flag in ["--ledger-before", "--archive-before"] {
        let refused = world.try_cli(&["retention", flag, BEFORE, "--yes"]).await;
        assert_eq!(refused.code, Some(3), "{}", refused.stderr);
        assert!(refused.stderr.contains("replay-x (from 2025-01-15T00:00:00Z)"), "{}", refused.stderr);
    }
    assert_eq!(world.one::<i64>("select count(*) from livro_horizonte").await, 0);
    world.execute("update reprocessamento set situacao = 'cancelado'").await;
    let said = world.json(&["retention", "--ledger-before", BEFORE, "--yes"]).await;
    assert_eq!(taken(&said, "efeito_aplicado"), (10, 10));
}

#[tokio::test]
async fn the_archive_loses_beginnings_and_keeps_the_last_record_of_each_partition() {
    let world = World::start().await;
    for partition in 0..2 {
        for second in 0..4 {
            let at = MIDNIGHT_MS + i64::from(partition) * 10_000 + second * 1_000;
            world.kafka.produce(&world.topic, &Outgoing::raw("k", b"{}").on(partition).at(at)).await;
        }
    }
    let mut archiver = world.run(&["archive"]);
    let kept = async || world.one::<i64>("select count(*) from evento_arquivado").await;
    until("all are archived", LATER, async || kept().await == 8).await;
    archiver.terminate();
    archiver.ended(LATER).await;
    // Partition 0 is older throughout; of partition 1 two records are.
    let said = world.json(&["retention", "--archive-before", "2025-10-14T03:00:12Z", "--yes"]).await;
    assert_eq!(taken(&said, "evento_arquivado"), (5, 5));
    let left: Vec<(i32, i64)> =
        world.rows(r#"select particao, "offset" from evento_arquivado order by 1, 2"#).await;
    assert_eq!(left, [(0, 3), (1, 2), (1, 3)]);
    let gap = ["replay", "plan", "--id", "replay-g", "--source", "arquivo", "--from", "2025-10-14T03:00:00Z"];
    let refused = world.try_cli(&gap).await;
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
}

#[tokio::test]
async fn evidence_goes_when_its_effect_is_settled_and_decisions_stay() {
    let world = World::start().await;
    world.provider.script("ped-1", [Answer::Close]);
    let _live = world.live().await;
    world.feed(0, 2).await;
    world.settled().await;
    assert_eq!(world.one::<i64>("select count(*) from tentativa_efeito").await, 1);
    world
        .execute(
            "insert into tentativa_efeito (chave, execucao_id, instancia, resposta, alcance, detalhe)
             values ('evt-0-1:notificar-vendedor', 'ao-vivo', 'i', 'agora-nao', 'fim', 'x')",
        )
        .await;
    world.execute("update tentativa_efeito set em = '2025-01-10T00:00:00Z'").await;
    world.execute("insert into revisao_efeito (chave, decisao, por, motivo, em) values ('k', 'concluido', 'ana', 'x', '2025-01-10')").await;
    let said = world.json(&["retention", "--evidence-before", BEFORE, "--yes"]).await;
    assert_eq!(taken(&said, "tentativa_efeito"), (1, 1));
    let left: String = world.one("select chave from tentativa_efeito").await;
    assert_eq!(left, "evt-1-1:notificar-vendedor");
    assert_eq!(world.one::<i64>("select count(*) from revisao_efeito").await, 1);
}

#[tokio::test]
async fn ages_come_from_the_configuration_and_without_any_nothing_is_done() {
    let mut world = World::start().await;
    let none = world.try_cli(&["retention", "--yes"]).await;
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    assert!(none.stderr.contains("[retencao]"), "{}", none.stderr);
    let future = world.try_cli(&["retention", "--yes", "--ledger-before", "2999-01-01T00:00:00Z"]).await;
    assert_eq!(future.code, Some(2), "{}", future.stderr);
    world.set(&["retencao", "livro"], "1h");
    let short = world.try_cli(&["retention", "--yes"]).await;
    assert_eq!(short.code, Some(2), "{}", short.stderr);
    assert!(short.stderr.contains("retencao.livro"), "{}", short.stderr);
    world.set(&["retencao", "livro"], "9600h");
    let said = world.json(&["retention", "--dry-run"]).await;
    assert_eq!(taken(&said, "efeito_aplicado"), (0, 0));
    assert_eq!(said.as_array().map(Vec::len), Some(1));
    assert_eq!(said[0]["apagadas"], json!(0));
}
