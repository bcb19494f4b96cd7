//! The unit for systemd: systemd reads it without a word, and it gives a drain its time.

use std::time::Duration;

use idem_proxy::config;

use crate::{
    markdown::file,
    tools::{program, succeeds},
};

const UNIT: &str = "deploy/systemd/idem-proxy.service";

/// The one value of this key.
fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let mut values = unit
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(values.next(), None, "{key} stands twice");
    value
}

#[test]
fn systemd_takes_it_and_counts_it_as_well_confined() {
    // On a machine that has it nowhere else the binary is the one that was built.
    let unit = file(UNIT).replace(
        "/usr/local/bin/idem-proxy ",
        concat!(env!("CARGO_BIN_EXE_idem-proxy"), " "),
    );
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("idem-proxy.service");
    std::fs::write(&path, unit).expect("written");
    let mut analyze = program("systemd-analyze");
    analyze.args(["verify", "--man=no"]).arg(&path);
    let output = analyze.output().expect("systemd-analyze starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("idem-proxy.service"), "{said}");
    // In tenths: below 2.0 it says "OK", 9.6 is a unit that confines nothing.
    succeeds(
        program("systemd-analyze")
            .args(["security", "--offline=yes", "--threshold=20", "--no-pager"])
            .arg(&path),
    );
}

#[test]
fn its_times_and_commands_fit_the_proxy() {
    let unit = file(UNIT);
    let start = value(&unit, "ExecStart");
    assert_eq!(value(&unit, "ExecStartPre"), format!("{start} --check"));
    assert_eq!(value(&unit, "ExecReload"), "/bin/kill -HUP $MAINPID");
    let config = config::parse(
        "defaults",
        "[upstream]\nurl = \"http://127.0.0.1:3000\"\n",
        [],
    );
    let server = config.loaded().expect("valid").config.server;
    let stop = value(&unit, "TimeoutStopSec").trim_end_matches('s');
    let stop = Duration::from_secs(stop.parse().expect("seconds"));
    assert!(stop > server.drain_delay + server.drain_timeout, "{stop:?}");
    let files: usize = value(&unit, "LimitNOFILE").parse().expect("a number");
    assert!(files > 2 * server.max_connections, "{files}");
}
