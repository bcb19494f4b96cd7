//! What operators see and settle: `/api/v1/records` on the admin listener, on every store.

mod refusals;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{
    Answer, Proxy, Redis, Request, Step, Upstream, eventually, executed, key, problem, replayed,
    reply,
};

/// What stuck keys are about: an outcome that stays unknown.
const HELD: &str = "policy.unknown_hold = 'forever'";

/// A store, and what it needs.
struct Store {
    folder: Option<TempDir>,
}

impl Store {
    fn serve(&self, upstream: &Upstream, more: &str) -> Proxy {
        let store = self.folder.as_ref().map(|folder| {
            let path = folder.path().join("store");
            format!(
                "store.kind = 'disk'\nstore.disk.path = '{}'\n",
                path.display()
            )
        });
        Proxy::with(upstream, &(store.unwrap_or_default() + more))
    }
}

/// The same on each kind of store.
fn on_each(test: impl Fn(&Store)) {
    test(&Store { folder: None });
    let folder = tempfile::tempdir().expect("a temporary folder");
    test(&Store {
        folder: Some(folder),
    });
}

fn local(request: Request) -> Request {
    request.without("Host").header("Host", "localhost")
}

fn ask(proxy: &Proxy, method: &str, path: &str) -> Answer {
    let path = format!("/api/v1/records{path}");
    proxy.admin(&local(Request::new(method, &path)))
}

fn list(proxy: &Proxy, query: &str) -> Value {
    let answer = ask(proxy, "GET", query);
    assert_eq!(answer.status, 200, "{query}: {answer}");
    assert_eq!(answer.one("Cache-Control"), Some("no-store"));
    answer.json()
}

/// The first 16 digits of each record on a list.
fn ids(list: &Value) -> Vec<String> {
    let rows = list["records"].as_array().expect("a list");
    let id = |row: &Value| row["id"].as_str().expect("an id")[..16].to_owned();
    rows.iter().map(id).collect()
}

fn resolve(proxy: &Proxy, id: &str, document: &Value) -> Answer {
    let path = format!("/api/v1/records/{id}/resolve");
    let request = Request::new("POST", &path)
        .header("Content-Type", "application/json")
        .body(document.to_string());
    proxy.admin(&local(request))
}

/// What its problem calls the record of a request: another one under its key is refused.
fn record_of(proxy: &Proxy, request: &Request) -> String {
    let other = request.clone().body("{\"other\":true}");
    let told = problem(&proxy.send(&other), "key-reused");
    told["record"].as_str().expect("a record").to_owned()
}

/// A request that the upstream got and did not answer; and its record.
fn lost(proxy: &Proxy, upstream: &Upstream) -> (Request, String) {
    let request = Request::order(&key());
    upstream.then(Step::drop());
    problem(&proxy.send(&request), "upstream-failed");
    let told = problem(&proxy.send(&request), "outcome-unknown");
    let record = told["record"].as_str().expect("a record").to_owned();
    let detail = told["detail"].as_str().expect("a sentence");
    let command = format!("`idem-proxy records resolve {record} --outcome release|complete …`");
    assert!(detail.contains(&command), "{detail}");
    (request, record)
}

/// The log's line of this event, once it is there.
fn logged(proxy: &Proxy, event: &str) -> Value {
    let line = || {
        let log = proxy.log();
        let found = log.lines().find(|line| line.contains(event));
        found.and_then(|line| serde_json::from_str(line).ok())
    };
    eventually(event, || line().is_some());
    line().expect("it was there")
}

fn refused(answer: &Answer, status: u16, says: &str) {
    assert_eq!(answer.status, status, "{answer}");
    assert_eq!(answer.one("Content-Type"), Some("application/problem+json"));
    let document = answer.json();
    assert_eq!(document["status"], status, "{document}");
    let detail = document["detail"].as_str().unwrap_or_default();
    assert!(detail.contains(says), "{detail:?} does not say {says:?}");
}

#[test]
fn records_are_listed_by_state_and_route_the_latest_first() {
    on_each(|store| {
        let upstream = Upstream::start();
        let settings = format!("{HELD}\npolicy.max_response_body = '1KiB'");
        let proxy = store.serve(&upstream, &settings);
        let (_, unknown) = lost(&proxy, &upstream);
        let complete = Request::write("PUT", "/orders/7").key(&key());
        executed(proxy.send(&complete));
        upstream.then(reply(202).body(vec![b'x'; 5000]));
        let large = Request::order(&key());
        assert_eq!(proxy.send(&large).status, 202);
        let gate = upstream.hold(Step::default());
        let mut running = proxy.begin(&Request::order(&key()));
        gate.arrived();
        let (complete, large) = (record_of(&proxy, &complete), record_of(&proxy, &large));

        let all = list(&proxy, "");
        assert_eq!(all["truncated"], false);
        assert_eq!(ids(&all).len(), 4, "{all}");
        for (query, wanted) in [
            ("?state=unknown", vec![unknown.as_str()]),
            ("?state=complete", vec![&complete]),
            ("?state=tombstone", vec![&large]),
            ("?state=complete&route=orders", vec![]),
            ("?route=order", vec![&complete]),
            ("?route=nobody", vec![]),
        ] {
            assert_eq!(ids(&list(&proxy, query)), wanted, "{query}");
        }
        let rows = |query| list(&proxy, query)["records"].clone();
        let row = rows("?state=in-flight");
        assert!(row[0]["lease_until"].is_string(), "{row}");
        assert!(row[0]["status"].is_null(), "{row}");
        let row = rows("?state=complete");
        assert_eq!(
            (&row[0]["route"], &row[0]["status"]),
            (&json!("order"), &json!(200))
        );
        assert!(row[0]["bytes"].as_u64() > Some(0), "{row}");
        assert!(row[0]["lease_until"].is_null(), "{row}");
        assert_eq!(rows("?state=tombstone")[0]["status"], 202);
        for at in ["started_at", "expires_at"] {
            let time = row[0][at].as_str().expect("a time");
            assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
        }
        gate.open();
        executed(running.answer());
        assert!(ids(&list(&proxy, "?state=in-flight")).is_empty());
        assert_eq!(ids(&list(&proxy, "?state=complete")).len(), 2);
    });
}

#[test]
fn pages_follow_each_other_whatever_happens_to_their_records() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, "");
        for _ in 0..7 {
            executed(proxy.send(&Request::order(&key())));
        }
        let whole = ids(&list(&proxy, "?limit=7"));
        let (mut seen, mut query) = (Vec::new(), "?limit=3".to_owned());
        loop {
            let page = list(&proxy, &query);
            seen.extend(ids(&page));
            let Some(next) = page["next"].as_str() else {
                assert_eq!(page["truncated"], false);
                break;
            };
            assert_eq!(page["truncated"], true);
            assert_eq!(ids(&page).len(), 3);
            // The last one of the page is not there any more.
            let gone = seen.last().expect("a page has records");
            assert_eq!(ask(&proxy, "DELETE", &format!("/{gone}")).status, 204);
            query = format!("?limit=3&after={next}");
        }
        assert_eq!(seen, whole);
    });
}

#[test]
fn a_record_is_shown_and_purged_and_its_request_is_executed_again() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, "");
        let request = Request::order(&key());
        let first = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &first);
        let record = record_of(&proxy, &request);
        let row = list(&proxy, "")["records"][0].clone();
        let full = row["id"].as_str().expect("an id").to_owned();
        assert_eq!((full.len(), &full[..16]), (64, &record[..]));
        for name in [&record[..], &full[..33], &full, &full.to_uppercase()] {
            let shown = ask(&proxy, "GET", &format!("/{name}"));
            assert_eq!((shown.status, shown.json()), (200, row.clone()), "{name}");
        }
        let head = ask(&proxy, "HEAD", &format!("/{record}"));
        assert_eq!((head.status, head.body.len()), (200, 0));
        let purged = ask(&proxy, "DELETE", &format!("/{record}"));
        assert_eq!((purged.status, purged.body.len()), (204, 0));
        for method in ["GET", "DELETE"] {
            for name in [&record, &full] {
                refused(
                    &ask(&proxy, method, &format!("/{name}")),
                    404,
                    "no such record",
                );
            }
        }
        assert_eq!(executed(proxy.send(&request)).execution(), 2);
        let cause = [("cause", "purged")];
        proxy.await_metric("idem_proxy_store_evictions_total", &cause, 1.0);
        let line = logged(&proxy, "an operator purged a record");
        assert_eq!(line["record"], record);
        assert_eq!(
            (&line["by"], &line["admitted"]),
            (&json!("127.0.0.1"), &json!("loopback"))
        );
        assert_eq!(
            (&line["route"], &line["was"]),
            (&json!("orders"), &json!("complete"))
        );
    });
}

#[test]
fn a_record_that_a_call_runs_under_is_not_purged() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, "");
        let request = Request::order(&key());
        let gate = upstream.hold(Step::default());
        let mut running = proxy.begin(&request);
        gate.arrived();
        let record = record_of(&proxy, &request);
        refused(&ask(&proxy, "DELETE", &format!("/{record}")), 409, "runs");
        refused(
            &resolve(&proxy, &record, &json!({"outcome": "release"})),
            409,
            "not unknown",
        );
        gate.open();
        let first = executed(running.answer());
        replayed(&proxy.send(&request), &first);
        assert_eq!(ask(&proxy, "DELETE", &format!("/{record}")).status, 204);
    });
}

#[test]
fn a_stuck_key_from_the_alert_to_the_replay() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, HELD);
        let (request, record) = lost(&proxy, &upstream);
        // The alert.
        let unknown = [("route", "orders"), ("as", "unknown")];
        proxy.await_metric("idem_proxy_records_settled_total", &unknown, 1.0);
        assert_eq!(ids(&list(&proxy, "?state=unknown")), [record.as_str()]);
        // The write took place: this is its answer.
        let given = json!({
            "outcome": "complete",
            "status": 201,
            "headers": {"Content-Type": "application/json", "Location": "/orders/9", "X-Tag": ["a", "b"]},
            "body": "{\"id\":9,\"name\":\"é\"}",
        });
        let answer = resolve(&proxy, &record, &given);
        assert_eq!(answer.status, 200, "{answer}");
        let row = answer.json();
        assert_eq!(
            (&row["state"], &row["status"]),
            (&json!("complete"), &json!(201))
        );
        assert!(row["id"].as_str().expect("an id").starts_with(&record));
        for _ in 0..2 {
            let replay = proxy.send(&request);
            assert_eq!(replay.status, 201, "{replay}");
            assert_eq!(replay.one("Idempotency-Key-Reply"), Some("hit"));
            assert_eq!(replay.one("Content-Type"), Some("application/json"));
            assert_eq!(replay.one("Location"), Some("/orders/9"));
            assert_eq!(replay.all("X-Tag"), ["a", "b"]);
            assert_eq!(replay.body, "{\"id\":9,\"name\":\"é\"}".as_bytes());
        }
        record_of(&proxy, &request);
        assert_eq!(upstream.executions(), 1);
        assert!(ids(&list(&proxy, "?state=unknown")).is_empty());
        let settled = [("route", "orders"), ("as", "complete")];
        proxy.await_metric("idem_proxy_records_settled_total", &settled, 1.0);
        refused(&resolve(&proxy, &record, &given), 409, "not unknown");
        refused(
            &resolve(&proxy, &record, &json!({"outcome": "release"})),
            409,
            "not unknown",
        );
        let line = logged(&proxy, "an operator resolved a record");
        assert_eq!(
            (&line["record"], &line["outcome"]),
            (&json!(record), &json!("complete"))
        );
        assert_eq!(
            (&line["status"], &line["by"]),
            (&json!(201), &json!("127.0.0.1"))
        );
    });
}

#[test]
fn a_released_key_is_executed_as_new() {
    on_each(|store| {
        let upstream = Upstream::start();
        let proxy = store.serve(&upstream, HELD);
        let (request, record) = lost(&proxy, &upstream);
        let released = resolve(&proxy, &record, &json!({"outcome": "release"}));
        assert_eq!(released.status, 200, "{released}");
        assert_eq!(released.json()["state"], "released");
        refused(
            &ask(&proxy, "GET", &format!("/{record}")),
            404,
            "no such record",
        );
        refused(
            &resolve(&proxy, &record, &json!({"outcome": "release"})),
            404,
            "no such record",
        );
        let first = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &first);
        assert_eq!(upstream.executions(), 2);
    });
}

#[test]
fn on_the_disk_what_was_settled_by_hand_outlasts_a_kill() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let store = Store {
        folder: Some(folder),
    };
    let mut proxy = store.serve(&upstream, HELD);
    let (done, record) = lost(&proxy, &upstream);
    let (free, other) = lost(&proxy, &upstream);
    let (gone, purged) = lost(&proxy, &upstream);
    let given = json!({"outcome": "complete", "status": 202, "body": "by hand"});
    assert_eq!(resolve(&proxy, &record, &given).status, 200);
    assert_eq!(
        resolve(&proxy, &other, &json!({"outcome": "release"})).status,
        200
    );
    assert_eq!(ask(&proxy, "DELETE", &format!("/{purged}")).status, 204);
    proxy.signal("KILL");
    assert_eq!(proxy.exit_code(), None);
    let proxy = store.serve(&upstream, HELD);
    let replay = proxy.send(&done);
    assert_eq!((replay.status, &replay.body[..]), (202, &b"by hand"[..]));
    assert_eq!(replay.one("Idempotency-Key-Reply"), Some("hit"));
    executed(proxy.send(&free));
    executed(proxy.send(&gone));
    assert_eq!(upstream.executions(), 5);
}

#[test]
fn a_record_that_cannot_be_read_is_purged_by_the_digits_that_the_log_has() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let settings = format!("store.kind = 'redis'\nstore.redis.url = '{}'", redis.url());
    let request = Request::order(&key());
    executed(Proxy::with(&upstream, &settings).send(&request));
    let name = redis.ask(&["KEYS", "idem:*"]);
    redis.ask(&["HSET", &name, "v", "9"]);
    let proxy = Proxy::with(&upstream, &settings);
    let refused = proxy.send(&request);
    problem(&refused, "store-unavailable");
    let record = refused.json()["record"].clone();
    let record = record.as_str().expect("the problem names its record");
    assert_eq!(ask(&proxy, "GET", &format!("/{record}")).status, 503);
    let other = format!("/{record}{}", "0".repeat(4));
    assert_eq!(ask(&proxy, "DELETE", &other).status, 404, "another one");
    let purged = ask(&proxy, "DELETE", &format!("/{record}"));
    assert_eq!(purged.status, 204, "{purged}");
    assert_eq!(redis.ask(&["DBSIZE"]), "0");
    executed(proxy.send(&request));
    assert_eq!(upstream.executions(), 2);
}
