use super::*;

mod random;

fn canonical(text: &str) -> Option<Vec<u8>> {
    json(text.as_bytes(), &[], &[])
}

fn same(first: &str, second: &str) -> bool {
    let form = |text: &str| canonical(text).unwrap_or_else(|| panic!("JSON: {text}"));
    form(first) == form(second)
}

fn pointers(texts: &[&str]) -> Vec<JsonPointer> {
    texts
        .iter()
        .map(|text| JsonPointer::parse(text).expect("a pointer"))
        .collect()
}

#[test]
fn spelling_does_not_count() {
    for (first, second) in [
        (
            r#"{"a":1,"b":{"c":"é","d":[{"x":1,"y":2}]}}"#,
            r#"{"b":{"d":[{"y":2,"x":1}],"c":"é"},"a":1}"#,
        ),
        (r#"{"a":[1,2]}"#, "\t{ \"a\" :\r\n[ 1 , 2 ] } "),
        (
            r#""é\/\u0041\b\f\n\r\t""#,
            r#""\u00e9/A\u0008\u000C\u000a\u000d\u0009""#,
        ),
        (r#""\ud83d\uDE00""#, "\"\u{1f600}\""),
        (r#"{"\u0061":1,"b":2}"#, r#"{"b":2,"a":1}"#),
        ("[1,-0,1e2]", "[1.0,0,100]"),
        ("10e99999999999999999998", "1e99999999999999999999"),
        (r#"{"":{},"a":[]}"#, r#"{"a":[ ],"":{ }}"#),
    ] {
        assert!(same(first, second), "{first} {second}");
    }
}

#[test]
fn meaning_counts() {
    for (first, second) in [
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[[1,2]]"),
        ("[[],[]]", "[[[]]]"),
        (r#"{"a":1}"#, r#"{"a":"1"}"#),
        (r#"{"a":null}"#, "{}"),
        ("[]", "{}"),
        ("null", "false"),
        ("null", "\"null\""),
        ("9007199254740993", "9007199254740992"),
        ("12345678901234567890123", "12345678901234567890124"),
        ("0.1", "0.10000000000000000001"),
        ("1e99999999999999999999", "1e99999999999999999998"),
        ("1", "-1"),
        (r#""a""#, r#""A""#),
        ("\"\u{e9}\"", "\"e\u{301}\""), // composed and decomposed: strings are not normalised
        (r#""1\u0000""#, r#""1""#),
        (r#"{"a":"b"}"#, r#"["a","b"]"#),
        (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
        // What a parser with arbitrary precision takes for a number.
        (r#"{"$serde_json::private::Number":"1"}"#, "1"),
    ] {
        assert!(!same(first, second), "{first} {second}");
    }
}

#[test]
fn a_string_ends_at_its_first_stop_wherever_that_stands() {
    for stop in [b'"', b'\\', 0, 0x1f] {
        for length in 0..40 {
            // What stands beside a stop, and what borrows from its neighbour, is no stop.
            for filler in [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xff] {
                let mut text = vec![filler; length];
                assert_eq!(plain_length(&text), None);
                text.push(stop);
                text.extend([
                    filler, b'"', 0, filler, stop, filler, filler, filler, filler,
                ]);
                assert_eq!(plain_length(&text), Some(length), "{stop} {filler}");
            }
        }
    }
}

#[test]
fn what_is_no_json_is_raw() {
    for bad in [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{'a':1}",
        "{\"a\" 1}",
        "{\"a\":1]",
        "[1}",
        "[1 2]",
        "1 2",
        "{}x",
        "[]]",
        "01",
        "1.",
        ".1",
        "+1",
        "- 1",
        "1e",
        "nul",
        "True",
        "NaN",
        "Infinity",
        "nullx",
        "\"",
        "\"a",
        "\"\\",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\ud800\"",
        "\"\\ud800x\"",
        "\"\\ud800\\n\"",
        "\"\t\"",
        "\"\n\"",
        "\"\u{0}\"",
        "\u{feff}{}",
        "/**/1",
        "\u{a0}1",
        "1\u{c}",
    ] {
        assert_eq!(canonical(bad), None, "{bad:?}");
    }
    for bad in [
        &b"\"\xff\""[..],
        b"\"\xc3\"",
        b"\xef\xbb\xbf{}",
        b"\"\xed\xa0\x80\"",
        b"[1]\0",
    ] {
        assert_eq!(json(bad, &[], &[]), None, "{}", bad.escape_ascii());
    }
}

#[test]
fn a_member_that_comes_twice_is_not_normalised_away() {
    for bad in [
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"a":1}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"b":1,"a":2,"b":3}"#,
        r#"[{"x":{"":1,"y":2,"":3}}]"#,
    ] {
        assert_eq!(canonical(bad), None, "{bad}");
    }
    // Where it does not count either.
    assert_eq!(
        json(br#"{"a":1,"a":2,"b":3}"#, &pointers(&["/a"]), &[]),
        None
    );
    assert_eq!(
        json(br#"{"x":{"a":1,"a":2},"b":3}"#, &[], &pointers(&["/b"])),
        None
    );
    assert!(canonical(r#"{"a":{"a":1},"b":{"a":1}}"#).is_some());
}

#[test]
fn nesting_ends_at_128() {
    let arrays = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let objects = |depth: usize| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
    let mixed = |pairs: usize| "[{\"a\":".repeat(pairs) + "1" + &"}]".repeat(pairs);
    assert!(canonical(&arrays(128)).is_some());
    assert!(canonical(&objects(128)).is_some());
    assert!(canonical(&mixed(64)).is_some());
    assert_eq!(canonical(&arrays(129)), None);
    assert_eq!(canonical(&objects(129)), None);
    assert_eq!(canonical(&format!("[{}]", mixed(64))), None);
    assert_eq!(canonical(&"[".repeat(1_000_000)), None);
    assert!(
        canonical(&format!("[{}1]", "[],".repeat(100_000))).is_some(),
        "depth, not count"
    );
}

#[test]
fn large_objects_are_compared_whole() {
    let object = |first: usize, last: &str| {
        let mut members: Vec<_> = (0..500).map(|at| format!("\"k{at}\":{at}")).collect();
        members.rotate_left(first);
        format!("{{\"z\":{{{},\"k\":{last}}},\"a\":1}}", members.join(","))
    };
    assert!(same(&object(0, "1"), &object(77, "1.0")));
    assert!(!same(&object(0, "1"), &object(0, "2")));
    assert_eq!(
        canonical(&object(0, "1,\"k499\":1")),
        None,
        "a member twice"
    );
    // A digest cannot be put in the place of what it stands for.
    let digest = canonical(&object(0, "1")).expect("JSON");
    assert!(digest.len() < 100);
}

#[test]
fn what_is_ignored_does_not_count() {
    let form = |text: &str| {
        json(
            text.as_bytes(),
            &pointers(&["/sentAt", "/items/1/n", "/nothing/here", "/x~1y", "/tags/0"]),
            &[],
        )
        .expect("JSON")
    };
    for (first, second) in [
        (
            r#"{"id":1,"sentAt":"x"}"#,
            r#"{"sentAt":{"deep":[1]},"id":1}"#,
        ),
        (r#"{"id":1,"sentAt":"x"}"#, r#"{"id":1}"#),
        (
            r#"{"items":[{"n":1},{"n":2,"m":3}]}"#,
            r#"{"items":[{"n":1},{"m":3}]}"#,
        ),
        (r#"{"x/y":1}"#, "{}"),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["c","b"]}"#),
        (r#"{"\u0073entAt":1}"#, "{}"),
    ] {
        assert_eq!(form(first), form(second), "{first} {second}");
    }
    for (first, second) in [
        (r#"{"id":1,"sentAt":"x"}"#, r#"{"id":2,"sentAt":"x"}"#),
        (
            r#"{"items":[{"n":1},{"n":2}]}"#,
            r#"{"items":[{"n":2},{"n":2}]}"#,
        ),
        (r#"{"items":[{"n":1},{}]}"#, r#"{"items":[{"n":1}]}"#),
        (r#"{"items":{"01":{"n":1}}}"#, r#"{"items":{"01":{"n":2}}}"#),
        (r#"{"a":{"sentAt":1}}"#, r#"{"a":{"sentAt":2}}"#),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["a","c"]}"#),
        (r#"{"tags":["a","b"]}"#, r#"{"tags":["b"]}"#),
        (r#"[{"sentAt":1}]"#, r#"[{"sentAt":2}]"#),
    ] {
        assert_ne!(form(first), form(second), "{first} {second}");
    }
    let all = pointers(&[""]);
    assert_eq!(json(b"1", &all, &[]), json(b"[2]", &all, &[]));
    assert_eq!(json(b"1", &all, &[]), Some(vec![]));
    assert_eq!(json(b"[", &all, &[]), None);
}

#[test]
fn only_what_is_chosen_counts() {
    let form = |text: &str| {
        json(
            text.as_bytes(),
            &pointers(&["/order/draft"]),
            &pointers(&["/id", "/order", "/items/0/n", "/items/1/n"]),
        )
        .expect("JSON")
    };
    for (first, second) in [
        (
            r#"{"id":1,"note":"x"}"#,
            r#"{"id":1,"note":"y","more":[{}]}"#,
        ),
        (
            r#"{"order":{"a":1,"draft":1}}"#,
            r#"{"order":{"draft":2,"a":1.0}}"#,
        ),
        (
            r#"{"items":[{"n":1,"m":1},5,7]}"#,
            r#"{"items":[{"n":1},{"x":2}]}"#,
        ),
        (r#"{"items":5}"#, "{}"),
        (r#"{"items":[]}"#, "{}"),
        (r#"{"items":{"0":{"m":1}}}"#, "{}"),
        ("[1]", "2"),
    ] {
        assert_eq!(form(first), form(second), "{first} {second}");
    }
    for (first, second) in [
        (r#"{"id":1}"#, r#"{"id":2}"#),
        (r#"{"id":1}"#, "{}"),
        (r#"{"order":{"a":1}}"#, r#"{"order":{"b":1}}"#),
        (r#"{"order":{}}"#, "{}"),
        (r#"{"items":[{"n":1},{}]}"#, r#"{"items":[{},{"n":1}]}"#),
        (r#"{"items":[{"n":1}]}"#, r#"{"items":[{"n":2}]}"#),
    ] {
        assert_ne!(form(first), form(second), "{first} {second}");
    }
    let whole = pointers(&["", "/a"]);
    assert_eq!(json(br#"{"b":1}"#, &[], &whole), canonical(r#"{"b":1}"#));
}

#[test]
fn hostile_documents_cost_no_more_than_their_size() {
    let members = |count: usize| {
        (0..count)
            .rev()
            .map(|at| format!("\"{at}\":{at}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let nested =
        "{\"b\":".repeat(127) + &format!("{{{}}}", members(40_000)) + &",\"a\":1}".repeat(127);
    for text in [
        format!("{{{}}}", members(60_000)),
        nested,
        format!(
            "[{}1]",
            "{\"b\":{\"b\":{\"b\":1,\"a\":1},\"a\":1},\"a\":1},".repeat(20_000)
        ),
        format!("\"{}\"", "\\u0041".repeat(170_000)),
        format!("\"{}\"", "\\\\".repeat(500_000)),
        format!(
            "[{}1]",
            "1e-99999999999999999999999999999999999999999,".repeat(20_000)
        ),
        format!("1{}e-{}", "0".repeat(500_000), "9".repeat(500_000)),
        format!("[{}[]]", "[],".repeat(300_000)),
    ] {
        assert!(canonical(&text).is_some());
        // The form is not larger than a small multiple of the text.
        assert!(canonical(&text).expect("JSON").len() <= text.len() + text.len() / 2 + 64);
    }
}
