//! How bodies are read.

use super::*;

#[test]
fn json_is_compared_by_its_meaning() {
    let rule = with(|_| ());
    for (first, second) in [
        (r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1.0 }"#),
        (r#"{"a":1}"#, r#"{"\u0061":1e0}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":1,"a":2}"#),
        ("no json", "no json"),
    ] {
        assert!(same(&rule, &json(first), &json(second)), "{first} {second}");
    }
    for (first, second) in [
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
        (r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#),
        ("", "{}"),
        ("", "null"),
        ("[1", "[1 "),
        ("\u{feff}{}", "{}"),
        ("{}", "{}\u{0}"),
    ] {
        assert!(
            !same(&rule, &json(first), &json(second)),
            "{first} {second}"
        );
    }
    let deep = |depth: usize, inner: &str| "[".repeat(depth) + inner + &"]".repeat(depth);
    assert!(same(&rule, &json(&deep(128, "")), &json(&deep(128, " "))));
    assert!(!same(&rule, &json(&deep(129, "")), &json(&deep(129, " "))));
}

#[test]
fn auto_goes_by_the_media_type() {
    let rule = with(|_| ());
    for content_type in [
        "application/json",
        "APPLICATION/JSON",
        "application/json; charset=utf-8",
        "application/json ;charset=\"utf-8\"",
        "application/problem+json",
        "application/vnd.api+JSON;v=1",
    ] {
        assert!(
            same(
                &rule,
                &typed(content_type, "[1]"),
                &typed(content_type, "[ 1 ]")
            ),
            "{content_type}"
        );
    }
    for content_type in [
        "text/plain",
        "application/jsonl",
        "application/json-seq",
        "text/json",
        "",
        "application/x+jsons",
    ] {
        assert!(
            !same(
                &rule,
                &typed(content_type, "[1]"),
                &typed(content_type, "[ 1 ]")
            ),
            "{content_type}"
        );
    }
    let form = "application/x-www-form-urlencoded";
    assert!(
        !same(&rule, &typed(form, "a=1&b=2"), &typed(form, "b=2&a=1")),
        "a form is raw unless the rule says form"
    );
    // Two types: which one the upstream believes cannot be told.
    let twice = |body| json(body).header("content-type", "application/json");
    assert!(!same(&rule, &twice("[1]"), &twice("[ 1 ]")));
    assert!(same(&rule, &twice("[1]"), &twice("[1]")));
}

#[test]
fn a_compressed_body_counts_as_sent() {
    for body in [BodyMode::Auto, BodyMode::Json, BodyMode::Form] {
        let rule = with(|r| r.body = body);
        for coding in ["gzip", "br", "identity, gzip", "x"] {
            let request = |body| json(body).header("content-encoding", coding);
            assert!(!same(&rule, &request("[1]"), &request("[ 1 ]")), "{coding}");
            assert!(same(&rule, &request("[1]"), &request("[1]")), "{coding}");
        }
    }
    let rule = with(|_| ());
    for coding in ["identity", "Identity", "", " , identity"] {
        let request = |body| json(body).header("content-encoding", coding);
        assert!(same(&rule, &request("[1]"), &request("[ 1 ]")), "{coding}");
    }
}

#[test]
fn multipart_is_compared_without_its_boundary() {
    let body = |boundary: &str, data: &str| {
        format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n{data}\r\n--{boundary}--\r\n"
        )
    };
    let first = typed("multipart/form-data; boundary=aaa", &body("aaa", "hello"));
    let second = typed(
        "Multipart/Form-Data; boundary=\"bbbb\"",
        &body("bbbb", "hello"),
    );
    let mixed = typed("multipart/mixed; boundary=aaa", &body("aaa", "hello"));
    let mixed_again = typed("multipart/mixed; boundary=bbb", &body("bbb", "hello"));
    for rule in [with(|_| ()), with(|r| r.body = BodyMode::Multipart)] {
        assert!(same(&rule, &first, &second));
        assert!(!same(
            &rule,
            &first,
            &typed("multipart/form-data; boundary=aaa", &body("aaa", "hellp"))
        ));
        // What does not parse with its boundary counts byte for byte.
        let broken = typed("multipart/form-data; boundary=zzz", &body("aaa", "hello"));
        assert!(!same(&rule, &first, &broken));
        assert!(same(&rule, &broken, &broken));
        // The same bytes under another boundary are other parts.
        let both = "--a\r\n\r\nx\r\n--b\r\n\r\ny\r\n--a--\r\n--b--\r\n";
        assert!(!same(
            &rule,
            &typed("multipart/form-data; boundary=a", both),
            &typed("multipart/form-data; boundary=b", both)
        ));
        assert!(!same(
            &rule,
            &typed("multipart/form-data", &body("aaa", "x")),
            &typed("multipart/form-data", &body("bbb", "x"))
        ));
    }
    assert!(!same(&with(|_| ()), &mixed, &mixed_again));
    assert!(same(
        &with(|r| r.body = BodyMode::Multipart),
        &mixed,
        &mixed_again
    ));
}

#[test]
fn body_modes_say_how_it_is_read() {
    let form = |body| typed("application/x-www-form-urlencoded", body);
    let by_form = with(|r| r.body = BodyMode::Form);
    assert!(same(&by_form, &form("a=1&b=%41"), &form("b=A&a=1")));
    assert!(!same(&by_form, &form("a=1&b=%41"), &form("a=1&b=B")));
    assert!(!same(&by_form, &form("a=1&a=2"), &form("a=2&a=1")));
    assert!(!same(&by_form, &form("a=%zz&b=1"), &form("b=1&a=%zz")));
    let by_json = with(|r| r.body = BodyMode::Json);
    assert!(same(
        &by_json,
        &typed("text/plain", "[1]"),
        &typed("text/plain", "[ 1 ]")
    ));
    let raw = with(|r| r.body = BodyMode::Raw);
    assert!(!same(&raw, &json("{\"a\":1}"), &json("{\"a\": 1}")));
    let off = with(|r| r.body = BodyMode::Off);
    assert!(same(&off, &json("{\"a\":1}"), &json("")));
    assert!(!same(&off, &json("").query("a"), &json("")));
}

#[test]
fn pointers_choose_what_counts() {
    let pointers = |texts: &[&str]| {
        texts
            .iter()
            .map(|t| JsonPointer::parse(t).expect("a pointer"))
            .collect::<Vec<_>>()
    };
    let ignore = with(|r| r.ignore = pointers(&["/sentAt", "/nothing/here"]));
    assert!(same(
        &ignore,
        &json(r#"{"id":1,"sentAt":"x"}"#),
        &json(r#"{"id":1,"sentAt":"y"}"#)
    ));
    assert!(!same(
        &ignore,
        &json(r#"{"id":1,"sentAt":"x"}"#),
        &json(r#"{"id":2,"sentAt":"x"}"#)
    ));
    assert!(
        !same(
            &ignore,
            &json(r#"{"sentAt":1}x"#),
            &json(r#"{"sentAt":2}x"#)
        ),
        "raw where it is no JSON"
    );
    let only = with(|r| r.only = pointers(&["/id"]));
    assert!(same(
        &only,
        &json(r#"{"id":1,"note":"x"}"#),
        &json(r#"{"id":1,"note":"y"}"#)
    ));
    assert!(!same(&only, &json(r#"{"id":1}"#), &json(r#"{"id":2}"#)));
    // A record that was made under other pointers is not taken for the same by what is left of it.
    let plain = json(r#"{"id":1}"#).print(&with(|_| ()));
    assert!(!plain.matches(&json(r#"{"id":1,"note":"x"}"#).print(&only).digests()));
}
