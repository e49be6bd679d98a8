//! `assign-order-to-courier`: what follows on what. Pure.
//!
//! ```text
//!   reserve-courier ─► charge-fee ─► notify-courier ─► assign-order ─► succeeded
//!          │ no            │ no            │ no             │ no
//!          ▼               ▼               ▼                ▼
//!       failed ◄── release-courier ◄── refund-fee ◄── apologize-courier
//! ```
//!
//! What failed is not undone, what is before it is, in reverse. A step that is done too late (its deadline is over, or
//! the order was cancelled meanwhile) is undone too: its outcome is known, and unwanted.

/// The name of this saga.
pub const NAME: &str = "assign-order-to-courier";

/// A step forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    ReserveCourier,
    ChargeFee,
    NotifyCourier,
    AssignOrder,
}

/// How one step is carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// In the database alone.
    Reserve,
    Release,
    /// A command on the order.
    Assign,
    /// An effect of this type.
    Effect(&'static str),
    /// Nothing is to be undone.
    Nothing,
}

impl Step {
    pub const ALL: [Self; 4] =
        [Self::ReserveCourier, Self::ChargeFee, Self::NotifyCourier, Self::AssignOrder];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReserveCourier => "reserve-courier",
            Self::ChargeFee => "charge-fee",
            Self::NotifyCourier => "notify-courier",
            Self::AssignOrder => "assign-order",
        }
    }

    /// What its undoing is called.
    pub const fn undone_as(self) -> &'static str {
        match self {
            Self::ReserveCourier => "release-courier",
            Self::ChargeFee => "refund-fee",
            Self::NotifyCourier => "apologize-courier",
            Self::AssignOrder => "nothing",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.as_str() == text)
    }

    fn next(self) -> Option<Self> {
        Self::ALL.get(self as usize + 1).copied()
    }

    fn before(self) -> Option<Self> {
        (self as usize).checked_sub(1).map(|at| Self::ALL[at])
    }
}

/// The effect types of this saga: events of `pedido.pago` never ask for them.
pub const EFFECTS: [&str; 4] = ["charge-fee", "refund-fee", "notify-courier", "apologize-courier"];

/// Where a saga stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// This step is to be taken.
    Forward(Step),
    /// This step is to be undone.
    Back(Step),
    Succeeded,
    Failed,
}

/// What became of the work at a position, once that is known for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Done, and not wanted any more.
    DoneTooLate,
    /// Certainly not done.
    Failed,
}

impl Position {
    pub const fn state(self) -> &'static str {
        match self {
            Self::Forward(_) => "started",
            Self::Back(_) => "compensating",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// As it is stored: a state and a step (of one that has ended, the last).
    pub fn of(state: &str, step: &str) -> Option<Self> {
        match state {
            "started" => Step::parse(step).map(Self::Forward),
            "compensating" => Step::parse(step).map(Self::Back),
            "succeeded" => Some(Self::Succeeded),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// What is to be done here.
    pub const fn work(self) -> Work {
        match self {
            Self::Forward(Step::ReserveCourier) => Work::Reserve,
            Self::Forward(Step::ChargeFee) => Work::Effect(EFFECTS[0]),
            Self::Back(Step::ChargeFee) => Work::Effect(EFFECTS[1]),
            Self::Forward(Step::NotifyCourier) => Work::Effect(EFFECTS[2]),
            Self::Back(Step::NotifyCourier) => Work::Effect(EFFECTS[3]),
            Self::Forward(Step::AssignOrder) => Work::Assign,
            Self::Back(Step::ReserveCourier) => Work::Release,
            Self::Back(Step::AssignOrder) | Self::Succeeded | Self::Failed => Work::Nothing,
        }
    }

    /// Its name in the story, and its kind.
    pub const fn told_as(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Forward(step) => Some((step.as_str(), "action")),
            Self::Back(step) => Some((step.undone_as(), "compensation")),
            Self::Succeeded | Self::Failed => None,
        }
    }

    /// What follows. An undoing that failed is tried again: it stays where it is.
    #[must_use]
    pub fn after(self, outcome: Outcome) -> Self {
        let undo = |step: Option<Step>| step.map_or(Self::Failed, Self::Back);
        match (self, outcome) {
            // The order took the assignment: that is the end of the saga, late or not.
            (Self::Forward(Step::AssignOrder), Outcome::Done | Outcome::DoneTooLate) => Self::Succeeded,
            (Self::Forward(step), Outcome::Done) => step.next().map_or(Self::Succeeded, Self::Forward),
            (Self::Forward(step), Outcome::DoneTooLate) => Self::Back(step),
            (Self::Forward(step), Outcome::Failed)
            | (Self::Back(step), Outcome::Done | Outcome::DoneTooLate) => undo(step.before()),
            (Self::Back(_) | Self::Succeeded | Self::Failed, _) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What stands in the world after these outcomes, by a model that knows nothing of `after`: each action that was
    /// done and not undone.
    fn walk(outcomes: &[Outcome]) -> (Position, Vec<&'static str>) {
        let (mut at, mut standing) = (Position::Forward(Step::ReserveCourier), Vec::new());
        for outcome in outcomes {
            match (at, outcome) {
                (Position::Forward(step), Outcome::Done | Outcome::DoneTooLate) => {
                    standing.push(step.as_str());
                }
                (Position::Back(step), Outcome::Done | Outcome::DoneTooLate) => {
                    assert_eq!(standing.pop(), Some(step.as_str()), "in reverse, and only what stands");
                }
                _ => {}
            }
            at = at.after(*outcome);
        }
        (at, standing)
    }

    #[test]
    fn all_well_takes_every_step_in_order() {
        let (at, standing) = walk(&[Outcome::Done; 4]);
        assert_eq!(at, Position::Succeeded);
        assert_eq!(standing, ["reserve-courier", "charge-fee", "notify-courier", "assign-order"]);
    }

    #[test]
    fn a_refused_charge_releases_the_courier_and_refunds_nothing() {
        let at = Position::Forward(Step::ChargeFee).after(Outcome::Failed);
        assert_eq!(at, Position::Back(Step::ReserveCourier));
        assert_eq!(at.after(Outcome::Done), Position::Failed);
    }

    #[test]
    fn a_refused_notice_is_not_apologized_for() {
        let at = Position::Forward(Step::NotifyCourier).after(Outcome::Failed);
        assert_eq!(at, Position::Back(Step::ChargeFee));
    }

    #[test]
    fn b73_what_was_done_too_late_is_undone_itself_and_a_failed_undo_is_never_passed() {
        let at = Position::Forward(Step::ChargeFee).after(Outcome::DoneTooLate);
        assert_eq!(at, Position::Back(Step::ChargeFee));
        assert_eq!(at.after(Outcome::Failed), at);
        assert_eq!(at.after(Outcome::Done), Position::Back(Step::ReserveCourier));
    }

    #[test]
    fn every_walk_of_ten_steps_ends_with_all_or_nothing_or_goes_on() {
        let outcomes = [Outcome::Done, Outcome::DoneTooLate, Outcome::Failed];
        let mut ends = HashSet::new();
        for number in 0..3_usize.pow(10) {
            let digits = (0..10).map(|place| number / 3_usize.pow(place) % 3);
            let path: Vec<Outcome> = digits.map(|digit| outcomes[digit]).collect();
            let (at, standing) = walk(&path);
            match at {
                Position::Succeeded => assert_eq!(standing.len(), 4),
                Position::Failed => assert!(standing.is_empty(), "{path:?}"),
                Position::Forward(_) | Position::Back(_) => {}
            }
            ends.insert(at);
        }
        assert!(ends.contains(&Position::Succeeded) && ends.contains(&Position::Failed));
    }

    #[test]
    fn a_position_is_stored_and_read_back() {
        for step in Step::ALL {
            for at in [Position::Forward(step), Position::Back(step)] {
                assert_eq!(Position::of(at.state(), step.as_str()), Some(at));
            }
        }
        assert_eq!(Position::of("started", "unknown"), None);
    }
}
