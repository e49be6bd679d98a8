//! `docs/reference/metrics.md`, from the registry itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prometheus::proto::MetricType;

use super::{Metrics, PartitionReading, Present, ReplayReading};
use crate::reference::{check, row};

#[test]
fn the_reference_of_metrics_is_what_the_code_says() {
    let metrics = Metrics::new(["notificar-vendedor"]).expect("a name");
    let reading =
        PartitionReading { partition: 0, position: 1, committed: Some(1), lag: Some(0), stalled: false };
    metrics.present(&Present { partitions: vec![reading], ..Present::default() });
    metrics.replays(&[ReplayReading { partition: 0, position: 1, remaining: 1 }]);
    metrics.process.read();
    let mut page = String::from(
        "# Metrics\n\nGenerated from the code. Served at `/metrics` of `live`, and of a replay or archiver that is given \
         `--http`. No label holds an id or free text, so the number of series does not depend on what is processed: \
         `efeito` is a configured effect type, `particao` a partition of the topic, everything else one of the \
         values listed.\n\n",
    );
    page += &row(&["metric", "type", "labels", "meaning"]);
    page += &row(&["---", "---", "---", "---"]);
    for family in metrics.registry.gather() {
        let kind = match family.get_field_type() {
            MetricType::COUNTER => "counter",
            MetricType::GAUGE => "gauge",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            MetricType::UNTYPED => "untyped",
        };
        let mut labels: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for label in family.get_metric().iter().flat_map(prometheus::proto::Metric::get_label) {
            let values = labels.entry(label.name().to_owned()).or_default();
            if !values.iter().any(|value| value == label.value()) {
                values.push(label.value().to_owned());
            }
        }
        let mut listed = String::new();
        for (name, values) in labels {
            let free = matches!(name.as_str(), "efeito" | "particao" | "versao");
            let values = if free { String::new() } else { format!(": {}", values.join(", ")) };
            let separator = if listed.is_empty() { "" } else { "; " };
            write!(listed, "{separator}`{name}`{values}").expect("a String takes everything");
        }
        page += &row(&[&format!("`{}`", family.name()), kind, &listed, family.help()]);
    }
    check("metrics.md", &page);
}
