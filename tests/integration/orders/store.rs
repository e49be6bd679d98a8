//! The desk on the store: once per key, nothing overwritten, nothing lost, snapshots that are only fast.

use reprise::orders::desk::DeskError;
use reprise::orders::order::{Command, Refusal, Status};
use reprise::pg::orders::Until;
use uuid::Uuid;

use super::{PAID, PLACED, Shop, insert, insert_form, pay, request};

const ORDER: Uuid = Uuid::from_u128(0x0193_0000_0000_7000_8000_0000_0000_0001);

#[tokio::test]
async fn the_same_command_twice_answers_with_its_first_result() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let paid = request(ORDER, pay());
    let first = shop.desk.take(&paid).await.expect("paid");
    assert_eq!((first.version, first.status), (2, Status::Paid));
    let assign = Command::Assign { courier_id: "k1".to_owned(), vehicle_type: "bike".to_owned() };
    shop.desk.take(&request(ORDER, assign)).await.expect("assigned");
    assert_eq!(shop.desk.take(&paid).await.expect("its first result"), first, "whatever came after");

    let mut other = paid.clone();
    other.command = Command::Pay { amount_cents: 777 };
    assert!(matches!(shop.desk.take(&other).await, Err(DeskError::KeyReused)));
    assert_eq!(shop.number("select count(*) from order_events").await, 3);
}

#[tokio::test]
async fn the_same_command_many_times_at_once_is_one() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let paid = request(ORDER, pay());
    let answers = futures::future::join_all((0..16).map(|_| shop.desk.take(&paid))).await;
    for answer in answers {
        assert_eq!(answer.expect("the same answer").version, 2);
    }
    assert_eq!(shop.number("select count(*) from order_events").await, 2);
}

#[tokio::test]
async fn twenty_hands_at_once_pay_once() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let requests: Vec<_> = (0..20).map(|_| request(ORDER, pay())).collect();
    let answers = futures::future::join_all(requests.iter().map(|one| shop.desk.take(one))).await;
    let paid = answers.iter().filter(|answer| answer.is_ok()).count();
    let refused = answers
        .iter()
        .filter(|answer| {
            matches!(answer, Err(DeskError::Refused(Refusal::Status { code: "not-payable", .. })))
        })
        .count();
    assert_eq!((paid, refused), (1, 19));
    assert_eq!(shop.number("select count(*) from order_events where type = 'OrderPaid'").await, 1);
}

#[tokio::test]
async fn an_expected_version_that_is_not_there_is_a_conflict() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let mut paid = request(ORDER, pay());
    paid.expected_version = Some(3);
    let answer = shop.desk.take(&paid).await;
    assert!(matches!(answer, Err(DeskError::VersionConflict { expected: 3, current: 1 })), "{answer:?}");
    paid.expected_version = Some(1);
    assert_eq!(shop.desk.take(&paid).await.expect("paid").version, 2);
}

#[tokio::test]
async fn an_append_brings_its_messages_or_nothing() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    assert_eq!(shop.number("select count(*) from outbox where destination = 'events'").await, 1);
    // The second message of a payment is refused: the payment has not happened.
    let mut connection = shop.connection().await;
    sqlx::query("alter table outbox add constraint no_paid check (destination <> 'paid') not valid")
        .execute(&mut connection)
        .await
        .expect("added");
    assert!(matches!(shop.desk.take(&request(ORDER, pay())).await, Err(DeskError::Store(_))));
    assert_eq!(shop.number("select count(*) from order_events").await, 1);
    assert_eq!(shop.number("select count(*) from outbox").await, 1);
    sqlx::query("alter table outbox drop constraint no_paid")
        .execute(&mut connection)
        .await
        .expect("dropped");
    shop.desk.take(&request(ORDER, pay())).await.expect("paid");
    assert_eq!(shop.number("select count(*) from outbox where destination = 'paid'").await, 1);
    let same = "select count(*) from outbox o join order_events e on o.id::text = e.metadata ->> 'event_id'";
    assert_eq!(shop.number(same).await, 2, "the event's id is its message's");
}

#[tokio::test]
async fn another_tenants_order_does_not_exist() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let mut paid = request(ORDER, pay());
    paid.tenant_id = Some("t2".to_owned());
    let unknown = |answer: &DeskError| matches!(answer, DeskError::Refused(Refusal::NoSuchOrder));
    assert!(unknown(&shop.desk.take(&paid).await.expect_err("unknown")));
    assert!(unknown(&shop.desk.show(ORDER, Until::Now, Some("t2")).await.expect_err("unknown")));
    assert!(unknown(&shop.desk.history(ORDER, 0, 10, Some("t2")).await.expect_err("unknown")));
    assert_eq!(shop.desk.show(ORDER, Until::Now, Some("t1")).await.expect("known").version, 1);
}

#[tokio::test]
async fn the_database_itself_refuses_to_rewrite_events() {
    let shop = Shop::open().await;
    shop.place(ORDER).await;
    let mut connection = shop.connection().await;
    for how in ["origin", "replica"] {
        let role = format!("set session_replication_role = {how}");
        sqlx::query(sqlx::AssertSqlSafe(role)).execute(&mut connection).await.expect("a superuser may");
        for sql in
            ["update order_events set payload = '{}'", "delete from order_events", "truncate order_events"]
        {
            let refused = sqlx::query(sql).execute(&mut connection).await.expect_err(sql);
            let code =
                refused.as_database_error().and_then(|error| error.code().map(|code| code.to_string()));
            assert_eq!(code.as_deref(), Some("23001"), "{how}: {sql}");
        }
    }
    assert_eq!(shop.number("select count(*) from order_events").await, 1);
}

#[tokio::test]
async fn a_snapshot_is_written_used_and_followed_by_later_events() {
    let shop = Shop::with_snapshots_every(2).await;
    shop.place(ORDER).await;
    assert_eq!(shop.number("select count(*) from snapshots").await, 0);
    shop.desk.take(&request(ORDER, pay())).await.expect("paid");
    assert_eq!(shop.number("select version::bigint from snapshots where schema_version = 2").await, 2);
    let assign = Command::Assign { courier_id: "k1".to_owned(), vehicle_type: "bike".to_owned() };
    shop.desk.take(&request(ORDER, assign)).await.expect("assigned");
    let fast = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
    let slow = shop.desk.show(ORDER, Until::Version(3), None).await.expect("shown from events alone");
    assert_eq!(fast, slow);
    assert_eq!((fast.status, fast.version), (Status::Assigned, 3));
}

#[tokio::test]
async fn a_damaged_snapshot_changes_nothing() {
    let shop = Shop::with_snapshots_every(2).await;
    shop.place(ORDER).await;
    shop.desk.take(&request(ORDER, pay())).await.expect("paid");
    let sound = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
    let mut connection = shop.connection().await;
    for damage in [
        "payload = '[]'",
        "schema_version = 1",
        "schema_version = 999, payload = '{\"x\":1}'",
        "schema_version = 2, payload = jsonb_set(payload, '{order}', '{}')",
        "schema_version = 2, payload = (select payload from saved), version = 9",
        "version = 2, payload = jsonb_set((select payload from saved), '{order,status}', '\"delivered\"')",
        "payload = (select payload from saved), version = -1",
    ] {
        if damage.starts_with("payload = '[]'") {
            let save = "create table saved as select payload from snapshots";
            sqlx::query(save).execute(&mut connection).await.expect("saved");
        }
        let sql = format!("update snapshots set {damage}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.expect("damaged");
        let shown = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
        assert_eq!(shown, sound, "{damage}");
    }
    // The next one that is due replaces it.
    let damage = "update snapshots set version = 900, schema_version = 2, payload = '[]'";
    sqlx::query(damage).execute(&mut connection).await.expect("damaged");
    let assign = Command::Assign { courier_id: "k1".to_owned(), vehicle_type: "bike".to_owned() };
    shop.desk.take(&request(ORDER, assign)).await.expect("assigned");
    assert_eq!(shop.number("select version::bigint from snapshots").await, 3);
}

#[tokio::test]
async fn old_events_are_read_and_their_streams_migrate_beside_them() {
    let shop = Shop::open().await;
    let mut connection = shop.connection().await;
    insert(&mut connection, ORDER, 1, "OrderPlaced", PLACED).await;
    insert(&mut connection, ORDER, 2, "OrderPaid", PAID).await;
    insert(&mut connection, ORDER, 3, "CourierAssigned", r#"{"courierId":"k1"}"#).await;
    let new = Uuid::from_u128(2);
    insert(&mut connection, new, 1, "OrderPlaced", PLACED).await;
    insert_form(&mut connection, new, 2, "CourierAssigned", 2, r#"{"courierId":"k","vehicleType":"car"}"#)
        .await;
    let before = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
    assert_eq!(before.vehicle_type.as_deref(), Some("unknown"));

    let world = &shop.world;
    let migrate = ["orders", "migrate-streams", "--to", "2"];
    let step = |more: &'static [&'static str]| [&migrate[..], more].concat();
    let copied = world.json(&step(&[])).await;
    assert_eq!((copied["streams"].as_i64(), copied["events"].as_i64()), (Some(1), Some(3)));
    assert_eq!(world.json(&step(&[])).await["streams"], 0, "a repetition has nothing to do");
    assert_eq!(world.json(&step(&["--cut-over"])).await["streams"], 0, "nothing is verified yet");

    // A copy that is not the stream stays where it is.
    let spoil = "update order_events_parallel set payload = '{\"courierId\":\"k2\",\"vehicleType\":\"unknown\"}' where version = 3";
    sqlx::query(spoil).execute(&mut connection).await.expect("spoilt");
    let refused = world.try_cli(&[&step(&["--verify"])[..], &["--output", "json"]].concat()).await;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let mend = "update order_events_parallel set payload = '{\"courierId\":\"k1\",\"vehicleType\":\"unknown\"}' where version = 3";
    sqlx::query(mend).execute(&mut connection).await.expect("mended");
    assert_eq!(world.json(&step(&["--verify"])).await["streams"], 1);
    assert_eq!(world.json(&step(&["--cut-over"])).await["streams"], 1);

    // Read from the parallel now, with new events behind it; the old stream is what it was.
    insert(&mut connection, ORDER, 4, "PickedUp", "{}").await;
    let after = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
    assert_eq!(
        (after.version, after.status, after.vehicle_type.as_deref()),
        (4, Status::PickedUp, Some("unknown"))
    );
    let old = "select count(*) from order_events where type = 'CourierAssigned' and payload = '{\"courierId\":\"k1\"}'";
    assert_eq!(shop.number(old).await, 1);
    let spoil = "update order_events_parallel set payload = '{\"courierId\":\"k9\",\"vehicleType\":\"van\"}' where version = 3";
    sqlx::query(spoil).execute(&mut connection).await.expect("changed");
    let read = shop.desk.show(ORDER, Until::Now, None).await.expect("shown");
    assert_eq!(read.courier_id.as_deref(), Some("k9"), "the parallel is what is read");
}
