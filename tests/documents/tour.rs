//! The README's tour, taken: the demo is started, asked what the README asks, and must answer what the README shows.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use idem_proxy::demo::Ports;

use crate::markdown::{blocks, file};

/// The demo as a process; it ends with the test.
pub(crate) struct Demo {
    process: Child,
    pub(crate) proxy: String,
    pub(crate) admin: String,
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has noticed then.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn try_demo() -> Option<Demo> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_idem-proxy"))
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the demo starts");
    let told = BufReader::new(process.stdout.take().expect("its output"));
    let mut demo = Demo {
        process,
        proxy: String::new(),
        admin: String::new(),
    };
    let address = |line: &str| {
        let rest = line.split_once("http://").expect("an address").1;
        rest.split(['/', ' '])
            .next()
            .expect("an address")
            .to_owned()
    };
    for line in told.lines() {
        let line = line.expect("text");
        if line.contains("in front of it") {
            demo.proxy = address(&line);
        } else if line.contains("metrics and health") {
            demo.admin = address(&line);
        } else if line.starts_with("Ctrl-C") {
            break;
        }
    }
    (!demo.proxy.is_empty() && !demo.admin.is_empty()).then_some(demo)
}

/// A port that was free when the demo chose it may be gone when it binds it; then another demo may have more luck.
pub(crate) fn demo() -> Demo {
    (0..5)
        .find_map(|_| try_demo())
        .expect("a demo that does not end early")
}

/// Sends one request on a connection of its own; the answer whole.
pub(crate) fn ask(address: &str, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("a time-out");
    let request = format!("{head}\r\nHost: {address}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The request that a `curl` line of the tour makes.
fn pay(demo: &Demo, curl: &str) -> String {
    let quoted: Vec<&str> = curl.split('\'').skip(1).step_by(2).collect();
    let [authorization, key, body] = quoted[..] else {
        panic!("{curl}")
    };
    let length = body.len();
    let head = format!(
        "POST /payments HTTP/1.1\r\n{authorization}\r\n{key}\r\nContent-Type: application/json\r\nContent-Length: {length}"
    );
    ask(&demo.proxy, &head, body)
}

/// Head lines in any order, without those that differ from one run or connection to the next; then the body.
fn comparable(answer: &str) -> (Vec<String>, String) {
    let answer = answer.replace("\r\n", "\n");
    let (head, body) = answer.split_once("\n\n").expect("a head");
    let mut lines: Vec<String> = head
        .lines()
        .filter(|line| !line.starts_with("date:") && !line.starts_with("connection:"))
        .map(str::to_owned)
        .collect();
    lines.sort_unstable();
    (lines, body.trim_end().to_owned())
}

#[test]
fn the_demo_answers_what_the_readme_shows() {
    let printed = Ports {
        proxy: 8080,
        admin: 9090,
        upstream: 3000,
    }
    .tour();
    for (document, shown) in [("README.md", 4), ("docs/getting-started.md", 3)] {
        let text = file(document);
        let found = blocks(&text, "console");
        assert_eq!(found.len(), shown, "{document}");
        take(&found, &printed);
    }
}

/// Asks a demo of its own what these blocks ask, in their order.
fn take(blocks: &[&str], printed: &str) {
    let demo = demo();
    let mut payments = 0;
    for block in blocks {
        let (command, shown) = block.split_once('\n').expect("a command and its answer");
        let command = command.strip_prefix("$ ").expect("a command");
        if command.contains("/payments") {
            assert!(
                printed.contains(command),
                "the demo prints another command than {command}"
            );
            let answer = pay(&demo, command);
            assert_eq!(comparable(&answer), comparable(shown), "{command}");
            payments += 1;
        } else {
            let (_, filter) = command.split_once("/metrics | ").expect("what is wanted");
            let wanted = filter
                .strip_prefix("grep -v ' 0$' | grep ")
                .expect("filters");
            let metrics = ask(&demo.admin, "GET /metrics HTTP/1.1", "");
            let found: Vec<&str> = metrics
                .lines()
                .filter(|line| !line.ends_with(" 0") && line.contains(wanted))
                .collect();
            assert_eq!(found.join("\n"), shown.trim_end(), "{command}");
        }
    }
    assert_eq!(payments, 3);
}

#[test]
fn the_record_that_documents_settle_is_that_of_the_fourth_request() {
    let printed = Ports {
        proxy: 8080,
        admin: 9090,
        upstream: 3000,
    }
    .tour();
    let lost = printed
        .lines()
        .rfind(|line| line.starts_with("curl "))
        .expect("a request");
    let guide = file("docs/getting-started.md");
    assert!(
        guide.lines().any(|line| line == lost),
        "{lost} is not in it"
    );
    let demo = demo();
    let answer = pay(&demo, lost);
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    let (_, record) = answer.split_once("\"record\":\"").expect("a record");
    let record = record.split('"').next().expect("an id");
    for document in ["README.md", "docs/operations.md"] {
        let text = file(document);
        let ids = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once("idem-proxy records resolve ")?;
            let id = rest.split(' ').next()?;
            id.starts_with(|c: char| c.is_ascii_digit()).then_some(id)
        });
        let ids: Vec<&str> = ids.collect();
        assert_eq!(ids, [record, record], "{document}");
    }
}
