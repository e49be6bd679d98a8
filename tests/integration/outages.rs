//! What the database and the broker do to a running service: refusals that are not meant for the data are waited
//! out by the same process, and a loss is never silent.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use crate::support::process::Process;
use crate::support::{Answer, LATER, SOON, Setup, World, postgres_server, until};

const EFFECT: &str = "notificar-vendedor";

fn one_partition() -> Setup {
    Setup { partitions: 1, ..Setup::default() }
}

/// From outside of the world's database. `{}` is its name.
async fn administer(world: &World, sql: &str) {
    let database = world.database_url.rsplit('/').next().expect("a URL with a database");
    let mut admin =
        PgConnection::connect(&format!("{}/postgres", postgres_server())).await.expect("a server");
    let sql = sql.replace("{}", &format!("\"{database}\""));
    sqlx::raw_sql(AssertSqlSafe(sql.clone()))
        .execute(&mut admin)
        .await
        .unwrap_or_else(|e| panic!("{sql}: {e}"));
    admin.close().await.expect("a close");
}

async fn end_sessions(world: &World) {
    let ours = "datname = current_database() and application_name = 'reprise'";
    let sql = format!("select count(pg_terminate_backend(pid)) from pg_stat_activity where {ours}");
    world.one::<i64>(&sql).await;
}

/// Everything was applied once, by the same process, and nobody gave up on anything.
async fn applied_once(world: &World, live: &mut Process, events: i64) {
    until("all is settled", LATER, async || world.caught_up().await).await;
    assert!(live.is_alive(), "{}", live.stderr());
    assert_eq!(world.states().await, BTreeMap::from([("concluido".to_owned(), events)]));
    assert_eq!(i64::try_from(world.provider.count()).expect("few"), events);
    assert!(world.dlq().await.is_empty(), "I7");
}

#[tokio::test]
async fn a_failover_that_leaves_a_read_only_server_is_waited_out() {
    let world = World::with(one_partition()).await;
    let mut live = world.live().await;
    world.feed(0, 5).await;
    world.settled().await;
    administer(&world, "alter database {} set default_transaction_read_only = on").await;
    end_sessions(&world).await;
    world.feed(5, 20).await;
    until("it was told 25006", SOON, async || {
        let said = live.stderr();
        said.lines()
            .any(|line| line.contains("read-only transaction") && line.contains(r#"class="transitorio""#))
    })
    .await;
    assert_eq!(world.committed().await[&0], Some(5), "I4: the partition is held");
    administer(&world, "alter database {} reset default_transaction_read_only").await;
    end_sessions(&world).await;
    applied_once(&world, &mut live, 25).await;
}

/// The first `times` writes of `table` are answered with `code`. A sequence counts, because it outlives a rollback.
async fn refuse_at_first(world: &World, table: &str, code: &str, times: u32) {
    world.execute(&format!("create sequence vezes_{table}")).await;
    world
        .execute(&format!(
            "create function recusa_{table}() returns trigger language plpgsql as $$ begin
               if nextval('vezes_{table}') <= {times} then raise exception 'de teste' using errcode = '{code}'; end if;
               return new;
             end $$"
        ))
        .await;
    world
        .execute(&format!(
            "create trigger recusa before insert on {table} for each statement execute function recusa_{table}()"
        ))
        .await;
}

#[tokio::test]
async fn deadlocks_and_serialization_failures_are_tried_again_and_nobody_notices() {
    let world = World::with(one_partition()).await;
    refuse_at_first(&world, "comissao", "40P01", 3).await;
    refuse_at_first(&world, "efeito_aplicado", "40001", 3).await;
    let mut live = world.live().await;
    world.feed(0, 20).await;
    applied_once(&world, &mut live, 20).await;
    for table in ["comissao", "efeito_aplicado"] {
        let tried: i64 = world.one(&format!("select last_value from vezes_{table}")).await;
        assert!(tried > 3, "{table} was refused three times");
    }
}

#[tokio::test]
async fn plans_that_a_migration_outdated_are_made_anew() {
    let world = World::with(one_partition()).await;
    let mut live = world.live().await;
    world.feed(0, 5).await;
    world.settled().await;
    // The types that prepared statements return change under them.
    world.execute("alter table comissao alter column pedido_id type varchar, add column nota text").await;
    world.execute("alter table comissao alter column evento_id type varchar").await;
    world.feed(0, 10).await;
    applied_once(&world, &mut live, 10).await;
    assert_eq!(world.commissions().await.len(), 10);
}

#[tokio::test]
async fn b45_of_two_processes_under_one_static_name_the_fenced_one_ends_and_says_why() {
    let mut world = World::with(one_partition()).await;
    world.set(&["kafka", "instancia"], "pod-0");
    let mut first = world.live().await;
    world.feed(0, 3).await;
    world.settled().await;
    let (path, port) = world.second_instance();
    let mut command = world.command(&["live"]);
    command.arg("--config").arg(&path);
    let _second = world.live_as(command, port).await;
    let ended = first.ended(LATER).await;
    assert_eq!((ended.code, ended.signal), (Some(1), None));
    assert!(ended.stderr.contains("fenced"), "{}", ended.stderr);
    world.feed(3, 3).await;
    world.settled().await;
    assert_eq!((world.done().await, world.provider.count()), (6, 6));
}

#[tokio::test]
async fn offsets_that_no_longer_exist_stop_it_by_name_or_are_passed_as_configured() {
    let mut world = World::with(one_partition()).await;
    let mut live = world.live().await;
    world.feed(0, 4).await;
    world.settled().await;
    live.terminate();
    assert_eq!(live.ended(LATER).await.code, Some(0));
    world.feed(4, 6).await;
    world.kafka.delete_below(&world.topic, &BTreeMap::from([(0, 7)])).await;

    let stopped = world.try_cli(&["live"]).await;
    assert_eq!(stopped.code, Some(1));
    let named = "partition 0: records from offset 4 to 6 no longer exist";
    assert!(stopped.stderr.contains(named), "{}", stopped.stderr);
    assert_eq!((world.done().await, world.committed().await[&0]), (4, Some(4)));

    world.set(&["kafka", "offset_perdido"], "avancar");
    let live = world.live().await;
    world.settled().await;
    assert_eq!((world.done().await, world.provider.count()), (7, 7));
    let said = live.stderr();
    assert!(
        said.lines().any(|line| line.contains("offset is gone") && line.contains("from=4 to=6")),
        "{said}"
    );
}

#[tokio::test]
async fn b37_a_time_out_is_uncertain_and_what_the_provider_did_later_is_for_a_person_to_say() {
    let mut world = World::with(one_partition()).await;
    world.set(&["efeitos", EFFECT, "prazo"], "300ms");
    let late = Answer::slow(Duration::from_millis(900), Answer::Status(200));
    world.provider.script("ped-0", [late]);
    let _live = world.live().await;
    world.feed(0, 2).await;
    world.settled().await;
    let expected = [("concluido".to_owned(), 1), ("incerto".to_owned(), 1)];
    assert_eq!(world.states().await, BTreeMap::from(expected));
    let key = format!("evt-0-1:{EFFECT}");
    let shown = world.json(&["effects", "show", &key]).await;
    assert_eq!(
        (&shown["evidencia"][0]["resposta"], &shown["estado"]),
        (&"desconhecido".into(), &"incerto".into())
    );
    let said = ["effects", "resolve", &key, "--as", "concluido", "--by", "ana", "--reason", "seen there"];
    world.cli(&said).await;
    assert_eq!((world.done().await, world.provider.count_of("ped-0")), (2, 1));
}
