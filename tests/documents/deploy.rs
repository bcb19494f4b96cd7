//! The Dockerfile and the manifest: their configuration loads, and they agree with each other and with the code.

use idem_proxy::config::{self, Listen};

use crate::markdown::file;

const MANIFEST: &str = "deploy/kubernetes/sidecar.yaml";

/// The lines of the block under `key: |`, without its indent.
fn block(manifest: &str, key: &str) -> String {
    let head = format!("{key}: |");
    let mut lines = manifest.lines().skip_while(|line| line.trim() != head);
    let indent = indent(lines.next().expect(key));
    let inside = lines.take_while(|line| line.trim().is_empty() || self::indent(line) > indent);
    inside
        .map(|line| line.get(indent + 2..).unwrap_or_default().to_owned() + "\n")
        .collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines of the list item that begins with `- name: NAME`.
fn item(manifest: &str, name: &str) -> String {
    let head = format!("- name: {name}");
    let mut lines = manifest.lines().skip_while(|line| line.trim() != head);
    let first = lines.next().expect(name);
    let indent = indent(first);
    let inside = lines.take_while(|line| line.trim().is_empty() || self::indent(line) > indent);
    std::iter::once(first)
        .chain(inside)
        .map(|line| line.to_owned() + "\n")
        .collect()
}

/// The values of `key:` in these lines.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let lines = text
        .lines()
        .map(|line| line.trim().trim_start_matches("- "));
    lines
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
        .map(str::trim)
        .collect()
}

/// The words of the one instruction of this name in the Dockerfile's last stage.
fn instruction(dockerfile: &str, name: &str) -> String {
    let last = dockerfile.rsplit("\nFROM ").next().expect("a stage");
    let mut lines = last
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let words = lines.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(lines.next(), None, "{name} stands twice");
    words.to_owned()
}

fn port(listen: &[Listen]) -> u16 {
    match listen {
        [Listen::Tcp(address)] => {
            let port = address
                .strip_prefix("0.0.0.0:")
                .expect("all addresses: probes come from outside");
            port.parse().expect("a port")
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_manifests_configuration_loads_without_a_warning() {
    let manifest = file(MANIFEST);
    let text = block(&manifest, "proxy.toml");
    let loaded = config::parse(MANIFEST, &text, []).loaded();
    let loaded = loaded.unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    assert_eq!(loaded.warnings, Vec::<String>::new());
    assert_eq!(loaded.config.routes.len(), 1);
}

#[test]
fn ports_are_the_same_everywhere() {
    let (manifest, dockerfile) = (file(MANIFEST), file("Dockerfile"));
    let config = config::parse(MANIFEST, &block(&manifest, "proxy.toml"), [])
        .loaded()
        .expect("valid")
        .config;
    let ports =
        [port(&config.server.listen), port(&config.admin.listen)].map(|port| port.to_string());
    let sidecar = item(&manifest, "idem-proxy");
    assert_eq!(values(&sidecar, "containerPort"), ports);
    assert_eq!(values(&sidecar, "port"), ["admin"; 3], "the probes");
    assert_eq!(values(&manifest, "targetPort"), [ports[0].as_str()]);
    assert_eq!(
        values(&item(&manifest, "app"), "port"),
        [ports[0].as_str()],
        "the app is probed through the proxy"
    );
    assert_eq!(instruction(&dockerfile, "EXPOSE"), ports.join(" "));
}

#[test]
fn the_user_is_the_same_and_not_root() {
    let sidecar = item(&file(MANIFEST), "idem-proxy");
    let user = instruction(&file("Dockerfile"), "USER");
    let (user, group) = user.split_once(':').expect("user and group, by number");
    assert!(user.parse::<u32>().expect("a number") > 0);
    assert_eq!(values(&sidecar, "runAsUser"), [user]);
    assert_eq!(values(&sidecar, "runAsGroup"), [group]);
    for (key, value) in [
        ("runAsNonRoot", "true"),
        ("readOnlyRootFilesystem", "true"),
        ("allowPrivilegeEscalation", "false"),
        ("drop", "[\"ALL\"]"),
        ("type", "RuntimeDefault"),
        ("restartPolicy", "Always"),
    ] {
        assert_eq!(values(&sidecar, key), [value], "{key}");
    }
}

#[test]
fn the_command_is_the_images_own_and_its_file_is_mounted() {
    let sidecar = item(&file(MANIFEST), "idem-proxy");
    let command = instruction(&file("Dockerfile"), "CMD");
    assert_eq!(values(&sidecar, "args"), [command.as_str()]);
    let mounted = values(&sidecar, "mountPath");
    assert_eq!(mounted.len(), 1);
    assert!(
        command.contains(&format!("\"{}/proxy.toml\"", mounted[0])),
        "{command}"
    );
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(values(&sidecar, "image"), [format!("idem-proxy:{version}")]);
    assert!(file("CHANGELOG.md").contains(&format!("\n## {version}\n")));
}

#[test]
fn the_image_is_built_by_the_compiler_that_the_manifest_of_the_crate_asks_for() {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(file("Dockerfile").contains(&format!("\nFROM rust:{rust}-bookworm AS build\n")));
    // Debian 12 both: a binary that was linked against a newer C library would not start.
    assert!(file("Dockerfile").contains("\nFROM gcr.io/distroless/cc-debian12\n"));
}

#[test]
fn what_the_build_needs_is_not_ignored() {
    let ignored = file(".dockerignore");
    let kept: Vec<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let mut needed = vec!["Cargo.toml", "Cargo.lock", "src", "LICENSE"];
    if file("Cargo.toml").contains("\n[[bench]]\n") {
        needed.push("benches");
    }
    for path in needed {
        assert!(kept.contains(&path), "{path}");
    }
}

#[test]
fn the_time_to_end_holds_all_that_comes_one_after_the_other() {
    let manifest = file(MANIFEST);
    let config = config::parse(MANIFEST, &block(&manifest, "proxy.toml"), [])
        .loaded()
        .expect("valid")
        .config;
    let seconds = |key: &str| -> u64 {
        let [value] = values(&manifest, key)[..] else {
            panic!("{key}")
        };
        value.parse().expect(key)
    };
    let app = config.upstreams[0].response_timeout.as_secs();
    let together = seconds("seconds") + app + config.server.drain_timeout.as_secs();
    assert!(
        together <= seconds("terminationGracePeriodSeconds"),
        "{together}"
    );
}
