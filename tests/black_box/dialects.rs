//! Dialects that bring errors of their own: `stripe-v1`, `stripe-v2`, `platform`, and the shape of EC2.

use serde_json::Value;

use crate::{
    common::{Answer, Proxy, Request, Step, Upstream, key, problem, reply, retry_after},
    executions::leader,
};

const STRIPE_MARKER: &str = "Idempotent-Replayed";
const MARKERS: [&str; 2] = [STRIPE_MARKER, "Idempotency-Key-Reply"];

fn dialect(upstream: &Upstream, name: &str, more: &str) -> Proxy {
    Proxy::with(upstream, &format!("policy.dialect = '{name}'\n{more}"))
}

/// An answer of the proxy's own: this status and media type, no marker, never to be stored on the way; its body.
#[track_caller]
fn own<'a>(answer: &'a Answer, status: u16, media_type: &str) -> &'a [u8] {
    assert_eq!(answer.status, status, "{answer}");
    assert_eq!(answer.one("Content-Type"), Some(media_type), "{answer}");
    assert_eq!(answer.one("Cache-Control"), Some("no-store"), "{answer}");
    for marker in MARKERS {
        assert_eq!(answer.one(marker), None, "{answer}");
    }
    &answer.body
}

/// An error in Stripe's shape, whole.
#[track_caller]
fn stripe(answer: &Answer, status: u16, kind: &str, code: &str) {
    own(answer, status, "application/json");
    let document = answer.json();
    let message = document["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{document}");
    let wanted = serde_json::json!({"error": {"type": kind, "code": code, "message": message}});
    assert_eq!(document, wanted);
}

/// An error in the shape of platforms, whole.
#[track_caller]
fn platform(answer: &Answer, status: u16, code: &str, retryable: bool, field: Option<&str>) {
    own(answer, status, "application/json");
    let document = answer.json();
    let message = document["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{document}");
    let mut wanted = serde_json::json!({"code": code, "message": message, "retryable": retryable});
    if let Some(field) = field {
        wanted["field"] = Value::from(field);
    }
    assert_eq!(document, wanted);
}

/// An error in EC2's shape; its `RequestID`.
#[track_caller]
fn aws(answer: &Answer, status: u16, code: &str) -> String {
    let body = own(answer, status, "text/xml");
    let text = std::str::from_utf8(body).expect("UTF-8");
    let start = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code><Message>"
    );
    let rest = text.strip_prefix(&start).expect(text);
    let (message, rest) = rest
        .split_once("</Message></Error></Errors><RequestID>")
        .expect(text);
    assert!(
        !message.is_empty() && !message.contains(['<', '>']),
        "{text}"
    );
    let id = rest.strip_suffix("</RequestID></Response>").expect(text);
    assert!(
        id.len() == 16 && id.bytes().all(|b| b.is_ascii_hexdigit()),
        "{text}"
    );
    id.to_owned()
}

/// The upstream's own answer: executed for this request, and marked in no way.
#[track_caller]
fn unmarked(answer: Answer, status: u16) -> Answer {
    assert_eq!(answer.status, status, "{answer}");
    for marker in MARKERS {
        assert_eq!(answer.one(marker), None, "{answer}");
    }
    answer
}

/// The first answer again, as Stripe marks it.
#[track_caller]
fn replayed_by_stripe(again: &Answer, first: &Answer) {
    assert_eq!(again.one(STRIPE_MARKER), Some("true"), "{again}");
    assert_eq!(again.status, first.status, "{again}");
    assert_eq!(again.body, first.body, "{again}");
    for name in ["Content-Type", "Location", "ETag"] {
        assert_eq!(again.all(name), first.all(name), "{name}: {again}");
    }
}

#[test]
fn stripe_v1_replays_failures_but_not_those_that_say_try_again() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "stripe-v1", "");
    for status in [200, 201, 303, 402, 404, 422, 500, 503] {
        let request = Request::order(&key());
        upstream.then(reply(status));
        let first = unmarked(proxy.send(&request), status);
        let before = upstream.executions();
        replayed_by_stripe(&proxy.send(&request), &first);
        assert_eq!(upstream.executions(), before, "{status}");
    }
    for status in [400, 401, 403, 409, 429] {
        let request = Request::order(&key());
        upstream.then(reply(status).header("Retry-After", "9"));
        let first = unmarked(proxy.send(&request), status);
        assert_eq!(retry_after(&first), 9);
        let second = unmarked(proxy.send(&request), 201);
        replayed_by_stripe(&proxy.send(&request), &second);
    }
}

#[test]
fn stripe_v1_says_its_errors_as_stripe_does() {
    let upstream = Upstream::start();
    let proxy = dialect(
        &upstream,
        "stripe-v1",
        "policy.key = 'required'\npolicy.max_request_body = '1KiB'",
    );
    let request = Request::order(&key());
    unmarked(proxy.send(&request), 201);
    let unkeyed = Request::write("POST", "/orders");
    let hostless = request.clone().without("Host");
    for (other, status, kind, code) in [
        (unkeyed.clone(), 400, "invalid_request_error", "key_missing"),
        (
            unkeyed.key("a").key("a"),
            400,
            "invalid_request_error",
            "key_invalid",
        ),
        (
            request.clone().body("{}"),
            400,
            "idempotency_error",
            "key_reused",
        ),
        (
            request.clone().without("Authorization"),
            401,
            "invalid_request_error",
            "caller_missing",
        ),
        (
            request.clone().body("x".repeat(2000)),
            413,
            "invalid_request_error",
            "body_too_large",
        ),
        (hostless, 400, "invalid_request_error", "bad_request"),
    ] {
        let answer = proxy.send(&other);
        stripe(&answer, status, kind, code);
        assert_eq!(answer.one("Retry-After"), None, "{answer}");
    }
    assert_eq!(upstream.executions(), 1, "nothing of this was executed");
}

#[test]
fn a_key_of_stripe_is_one_per_caller_and_bytes_as_they_came() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "stripe-v1", "");
    let request = Request::order("my key, \"q\"");
    let first = unmarked(proxy.send(&request), 201);
    replayed_by_stripe(&proxy.send(&request), &first);
    assert_eq!(
        upstream.only().one("Idempotency-Key"),
        Some("my key, \"q\"")
    );
    let path = Request::write("POST", "/orders/7").key("my key, \"q\"");
    stripe(&proxy.send(&path), 400, "idempotency_error", "key_reused");
    unmarked(proxy.send(&request.clone().caller("Bearer bob")), 201);
}

#[test]
fn stripe_says_that_a_key_is_in_use_while_it_runs_and_while_its_outcome_is_unknown() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "stripe-v1", "");
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let busy = proxy.send(&request);
    stripe(&busy, 409, "idempotency_error", "idempotency_key_in_use");
    assert_eq!(retry_after(&busy), 2);
    let other = proxy.send(&request.clone().body("{}"));
    stripe(&other, 400, "idempotency_error", "key_reused");
    gate.open();
    let first = unmarked(first.answer(), 201);
    replayed_by_stripe(&proxy.send(&request), &first);

    let lost = Request::order(&key());
    upstream.then(Step::drop());
    stripe(&proxy.send(&lost), 502, "api_error", "upstream_failed");
    let held = proxy.send(&lost);
    stripe(&held, 409, "idempotency_error", "idempotency_key_in_use");
    assert!((60..=120).contains(&retry_after(&held)), "{held}");
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn stripe_v2_finishes_failed_work_on_the_retry() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "stripe-v2", "");
    for status in [303, 400, 404, 429, 500, 503] {
        let request = Request::order(&key());
        upstream.then(reply(status));
        unmarked(proxy.send(&request), status);
        let second = unmarked(proxy.send(&request), 201);
        replayed_by_stripe(&proxy.send(&request), &second);
    }
    let lost = Request::order(&key());
    upstream.then(Step::drop());
    stripe(&proxy.send(&lost), 502, "api_error", "upstream_failed");
    unmarked(proxy.send(&lost), 201);
    assert_eq!(upstream.executions(), 14);
}

#[test]
fn platform_stores_what_is_final_and_replays_status_and_body_alone() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "platform", "");
    for status in [200, 202, 303, 400, 404, 409, 422] {
        let request = Request::order(&key());
        upstream.then(reply(status).header("Content-Language", "de"));
        let first = unmarked(proxy.send(&request), status);
        let again = unmarked(proxy.send(&request), status);
        assert_eq!(again.body, first.body, "{again}");
        for name in ["Content-Type", "Content-Language"] {
            assert_eq!(again.all(name), first.all(name), "{again}");
        }
        for name in ["Location", "ETag", "X-Execution", "Set-Cookie"] {
            assert_eq!(again.one(name), None, "{again}");
        }
    }
    assert_eq!(upstream.executions(), 7);
    for status in [401, 403, 408, 425, 429, 500, 503] {
        let request = Request::order(&key());
        upstream.then(reply(status));
        unmarked(proxy.send(&request), status);
        unmarked(proxy.send(&request), 201);
    }
    assert_eq!(upstream.executions(), 21);
}

#[test]
fn platform_says_its_errors_in_its_own_shape() {
    let upstream = Upstream::start();
    let proxy = dialect(
        &upstream,
        "platform",
        "policy.key = 'required'\npolicy.key_format = 'uuid'\npolicy.key_sources = ['header:X-Request-Token']\n\
         policy.max_request_body = '1KiB'",
    );
    let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
    let carrier = "X-Request-Token";
    let unkeyed = Request::write("POST", "/orders");
    let request = unkeyed.clone().header(carrier, uuid);
    unmarked(proxy.send(&request), 201);
    let token = |value: &str| unkeyed.clone().header("x-request-TOKEN", value);
    for (other, status, code, field) in [
        (
            unkeyed.clone(),
            400,
            "IDEMPOTENCY_KEY_REQUIRED",
            Some(carrier),
        ),
        (token("order-1"), 422, "VALIDATION_FAILED", Some(carrier)),
        (token(""), 422, "VALIDATION_FAILED", Some(carrier)),
        (
            token(uuid).header(carrier, uuid),
            422,
            "VALIDATION_FAILED",
            Some(carrier),
        ),
        (request.clone().body("{}"), 409, "CONFLICT", None),
        (
            Request::write("POST", "/orders/7").header(carrier, uuid),
            409,
            "CONFLICT",
            None,
        ),
        (
            Request::write("PATCH", "/orders").header(carrier, uuid),
            409,
            "CONFLICT",
            None,
        ),
        (
            request.clone().without("Authorization"),
            401,
            "CALLER_REQUIRED",
            None,
        ),
        (
            request.clone().body("x".repeat(2000)),
            413,
            "REQUEST_TOO_LARGE",
            None,
        ),
    ] {
        let answer = proxy.send(&other);
        platform(&answer, status, code, false, field);
        assert_eq!(answer.one("Retry-After"), None, "{answer}");
    }
    assert_eq!(upstream.executions(), 1, "nothing of this was executed");
}

#[test]
fn platform_tells_a_key_that_is_held_from_one_that_is_spent() {
    let upstream = Upstream::start();
    let proxy = dialect(
        &upstream,
        "platform",
        "policy.unknown_hold = '20s'\npolicy.max_response_body = '1KiB'\nupstream.response_timeout = '500ms'",
    );
    let request = Request::order(&key());
    upstream.then(Step::hang());
    let late = proxy.send(&request);
    platform(&late, 504, "UPSTREAM_TIMEOUT", true, None);
    assert_eq!(retry_after(&late), 1);
    let busy = proxy.send(&request);
    platform(&busy, 409, "CONFLICT", true, None);
    assert_eq!(retry_after(&busy), 2);

    let lost = Request::order(&key());
    upstream.then(Step::drop());
    platform(&proxy.send(&lost), 502, "UPSTREAM_FAILED", true, None);
    let held = proxy.send(&lost);
    platform(&held, 409, "CONFLICT", true, None);
    assert!((10..=20).contains(&retry_after(&held)), "{held}");

    let large = Request::order(&key());
    upstream.then(reply(201).body("x".repeat(2000)));
    assert_eq!(proxy.send(&large).status, 201);
    platform(&proxy.send(&large), 409, "CONFLICT", false, None);

    upstream.refuse();
    let down = proxy.send(&Request::order(&key()));
    platform(&down, 502, "UPSTREAM_UNREACHABLE", true, None);
    let none = dialect(&upstream, "platform", "store.kind = 'none'");
    let refused = none.send(&Request::order(&key()));
    platform(&refused, 501, "IDEMPOTENCY_NOT_SUPPORTED", false, None);
}

#[test]
fn platform_leaves_query_and_media_type_out() {
    let upstream = Upstream::start();
    let proxy = dialect(&upstream, "platform", "policy.fingerprint.body = 'json'");
    let name = key();
    let first = unmarked(proxy.send(&Request::order(&format!("\"{name}\""))), 201);
    for copy in [
        Request::order(&name),
        Request::write("POST", "/orders?page=2").key(&name),
        Request::order(&name).media_type("application/merge-patch+json"),
    ] {
        assert_eq!(unmarked(proxy.send(&copy), 201).body, first.body);
    }
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn ec2_is_told_that_a_held_key_is_unavailable() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.errors = 'aws-xml'\npolicy.key = 'required'\npolicy.in_flight = 'conflict'\n\
         policy.docs_url = 'https://docs.test/keys'",
    );
    let request = Request::order(&key());
    let (mut first, gate) = leader(&proxy, &upstream, &request);
    let busy = proxy.send(&request);
    let record = aws(&busy, 503, "Unavailable");
    assert_eq!(retry_after(&busy), 2);
    assert_eq!(
        busy.one("Link"),
        Some("<https://docs.test/keys>; rel=\"describedby\"")
    );
    gate.open();
    assert_eq!(first.answer().status, 201);
    let reused = proxy.send(&request.clone().body("{}"));
    assert_eq!(aws(&reused, 400, "IdempotentParameterMismatch"), record);
    let missing = proxy.send(&Request::write("POST", "/orders"));
    assert_eq!(aws(&missing, 400, "MissingParameter"), "0".repeat(16));
    let invalid = proxy.send(&Request::order("a, b"));
    assert_eq!(aws(&invalid, 400, "InvalidParameterValue"), "0".repeat(16));
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn each_route_says_errors_its_own_way_and_what_is_on_none_says_them_as_the_policy() {
    let upstream = Upstream::start();
    let proxy = Proxy::with(
        &upstream,
        "policy.errors = 'platform'\nserver.max_connections = 1\n\
         [[route]]\nname = 's'\nmethods = ['POST']\npath = '/s'\nerrors = 'stripe'\n\
         [[route]]\nname = 'i'\nmethods = ['POST']\npath = '/i'\nerrors = 'problem'\n\
         [[route]]\nname = 'p'\nmethods = ['POST']\npath = '/p'\n",
    );
    let mut client = proxy.client();
    let mut send = |path: &str, body: &str| {
        let request = Request::write("POST", path).key("\"k\"").body(body);
        client.ask(&request).answer()
    };
    for path in ["/s", "/i", "/p"] {
        assert_eq!(send(path, "{}").status, 201, "{path}");
    }
    stripe(&send("/s", "[]"), 400, "idempotency_error", "key_reused");
    problem(&send("/i", "[]"), "key-reused");
    platform(&send("/p", "[]"), 409, "CONFLICT", false, None);
    // One connection too many is refused before there is a request.
    let refused = proxy.client().answer();
    assert_eq!(refused.status, 503, "{refused}");
    assert_eq!(refused.json()["code"], "OVERLOADED");
    assert!(retry_after(&refused) >= 1);
    let trace = client.ask(&Request::new("TRACE", "/s")).answer();
    platform(&trace, 405, "METHOD_NOT_ALLOWED", false, None);
}

#[test]
fn a_key_given_explicitly_wins_over_its_dialect() {
    let upstream = Upstream::start();
    let proxy = dialect(
        &upstream,
        "stripe-v1",
        "policy.errors = 'problem'\npolicy.marker_miss = 'false'",
    );
    let request = Request::order(&key());
    for marker in ["false", "true"] {
        let answer = proxy.send(&request);
        assert_eq!(answer.status, 201, "{answer}");
        assert_eq!(answer.one(STRIPE_MARKER), Some(marker), "{answer}");
    }
    problem(&proxy.send(&request.clone().body("{}")), "key-reused");
}
