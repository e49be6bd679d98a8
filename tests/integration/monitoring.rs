//! Dashboards and alerts ask for what is really exported, and a real Prometheus understands every question.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::http::request;
use crate::support::process::Process;
use crate::support::{LATER, World, eventually, until};

const DASHBOARDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/grafana/dashboards");
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus/alerts.yml");

/// A question somebody asks, and who.
#[derive(Debug, Clone)]
struct Question {
    asked_by: String,
    expression: String,
    /// Labels that its legend shows.
    shown: Vec<String>,
}

fn dashboards() -> Vec<(String, Value)> {
    let files = fs::read_dir(DASHBOARDS).expect("the dashboards").map(|file| file.expect("a file").path());
    let json = files.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    json.map(|path| {
        let text = fs::read_to_string(&path).expect("a dashboard");
        (path.display().to_string(), serde_json::from_str(&text).expect("a dashboard is JSON"))
    })
    .collect()
}

fn questions() -> Vec<Question> {
    let mut questions = Vec::new();
    for (_, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().expect("panels") {
            let title = panel["title"].as_str().expect("a title");
            for target in panel["targets"].as_array().expect("targets") {
                let legend = target["legendFormat"].as_str().unwrap_or_default();
                let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split_once("}}"));
                questions.push(Question {
                    asked_by: format!("panel {title:?}"),
                    expression: target["expr"].as_str().expect("an expression").to_owned(),
                    shown: shown.map(|(label, _)| label.trim().to_owned()).collect(),
                });
            }
        }
        for variable in dashboard["templating"]["list"].as_array().expect("variables") {
            let query = variable["query"]["query"].as_str().expect("a query");
            let inner = query.trim_start_matches("label_values(").trim_end_matches(')');
            let (metric, label) = inner.split_once(", ").expect("a metric and a label");
            questions.push(Question {
                asked_by: format!("variable {}", variable["name"]),
                expression: metric.to_owned(),
                shown: vec![label.to_owned()],
            });
        }
    }
    for rule in alerts() {
        questions.push(Question {
            asked_by: format!("alert {}", rule["alert"].as_str().expect("a name")),
            expression: rule["expr"].as_str().expect("an expression").to_owned(),
            shown: Vec::new(),
        });
    }
    questions
}

fn alerts() -> Vec<serde_yaml_ng::Value> {
    let text = fs::read_to_string(RULES).expect("the rules");
    let rules: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).expect("the rules are YAML");
    let groups = rules["groups"].as_sequence().expect("groups").clone();
    groups.iter().flat_map(|group| group["rules"].as_sequence().expect("rules").clone()).collect()
}

/// A series an expression selects: metric, and matchers as label, operator, value.
type Selector = (String, Vec<(String, String, String)>);

fn selectors(expression: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    for (start, _) in expression.match_indices("reprise_") {
        let rest = &expression[start..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (metric, after) = rest.split_at(end);
        let mut matchers = Vec::new();
        if let Some((inside, _)) = after.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            for matcher in inside.split(',') {
                let label_end = matcher.find(['=', '!']).expect("a matcher has an operator");
                let (label, operation) = matcher.split_at(label_end);
                let value_start = operation.find('"').expect("a value is quoted");
                let (operator, value) = operation.split_at(value_start);
                matchers.push((label.to_owned(), operator.to_owned(), value.trim_matches('"').to_owned()));
            }
        }
        found.push((metric.to_owned(), matchers));
    }
    found
}

/// Labels named by `by (...)`.
fn grouped(expression: &str) -> Vec<String> {
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split_once(')'));
    lists.flat_map(|(labels, _)| labels.split(',')).map(|label| label.trim().to_owned()).collect()
}

/// What is exported: labels and their values by metric.
type Exported = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn exported(exposition: &str) -> Exported {
    let mut all = Exported::new();
    for line in exposition.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let name_end = line.find(['{', ' ']).expect("a sample has a name");
        let (name, rest) = line.split_at(name_end);
        let labels = all.entry(name.to_owned()).or_default();
        if let Some((inside, _)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            for pair in inside.split("\",") {
                let (label, value) = pair.split_once("=\"").expect("a label has a value");
                labels.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    all
}

/// Everything in one process, with partitions, and a replay under way as far as the database says.
async fn busy_world() -> (World, Process) {
    let mut world = World::start().await;
    world.set(&["orders", "format"], "json");
    let all = world.live_as(world.command(&["all"]), world.http_port).await;
    world.feed(0, 5).await;
    world.settled().await;
    let topic = &world.topic;
    world
        .execute(&format!(
            "insert into reprocessamento (execucao_id, simular, situacao, topico, de, fonte, politicas)
             values ('replay-m', false, 'executando', '{topic}', now(), 'kafka', '{{}}')"
        ))
        .await;
    world
        .execute(
            "insert into reprocessamento_checkpoint (execucao_id, simular, particao, inicio, fim, posicao)
             values ('replay-m', false, 0, 0, 10, 3)",
        )
        .await;
    until("the replay is shown", LATER, async || {
        world.metric("reprise_replay_restante", &[("particao", "0")]).await == Some(7.0)
    })
    .await;
    let model = [("name", "orders_view"), ("state", "active")];
    until("the read models are shown", LATER, async || {
        world.metric("reprise_projection_lag_events", &model).await == Some(0.0)
    })
    .await;
    (world, all)
}

#[tokio::test]
async fn every_metric_and_label_that_a_panel_or_an_alert_names_is_exported() {
    let (world, _all) = busy_world().await;
    let exposition = world.get("/metrics").await.expect("metrics").body;
    let exported = exported(&exposition);
    // Given by Prometheus at the scrape, or by the histogram itself.
    let by_scrape = ["instance", "job", "le"];
    let mut wrong = Vec::new();
    for Question { asked_by, expression, shown } in questions() {
        let selectors = selectors(&expression);
        if selectors.is_empty() && !expression.contains("up{") {
            wrong.push(format!("{asked_by} asks for nothing of ours: {expression}"));
        }
        let mut known: BTreeSet<&str> = by_scrape.into();
        for (metric, matchers) in &selectors {
            let Some(labels) = exported.get(metric) else {
                wrong.push(format!("{asked_by}: {metric} is not exported"));
                continue;
            };
            known.extend(labels.keys().map(String::as_str));
            for (label, operator, value) in matchers {
                match labels.get(label) {
                    None => wrong.push(format!("{asked_by}: {metric} has no label {label}")),
                    Some(values) if !operator.contains('~') && !values.contains(value) => {
                        wrong.push(format!("{asked_by}: {metric} has no {label}={value:?}, but {values:?}"));
                    }
                    Some(_) => {}
                }
            }
        }
        for label in grouped(&expression).iter().chain(&shown) {
            if !known.contains(label.as_str()) {
                wrong.push(format!("{asked_by}: no metric in it has the label {label}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_alert_has_a_page_that_says_what_to_do_and_a_test() {
    let root = env!("CARGO_MANIFEST_DIR");
    let guide = fs::read_to_string(format!("{root}/docs/alerts.md")).expect("docs/alerts.md");
    let tests =
        fs::read_to_string(format!("{root}/deploy/prometheus/tests/alerts_test.yml")).expect("the tests");
    for rule in alerts() {
        let name = rule["alert"].as_str().expect("a name");
        assert!(guide.contains(&format!("\n## {name}\n")), "docs/alerts.md has no chapter {name}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
        let runbook = rule["annotations"]["runbook"].as_str().expect("a runbook");
        assert_eq!(runbook, format!("docs/alerts.md#{}", name.to_lowercase()));
    }
}

#[tokio::test]
async fn a_real_prometheus_scrapes_live_and_understands_every_panel_and_rule() {
    let (world, _all) = busy_world().await;
    let prometheus = Prometheus::start(&world);
    until("it is scraped", LATER, async || {
        prometheus.first_value(r#"up{job="reprise"}"#).await == Some("1".into())
    })
    .await;
    let applied = r#"sum(reprise_efeitos_total{desfecho="aplicado",execucao="ao-vivo"})"#;
    until("its counters are there", LATER, async || {
        prometheus.first_value(applied).await == Some("5".into())
    })
    .await;
    for Question { asked_by, expression, .. } in questions() {
        let plain = expression
            .replace("$efeito", ".*")
            .replace("$execucao", ".*")
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1h");
        let answer = prometheus.query(&plain).await;
        assert_eq!(answer["status"], "success", "{asked_by}: {plain}: {answer}");
    }
    let rules = eventually("all rules were evaluated", LATER, async || {
        let rules = prometheus.get("/api/v1/rules").await?;
        let all: Vec<Value> = rules["data"]["groups"]
            .as_array()?
            .iter()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        (!all.is_empty() && all.iter().all(|rule| rule["health"] != "unknown")).then_some(all)
    })
    .await;
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}

struct Prometheus {
    address: String,
    _process: Process,
}

impl Prometheus {
    /// With our rules, and our own scrape configuration pointed at this world's live.
    fn start(world: &World) -> Self {
        let dir = world.dir().join("prometheus");
        fs::create_dir_all(&dir).expect("a folder");
        let ours = Path::new(RULES).with_file_name("prometheus.yml");
        let config = fs::read_to_string(ours).expect("the scrape configuration");
        let target = format!("127.0.0.1:{}", world.http_port);
        let config =
            config.replace("127.0.0.1:9464", &target).replace("5s", "1s").replace("alerts.yml", RULES);
        fs::write(dir.join("prometheus.yml"), config).expect("a configuration");
        let address = format!("127.0.0.1:{}", crate::support::world::free_port());
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", dir.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
            .arg(format!("--web.listen-address={address}"));
        Self { _process: Process::start(command, &dir, "prometheus"), address }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let reply = request("GET", &format!("http://{}{path}", self.address), &[], None).await?;
        serde_json::from_str(&reply.body).ok()
    }

    async fn query(&self, expression: &str) -> Value {
        let query: String = url::form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        self.get(&format!("/api/v1/query?query={query}")).await.unwrap_or_default()
    }

    async fn first_value(&self, expression: &str) -> Option<String> {
        let answer = self.query(expression).await;
        answer["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    }
}
