//! Clients that others wrote, unmodified: what they send and how they retry is theirs.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::common::{Proxy, Upstream, reply};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What Stripe's API would answer, as far as its client looks.
const PAYMENT: &str = r#"{"id":"pi_1","object":"payment_intent","amount":1200,"currency":"eur","status":"succeeded"}"#;

fn finished(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("the command starts");
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&said)
    );
    output
}

/// The Python of an environment that has the clients in it; it is set up once, under `target/`.
fn python() -> String {
    let output = finished(&mut Command::new(
        Path::new(ROOT).join("scripts/real-clients"),
    ));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
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
    let program = Path::new(ROOT).join("tests/black_box/real_clients/stripe_payment.py");
    let mut command = Command::new(python());
    command
        .arg(program)
        .arg(format!("http://{}", proxy.address()));
    let client = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let client = client.expect("python starts");
    gate.arrived();
    proxy.await_metric("idem_proxy_waiters", &[], 1.0);
    gate.open();
    let output = client.wait_with_output().expect("python ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        "cus_1 pi_1 1200 succeeded",
        "{errors}"
    );
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
