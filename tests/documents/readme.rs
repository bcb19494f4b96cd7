//! The README: its configurations, its bounds, its metrics, its links.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use idem_proxy::{
    config,
    core::policy::RouteName,
    telemetry::metrics::{Limit, Metrics, Outcome, StatusClass, StoreLevels, StoreOp, StoreResult},
};

use crate::markdown::{blocks, file, table, word, words};

const DOCUMENTS: [&str; 15] = [
    "README.md",
    "CHANGELOG.md",
    "docs/README.md",
    "docs/comparison.md",
    "docs/configuration.md",
    "docs/deploy.md",
    "docs/dialects.md",
    "docs/getting-started.md",
    "docs/guarantees.md",
    "docs/keys.md",
    "docs/lifecycle.md",
    "docs/migrating.md",
    "docs/operations.md",
    "docs/performance.md",
    "docs/security.md",
];

#[test]
fn every_configuration_of_a_document_loads() {
    let mut loads = Vec::new();
    let folder = certificates();
    let etc = format!("{}/", folder.path().display());
    for path in DOCUMENTS {
        let text = file(path);
        for block in blocks(&text, "toml") {
            let block = &block.replace("/etc/idem-proxy/", &etc);
            let loaded = config::parse(path, block, []).loaded();
            let loaded = loaded.unwrap_or_else(|problems| panic!("{path}: {block}\n{problems}"));
            assert_eq!(loaded.warnings, Vec::<String>::new(), "{path}: {block}");
            loads.push(path);
        }
    }
    for path in ["README.md", "docs/dialects.md", "docs/migrating.md"] {
        assert!(loads.contains(&path), "{path} shows no configuration");
    }
}

/// The files that documents name below `/etc/idem-proxy`, in a folder of their own.
fn certificates() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    for (name, text) in [
        ("tls.crt", &certificate),
        ("tls.key", &key.serialize_pem()),
        ("clients.crt", &certificate),
        ("upstream.crt", &certificate),
        ("client.crt", &certificate),
        ("client.key", &key.serialize_pem()),
    ] {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    folder
}

#[test]
fn the_dialects_load_as_it_says() {
    let loads = |policy: &str| {
        let text = format!("[policy]\n{policy}\n");
        config::parse("dialect", &text, []).loaded().is_ok()
    };
    let readme = file("README.md");
    let whole = table(&readme, "dialect");
    assert_eq!(whole.len(), 8);
    for row in whole {
        assert!(loads(&format!("dialect = \"{}\"", word(row[0]))), "{row:?}");
    }
    for shape in ["problem", "platform", "stripe", "aws-xml"] {
        assert!(loads(&format!("errors = \"{shape}\"")), "{shape}");
    }
}

#[test]
fn its_bounds_have_the_defaults_of_the_example_configuration() {
    let example: toml::Table = file("config.example.toml").parse().expect("TOML");
    let readme = file("README.md");
    for row in table(&readme, "bound") {
        let path = word(row[0]);
        let default: toml::Table = format!("it = {}", word(row[1])).parse().expect(path);
        let mut value = None;
        let mut within = Some(&example);
        for part in path.split('.') {
            value = within.and_then(|table| table.get(part));
            within = value.and_then(toml::Value::as_table);
        }
        assert_eq!(value, default.get("it"), "{path}");
    }
}

#[test]
fn its_table_of_metrics_is_what_the_proxy_tells() {
    let readme = file("README.md");
    let rows = table(&readme, "name");
    let documented: BTreeSet<(String, String)> = rows
        .iter()
        .map(|row| (word(row[0]).to_owned(), row[1].to_owned()))
        .collect();
    assert_eq!(documented.len(), rows.len(), "a metric stands twice");
    assert_eq!(documented, told());
}

#[test]
fn the_labels_of_its_metrics_are_those_of_the_proxy() {
    let text = everything();
    let readme = file("README.md");
    for row in table(&readme, "name") {
        let name = word(row[0]);
        let sample = |line: &&str| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            ["{", " ", "_count"]
                .iter()
                .any(|next| rest.starts_with(next))
        };
        let line = text
            .lines()
            .find(sample)
            .unwrap_or_else(|| panic!("no sample of {name}"));
        let labels = line
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        let labels: BTreeSet<&str> = labels
            .map(|(labels, _)| {
                labels
                    .split(',')
                    .filter_map(|pair| Some(pair.split_once('=')?.0))
                    .collect()
            })
            .unwrap_or_default();
        let documented: BTreeSet<&str> = words(row[2]).into_iter().collect();
        assert_eq!(documented, labels, "{name}");
    }
}

#[test]
fn every_metric_that_a_document_names_is_there() {
    let told = told();
    for path in DOCUMENTS {
        let text = file(path);
        let names = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':')
            .filter(|name| name.starts_with("idem_proxy_") && !name.contains(':'));
        for name in names {
            assert!(
                told.iter().any(|(metric, _)| metric == name),
                "{path}: {name}"
            );
        }
    }
}

#[test]
fn every_link_of_a_document_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in DOCUMENTS {
        let text = file(path);
        let folder = root.join(path).parent().expect("a folder").to_owned();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once(')')?.0))
        {
            if link.starts_with("https://") {
                continue;
            }
            let (target, part) = link.split_once('#').unwrap_or((link, ""));
            let target = folder.join(target);
            assert!(target.exists(), "{path}: {link}");
            if !part.is_empty() {
                let there = std::fs::read_to_string(&target).expect(link).to_lowercase();
                // A hyphen of the heading's own stays one.
                let found = there
                    .lines()
                    .filter_map(|line| line.strip_prefix("### ").or(line.strip_prefix("## ")))
                    .any(|heading| heading.replace(' ', "-") == part);
                assert!(found, "{path}: {link}");
            }
        }
    }
}

/// The metrics of idem-proxy's own: name and type.
fn told() -> BTreeSet<(String, String)> {
    let types = everything();
    let types = types
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let own = types.filter(|(name, _)| name.starts_with("idem_proxy_"));
    own.map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect()
}

/// What `/metrics` tells once everything has happened.
pub(crate) fn everything() -> String {
    let metrics = Metrics::new(&[RouteName::new("orders")]);
    let moment = Duration::from_millis(1);
    for route in [metrics.route(Some(0)), metrics.route(None)] {
        for outcome in Outcome::ALL {
            route.request(*outcome, moment);
        }
        for class in StatusClass::ALL {
            route.upstream(*class, moment);
        }
    }
    for kind in ["memory", "disk", "redis"] {
        for operation in StoreOp::ALL {
            metrics
                .store(kind)
                .operation(*operation, StoreResult::Ok, moment);
        }
        metrics.watch_store(kind, Arc::new(StoreLevels::default));
    }
    let _upstream = metrics.upstream("");
    metrics.store("disk").committed(1, moment);
    metrics.store("redis").round_trip();
    for limit in Limit::ALL {
        metrics.watch_limit(*limit, Arc::new(|| 0));
    }
    metrics.watch_certificates(Arc::new(|| vec![("server".to_owned(), 0)]));
    String::from_utf8(metrics.render()).expect("text")
}
