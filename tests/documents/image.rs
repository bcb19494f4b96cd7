//! The Dockerfile: what it says agrees with the crate, and its own linter has nothing against it.

use crate::{
    markdown::file,
    tools::{succeeds, tool},
};

/// The words of the one instruction of this name in the Dockerfile's last stage.
pub(crate) fn instruction(name: &str) -> String {
    let dockerfile = file("Dockerfile");
    let last = dockerfile.rsplit("\nFROM ").next().expect("a stage");
    let mut lines = last
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let words = lines.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(lines.next(), None, "{name} stands twice");
    words.to_owned()
}

/// The words of an instruction in the form of a list.
pub(crate) fn words(name: &str) -> Vec<String> {
    serde_json::from_str(&instruction(name)).expect(name)
}

#[test]
fn it_is_built_by_the_compiler_that_the_manifest_of_the_crate_asks_for() {
    let rust = env!("CARGO_PKG_RUST_VERSION");
    assert!(file("Dockerfile").contains(&format!("\nFROM rust:{rust}-bookworm AS build\n")));
    // Debian 12 both: a binary that was linked against a newer C library would not start.
    assert!(file("Dockerfile").contains("\nFROM gcr.io/distroless/cc-debian12:nonroot\n"));
}

#[test]
fn its_user_is_a_number_and_not_root() {
    let user = instruction("USER");
    let (user, group) = user.split_once(':').expect("user and group");
    for id in [user, group] {
        assert!(id.parse::<u32>().expect("a number") > 0);
    }
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
fn hadolint_finds_nothing() {
    succeeds(tool("venv/bin/hadolint").args(["--failure-threshold", "style", "Dockerfile"]));
}
