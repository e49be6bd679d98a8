use super::super::audit::audit;
use super::*;

const ID: Uuid = Uuid::from_u128(7);

fn placed() -> Event {
    Event::OrderPlaced(OrderPlaced {
        customer_id: "c1".to_owned(),
        seller_id: "v1".to_owned(),
        items: vec![Item { sku: "livro".to_owned(), quantity: 2, unit_price_cents: 5000 }],
        commission_percent: "5".to_owned(),
    })
}

fn paid(amount_cents: i64) -> Event {
    Event::OrderPaid(OrderPaid {
        seller_id: "v1".to_owned(),
        amount_cents,
        commission_percent: "5".to_owned(),
    })
}

fn assigned() -> Event {
    Event::CourierAssigned(CourierAssigned { courier_id: "k1".to_owned(), vehicle_type: "bike".to_owned() })
}

fn late() -> Reason {
    Reason { reason: "late".to_owned() }
}

fn history(events: Vec<Event>) -> Vec<Recorded> {
    (1_u32..)
        .zip(events)
        .map(|(version, event)| {
            let at = Timestamp::from_second(1_790_000_000 + i64::from(version)).expect("an instant");
            Recorded { version, at, event }
        })
        .collect()
}

fn fold(events: Vec<Event>) -> Order {
    Order::from_events(ID, "t1", &history(events)).expect("a history").expect("an order")
}

fn pay(amount_cents: i64) -> Command {
    Command::Pay { amount_cents }
}

fn assign() -> Command {
    Command::Assign { courier_id: "k1".to_owned(), vehicle_type: "bike".to_owned() }
}

fn code(order: &Order, command: &Command) -> &'static str {
    decide(Some(order), command).expect_err("refused").code()
}

#[test]
fn the_life_of_an_order_is_the_fold_of_its_events() {
    let order = fold(vec![
        placed(),
        paid(10_000),
        assigned(),
        Event::PickedUp,
        Event::OutForDelivery,
        Event::Delivered,
    ]);
    assert_eq!((order.status, order.version), (Status::Delivered, 6));
    assert_eq!((order.amount_cents, order.paid_cents), (10_000, Some(10_000)));
    assert_eq!((order.courier_id.as_deref(), order.vehicle_type.as_deref()), (Some("k1"), Some("bike")));
    assert_eq!(order.paid_at.map(Timestamp::as_second), Some(1_790_000_002));
    assert_eq!(order.updated_at.as_second(), 1_790_000_006);
    assert_eq!(order.tenant_id, "t1");
}

#[test]
fn every_step_needs_the_one_before() {
    let order = fold(vec![placed()]);
    assert_eq!(code(&order, &assign()), "not-assignable");
    assert_eq!(code(&order, &Command::MarkPickedUp), "not-assigned");
    assert_eq!(code(&order, &Command::MarkOutForDelivery), "not-picked-up");
    assert_eq!(code(&order, &Command::MarkDelivered), "not-out-for-delivery");
    assert_eq!(decide(Some(&order), &pay(10_000)), Ok(paid(10_000)));
    let order = fold(vec![placed(), paid(10_000)]);
    assert_eq!(code(&order, &pay(10_000)), "not-payable");
    assert_eq!(decide(Some(&order), &assign()), Ok(assigned()));
    let order = fold(vec![placed(), paid(10_000), assigned()]);
    assert_eq!(code(&order, &assign()), "not-assignable");
}

#[test]
fn an_order_is_paid_exactly() {
    let order = fold(vec![placed()]);
    let refusal = decide(Some(&order), &pay(9_999)).expect_err("refused");
    assert_eq!(refusal, Refusal::AmountDiffers(10_000));
    assert_eq!(refusal.to_string(), "the order costs 10000 cents; amountCents must be exactly that");
}

#[test]
fn cancelling_is_free_before_the_pick_up_and_asked_for_afterwards() {
    let cancel = Command::Cancel { reason: "late".to_owned() };
    let request = Command::RequestCancellation { reason: "late".to_owned() };
    assert_eq!(decide(Some(&fold(vec![placed()])), &cancel), Ok(Event::Cancelled(late())));
    let mut events = vec![placed(), paid(10_000), assigned(), Event::PickedUp];
    assert_eq!(code(&fold(events.clone()), &cancel), "not-cancellable");
    assert_eq!(decide(Some(&fold(events.clone())), &request), Ok(Event::CancellationRequested(late())));
    events.push(Event::CancellationRequested(late()));
    assert_eq!(code(&fold(events.clone()), &request), "not-cancellable");
    assert_eq!(decide(Some(&fold(events.clone())), &cancel), Ok(Event::Cancelled(late())));
    events.push(Event::Cancelled(late()));
    let over = fold(events);
    assert_eq!((code(&over, &cancel), code(&over, &request)), ("not-cancellable", "not-cancellable"));
    assert_eq!(over.cancellation_reason.as_deref(), Some("late"));
}

#[test]
fn only_placing_begins_an_order() {
    assert_eq!(decide(None, &pay(1)), Err(Refusal::NoSuchOrder));
    let Event::OrderPlaced(facts) = placed() else { unreachable!("made above") };
    let place = Command::Place { tenant_id: "t1".to_owned(), placed: facts };
    assert_eq!(decide(None, &place), Ok(placed()));
    assert_eq!(decide(Some(&fold(vec![placed()])), &place), Err(Refusal::AlreadyPlaced));
}

#[test]
fn a_history_with_a_hole_is_no_order() {
    let mut events = history(vec![placed(), paid(10_000), assigned()]);
    events.remove(1);
    assert_eq!(Order::from_events(ID, "t1", &events), Err(BrokenHistory::Gap(3, 1)));
    assert_eq!(Order::from_events(ID, "t1", &events[1..]), Err(BrokenHistory::Gap(3, 0)));
    let wrong = history(vec![paid(1)]);
    assert_eq!(Order::from_events(ID, "t1", &wrong), Err(BrokenHistory::Beginning("OrderPaid")));
    assert_eq!(Order::from_events(ID, "t1", &[]), Ok(None));
}

#[test]
fn a_fault_of_the_past_is_found_where_the_state_looks_sound() {
    let sound = history(vec![placed(), paid(10_000), assigned(), Event::PickedUp]);
    assert_eq!(audit(ID, "t1", &sound), Ok(vec![]));
    // Handed to a courier before it was paid, and paid on the way.
    let faulty = vec![placed(), assigned(), paid(10_000), Event::PickedUp];
    let order = fold(faulty.clone());
    assert_eq!((order.status, order.paid_cents), (Status::PickedUp, Some(10_000)));
    let found: Vec<_> = audit(ID, "t1", &history(faulty))
        .expect("a history")
        .iter()
        .map(|finding| (finding.version, finding.name, finding.code))
        .collect();
    assert_eq!(
        found,
        [
            (2, "CourierAssigned", "not-assignable"),
            (3, "OrderPaid", "not-payable"),
            (4, "PickedUp", "not-assigned")
        ]
    );
}

#[test]
fn a_total_beyond_64_bits_is_none() {
    let item = |quantity, unit_price_cents| Item { sku: "x".to_owned(), quantity, unit_price_cents };
    assert_eq!(total(&[item(2, 5000), item(1, 1)]), Some(10_001));
    assert_eq!(total(&[item(2, i64::MAX)]), None);
    assert_eq!(total(&[item(1, i64::MAX), item(1, 1)]), None);
}
