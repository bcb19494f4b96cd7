//! The dashboard and the alerts: Prometheus' own tool takes them, and they ask for what the proxy tells.

use std::{collections::BTreeMap, collections::BTreeSet};

use serde_json::Value;

use crate::{
    markdown::file,
    readme::everything,
    tools::{ROOT, program, succeeds, tool, yaml},
    tour::{ask, demo},
};

const ALERTS: &str = "deploy/prometheus/alerts.yml";

/// What a proxy tells only with another store than the demo's, or over TLS.
const ELSEWHERE: [&str; 6] = [
    "idem_proxy_certificate_expiry_seconds",
    "idem_proxy_store_commit_duration_seconds",
    "idem_proxy_store_committed_operations_total",
    "idem_proxy_store_reconnects_total",
    "idem_proxy_store_round_trips_total",
    "idem_proxy_store_script_misses_total",
];

/// A metric in an expression, and its matchers: label, and the values that it is compared with.
type Selector = (String, Vec<(String, Vec<String>)>);

/// The metrics of ours, and those of the process, that an expression names.
fn selectors(expr: &str) -> Vec<Selector> {
    let mut found = Vec::new();
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = expr;
    while let Some(at) = rest.find(word) {
        let start = &rest[at..];
        let end = start.find(|c| !word(c)).unwrap_or(start.len());
        let (name, after) = start.split_at(end);
        rest = after;
        let mut matchers = Vec::new();
        if let Some(inside) = after.strip_prefix('{') {
            let (mut quoted, mut close) = (false, inside.len());
            for (at, c) in inside.char_indices() {
                match c {
                    '"' => quoted = !quoted,
                    '}' if !quoted => {
                        close = at;
                        break;
                    }
                    _ => {}
                }
            }
            for pair in inside[..close]
                .split("\", ")
                .filter(|pair| !pair.is_empty())
            {
                let (label, value) = pair.split_once('"').expect("a quoted value");
                let label = label.trim().trim_end_matches(['=', '!', '~']);
                let values = value.trim_end_matches('"').split('|').map(str::to_owned);
                matchers.push((label.to_owned(), values.collect()));
            }
            rest = inside.get(close..).unwrap_or_default();
        }
        if name.starts_with("idem_proxy_") || name.starts_with("process_") {
            found.push((name.to_owned(), matchers));
        }
    }
    found
}

/// Of each sample's name the values that each label has.
fn told(text: &str) -> BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> {
    let mut told: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split("\",")
            .filter(|it| !it.is_empty());
        let found = told.entry(name).or_default();
        for pair in labels {
            let (label, value) = pair.split_once("=\"").expect("a pair");
            found
                .entry(label)
                .or_default()
                .insert(value.trim_end_matches('"'));
        }
    }
    told
}

fn dashboard() -> Value {
    serde_json::from_str(&file("deploy/grafana/idem-proxy.json")).expect("JSON")
}

/// Every expression and query of the dashboard.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let variables = dashboard["templating"]["list"]
        .as_array()
        .expect("variables");
    let variables = variables.iter().map(|it| &it["definition"]);
    let all = targets.map(|target| &target["expr"]).chain(variables);
    all.filter_map(|it| Some(it.as_str()?.to_owned())).collect()
}

/// The rules of a document that has groups.
fn rules(document: &Value) -> Vec<Value> {
    let groups = document["groups"].as_array().expect("groups");
    let all = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().expect("rules"));
    all.cloned().collect()
}

fn alerts() -> Vec<Value> {
    rules(&yaml(&file(ALERTS))[0])
}

#[test]
fn every_query_asks_for_what_the_proxy_tells() {
    let text = everything();
    let told = told(&text);
    let alerts = alerts();
    let alerts = alerts
        .iter()
        .map(|rule| rule["expr"].as_str().expect("text").to_owned());
    let all: Vec<String> = queries().into_iter().chain(alerts).collect();
    let mut seen = BTreeSet::new();
    for query in &all {
        for (name, matchers) in selectors(query) {
            let labels = told
                .get(name.as_str())
                .unwrap_or_else(|| panic!("no {name}: {query}"));
            for (label, values) in matchers {
                if matches!(label.as_str(), "job" | "instance") {
                    continue;
                }
                let known = labels
                    .get(label.as_str())
                    .unwrap_or_else(|| panic!("no {label} of {name}: {query}"));
                for value in values.iter().filter(|value| !value.starts_with('$')) {
                    assert!(known.contains(value.as_str()), "{label}={value}: {query}");
                }
            }
            seen.insert(name);
        }
    }
    assert!(all.len() > 60 && seen.len() > 25, "{seen:?}");
}

#[test]
fn a_running_proxy_tells_what_the_queries_ask_for() {
    let demo = demo();
    let paid = "POST /payments HTTP/1.1\r\nAuthorization: a\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 12";
    let answer = ask(&demo.proxy, paid, "{\"amount\":1}");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    let text = ask(&demo.admin, "GET /metrics HTTP/1.1", "");
    let body = text.split_once("\r\n\r\n").expect("a body").1;
    let told = told(body);
    for query in queries() {
        for (name, _) in selectors(&query) {
            let family = name.trim_end_matches("_bucket").trim_end_matches("_count");
            if !ELSEWHERE.contains(&family) {
                assert!(told.contains_key(name.as_str()), "no {name}: {query}");
            }
        }
    }
}

#[test]
fn the_dashboard_can_be_imported_anywhere() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36));
    assert_eq!(dashboard["id"], Value::Null);
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let mut ids = BTreeSet::new();
    let mut rows = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(
            ids.insert(panel["id"].as_u64()),
            "an id stands twice: {panel}"
        );
        if panel["type"] == "row" {
            rows.push(panel["title"].as_str().expect("a title"));
            continue;
        }
        for source in panel["targets"].as_array().expect("targets") {
            assert_eq!(source["datasource"]["uid"], "${datasource}", "{panel}");
        }
        let place = &panel["gridPos"];
        let right = place["x"].as_u64().zip(place["w"].as_u64());
        assert!(right.is_some_and(|(x, w)| x + w <= 24), "{panel}");
    }
    let wanted = [
        "Overview",
        "Latency by outcome",
        "Upstream",
        "Store",
        "Limits and refusals",
        "Process",
    ];
    assert_eq!(rows, wanted);
}

#[test]
fn each_alert_fires_on_what_it_is_for_and_is_explained() {
    succeeds(tool("bin/promtool").args(["check", "rules", ALERTS]));
    let mut test = program(tool("bin/promtool").get_program());
    test.current_dir(std::path::Path::new(ROOT).join("deploy/prometheus"));
    succeeds(test.args(["test", "rules", "alerts.test.yml"]));
    let tests = &yaml(&file("deploy/prometheus/alerts.test.yml"))[0];
    let tests = tests["tests"].as_array().expect("tests");
    let fires = |name: &Value, yes: bool| {
        tests.iter().any(|test| {
            let one = &test["alert_rule_test"][0];
            let expected = one["exp_alerts"]
                .as_array()
                .is_some_and(|it| !it.is_empty());
            one["alertname"] == *name && expected == yes
        })
    };
    let operations = file("docs/operations.md");
    for rule in alerts() {
        let name = &rule["alert"];
        assert!(
            fires(name, true) && fires(name, false),
            "{name} is not tested"
        );
        assert!(matches!(
            rule["labels"]["severity"].as_str(),
            Some("critical" | "warning")
        ));
        let name = name.as_str().expect("a name");
        let place = format!("docs/operations.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], place);
        let (_, entry) = operations
            .split_once(&format!("\n### {name}\n"))
            .unwrap_or_else(|| panic!("{name} is not explained"));
        let entry = entry.split("\n#").next().expect("an entry");
        for part in ["**Means**", "**Money**", "**Look at**", "**Do**"] {
            assert!(entry.contains(part), "{name}: {part}");
        }
    }
}

#[test]
fn the_chart_and_the_component_bring_the_same_alerts() {
    let alerts = alerts();
    let chart = [
        "template",
        "payments",
        "deploy/helm/idem-proxy",
        "--set",
        "app.image=a:1",
    ];
    let render = |more: &[&str]| yaml(&succeeds(tool("bin/helm").args(chart).args(more)));
    let kind = |documents: &[Value], kind: &str| {
        let found = documents.iter().find(|it| it["kind"] == kind);
        found.cloned()
    };
    let without = render(&[]);
    assert_eq!(kind(&without, "PodMonitor"), None, "off by default");
    assert_eq!(kind(&without, "PrometheusRule"), None, "off by default");
    let with = render(&[
        "--set",
        "podMonitor.enabled=true,prometheusRule.enabled=true",
    ]);
    let rule = kind(&with, "PrometheusRule").expect("a rule");
    assert_eq!(rules(&rule["spec"]), alerts);
    let monitor = kind(&with, "PodMonitor").expect("a monitor");
    let pods = &kind(&with, "Deployment").expect("pods")["spec"]["template"];
    let selected = monitor["spec"]["selector"]["matchLabels"]
        .as_object()
        .expect("labels");
    for (label, value) in selected {
        assert_eq!(pods["metadata"]["labels"][label], *value, "{label}");
    }
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let ports = pods["spec"]["initContainers"][0]["ports"]
        .as_array()
        .expect("ports");
    assert!(ports.iter().any(|it| it["name"] == *port), "{port}");
    let component = yaml(&file("deploy/kustomize/monitoring/prometheusrule.yaml"));
    assert_eq!(rules(&component[0]["spec"]), alerts);
    let monitor = yaml(&file("deploy/kustomize/monitoring/podmonitor.yaml"));
    let sidecar = yaml(&file("deploy/kustomize/component/sidecar.yaml"));
    let ports = &sidecar[0]["spec"]["template"]["spec"]["initContainers"][0]["ports"];
    let port = &monitor[0]["spec"]["podMetricsEndpoints"][0]["port"];
    assert!(
        ports
            .as_array()
            .expect("ports")
            .iter()
            .any(|it| it["name"] == *port)
    );
    let folder = tempfile::tempdir_in(std::path::Path::new(ROOT).join("target")).expect("a folder");
    let kustomization = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../../deploy/kustomize/example]\ncomponents: [../../deploy/kustomize/monitoring]\n";
    std::fs::write(folder.path().join("kustomization.yaml"), kustomization).expect("written");
    let rendered = yaml(&succeeds(
        tool("bin/kubectl").arg("kustomize").arg(folder.path()),
    ));
    assert!(kind(&rendered, "PodMonitor").is_some() && kind(&rendered, "PrometheusRule").is_some());
}
