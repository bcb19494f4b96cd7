use http::StatusCode;

use super::*;

fn set(entries: &[&str]) -> StatusSet {
    StatusSet::parse(entries).expect("valid entries")
}

fn has(set: &StatusSet, code: u16) -> bool {
    set.contains(StatusCode::from_u16(code).expect("a status"))
}

#[test]
fn statuses_are_read_left_to_right() {
    let kept = set(&["2xx", "4xx", "!429", "!401"]);
    for (code, wanted) in [
        (200, true),
        (299, true),
        (404, true),
        (429, false),
        (401, false),
        (500, false),
    ] {
        assert_eq!(has(&kept, code), wanted, "{code}");
    }
    assert!(has(&set(&["!429", "4xx"]), 429), "what comes later wins");
    assert!(!has(&StatusSet::EMPTY, 200));
}

#[test]
fn what_is_no_status_is_named() {
    for bad in [
        "1xx", "101", "!100", "6xx", "0xx", "99", "600", "2XX", "", "!", "!!200", "+20", "xx",
    ] {
        assert_eq!(StatusSet::parse(&["2xx", bad]), Err(bad.to_owned()));
    }
}

#[test]
fn json_pointers_are_unescaped() {
    let tokens = |text: &str| JsonPointer::parse(text).map(|p| p.tokens().to_vec());
    assert_eq!(tokens(""), Some(vec![]));
    assert_eq!(
        tokens("/a~1b/~0~01/"),
        Some(vec!["a/b".into(), "~~1".into(), String::new()])
    );
    for bad in ["a", "/a~", "/~2"] {
        assert_eq!(tokens(bad), None, "{bad}");
    }
}
