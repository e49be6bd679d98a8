//! What deploys the program, held against the program: arguments, variables, ports, probes, limits.
//!
//! No container engine is needed: compose file and manifests are read, their arguments are parsed by the binary, and
//! their configuration is loaded by it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize as _;
use serde_yaml_ng::Value;
use uuid::Uuid;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every object of every manifest that the kustomization lists.
fn manifests() -> Vec<Value> {
    let kustomization: Value =
        serde_yaml_ng::from_str(&text("deploy/kubernetes/kustomization.yaml")).expect("YAML");
    let files = kustomization["resources"].as_sequence().expect("resources").clone();
    files
        .iter()
        .flat_map(|file| {
            let text = text(&format!("deploy/kubernetes/{}", file.as_str().expect("a name")));
            let documents = serde_yaml_ng::Deserializer::from_str(&text);
            documents.map(|one| Value::deserialize(one).expect("YAML")).collect::<Vec<_>>()
        })
        .collect()
}

fn of_kind(kind: &str) -> Vec<Value> {
    manifests().into_iter().filter(|object| object["kind"] == *kind).collect()
}

fn named(kind: &str, name: &str) -> Value {
    let found = of_kind(kind).into_iter().find(|object| object["metadata"]["name"] == *name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Pod templates by the name of what makes the pods.
fn pods() -> BTreeMap<String, Value> {
    let mut pods = BTreeMap::new();
    for object in manifests() {
        let spec = match object["kind"].as_str() {
            Some("Deployment" | "Job") => &object["spec"]["template"]["spec"],
            Some("CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"]["spec"],
            _ => continue,
        };
        pods.insert(object["metadata"]["name"].as_str().expect("a name").to_owned(), spec.clone());
    }
    pods
}

fn words(list: &Value) -> Vec<String> {
    let items = list.as_sequence().expect("a list");
    items.iter().map(|item| item.as_str().expect("a text").to_owned()).collect()
}

fn container(pod: &Value) -> Value {
    pod["containers"][0].clone()
}

fn after(args: &[String], flag: &str) -> Option<String> {
    args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1)).cloned()
}

/// The binary with these arguments and this environment only.
fn binary(args: &[String], env: &[(String, String)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise"));
    command.env_clear().current_dir(std::env::temp_dir()).args(args);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command.output().expect("the binary runs")
}

/// `--help` behind them: everything before it is parsed, nothing is done.
fn assert_parsed(place: &str, args: &[String]) {
    let with_help = [args, &["--help".to_owned()]].concat();
    let output = binary(&with_help, &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{place}: {args:?}: {said}");
}

#[test]
fn every_argument_in_manifests_and_compose_is_one_that_the_program_knows() {
    let pods = pods();
    let names: Vec<&str> = pods.keys().map(String::as_str).collect();
    let expected =
        ["reprise-archive", "reprise-archive-verify", "reprise-live", "reprise-migrate", "reprise-retention"];
    assert_eq!(names, expected);
    for (name, pod) in &pods {
        assert_parsed(name, &words(&container(pod)["args"]));
    }
    let services = compose();
    for name in ["migrate", "all", "archive"] {
        assert_parsed(name, &words(&services[name]["command"]));
    }
    assert!(!binary(&["live".to_owned(), "--graze".to_owned(), "--help".to_owned()], &[]).status.success());
}

/// Services of the compose file, merge keys applied.
fn compose() -> BTreeMap<String, Value> {
    let mut file: Value = serde_yaml_ng::from_str(&text("docker-compose.yml")).expect("YAML");
    file.apply_merge().expect("merge keys");
    serde_yaml_ng::from_value(file["services"].clone()).expect("services")
}

/// A folder that stands for `/etc/reprise` of a pod.
struct Mounted(PathBuf);

impl Mounted {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("reprise-deploy-{}", Uuid::new_v4().simple()));
        for (path, content) in [
            ("secrets/postgres-url", "postgres://reprise:s3nha@postgres/reprise?sslmode=verify-full"),
            ("secrets/http-token", "tok3n"),
            ("secrets/kafka-password", "kafka-s3nha"),
            ("trust/cluster-ca.pem", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----"),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, content).expect("a file");
        }
        let config = text("deploy/kubernetes/reprise.toml");
        fs::write(dir.join("reprise.toml"), config.replace("/etc/reprise", dir.to_str().expect("a path")))
            .expect("a configuration");
        Self(dir)
    }

    fn inside(&self, value: &str) -> String {
        value.replace("/etc/reprise", self.0.to_str().expect("a path"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Effective settings: key to value and origin.
fn settings(env: &[(String, String)]) -> BTreeMap<String, (String, String)> {
    let args = ["config", "show", "--output", "json"].map(str::to_owned);
    let output = binary(&args, env);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().expect("a text").to_owned();
    rows.iter().map(|row| (text(row, "key"), (text(row, "value"), text(row, "origin")))).collect()
}

#[test]
fn the_pods_configuration_and_variables_are_those_of_the_program_and_show_no_secret() {
    let mounted = Mounted::new();
    for (name, pod) in pods() {
        let container = container(&pod);
        let variables: Vec<(String, String)> = container["env"]
            .as_sequence()
            .expect("variables")
            .iter()
            .map(|one| {
                let value = mounted.inside(one["value"].as_str().expect("a value"));
                (one["name"].as_str().expect("a name").to_owned(), value)
            })
            .collect();
        let settings = settings(&variables);
        let (password, origin) = &settings["kafka.propriedades.sasl.password"];
        assert_eq!(password, "***", "{name}");
        assert!(origin.contains("REPRISE_KAFKA__PROPRIEDADES__SASL_PASSWORD_FILE"), "{name}: {origin}");
        assert!(!format!("{settings:?}").contains("s3nha"), "{name}: {settings:?}");
        assert_eq!(settings["http.token_arquivo"].0, "***");
        for mount in container["volumeMounts"].as_sequence().expect("mounts") {
            let volumes = pod["volumes"].as_sequence().expect("volumes");
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{name}: {mount:?}");
            assert_eq!(mount["readOnly"], true, "{name}");
        }
    }
}

#[test]
fn probes_ask_the_port_that_is_listened_on_and_pages_that_need_no_token() {
    let mounted = Mounted::new();
    let config = vec![("REPRISE_CONFIG".to_owned(), mounted.inside("/etc/reprise/reprise.toml"))];
    let address = settings(&config)["http.endereco"].0.clone();
    let port = address.rsplit(':').next().expect("a port").parse::<u64>().expect("a number");
    for name in ["reprise-live", "reprise-archive"] {
        let container = container(&pods()[name]);
        assert_eq!(container["ports"][0]["containerPort"].as_u64(), Some(port), "{name}");
        let args = words(&container["args"]);
        assert_eq!(after(&args, "--http").unwrap_or(address.clone()), address, "{name}");
        for (probe, path) in
            [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let get = &container[probe]["httpGet"];
            if get.is_null() && name == "reprise-archive" {
                continue;
            }
            assert_eq!(
                (get["path"].as_str(), get["port"].as_str()),
                (Some(path), Some("http")),
                "{name} {probe}"
            );
        }
        assert_eq!(container["ports"][0]["name"], "http");
    }
    assert_eq!(named("Service", "reprise")["spec"]["ports"][0]["port"].as_u64(), Some(port));
    assert_eq!(named("ServiceMonitor", "reprise")["spec"]["endpoints"][0]["path"], "/metrics");
    assert!(text("Dockerfile").contains(&format!("EXPOSE {port}\n")));
    assert!(text("deploy/prometheus/prometheus.yml").contains("127.0.0.1:9464"));
}

#[test]
fn nobody_is_killed_before_the_grace_is_over() {
    let live = &pods()["reprise-live"];
    let args = words(&container(live)["args"]);
    let grace = humantime::parse_duration(&after(&args, "--grace").expect("a grace")).expect("a duration");
    let limit = live["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    assert!(limit >= grace.as_secs() + 5, "{limit} s for a grace of {grace:?}");
    let stop = compose()["all"]["stop_grace_period"].as_str().expect("a period").to_owned();
    // 25 s is what `live` takes where nothing is said.
    assert!(humantime::parse_duration(&stop).expect("a duration").as_secs() >= 30, "{stop}");
}

#[test]
fn every_container_runs_without_rights_on_a_read_only_root() {
    for (name, pod) in pods() {
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{name}");
        assert_eq!(pod["securityContext"]["runAsUser"].as_u64(), Some(65_532), "{name}");
        assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
        let container = container(&pod);
        let context = &container["securityContext"];
        assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
        assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
        assert_eq!(words(&context["capabilities"]["drop"]), ["ALL"], "{name}");
        assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
        assert_eq!(container["image"], "reprise", "{name}: the kustomization names it");
    }
    let dockerfile = text("Dockerfile");
    assert!(dockerfile.contains("\nUSER 65532:65532\n") && dockerfile.contains("--features ssl-vendored"));
    for name in ["migrate", "all", "archive"] {
        let service = &compose()[name];
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(words(&service["cap_drop"]), ["ALL"], "{name}");
    }
}

#[test]
fn scaling_disruption_and_selectors_speak_of_the_same_pods_group_and_topic() {
    let mounted = Mounted::new();
    let config = vec![("REPRISE_CONFIG".to_owned(), mounted.inside("/etc/reprise/reprise.toml"))];
    let settings = settings(&config);
    let live = named("Deployment", "reprise-live");
    let labels = &live["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&live["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&named("PodDisruptionBudget", "reprise-live")["spec"]["selector"]["matchLabels"], labels);
    let scaled = named("ScaledObject", "reprise-live");
    assert_eq!(scaled["spec"]["scaleTargetRef"]["name"], live["metadata"]["name"]);
    assert!(live["spec"]["replicas"].is_null(), "replicas belong to the scaler");
    let trigger = &scaled["spec"]["triggers"][0]["metadata"];
    for (key, setting) in
        [("bootstrapServers", "kafka.brokers"), ("consumerGroup", "kafka.grupo"), ("topic", "kafka.topico")]
    {
        assert_eq!(trigger[key].as_str(), Some(settings[setting].0.as_str()), "{key}");
    }
    assert_eq!(
        scaled["spec"]["triggers"][0]["authenticationRef"]["name"],
        of_kind("TriggerAuthentication")[0]["metadata"]["name"]
    );
}

#[test]
fn the_rules_of_the_cluster_are_those_that_are_tested() {
    let rules: Value = serde_yaml_ng::from_str(&text("deploy/prometheus/alerts.yml")).expect("YAML");
    assert_eq!(named("PrometheusRule", "reprise")["spec"]["groups"], rules["groups"]);
}

#[test]
fn what_the_compose_file_mounts_is_there_and_its_configuration_is_good() {
    let services = compose();
    for (name, service) in &services {
        for mount in service["volumes"].as_sequence().into_iter().flatten() {
            let source = mount.as_str().expect("a mount").split(':').next().expect("a source").to_owned();
            if let Some(path) = source.strip_prefix("./") {
                assert!(Path::new(ROOT).join(path).exists(), "{name}: {source}");
            }
        }
    }
    for name in ["migrate", "all", "archive"] {
        let mut env: Vec<(String, String)> =
            serde_yaml_ng::from_value::<BTreeMap<String, String>>(services[name]["environment"].clone())
                .expect("an environment")
                .into_iter()
                .map(|(name, value)| (name, value.replace("${REPRISE_DEV_KAFKA_PORT:-29092}", "29092")))
                .map(|(name, value)| (name, value.replace("${REPRISE_DEV_PG_PORT:-25432}", "25432")))
                .map(|(name, value)| (name, value.replace("${REPRISE_DEV_REGISTRY_PORT:-28081}", "28081")))
                .collect();
        env.push(("REPRISE_CONFIG".to_owned(), format!("{ROOT}/deploy/compose/reprise.toml")));
        let settings = settings(&env);
        assert_eq!(settings["kafka.brokers"].0, "127.0.0.1:29092", "{name}");
        let registry = &services["registry"]["environment"]["SCHEMA_REGISTRY_LISTENERS"];
        let registry =
            registry.as_str().expect("an address").replace("${REPRISE_DEV_REGISTRY_PORT:-28081}", "28081");
        assert_eq!(settings["kafka.registro_url"].0.trim_end_matches('/'), registry, "{name}");
        assert!(settings["postgres.url"].1.contains("REPRISE_POSTGRES__URL"), "{name}");
    }
}
