//! The ecosystem's own tools, which `scripts/deploy-tools` sets up, and what they read and print.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

/// The repository.
pub(crate) const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A program, in the repository.
pub(crate) fn program(path: impl AsRef<Path>) -> Command {
    let mut command = Command::new(path.as_ref());
    command.current_dir(ROOT).stdin(Stdio::null());
    command
}

/// One of the tools by its path among them, e.g. `bin/helm`.
pub(crate) fn tool(name: &str) -> Command {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let printed = succeeds(&mut program(Path::new(ROOT).join("scripts/deploy-tools")));
        PathBuf::from(printed.trim())
    });
    program(place.join(name))
}

/// What it prints; it has to succeed.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}\n{why}");
    said
}

/// What it says on the standard error stream; it has to fail.
pub(crate) fn fails(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(!output.status.success(), "{command:?} succeeds");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The documents of a YAML stream.
pub(crate) fn yaml(text: &str) -> Vec<Value> {
    let read = "import json, sys, yaml\njson.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = tool("venv/bin/python");
    python.args(["-c", read]);
    python.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("Python starts");
    let mut input = child.stdin.take().expect("piped");
    input
        .write_all(text.as_bytes())
        .expect("it reads all before it writes");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "no YAML: {text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}
