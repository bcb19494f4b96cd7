use http::{HeaderName, HeaderValue};
use proptest::prelude::*;

use super::*;
use crate::core::claims::{ClaimPath, Expected};

fn rule(from: &[CallerPart], missing: MissingCaller) -> Identity {
    Identity {
        from: from.to_vec(),
        missing,
        jwt: None,
    }
}

fn named(name: &'static str) -> CallerPart {
    CallerPart::Header(HeaderName::from_static(name))
}

fn lines(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        map.append(
            *name,
            HeaderValue::from_bytes(value.as_bytes()).expect("a header value"),
        );
    }
    map
}

fn strict(
    from: &[CallerPart],
    headers: &[(&'static str, &str)],
) -> Result<CallerId, CallerMissing> {
    identify(
        &rule(from, MissingCaller::Reject),
        &lines(headers),
        &Peer::default(),
        &Token::Absent,
    )
}

fn lenient(
    from: &[CallerPart],
    headers: &[(&'static str, &str)],
) -> Result<CallerId, CallerMissing> {
    identify(
        &rule(from, MissingCaller::Anonymous),
        &lines(headers),
        &Peer::default(),
        &Token::Absent,
    )
}

#[test]
fn the_scheme_has_no_letter_case_and_the_credential_has() {
    let caller = |value| {
        strict(&[CallerPart::Authorization], &[("authorization", value)]).expect("a caller")
    };
    let bearer = caller("Bearer a");
    assert_eq!(caller("bearer a"), bearer);
    assert_eq!(caller("BEARER a"), bearer);
    assert_eq!(
        caller(" Bearer a "),
        bearer,
        "white space around the value is no part of it"
    );
    for other in [
        "Bearer A",
        "Bearer b",
        "Basic a",
        "Bearer  a",
        "Bearera",
        "Bearer a b",
        "a",
        "A",
    ] {
        assert_ne!(caller(other), bearer, "{other}");
    }
    assert_ne!(caller("KEY"), caller("key"), "a bare token has no scheme");
}

#[test]
fn an_absent_or_empty_part_is_no_caller() {
    let parts = [CallerPart::Authorization, named("x-tenant")];
    assert_eq!(
        strict(&parts, &[("authorization", "Bearer a")]),
        Err(CallerMissing)
    );
    assert_eq!(
        strict(&parts, &[("authorization", "Bearer a"), ("x-tenant", " ")]),
        Err(CallerMissing)
    );
    assert_eq!(
        strict(&parts, &[("authorization", ""), ("x-tenant", "t")]),
        Err(CallerMissing)
    );
    assert_eq!(strict(&[CallerPart::PeerIp], &[]), Err(CallerMissing));
    assert!(strict(&parts, &[("authorization", "Bearer a"), ("x-tenant", "t")]).is_ok());
}

#[test]
fn anonymous_callers_share_one_scope_and_no_others() {
    let parts = [CallerPart::Authorization, named("x-tenant")];
    let nobody = lenient(&parts, &[]).expect("anonymous");
    assert_eq!(
        lenient(&parts, &[("authorization", ""), ("x-tenant", "")]),
        Ok(nobody)
    );
    assert_eq!(
        lenient(&parts, &[("x-tenant", ""), ("x-tenant", "")]),
        Ok(nobody)
    );
    let tenant = lenient(&parts, &[("x-tenant", "t")]).expect("a caller");
    assert_ne!(tenant, nobody, "the part that is there still counts");
    assert_ne!(lenient(&parts, &[("authorization", "t")]), Ok(tenant));
    // Where nothing is missing, `missing` changes nothing.
    let both = [("authorization", "Bearer a"), ("x-tenant", "t")];
    assert_eq!(lenient(&parts, &both), strict(&parts, &both));
}

#[test]
fn parts_cannot_be_shifted_into_each_other() {
    let parts = [named("x-tenant"), named("x-user")];
    let pair = |tenant: &str, user: &str| strict(&parts, &[("x-tenant", tenant), ("x-user", user)]);
    assert_ne!(pair("a:b", "c"), pair("a", "b:c"));
    assert_ne!(pair("ab", "c"), pair("a", "bc"));
    assert_ne!(pair("a", "b"), pair("b", "a"));
}

#[test]
fn configurations_do_not_meet() {
    let headers = [
        ("x-a", "v"),
        ("x-b", "v"),
        ("cookie", "x-a=v"),
        ("authorization", "v"),
    ];
    let rules: [&[CallerPart]; 7] = [
        &[],
        &[named("x-a")],
        &[named("x-b")],
        &[CallerPart::Cookie("x-a".into())],
        &[CallerPart::Authorization],
        &[named("authorization")],
        &[named("x-a"), named("x-b")],
    ];
    let mut seen = std::collections::HashSet::new();
    for rule in rules {
        assert!(
            seen.insert(strict(rule, &headers).expect("a caller")),
            "{rule:?}"
        );
    }
    assert_eq!(
        strict(&[], &[]),
        strict(&[], &headers),
        "without parts all share one scope"
    );
}

#[test]
fn every_line_of_a_header_counts() {
    let parts = [named("x-user")];
    let one = strict(&parts, &[("x-user", "a")]);
    for several in [["a", "b"], ["b", "a"], ["a", "a"], ["a", ""], ["", "a"]] {
        let two = strict(&parts, &[("x-user", several[0]), ("x-user", several[1])]);
        assert!(two.is_ok());
        assert_ne!(two, one, "{several:?}");
    }
    assert_ne!(
        strict(&parts, &[("x-user", "a, b")]),
        strict(&parts, &[("x-user", "a"), ("x-user", "b")])
    );
    assert_eq!(
        strict(&parts, &[("x-user", ""), ("x-user", "")]),
        Err(CallerMissing)
    );
}

#[test]
fn a_cookie_is_found_among_others_and_refused_when_it_comes_twice() {
    let parts = [CallerPart::Cookie("sid".into())];
    let one = strict(&parts, &[("cookie", "sid=a=b")]).expect("a caller");
    for (same, headers) in [
        ("in the middle", vec![("cookie", "x=1; sid=a=b; y=2")]),
        ("without spaces", vec![("cookie", "x=1;sid=a=b;;flag")]),
        (
            "on a line of its own",
            vec![("cookie", "x=1"), ("cookie", " sid = a=b ")],
        ),
        (
            "beside other letter cases",
            vec![("cookie", "SID=z; sid=a=b; xsid=z; sid2=z")],
        ),
    ] {
        assert_eq!(strict(&parts, &headers), Ok(one), "{same}");
    }
    assert_ne!(strict(&parts, &[("cookie", "sid=\"a=b\"")]), Ok(one));
    for missing in ["x=1", "sid=", "sid", "SID=a"] {
        assert_eq!(
            strict(&parts, &[("cookie", missing)]),
            Err(CallerMissing),
            "{missing}"
        );
        assert_eq!(
            lenient(&parts, &[("cookie", missing)]),
            lenient(&parts, &[]),
            "{missing}"
        );
    }
    for twice in ["sid=a; sid=b", "sid=a; sid=a", "sid=; sid=a"] {
        assert_eq!(
            strict(&parts, &[("cookie", twice)]),
            Err(CallerMissing),
            "{twice}"
        );
        assert_eq!(
            lenient(&parts, &[("cookie", twice)]),
            Err(CallerMissing),
            "{twice}"
        );
    }
    assert_eq!(
        lenient(&parts, &[("cookie", "sid=a"), ("cookie", "sid=a")]),
        Err(CallerMissing)
    );
}

#[test]
fn an_address_is_one_caller_in_both_spellings() {
    let caller = |address: &str| {
        let peer = Peer {
            address: Some(address.parse().expect("an address")),
            certificate: None,
        };
        identify(
            &rule(&[CallerPart::PeerIp], MissingCaller::Reject),
            &HeaderMap::new(),
            &peer,
            &Token::Absent,
        )
    };
    assert_eq!(caller("192.0.2.1"), caller("::ffff:192.0.2.1"));
    assert_ne!(caller("192.0.2.1"), caller("192.0.2.2"));
    assert_ne!(caller("::1"), caller("::2"));
}

#[test]
fn a_certificate_that_names_nobody_is_refused_and_a_missing_one_is_as_configured() {
    let caller = |certificate: Option<&Certified>, missing| {
        let peer = Peer {
            address: None,
            certificate,
        };
        identify(
            &rule(&[CallerPart::ClientCert], missing),
            &HeaderMap::new(),
            &peer,
            &Token::Absent,
        )
    };
    let unclear = Some(&Certified::Unclear);
    for missing in [MissingCaller::Reject, MissingCaller::Anonymous] {
        assert_eq!(caller(unclear, missing), Err(CallerMissing));
    }
    assert_eq!(caller(None, MissingCaller::Reject), Err(CallerMissing));
    assert!(caller(None, MissingCaller::Anonymous).is_ok());
}

#[test]
fn the_client_is_the_right_most_address_that_is_not_trusted() {
    let trusted: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"]
        .map(|net| net.parse().expect("a network"))
        .to_vec();
    let client = |peer: &str, forwarded: &[&'static str]| {
        let headers: Vec<_> = forwarded
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        let peer = peer.parse().expect("an address");
        client_address(Some(peer), &lines(&headers), &trusted).map(|address| address.to_string())
    };
    for (peer, forwarded, wanted) in [
        ("192.0.2.9", &["203.0.113.1"][..], Some("192.0.2.9")), // not trusted: it is the client
        ("10.0.0.1", &[], Some("10.0.0.1")),
        ("10.0.0.1", &["203.0.113.1"], Some("203.0.113.1")),
        (
            "10.0.0.1",
            &["198.51.100.7, 203.0.113.1"],
            Some("203.0.113.1"),
        ), // the left one is hearsay
        (
            "10.0.0.1",
            &["198.51.100.7, 203.0.113.1, 10.0.0.2"],
            Some("203.0.113.1"),
        ),
        (
            "10.0.0.1",
            &["198.51.100.7", "203.0.113.1", "10.0.0.2 ,10.0.0.3"],
            Some("203.0.113.1"),
        ),
        ("10.0.0.1", &["10.1.1.1, 10.0.0.2"], Some("10.1.1.1")), // all trusted: the left-most
        ("10.0.0.1", &["unknown"], None),
        ("10.0.0.1", &["203.0.113.1, unknown"], None),
        ("10.0.0.1", &["unknown, 203.0.113.1"], Some("203.0.113.1")),
        ("10.0.0.1", &["203.0.113.1,, ", ""], Some("203.0.113.1")),
        ("10.0.0.1", &["203.0.113.1:4711"], Some("203.0.113.1")),
        ("10.0.0.1", &["[2001:db8::1]:4711"], Some("2001:db8::1")),
        ("10.0.0.1", &["[2001:db8::1]"], Some("2001:db8::1")),
        ("10.0.0.1", &["2001:db8::1"], Some("2001:db8::1")),
        (
            "::ffff:10.0.0.1",
            &["::ffff:203.0.113.1"],
            Some("203.0.113.1"),
        ),
        ("fd00::1", &["203.0.113.1"], Some("203.0.113.1")),
        ("10.0.0.1", &["203.0.113.1 203.0.113.2"], None),
    ] {
        assert_eq!(
            client(peer, forwarded).as_deref(),
            wanted,
            "{peer} {forwarded:?}"
        );
    }
    assert_eq!(
        client_address(
            None,
            &lines(&[("x-forwarded-for", "203.0.113.1")]),
            &trusted
        ),
        None
    );
}

fn claims(json: &str) -> Token {
    let claims = Claims::read(json.as_bytes().to_vec(), &Expected::default());
    Token::Verified(Arc::new(claims.expect("claims")))
}

fn by_token(
    from: &[CallerPart],
    missing: MissingCaller,
    token: &Token,
) -> Result<CallerId, CallerMissing> {
    let headers = lines(&[("x-tenant", "t")]);
    identify(&rule(from, missing), &headers, &Peer::default(), token)
}

fn claim(path: &str) -> CallerPart {
    CallerPart::Jwt(ClaimPath::parse(path).expect("a path"))
}

#[test]
fn a_claim_is_the_caller_whatever_else_the_token_says() {
    let caller = |json: &str| by_token(&[claim("sub")], MissingCaller::Reject, &claims(json));
    let ann = caller(r#"{"exp":1,"sub":"ann"}"#);
    assert!(ann.is_ok());
    assert_eq!(caller(r#"{"sub":"\u0061nn","exp":2,"jti":"x"}"#), ann);
    assert_ne!(caller(r#"{"exp":1,"sub":"bob"}"#), ann);
    let number = caller(r#"{"exp":1,"sub":7}"#);
    assert!(number.is_ok());
    assert_ne!(caller(r#"{"exp":1,"sub":"7"}"#), number);
    for bad in [
        r#"{"exp":1}"#,
        r#"{"exp":1,"sub":null}"#,
        r#"{"exp":1,"sub":""}"#,
        r#"{"exp":1,"sub":["ann"]}"#,
        r#"{"exp":1,"sub":{}}"#,
    ] {
        assert_eq!(caller(bad), Err(CallerMissing), "{bad}");
    }
}

#[test]
fn anonymous_is_without_a_token_and_never_with_a_refused_one() {
    let anonymous = |token: &Token| by_token(&[claim("sub")], MissingCaller::Anonymous, token);
    let nobody = anonymous(&Token::Absent);
    assert!(nobody.is_ok());
    assert_eq!(anonymous(&claims(r#"{"exp":1}"#)), nobody);
    assert_eq!(anonymous(&Token::Refused), Err(CallerMissing));
    assert_eq!(
        anonymous(&claims(r#"{"exp":1,"sub":["a"]}"#)),
        Err(CallerMissing)
    );
    assert_eq!(
        by_token(&[claim("sub")], MissingCaller::Reject, &Token::Absent),
        Err(CallerMissing)
    );
}

#[test]
fn claims_of_other_names_and_other_parts_do_not_meet() {
    let token = claims(r#"{"exp":1,"a":"v","b":"v","a.b":"v","c":{"b":"v"}}"#);
    let mut seen = std::collections::HashSet::new();
    for parts in [
        &[claim("a")][..],
        &[claim("b")],
        &[claim("/a.b")],
        &[claim("c.b")],
        &[claim("a"), claim("b")],
        &[claim("b"), claim("a")],
        &[claim("a"), named("x-tenant")],
        &[named("x-tenant"), claim("a")],
    ] {
        let caller = by_token(parts, MissingCaller::Reject, &token).expect("a caller");
        assert!(seen.insert(caller), "{parts:?}");
    }
    let pointed = by_token(&[claim("/c/b")], MissingCaller::Reject, &token);
    assert!(
        seen.contains(&pointed.expect("a caller")),
        "one path, two spellings"
    );
}

#[test]
fn a_bearer_token_stands_alone_behind_its_scheme() {
    let token = |values: &[&str]| {
        let values: Vec<_> = values
            .iter()
            .map(|value| ("authorization", *value))
            .collect();
        bearer_token(&lines(&values)).map(|token| token.map(<[u8]>::to_vec))
    };
    assert_eq!(token(&[]), Ok(None));
    assert_eq!(token(&[" "]), Ok(None));
    for value in ["Bearer a.b.c", "bEARER  a.b.c ", "Bearer\ta.b.c"] {
        assert_eq!(token(&[value]), Ok(Some(b"a.b.c".to_vec())), "{value}");
    }
    for bad in [
        &["a.b.c"][..],
        &["Bearer"],
        &["Basic a.b.c"],
        &["Bearer a.b.c", "Bearer a.b.c"],
        &["Bearer a.b.c", ""],
        &["", "Bearer a.b.c"],
    ] {
        assert_eq!(token(bad), Err(CallerMissing), "{bad:?}");
    }
}

#[test]
fn a_signed_request_is_its_access_key_id() {
    let value = |id: &str, date: &str, signature: char| {
        let signature = String::from(signature).repeat(64);
        format!(
            "AWS4-HMAC-SHA256 Credential={id}/{date}/eu-west-1/orders/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={signature}"
        )
    };
    let parts = [CallerPart::SigV4];
    let caller = |value: &str| strict(&parts, &[("authorization", value)]);
    let first = caller(&value("AKID", "20261130", 'a'));
    assert!(first.is_ok());
    assert_eq!(caller(&value("AKID", "20261201", 'b')), first);
    assert_ne!(caller(&value("AKIE", "20261130", 'a')), first);
    assert_ne!(caller(&value("akid", "20261130", 'a')), first);
    let good = value("AKID", "20261130", 'a');
    let twice = [
        ("authorization", good.as_str()),
        ("authorization", good.as_str()),
    ];
    for bad in [&[("authorization", "Bearer a")][..], &twice] {
        assert_eq!(strict(&parts, bad), Err(CallerMissing));
        assert_eq!(lenient(&parts, bad), Err(CallerMissing));
    }
    assert_eq!(strict(&parts, &[]), Err(CallerMissing));
    assert!(lenient(&parts, &[]).is_ok());
}

proptest! {
    /// Two different sets of values never make one caller.
    #[test]
    fn different_values_are_different_callers(
        first in proptest::collection::vec("[a,]{1,3}", 1..4),
        second in proptest::collection::vec("[a,]{1,3}", 1..4),
    ) {
        let caller = |values: &[String]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("x-user", HeaderValue::from_str(value).expect("a header value"));
            }
            identify(&rule(&[named("x-user")], MissingCaller::Reject), &headers, &Peer::default(), &Token::Absent)
        };
        prop_assert_eq!(first == second, caller(&first) == caller(&second));
    }

    #[test]
    fn no_header_is_a_surprise(value in proptest::collection::vec(any::<u8>(), 0..40)) {
        let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
        let mut headers = HeaderMap::new();
        for name in ["authorization", "cookie", "x-forwarded-for", "x-user"] {
            headers.insert(name, value.clone());
        }
        let trusted = ["0.0.0.0/0".parse().expect("a network")];
        let address = client_address("10.0.0.1".parse().ok(), &headers, &trusted);
        let parts = [CallerPart::Authorization, CallerPart::Cookie("a".into()), named("x-user"), CallerPart::PeerIp];
        // Without a cookie that comes twice, there is always a caller where anonymous ones are let in.
        let caller = identify(&rule(&parts, MissingCaller::Anonymous), &headers, &Peer { address, certificate: None }, &Token::Absent);
        prop_assert!(caller.is_ok() || value.as_bytes().windows(2).filter(|pair| pair[0] == b'a').count() > 1);
    }
}
