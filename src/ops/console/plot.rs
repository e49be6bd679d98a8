//! Plots, drawn here as SVG: they need no script, follow the page's colours by class, and read as a sentence aloud.

use maud::{Markup, html};

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 120.0;

/// One bar: its height, what it says, and where it leads.
pub struct Bar {
    pub n: i64,
    pub words: String,
    pub link: String,
    /// Lies in the chosen period.
    pub chosen: bool,
}

#[expect(clippy::cast_precision_loss, reason = "places on a drawing")]
fn share(n: usize, of: usize) -> f64 {
    n as f64 / of.max(1) as f64
}

/// A line over time, with its largest value written at the top. Nothing is drawn of fewer than two values.
pub fn line(words: &str, values: &[f64]) -> Markup {
    let top = values.iter().copied().fold(0.0, f64::max);
    let scale = if top > 0.0 { top } else { 1.0 };
    let points: Vec<String> = values
        .iter()
        .enumerate()
        .map(|(i, value)| {
            let x = WIDTH * share(i, values.len() - 1);
            format!("{x:.1},{:.1}", HEIGHT - (HEIGHT - 4.0) * value / scale)
        })
        .collect();
    let area = format!("0,{HEIGHT} {} {WIDTH},{HEIGHT}", points.join(" "));
    html! {
        svg class="plot" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(words) {
            line class="axis" x1="0" y1=(HEIGHT) x2=(WIDTH) y2=(HEIGHT) {}
            @if values.len() > 1 {
                polygon class="area" points=(area) {}
                polyline class="curve" points=(points.join(" ")) {}
            }
        }
    }
}

/// Bars side by side, each a link that says what it is.
pub fn bars(words: &str, bars: &[Bar]) -> Markup {
    let top = bars.iter().map(|bar| bar.n).max().unwrap_or(0).max(1);
    let width = WIDTH / f64::from(u32::try_from(bars.len().max(1)).unwrap_or(1));
    html! {
        svg class="plot bars" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="group" aria-label=(words) {
            @for (i, bar) in bars.iter().enumerate() {
                @let x = WIDTH * share(i, bars.len());
                @let height = bar_height(bar.n, top);
                a href=(bar.link) aria-label=(bar.words) class=[bar.chosen.then_some("chosen")] {
                    title { (bar.words) }
                    rect class="reach" x=(format!("{x:.2}")) y="0" width=(format!("{width:.2}")) height=(HEIGHT) {}
                    rect class="bar" x=(format!("{:.2}", x + width * 0.1)) y=(format!("{:.2}", HEIGHT - height))
                        width=(format!("{:.2}", width * 0.8)) height=(format!("{height:.2}")) {}
                }
            }
            line class="axis" x1="0" y1=(HEIGHT) x2=(WIDTH) y2=(HEIGHT) {}
        }
    }
}

/// What is there is seen, however little it is beside the rest.
#[expect(clippy::cast_precision_loss, reason = "places on a drawing")]
fn bar_height(n: i64, top: i64) -> f64 {
    if n == 0 { 0.0 } else { ((HEIGHT - 4.0) * n as f64 / top as f64).max(2.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fills_its_height_and_width() {
        let drawn = line("events", &[0.0, 5.0, 10.0]).into_string();
        assert!(
            drawn.contains(r#"<polyline class="curve" points="0.0,120.0 300.0,62.0 600.0,4.0">"#),
            "{drawn}"
        );
        assert!(!line("none", &[]).into_string().contains("polyline"));
        assert!(!line("flat", &[0.0, 0.0]).into_string().contains("NaN"));
    }

    #[test]
    fn a_small_bar_is_seen_and_an_empty_one_is_not() {
        let heights = [0, 1, 1_000, 2_000].map(|n| format!("{:.1}", bar_height(n, 2_000)));
        assert_eq!(heights, ["0.0", "2.0", "58.0", "116.0"]);
        let bar = Bar { n: 1, words: "<b>".into(), link: "?a=1&b=2".into(), chosen: true };
        let drawn = bars("topic", &[bar]).into_string();
        assert!(drawn.contains(r#"href="?a=1&amp;b=2" aria-label="&lt;b&gt;" class="chosen""#), "{drawn}");
    }
}
