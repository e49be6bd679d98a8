//! Draws the kept results: `docs/bench/*.json` to bar charts beside them, for docs/performance.md.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::support::Failure;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/bench");

const WIDTH: f64 = 860.0;
const LABEL: f64 = 250.0;
const BAR: f64 = 22.0;
const ROW: f64 = 34.0;
const TOP: f64 = 48.0;

struct Bar {
    label: String,
    /// Parts end to end, each with its colour.
    parts: Vec<(f64, &'static str)>,
    /// Drawn over the bar, where runs differed.
    spread: Option<(f64, f64)>,
    text: String,
}

pub fn draw() -> Result<(), Failure> {
    for (scenario, title) in [
        ("throughput", "Events per second (median; the line spans all runs)"),
        ("random", "Events per second by kind of id"),
        ("instances", "Events per second by number of processes"),
        ("ledger", "Events per second by rows that stood in the ledger before"),
    ] {
        let Ok(results) = results(scenario) else { continue };
        let rates = results.iter().filter_map(rate).collect();
        save(&format!("{scenario}.svg"), &chart(title, rates))?;
        if scenario == "throughput" {
            let costs = results.iter().filter_map(cost).collect();
            let title = "CPU microseconds per event: Reprise (blue), Postgres (green), Kafka (orange), provider (grey)";
            save("cpu.svg", &chart(title, costs))?;
        }
    }
    Ok(())
}

fn results(scenario: &str) -> Result<Vec<Value>, Failure> {
    let text = std::fs::read_to_string(Path::new(DIR).join(format!("{scenario}.json")))?;
    let report: Value = serde_json::from_str(&text)?;
    Ok(report["results"].as_array().cloned().unwrap_or_default())
}

fn save(name: &str, svg: &str) -> Result<(), Failure> {
    let path = Path::new(DIR).join(name);
    std::fs::write(&path, svg)?;
    println!("{}", path.display());
    Ok(())
}

fn name(result: &Value) -> String {
    result["name"].as_str().unwrap_or_default().to_owned()
}

fn rate(result: &Value) -> Option<Bar> {
    let rate = &result["values"]["events_per_second"];
    let (min, median, max) = (rate["min"].as_f64()?, rate["median"].as_f64()?, rate["max"].as_f64()?);
    let label = name(result);
    let colour = if label.starts_with("raw") {
        "#b0b7c3"
    } else if label.starts_with("plain") {
        "#d98c5f"
    } else {
        "#3b6fb6"
    };
    Some(Bar { label, parts: vec![(median, colour)], spread: Some((min, max)), text: format!("{median:.0}") })
}

fn cost(result: &Value) -> Option<Bar> {
    let micros = |what: &str| result["values"][what]["median"].as_f64().map(|seconds| seconds * 1000.0);
    let parts = [
        ("cpu_service_s_per_1k", "#3b6fb6"),
        ("cpu_postgres_s_per_1k", "#5f9e6e"),
        ("cpu_kafka_s_per_1k", "#e0a33e"),
        ("cpu_provider_s_per_1k", "#b0b7c3"),
    ];
    // The plain design shares its process with the bench, and raw limits are parts only.
    micros("cpu_service_s_per_1k").filter(|_| !name(result).starts_with("raw"))?;
    let parts: Vec<(f64, &str)> =
        parts.iter().map(|(what, colour)| (micros(what).unwrap_or(0.0), *colour)).collect();
    let text = parts.iter().map(|(value, _)| format!("{value:.1}")).collect::<Vec<_>>().join(" + ");
    Some(Bar { label: name(result), parts, spread: None, text })
}

/// Horizontal bars on one scale.
fn chart(title: &str, bars: Vec<Bar>) -> String {
    let largest = |bar: &Bar| {
        bar.parts.iter().map(|(value, _)| value).sum::<f64>().max(bar.spread.map_or(0.0, |s| s.1))
    };
    let scale = (WIDTH - LABEL - 190.0) / bars.iter().map(largest).fold(f64::MIN_POSITIVE, f64::max);
    let mut body = String::new();
    let mut y = TOP;
    for bar in bars {
        let middle = y + BAR / 2.0;
        let label = bar.label.replace('&', "&amp;").replace('<', "&lt;");
        let mut x = LABEL;
        // Writing to a string has no way to fail.
        let mut put = |text: String| body.write_str(&text).unwrap_or_default();
        put(format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>\n",
            LABEL - 8.0,
            middle + 4.0
        ));
        for (value, colour) in bar.parts {
            let width = value * scale;
            put(format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>\n"
            ));
            x += width;
        }
        if let Some((min, max)) = bar.spread.filter(|(min, max)| max > min) {
            let (from, to) = (LABEL + min * scale, LABEL + max * scale);
            put(format!("<path d=\"M{from:.1} {middle:.1}H{to:.1}\" stroke=\"#111\" stroke-width=\"2\"/>\n"));
            x = x.max(to);
        }
        put(format!("<text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n", x + 8.0, middle + 4.0, bar.text));
        y += ROW;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n{body}</svg>\n",
        height = y + 8.0
    )
}
