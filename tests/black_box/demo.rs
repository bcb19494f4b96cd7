//! `idem-proxy demo`: the three requests that it prints do what it says they do.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

/// A running demo; it ends with the test.
struct Demo {
    process: Child,
    tour: Vec<String>,
}

impl Demo {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_idem-proxy"))
            .arg("demo")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the demo starts");
        let stdout = process.stdout.take().expect("its output");
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let tour = lines
            .take_while(|line| !line.starts_with("Ctrl-C"))
            .collect();
        Self { process, tour }
    }

    /// Runs the `number`th curl line as a person would paste it.
    fn paste(&self, number: usize) -> String {
        let line = self
            .tour
            .iter()
            .filter(|line| line.starts_with("curl "))
            .nth(number);
        let run = Command::new("sh")
            .arg("-c")
            .arg(line.expect("a curl line"))
            .output();
        String::from_utf8(run.expect("curl").stdout).expect("UTF-8")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_payment_its_retry_and_another_body_under_the_same_key() {
    let demo = Demo::start();
    let payment = demo.paste(0);
    assert!(payment.starts_with("HTTP/1.1 201 "), "{payment}");
    assert!(
        payment.contains("\r\nidempotency-key-reply: miss\r\n"),
        "{payment}"
    );
    assert!(payment.contains(r#""id":"pay_1""#), "{payment}");

    let retry = demo.paste(1);
    assert!(retry.starts_with("HTTP/1.1 201 "), "{retry}");
    assert!(
        retry.contains("\r\nidempotency-key-reply: hit\r\n"),
        "{retry}"
    );
    assert!(retry.contains(r#""id":"pay_1""#), "{retry}");

    let other = demo.paste(2);
    assert!(other.starts_with("HTTP/1.1 422 "), "{other}");
    assert!(
        other.contains("urn:idem-proxy:problem:key-reused"),
        "{other}"
    );
}

#[test]
fn a_demo_has_nothing_to_reload_and_goes_on() {
    let demo = Demo::start();
    let script = format!("kill -HUP {}", demo.process.id());
    for _ in 0..3 {
        let done = Command::new("sh").args(["-c", &script]).status();
        assert!(done.is_ok_and(|status| status.success()), "{script}");
    }
    assert!(demo.paste(0).starts_with("HTTP/1.1 201 "));
}

#[test]
fn two_demos_run_side_by_side() {
    let (one, two) = (Demo::start(), Demo::start());
    for demo in [&one, &two] {
        assert!(demo.paste(0).contains(r#""id":"pay_1""#));
    }
    let address = |demo: &Demo| {
        demo.tour
            .iter()
            .find(|line| line.contains("idem-proxy in front"))
            .cloned()
    };
    assert_ne!(address(&one), address(&two));
}
