//! How far long work is: a bar on a terminal, elsewhere a line every few seconds.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use jiff::Timestamp;

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    what: &'static str,
    id: String,
    total: u64,
    /// What was done before this process came.
    before: u64,
    since: Instant,
    said: Instant,
    bar: ProgressBar,
    on_terminal: bool,
    behind_seconds: Option<f64>,
}

impl Progress {
    /// `what` is being done, to `id`; `before` of `total` were done by others.
    pub fn new(what: &'static str, id: &str, total: u64, before: u64) -> Self {
        let bar = progress_bar(total);
        bar.set_position(before);
        // What others did is no pace of ours.
        bar.reset_eta();
        let now = Instant::now();
        let on_terminal = std::io::stderr().is_terminal();
        Self {
            what,
            id: id.to_owned(),
            total,
            before,
            since: now,
            said: now,
            bar,
            on_terminal,
            behind_seconds: None,
        }
    }

    /// The end moves while the work goes on, and what is done is so old.
    pub fn follow(&mut self, total: u64, behind_seconds: f64) {
        self.total = total;
        self.bar.set_length(total);
        self.bar.set_message(format!(", {behind_seconds:.0} s behind"));
        self.behind_seconds = Some(behind_seconds);
    }

    pub fn show(&mut self, done: u64) {
        self.bar.set_position(done);
        if self.on_terminal || self.said.elapsed() < LINE_EVERY {
            return;
        }
        self.said = Instant::now();
        let pace = Pace::of(done.saturating_sub(self.before), self.since.elapsed());
        let remaining = self.total.saturating_sub(done);
        let left = pace.left(remaining);
        let ends = left.map(|left| expected_end(Timestamp::now(), left));
        let left = left.map(|left| humantime::format_duration(left).to_string());
        tracing::info!(
            id = self.id,
            done,
            remaining,
            per_second = pace.per_second,
            left,
            ends,
            behind_seconds = self.behind_seconds,
            "{}",
            self.what
        );
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar on a terminal; elsewhere nothing is drawn.
fn progress_bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(
        "{bar:30} {pos}/{len}  {per_sec}, {remaining} to go{msg}, {eta} left, ends {ends}",
    );
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.with_key("remaining", remaining).with_key("ends", ends));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Indicatif's own writing has no result to give back: a terminal that takes nothing shows nothing.
fn remaining(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let left = state.len().unwrap_or(0).saturating_sub(state.pos());
    write!(out, "{left}").unwrap_or_default();
}

fn ends(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    let foretold = state.per_sec() > 0.0;
    let end = if foretold { expected_end(Timestamp::now(), state.eta()) } else { "?".to_owned() };
    out.write_str(&end).unwrap_or_default();
}

/// To the second, in UTC; a wait beyond the calendar has no end.
fn expected_end(now: Timestamp, left: Duration) -> String {
    now.checked_add(left)
        .map_or_else(|_| "?".to_owned(), |end| end.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// Events a second, rounded down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    per_second: u64,
}

impl Pace {
    fn of(events: u64, within: Duration) -> Self {
        let millis = within.as_millis().max(1);
        let per_second = u128::from(events) * 1000 / millis;
        Self { per_second: u64::try_from(per_second).unwrap_or(u64::MAX) }
    }

    /// When the rest should be done; unknown while nothing moves.
    fn left(self, remaining: u64) -> Option<Duration> {
        (self.per_second > 0).then(|| Duration::from_secs(remaining.div_ceil(self.per_second)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_tells_when_the_rest_is_done() {
        let pace = Pace::of(3000, Duration::from_millis(1500));
        assert_eq!((pace.per_second, pace.left(4001)), (2000, Some(Duration::from_secs(3))));
        assert_eq!(pace.left(0), Some(Duration::ZERO));
    }

    #[test]
    fn the_expected_end_is_an_instant_to_the_second() {
        let now = "2026-10-14T03:00:00.9Z".parse().expect("an instant");
        assert_eq!(expected_end(now, Duration::from_secs(3661)), "2026-10-14T04:01:01Z");
        assert_eq!(expected_end(now, Duration::MAX), "?");
    }

    #[test]
    fn nothing_is_foretold_while_nothing_moves() {
        assert_eq!(Pace::of(0, Duration::from_secs(5)).left(10), None);
        assert_eq!(Pace::of(7, Duration::ZERO).per_second, 7000);
    }
}
