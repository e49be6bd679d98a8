//! Rows of numbers: printed as a table, kept as JSON.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::Failure;
use super::cost::Cpu;

/// One measured run: a name, and numbers by name.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub events: usize,
    pub values: HashMap<&'static str, f64>,
}

impl Row {
    pub fn new(name: &str, events: usize) -> Self {
        Self { name: name.to_owned(), events, values: HashMap::new() }
    }

    pub fn set(&mut self, what: &'static str, value: f64) {
        self.values.insert(what, value);
    }

    pub fn set_some(&mut self, what: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.set(what, value);
        }
    }

    /// CPU seconds per 1,000 events, by who spent them.
    pub fn set_cpu(&mut self, cpu: &Cpu, events: f64) {
        let per_1k = |seconds: f64| seconds / events * 1000.0;
        self.set_some("cpu_service_s_per_1k", cpu.service.map(per_1k));
        self.set_some("cpu_postgres_s_per_1k", cpu.postgres.map(per_1k));
        self.set_some("cpu_kafka_s_per_1k", cpu.kafka.map(per_1k));
        self.set("cpu_provider_s_per_1k", per_1k(cpu.provider));
    }
}

/// Min, median and max of one number over the runs of one name.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Spread {
    pub min: f64,
    pub median: f64,
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { min, median: values[values.len() / 2], max })
    }
}

/// All runs of one scenario.
pub struct Report {
    scenario: &'static str,
    rows: Vec<Row>,
}

impl Report {
    pub fn new(scenario: &'static str) -> Self {
        Self { scenario, rows: Vec::new() }
    }

    /// Adds a run, and says so: long benches are watched.
    pub fn add(&mut self, row: Row) {
        let mut known: Vec<_> = row.values.iter().collect();
        known.sort_by_key(|(name, _)| **name);
        let text: Vec<String> =
            known.iter().map(|(name, value)| format!("{name} {}", number(**value))).collect();
        eprintln!("{}: {}: {}", self.scenario, row.name, text.join(", "));
        self.rows.push(row);
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Names in the order in which they first came.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        names
    }

    pub fn spread(&self, name: &str, what: &str) -> Option<Spread> {
        let runs = self.rows.iter().filter(|row| row.name == name);
        Spread::of(runs.filter_map(|row| row.values.get(what).copied()).collect())
    }

    fn median(&self, name: &str, what: &str) -> Option<f64> {
        self.spread(name, what).map(|spread| spread.median)
    }

    /// A table of medians, with the spread of the rate.
    pub fn print(&self) {
        const COLUMNS: [(&str, &str); 10] = [
            ("cpu_service_s_per_1k", "CPU"),
            ("cpu_postgres_s_per_1k", "postgres"),
            ("cpu_kafka_s_per_1k", "kafka"),
            ("cpu_provider_s_per_1k", "provider"),
            ("syncs_per_event", "syncs/ev"),
            ("tx_per_event", "tx/ev"),
            ("wal_bytes_per_event", "WAL B/ev"),
            ("hot_percent", "HOT %"),
            ("rss_peak_mb", "RSS MB"),
            ("repeated", "repeated"),
        ];
        let plain = |name| self.median(name, "events_per_second").unwrap_or(f64::NAN);
        let (one, wide) = (plain("plain, one at a time"), plain("plain, 32 at once"));
        print!(
            "\n{:<30} {:>9} {:>9} {:>9} {:>8} {:>8}",
            "run", "min/s", "median/s", "max/s", "x plain", "x 32"
        );
        for (_, title) in COLUMNS {
            print!(" {title:>9}");
        }
        println!();
        for name in self.names() {
            let Some(rate) = self.spread(name, "events_per_second") else { continue };
            print!("{name:<30} {:>9.0} {:>9.0} {:>9.0}", rate.min, rate.median, rate.max);
            print!(" {:>8.1} {:>8.1}", rate.median / one, rate.median / wide);
            for (what, _) in COLUMNS {
                print!(" {:>9}", self.median(name, what).map_or("-".to_owned(), number));
            }
            println!();
        }
        println!("CPU, postgres, kafka, provider: CPU seconds per 1,000 events; medians of all runs");
        self.print_others();
    }

    /// What is no rate: times, sizes.
    fn print_others(&self) {
        for name in self.names() {
            if self.spread(name, "events_per_second").is_some() {
                continue;
            }
            let mut known: Vec<&str> = self
                .rows
                .iter()
                .filter(|row| row.name == name)
                .flat_map(|row| row.values.keys().copied())
                .collect();
            known.sort_unstable();
            known.dedup();
            for what in known {
                if let Some(Spread { min, median, max }) = self.spread(name, what) {
                    let [min, median, max] = [min, median, max].map(number);
                    println!("{name:<30} {what:<28} min {min} median {median} max {max}");
                }
            }
        }
    }

    /// `target/bench/<scenario>.json`; with `SAVE=<directory>` a copy there.
    pub fn save(&self) -> Result<(), Failure> {
        let runs: Vec<serde_json::Value> = self
            .names()
            .into_iter()
            .map(|name| {
                let of_name: Vec<&Row> = self.rows.iter().filter(|row| row.name == name).collect();
                let known: BTreeMap<&str, Spread> = of_name
                    .iter()
                    .flat_map(|row| row.values.keys().copied())
                    .filter_map(|what| Some((what, self.spread(name, what)?)))
                    .collect();
                serde_json::json!({
                    "name": name, "events": of_name[0].events, "runs": of_name.len(), "values": known,
                })
            })
            .collect();
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let report = serde_json::json!({ "scenario": self.scenario, "cores": cores, "results": runs });
        let text = format!("{}\n", serde_json::to_string_pretty(&report)?);
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench").to_owned();
        for dir in [Some(kept), std::env::var("SAVE").ok()].into_iter().flatten() {
            std::fs::create_dir_all(&dir)?;
            std::fs::write(Path::new(&dir).join(format!("{}.json", self.scenario)), &text)?;
        }
        Ok(())
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
}
