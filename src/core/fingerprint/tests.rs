use http::HeaderValue;
use proptest::prelude::*;

use super::*;

mod bodies;

/// The defaults of the contract, section 3.
fn rule() -> FingerprintRule {
    FingerprintRule {
        method: true,
        path: true,
        query: QueryMode::Exact,
        headers: vec![header::CONTENT_TYPE],
        body: BodyMode::Auto,
        ignore: vec![],
        only: vec![],
    }
}

fn with(change: impl FnOnce(&mut FingerprintRule)) -> Arc<FingerprintRule> {
    let mut changed = rule();
    change(&mut changed);
    Arc::new(changed)
}

/// A request as these tests vary it.
#[derive(Clone)]
struct Request {
    method: Method,
    path: &'static str,
    query: Option<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
}

fn json(body: &str) -> Request {
    typed("application/json", body)
}

fn typed(content_type: &'static str, body: &str) -> Request {
    Request {
        method: Method::POST,
        path: "/orders",
        query: None,
        headers: vec![("content-type", content_type)],
        body: body.as_bytes().to_vec(),
    }
}

impl Request {
    fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    fn query(mut self, query: &'static str) -> Self {
        self.query = Some(query);
        self
    }

    fn print(&self, rule: &Arc<FingerprintRule>) -> Fingerprint {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(*name, HeaderValue::from_static(value));
        }
        Fingerprint::new(
            rule,
            &self.method,
            self.path,
            self.query,
            &headers,
            self.body.clone().into(),
        )
    }
}

/// Whether two requests are the same, asked in every way there is: all must agree.
fn same(rule: &Arc<FingerprintRule>, first: &Request, second: &Request) -> bool {
    let print = |request: &Request| request.print(rule);
    let answers = [
        print(first).same_as(&print(second)),
        print(second).same_as(&print(first)),
        print(first).matches(&print(second).digests()),
        print(second).matches(&print(first).digests()),
    ];
    assert!(
        answers.iter().all(|answer| *answer == answers[0]),
        "{answers:?}"
    );
    let equal_bytes = print(first).exact == print(second).exact;
    assert!(
        answers[0] || !equal_bytes,
        "equal bytes are the same request"
    );
    answers[0]
}

#[test]
fn the_media_type_counts_and_its_parameters_do_not() {
    let rule = with(|_| ());
    let plain = json("{}");
    assert!(same(
        &rule,
        &plain,
        &typed("application/json; charset=utf-8", "{}")
    ));
    assert!(same(&rule, &plain, &typed(" Application/JSON ", "{}")));
    assert!(!same(&rule, &plain, &typed("text/plain", "{}")));
    let mut untyped = plain.clone();
    untyped.headers.clear();
    assert!(!same(&rule, &plain, &untyped));
    assert!(same(&with(|r| r.headers.clear()), &plain, &untyped));
    assert!(!same(&rule, &untyped, &typed("", "{}")));
}

#[test]
fn the_query_counts_exactly_sorted_or_not_at_all() {
    let by = |mode| with(|r| r.query = mode);
    let (plain, moved, other) = (
        json("{}").query("a=1&b=2"),
        json("{ }").query("b=2&a=1"),
        json("{}").query("a=1&b=3"),
    );
    for (mode, when_moved, when_other) in [
        (QueryMode::Exact, false, false),
        (QueryMode::Sorted, true, false),
        (QueryMode::Off, true, true),
    ] {
        assert_eq!(same(&by(mode), &plain, &moved), when_moved, "{mode:?}");
        assert_eq!(same(&by(mode), &plain, &other), when_other, "{mode:?}");
    }
    let sorted = by(QueryMode::Sorted);
    assert!(!same(
        &sorted,
        &json("").query("a=1&a=2"),
        &json("").query("a=2&a=1")
    ));
    // The body counts in every mode beside a query that is moved.
    for body in [BodyMode::Raw, BodyMode::Auto, BodyMode::Off, BodyMode::Form] {
        let rule = with(|r| (r.query, r.body) = (QueryMode::Sorted, body));
        let (first, second) = (
            typed("text/plain", "x=%").query("b&a"),
            typed("text/plain", "x=%").query("a&b"),
        );
        let third = typed("text/plain", "x=%y").query("a&b");
        assert!(same(&rule, &first, &second), "{body:?}");
        assert_eq!(
            same(&rule, &first, &third),
            body == BodyMode::Off,
            "{body:?}"
        );
    }
    // An empty query is not the same as none, unless queries do not count.
    for mode in [QueryMode::Exact, QueryMode::Sorted, QueryMode::Off] {
        assert_eq!(
            same(&by(mode), &json("{}").query(""), &json("{}")),
            mode == QueryMode::Off
        );
    }
}

#[test]
fn method_and_path_count_unless_switched_off() {
    let first = json("{}");
    let (mut patch, mut elsewhere) = (first.clone(), first.clone());
    patch.method = Method::PATCH;
    elsewhere.path = "/orders/1";
    let (on, off) = (with(|_| ()), with(|r| (r.method, r.path) = (false, false)));
    for other in [patch, elsewhere] {
        assert!(!same(&on, &first, &other));
        assert!(same(&off, &first, &other));
    }
}

#[test]
fn only_chosen_headers_count_with_every_line() {
    let rule = with(|_| ());
    assert!(same(
        &rule,
        &json("{}").header("user-agent", "a"),
        &json("{}").header("user-agent", "b").header("x-retry", "1")
    ));
    let chosen = |names: &[&'static str]| {
        let names = names
            .iter()
            .map(|name| HeaderName::from_static(name))
            .collect();
        with(|r| r.headers = names)
    };
    let (rule, turned) = (chosen(&["x-a", "x-b"]), chosen(&["x-b", "x-a", "x-a"]));
    let first = json("{}").header("x-a", "1").header("x-b", "2");
    assert!(same(
        &rule,
        &first,
        &json("{}").header("x-b", "2").header("x-a", "1")
    ));
    assert_eq!(
        first.print(&rule).digests(),
        first.print(&turned).digests(),
        "the order of the configuration"
    );
    for other in [
        json("{}").header("x-a", "1"),
        json("{}").header("x-a", "12").header("x-b", ""),
        json("{}").header("x-a", "1").header("x-a", "2"),
        json("{}")
            .header("x-a", "1")
            .header("x-b", "2")
            .header("x-b", "2"),
        json("{}").header("x-a", "2").header("x-b", "1"),
    ] {
        assert!(!same(&rule, &first, &other));
    }
    let lines = |pair: [&'static str; 2]| json("{}").header("x-a", pair[0]).header("x-a", pair[1]);
    assert!(!same(&rule, &lines(["1", "2"]), &lines(["2", "1"])));
    assert!(!same(
        &rule,
        &lines(["1", "2"]),
        &json("{}").header("x-a", "1, 2")
    ));
}

#[test]
fn credentials_and_framing_never_count() {
    let all = with(|r| {
        r.headers = vec![
            header::AUTHORIZATION,
            header::CONTENT_LENGTH,
            header::TRANSFER_ENCODING,
        ];
    });
    let plain = json("{}");
    for other in [
        json("{}").header("authorization", "Bearer a"),
        json("{}").header("content-length", "2"),
        json("{}").header("transfer-encoding", "chunked"),
    ] {
        assert!(same(&all, &plain, &other));
    }
}

#[test]
fn parts_cannot_be_shifted_into_each_other() {
    let rule = with(|r| r.body = BodyMode::Raw);
    let make = |path, query, body: &str| Request {
        path,
        query: Some(query),
        ..typed("text/plain", body)
    };
    let requests = [
        make("/a", "b", "c"),
        make("/ab", "", "c"),
        make("/a", "bc", ""),
        make("/a", "", "bc"),
    ];
    for (at, first) in requests.iter().enumerate() {
        for second in &requests[..at] {
            assert!(!same(&rule, first, second));
        }
    }
}

#[test]
fn every_byte_of_a_large_body_counts() {
    let rule = with(|_| ());
    let mut first = typed("application/octet-stream", "");
    first.body = vec![b'x'; 700 << 10];
    let mut second = first.clone();
    *second.body.last_mut().expect("a body") = b'y';
    assert!(!same(&rule, &first, &second));
    second.body.pop();
    assert!(!same(&rule, &first, &second), "a prefix");
}

#[test]
fn nothing_is_hashed_twice_where_the_request_is_its_own_normal_form() {
    let forms = [
        (with(|r| r.body = BodyMode::Raw), json("{}")),
        (with(|r| r.body = BodyMode::Off), json("{}")),
        (
            with(|r| r.query = QueryMode::Sorted),
            typed("text/plain", "x").query("a&b"),
        ),
        (with(|_| ()), json("{}").header("content-encoding", "gzip")),
    ];
    for (rule, request) in forms {
        let print = request.print(&rule);
        assert!(print.unread.is_none());
        assert_eq!(print.digests().exact, print.digests().canonical);
    }
    let invalid = json("{").print(&with(|_| ())).digests();
    assert_eq!(invalid.exact, invalid.canonical);
}

#[test]
fn threads_agree_on_the_canonical_digest() {
    let print = json(r#"{"b":1,"a":2}"#).print(&with(|_| ()));
    let other = json(r#"{"a":2,"b":1}"#).print(&with(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(print.same_as(&other)));
            scope.spawn(|| assert!(other.matches(&print.digests())));
        }
    });
}

#[test]
fn the_format_of_today_is_read_by_tomorrow() {
    // Records outlive a build. If this fails, the frames have changed: give `FORMAT` another number.
    let digests = json(r#"{"b":[1.50,"\u00e9"],"a":{}}"#)
        .query("x=1")
        .print(&with(|_| ()))
        .digests();
    let hex = |digest: Digest| {
        digest
            .iter()
            .take(8)
            .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    };
    assert_eq!(
        (hex(digests.exact), hex(digests.canonical)),
        ("6bc13de6db33a0b0".into(), "4bece0b69c03b045".into())
    );
}

#[test]
fn nothing_of_a_request_is_shown() {
    let rule = with(|_| ());
    let headers = HeaderMap::new();
    let present = Present::of(&headers);
    let builder = Builder::new(&rule, &Method::POST, "/secret", None, &headers, present);
    assert_eq!(format!("{builder:?}"), "Builder { hashed: 0, .. }");
    assert_eq!(
        format!("{:?}", builder.finish(Bytes::from_static(b"secret"))),
        "Fingerprint(…)"
    );
}

proptest! {
    #[test]
    fn chunks_do_not_count(body in proptest::collection::vec(any::<u8>(), 0..300), cuts in proptest::collection::vec(0usize..300, 0..6), fed in 0usize..300) {
        for mode in [BodyMode::Auto, BodyMode::Raw, BodyMode::Off, BodyMode::Form] {
            let rule = with(|r| r.body = mode);
            let headers: HeaderMap = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))].into_iter().collect();
            let mut builder = Builder::new(&rule, &Method::POST, "/", None, &headers, Present::of(&headers));
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (body.len() + 1)).filter(|cut| *cut <= fed).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts {
                builder.update(&body[from..cut]);
                from = cut;
            }
            let pieces = builder.finish(body.clone().into());
            let whole = Fingerprint::new(&rule, &Method::POST, "/", None, &headers, body.clone().into());
            prop_assert_eq!(pieces.digests(), whole.digests());
        }
    }

    #[test]
    fn no_request_is_a_surprise(
        body in proptest::collection::vec(any::<u8>(), 0..60),
        content_type in "(application/json|multipart/form-data|; ?|boundary=|a|\"|\\+json){0,5}",
        query in "[ab=&%+]{0,8}",
    ) {
        for mode in [BodyMode::Auto, BodyMode::Json, BodyMode::Form, BodyMode::Multipart, BodyMode::Raw, BodyMode::Off] {
            let rule = with(|r| (r.body, r.query) = (mode, QueryMode::Sorted));
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(&content_type).expect("a header value"));
            let print = Fingerprint::new(&rule, &Method::POST, "/", Some(&query), &headers, body.clone().into());
            prop_assert!(print.matches(&print.digests()));
        }
    }
}
