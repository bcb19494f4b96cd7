//! Trace context: a valid trace goes on untouched, in the place of anything else a new one begins, and the access line names it.

use crate::common::{Proxy, Request, Upstream, eventually, executed, key, replayed};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn id(parent: &str) -> String {
    let parts: Vec<&str> = parent.split('-').collect();
    let hexadecimal = |part: &str| {
        part.bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    assert!(
        parts.iter().all(|part| hexadecimal(part))
            && parts.iter().map(|part| part.len()).eq([2, 32, 16, 2]),
        "{parent}"
    );
    assert_eq!((parts[0], parts[3]), ("00", "00"), "{parent}");
    assert!(parts[1].contains(|c| c != '0') && parts[2].contains(|c| c != '0'));
    parts[1].to_owned()
}

#[test]
fn a_valid_trace_passes_byte_for_byte_keyed_or_not() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    for request in [
        Request::get("/free"),
        Request::write("POST", "/orders"),
        Request::order(&key()),
    ] {
        let request = request
            .header("traceparent", PARENT)
            .header("tracestate", "vendor=1,other=2")
            .header("tracestate", "third=3")
            .header("baggage", "user=7;x, y=%20");
        proxy.send(&request);
        let seen = upstream.last();
        assert_eq!(seen.one("traceparent"), Some(PARENT), "{seen}");
        assert_eq!(seen.all("tracestate"), ["vendor=1,other=2", "third=3"]);
        assert_eq!(seen.one("baggage"), Some("user=7;x, y=%20"));
    }
}

#[test]
fn in_the_place_of_no_trace_or_a_bad_one_a_new_one_begins() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let mut ids = Vec::new();
    for bad in [
        "",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
    ] {
        for request in [Request::get("/free"), Request::order(&key())] {
            let request = request
                .header("traceparent", bad)
                .header("tracestate", "a=1")
                .header("baggage", "kept=1");
            proxy.send(&request);
            let seen = upstream.last();
            ids.push(id(seen.one("traceparent").expect("a trace")));
            assert!(seen.all("tracestate").is_empty(), "{seen}");
            assert_eq!(seen.one("baggage"), Some("kept=1"));
        }
    }
    let twice = Request::get("/free")
        .header("traceparent", PARENT)
        .header("traceparent", PARENT);
    proxy.send(&twice);
    ids.push(id(upstream.last().one("traceparent").expect("a trace")));
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id came twice");
    assert!(!ids.iter().any(|one| one == ID));
}

#[test]
fn the_access_line_names_the_trace() {
    let upstream = Upstream::start();
    let proxy = Proxy::start(&upstream);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let started = id(upstream.only().one("traceparent").expect("a trace"));
    replayed(&proxy.send(&request.header("traceparent", PARENT)), &first);
    proxy.send(&Request::get("/free").header("traceparent", "secret"));
    eventually("three access lines", || {
        proxy.log().matches("\"msg\":\"request\"").count() == 3
    });
    let log = proxy.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .filter(|line| line.contains("\"msg\":\"request\""))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines[0]["trace"], started.as_str());
    assert_eq!(
        (&lines[1]["outcome"], &lines[1]["trace"]),
        (&"hit".into(), &ID.into())
    );
    assert!(lines[2]["trace"].as_str().is_some_and(|id| id.len() == 32));
    assert!(!log.contains("secret"));
}
