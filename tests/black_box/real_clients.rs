//! Clients that others wrote, unmodified: what they send and how they retry is theirs.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::common::{PATIENCE, Proxy, Upstream, reply};

mod ec2;
mod gocardless;
mod stripe;
mod svix;
mod websocket;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What Stripe's API would answer, as far as its client looks.
const PAYMENT: &str = r#"{"id":"pi_1","object":"payment_intent","amount":1200,"currency":"eur","status":"succeeded"}"#;

/// The language a client is written for.
#[derive(Debug, Clone, Copy)]
enum Language {
    Python,
    Node,
}

/// A program that runs one of the clients, in an environment that has nothing of the machine's own. It ends with its
/// value, and by itself within a minute.
#[derive(Debug)]
struct Program {
    child: Option<Child>,
    called: String,
    /// Its home: some clients keep files there.
    _home: TempDir,
}

impl Program {
    /// Starts `script` of `tests/black_box/real_clients` against the proxy; `calls` are its further arguments.
    fn start(language: Language, script: &str, proxy: &Proxy, calls: &[&str]) -> Self {
        let place = installed();
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut command = match language {
            Language::Python => Command::new(place.join("venv/bin/python")),
            Language::Node => Command::new("node"),
        };
        command
            .arg(folder().join(script))
            .arg(format!("http://{}", proxy.address()))
            .args(calls)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home.path())
            .env("NODE_PATH", place.join("node_modules"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn();
        Self {
            child: Some(child.unwrap_or_else(|error| panic!("{command:?}: {error}"))),
            called: format!("{script} {calls:?}"),
            _home: home,
        }
    }

    /// Runs it to its end; the lines it printed.
    fn run(language: Language, script: &str, proxy: &Proxy, calls: &[&str]) -> Vec<String> {
        Self::start(language, script, proxy, calls).lines()
    }

    /// Waits for its end, which has to be a success; the lines it printed, which fit into a pipe.
    fn lines(mut self) -> Vec<String> {
        let mut child = self.child.take().expect("it is waited for once");
        let until = Instant::now() + PATIENCE * 2;
        let late = loop {
            match child.try_wait().expect("the child is ours") {
                Some(_) => break false,
                None if Instant::now() > until => break child.kill().is_ok(),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let output = child.wait_with_output().expect("it has ended");
        let said = both(&output);
        assert!(!late, "{} does not end: {said}", self.called);
        assert!(output.status.success(), "{}: {said}", self.called);
        let printed = String::from_utf8_lossy(&output.stdout);
        printed.lines().map(str::to_owned).collect()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where the programs are.
fn folder() -> PathBuf {
    Path::new(ROOT).join("tests/black_box/real_clients")
}

/// Where the clients are; they are installed once, under `target/`.
fn installed() -> PathBuf {
    let mut command = Command::new(Path::new(ROOT).join("scripts/real-clients"));
    let output = command.stdin(Stdio::null()).output();
    let output = output.expect("the script starts");
    assert!(
        output.status.success(),
        "the clients are not installed: {}",
        both(&output)
    );
    String::from_utf8_lossy(&output.stdout).trim().into()
}

fn both(output: &Output) -> String {
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_stripe_payment_whose_first_try_times_out_is_made_once() {
    let upstream = Upstream::start();
    let settings =
        "[[route]]\nname = 'stripe'\nmethods = ['POST']\npath = '/v1/{*rest}'\nkey = 'required'";
    let proxy = Proxy::with(&upstream, settings);
    let customer = r#"{"id":"cus_1","object":"customer"}"#;
    upstream.then(reply(200).body(customer).header("Request-Id", "req_1"));
    // The payment's answer is held back until the client has given up once and asked again.
    let gate = upstream.hold(reply(200).body(PAYMENT));
    let client = Program::start(Language::Python, "stripe_payment.py", &proxy, &[]);
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    assert_eq!(client.lines(), ["cus_1 pi_1 1200 succeeded"]);
    let seen = upstream.seen();
    let targets: Vec<_> = seen.iter().map(|seen| seen.target.as_str()).collect();
    assert_eq!(
        targets,
        ["/v1/customers", "/v1/payment_intents"],
        "the payment was made more than once"
    );
    assert!(
        seen[1]
            .one("Idempotency-Key")
            .is_some_and(|key| !key.is_empty())
    );
    assert!(
        seen[1].one("X-Stripe-Client-Telemetry").is_some(),
        "{}",
        seen[1]
    );
    assert_eq!(
        seen[1].one("Content-Type"),
        Some("application/x-www-form-urlencoded")
    );
    proxy.await_metric(
        "idem_proxy_records_settled_total",
        &[("as", "complete")],
        2.0,
    );
    proxy.await_metric(
        "idem_proxy_requests_total",
        &[("route", "stripe"), ("outcome", "joined")],
        1.0,
    );
}
