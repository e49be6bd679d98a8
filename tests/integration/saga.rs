//! Sagas against the real servers and a scripted provider: all or nothing, whatever is refused, late, or killed.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use uuid::Uuid;

use super::orders::{Shop, pay, request};
use super::support::process::Process;
use super::support::provider::{Answer, Gate};
use super::support::{LATER, SOON, crash, eventually, until};
use reprise::orders::order::Command;

const EFFECTS: [&str; 4] = ["charge-fee", "refund-fee", "notify-courier", "apologize-courier"];

/// A shop with so many couriers, and providers that know no keys.
async fn fleet(couriers: u32) -> Shop {
    let mut shop = Shop::open().await;
    let url = shop.world.provider.url();
    shop.world.set(&["orders", "format"], "json");
    for effect in EFFECTS {
        shop.world.set(&["efeitos", effect, "url"], url.clone());
        shop.world.set(&["efeitos", effect, "ao_falhar"], "manter");
    }
    for n in 0..couriers {
        let sql = format!("insert into courier (id, tenant_id, vehicle_type) values ('k{n}', 't1', 'bike')");
        shop.world.execute(&sql).await;
    }
    shop
}

/// A paid order.
async fn paid(shop: &Shop) -> Uuid {
    let order = Uuid::new_v4();
    shop.place(order).await;
    shop.desk.take(&request(order, pay())).await.expect("paid");
    order
}

async fn workers(shop: &Shop) -> Process {
    let process = shop.world.run(&["saga", "run"]);
    ready(shop).await;
    process
}

async fn ready(shop: &Shop) {
    eventually("it is ready", LATER, async || {
        shop.world.get("/readyz").await.filter(|reply| reply.status == 200)
    })
    .await;
}

async fn begin(shop: &Shop, order: Uuid) -> String {
    let path = format!("/api/v1/orders/{order}/assign-courier");
    let reply = shop.world.request("POST", &path, &[], Some(&json!({}))).await.expect("an answer");
    assert_eq!(reply.status, 202, "{}", reply.body);
    reply.json()["sagaId"].as_str().expect("an id").to_owned()
}

async fn shown(shop: &Shop, saga: &str) -> Value {
    shop.world.json(&["saga", "show", saga]).await
}

async fn ends(shop: &Shop, saga: &str, state: &str) -> Value {
    let sql = format!("select state from saga where id = '{saga}'");
    until(&format!("the saga has {state}"), LATER, async || shop.world.one::<String>(&sql).await == state)
        .await;
    shown(shop, saga).await
}

fn story(told: &Value) -> Vec<(String, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().expect("a text").to_owned();
    let lines = told["steps"].as_array().expect("steps");
    lines.iter().map(|line| (text(line, "step"), text(line, "state"))).collect()
}

fn calls(shop: &Shop, order: Uuid) -> Vec<String> {
    let order = order.to_string();
    shop.world
        .provider
        .calls()
        .into_iter()
        .filter(|call| call.order == order)
        .map(|call| call.effect)
        .collect()
}

async fn reservations(shop: &Shop) -> (i64, i64) {
    let free = shop.number("select count(*) from courier where available").await;
    (shop.number("select count(*) from courier_reservation").await, free)
}

#[tokio::test]
async fn a_saga_that_goes_well_assigns_the_order_and_tells_its_story() {
    let shop = fleet(2).await;
    let _workers = workers(&shop).await;
    let unpaid = Uuid::new_v4();
    shop.place(unpaid).await;
    let path = format!("/api/v1/orders/{unpaid}/assign-courier");
    let reply = shop.world.request("POST", &path, &[], Some(&json!({}))).await.expect("an answer");
    assert_eq!((reply.status, reply.json()["code"].as_str()), (422, Some("not-assignable")));

    let order = paid(&shop).await;
    let saga = begin(&shop, order).await;
    let told = ends(&shop, &saga, "succeeded").await;
    assert_eq!(begin(&shop, order).await, saga, "the same order has the same saga");
    let steps = ["reserve-courier", "charge-fee", "notify-courier", "assign-order"];
    let expected: Vec<_> = steps
        .into_iter()
        .flat_map(|step| ["started", "done"].map(|state| (step.to_owned(), state.to_owned())))
        .collect();
    assert_eq!(story(&told), expected);
    assert_eq!(calls(&shop, order), ["charge-fee", "notify-courier"]);
    assert_eq!(reservations(&shop).await, (1, 1));
    let assigned = "select payload ->> 'courierId' from order_events where type = 'CourierAssigned'";
    assert_eq!(shop.world.one::<String>(assigned).await, "k0");
    let call = &shop.world.provider.calls()[0];
    assert_eq!(call.key, format!("{saga}-charge-fee:charge-fee"));
    assert_eq!(
        (&call.body["eventoId"], &call.body["valorCentavos"]),
        (&json!(format!("{saga}-charge-fee")), &json!(500))
    );
}

#[tokio::test]
async fn what_was_done_is_undone_in_reverse_and_a_refused_notice_is_not_apologized_for() {
    let shop = fleet(1).await;
    let order = paid(&shop).await;
    let script = |effect: &str, answers: Vec<Answer>| {
        shop.world.provider.script(&format!("{order}/{effect}"), answers);
    };
    script("notify-courier", vec![Answer::Status(422)]);
    let later = || Answer::with_header(429, "retry-after", "0");
    script("refund-fee", vec![later(), later(), Answer::Status(200)]);
    let _workers = workers(&shop).await;
    let saga = begin(&shop, order).await;
    let told = ends(&shop, &saga, "failed").await;
    let expected = ["charge-fee", "notify-courier", "refund-fee", "refund-fee", "refund-fee"];
    assert_eq!(calls(&shop, order), expected);
    let undone: Vec<_> = story(&told)
        .into_iter()
        .filter(|(step, _)| step.starts_with("re") && step != "reserve-courier")
        .collect();
    let line = |step: &str, state: &str| (step.to_owned(), state.to_owned());
    let expected = [
        line("refund-fee", "started"),
        line("refund-fee", "done"),
        line("release-courier", "started"),
        line("release-courier", "done"),
    ];
    assert_eq!(undone, expected);
    assert!(told["context"]["failedBecause"].as_str().is_some_and(|why| why.starts_with("notify-courier: ")));
    assert_eq!(reservations(&shop).await, (0, 1));
    // A new attempt is another saga, with effects of its own.
    shop.world.provider.script(&format!("{order}/notify-courier"), [Answer::Status(200)]);
    let second = begin(&shop, order).await;
    assert_ne!(second, saga);
    ends(&shop, &second, "succeeded").await;
}

#[tokio::test]
async fn b73_the_undo_waits_for_the_true_outcome_of_a_slow_step() {
    let mut shop = fleet(1).await;
    shop.world.set(&["saga", "step_deadline"], "500ms");
    let order = paid(&shop).await;
    let slow = Answer::slow(Duration::from_secs(2), Answer::Status(200));
    shop.world.provider.script(&format!("{order}/charge-fee"), [slow]);
    let refused = || Answer::with_header(503, "retry-after", "0");
    let answers = [refused(), refused(), refused(), Answer::Status(200)];
    shop.world.provider.script(&format!("{order}/refund-fee"), answers);
    let _workers = workers(&shop).await;
    let saga = begin(&shop, order).await;
    let told = ends(&shop, &saga, "failed").await;
    assert_eq!(calls(&shop, order), ["charge-fee", "refund-fee", "refund-fee", "refund-fee", "refund-fee"]);
    let calls = shop.world.provider.calls();
    assert!(calls[1].at - calls[0].at >= Duration::from_secs(2), "not before the charge was answered");
    assert!(calls[1..].iter().all(|call| call.key == format!("{saga}-refund-fee:refund-fee")));
    assert_eq!(reservations(&shop).await, (0, 1));
    let done = told["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .find(|line| line["step"] == "charge-fee" && line["state"] == "done");
    let note = done.expect("the charge was done")["note"].as_str().expect("a note").to_owned();
    assert!(note.contains("deadline"), "{note}");
}

#[tokio::test]
async fn b73_what_is_to_be_tried_later_is_taken_back_when_the_deadline_passes_during_the_call() {
    let mut shop = fleet(1).await;
    shop.world.set(&["saga", "step_deadline"], "500ms");
    let order = paid(&shop).await;
    let later = Answer::slow(Duration::from_secs(1), Answer::with_header(429, "retry-after", "0"));
    shop.world.provider.script(&format!("{order}/charge-fee"), [later, Answer::Status(200)]);
    let _workers = workers(&shop).await;
    let saga = begin(&shop, order).await;
    ends(&shop, &saga, "failed").await;
    let left = format!("select count(*) from efeito_aplicado where chave = '{saga}-charge-fee:charge-fee'");
    assert_eq!(shop.number(&left).await, 0, "nothing is left for the sweeper to send");
    assert_eq!(calls(&shop, order), ["charge-fee"]);
    assert_eq!(reservations(&shop).await, (0, 1));
}

#[tokio::test]
async fn of_two_sagas_for_one_courier_one_gets_it_and_the_other_gives_up_at_its_deadline() {
    let mut shop = fleet(1).await;
    shop.world.set(&["saga", "step_deadline"], "1s");
    let (first, second) = (paid(&shop).await, paid(&shop).await);
    let _workers = workers(&shop).await;
    let sagas = [begin(&shop, first).await, begin(&shop, second).await];
    let ended = "select count(*) from saga where state in ('succeeded', 'failed')";
    until("both have ended", LATER, async || shop.world.one::<i64>(ended).await == 2).await;
    assert_eq!(shop.number("select count(*) from saga where state = 'succeeded'").await, 1);
    assert_eq!(reservations(&shop).await, (1, 0));
    let mut paying = 0;
    for (saga, order) in sagas.iter().zip([first, second]) {
        let told = shown(&shop, saga).await;
        paying += calls(&shop, order).len();
        if told["state"] == "failed" {
            assert!(calls(&shop, order).is_empty());
            let why = told["context"]["failedBecause"].as_str().expect("why");
            assert!(why.contains("deadline"), "{why}");
        }
    }
    assert_eq!(paying, 2);
}

#[tokio::test]
async fn an_order_cancelled_in_the_middle_is_undone_with_an_apology() {
    let shop = fleet(1).await;
    let order = paid(&shop).await;
    let gate = Gate::default();
    shop.world
        .provider
        .script(&format!("{order}/notify-courier"), [Answer::hang(&gate, Answer::Status(200))]);
    let _workers = workers(&shop).await;
    let saga = begin(&shop, order).await;
    until("the courier is being told", LATER, async || calls(&shop, order).len() == 2).await;
    let cancel = Command::Cancel { reason: "the customer called".to_owned() };
    shop.desk.take(&request(order, cancel)).await.expect("cancelled");
    gate.open();
    let told = ends(&shop, &saga, "failed").await;
    let expected = ["charge-fee", "notify-courier", "apologize-courier", "refund-fee"];
    assert_eq!(calls(&shop, order), expected, "{told}");
    assert_eq!(reservations(&shop).await, (0, 1));
}

#[tokio::test]
async fn what_nobody_knows_holds_the_saga_until_a_person_decides() {
    let shop = fleet(2).await;
    let (kept, dropped) = (paid(&shop).await, paid(&shop).await);
    for order in [kept, dropped] {
        shop.world.provider.script(&format!("{order}/charge-fee"), [Answer::Close]);
    }
    let _workers = workers(&shop).await;
    let (keeps, drops) = (begin(&shop, kept).await, begin(&shop, dropped).await);
    let uncertain = "select count(*) from saga_step where state = 'uncertain'";
    until("both are uncertain", LATER, async || shop.world.one::<i64>(uncertain).await == 2).await;
    let decide = async |saga: &str, what: &str| {
        let key = format!("{saga}-charge-fee:charge-fee");
        let args = ["effects", "resolve", &key, "--as", what, "--by", "ana", "--reason", "perguntei"];
        shop.world.cli(&args).await;
    };
    decide(&keeps, "concluido").await;
    decide(&drops, "descartado").await;
    ends(&shop, &keeps, "succeeded").await;
    ends(&shop, &drops, "failed").await;
    assert_eq!(
        calls(&shop, dropped),
        ["charge-fee"],
        "what a person dropped is neither repeated nor refunded"
    );
    assert_eq!(reservations(&shop).await, (1, 1));
}

/// Dies at `point`, is started again, and ends; `uncertain`: the call had been made, and a person is asked.
async fn killed(point: &str, uncertain: bool) {
    let shop = fleet(1).await;
    let order = paid(&shop).await;
    let mut command = shop.world.command(&["saga", "run"]);
    command.envs([crash(point)]);
    let mut doomed = shop.world.spawn(command);
    ready(&shop).await;
    let saga = begin(&shop, order).await;
    assert_eq!(doomed.ended(LATER).await.code, None, "{point}");
    let _workers = workers(&shop).await;
    if uncertain {
        let sql = "select chave from efeito_aplicado where estado = 'incerto'";
        let found = async || shop.world.rows::<(String,)>(sql).await.into_iter().next();
        let (key,) = eventually("somebody is asked", LATER, found).await;
        let args = ["effects", "resolve", &key, "--as", "concluido", "--by", "ana", "--reason", "perguntei"];
        shop.world.cli(&args).await;
    }
    let told = ends(&shop, &saga, "succeeded").await;
    assert_eq!(calls(&shop, order), ["charge-fee", "notify-courier"], "{point}: {told}");
    assert_eq!(reservations(&shop).await, (1, 0), "{point}");
    let mut states = story(&told);
    states.retain(|(_, state)| state == "done");
    assert_eq!(states.len(), 4, "{point}: {told}");
    assert_eq!(shop.number("select count(*) from order_events where type = 'CourierAssigned'").await, 1);
}

#[tokio::test]
async fn sagas_killed_between_any_two_steps_end_as_if_nothing_had_happened() {
    let points = [
        ("saga_after_claim:1", false),
        ("saga_after_claim:3", false),
        ("saga_before_commit:1", false),
        ("saga_before_commit:2", true),
        ("saga_before_commit:4", false),
        ("saga_after_commit:2", false),
        ("saga_after_assign:1", false),
    ];
    for part in points.chunks(4) {
        join_all(part.iter().map(|(point, uncertain)| killed(point, *uncertain))).await;
    }
}

#[tokio::test]
async fn a_saga_can_be_listed_and_tried_now_and_what_does_not_exist_is_said() {
    let shop = fleet(0).await;
    let _workers = workers(&shop).await;
    let order = paid(&shop).await;
    let saga = begin(&shop, order).await;
    let waits = format!("select attempts from saga where id = '{saga}'");
    until("it waits for a courier", SOON, async || shop.world.one::<i32>(&waits).await >= 2).await;
    let listed = shop.world.json(&["saga", "list", "--state", "started"]).await;
    assert_eq!(listed[0]["id"], saga.as_str());
    shop.world.execute("insert into courier (id, tenant_id, vehicle_type) values ('k9', 't1', 'moto')").await;
    shop.world.try_cli(&["saga", "retry", &saga]).await;
    ends(&shop, &saga, "succeeded").await;
    let ended = shop.world.try_cli(&["saga", "retry", &saga]).await;
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    let unknown = shop.world.try_cli(&["saga", "show", &Uuid::from_u128(7).to_string()]).await;
    assert_eq!(unknown.code, Some(4), "{}", unknown.stderr);
}
