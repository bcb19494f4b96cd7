//! What is valid and worth a word.

use idem_proxy::config::{self, Loaded};

use crate::common::{ROUTE, assert_says, load_with};

fn loaded(text: &str) -> Loaded {
    load_with(text, &[]).expect("valid")
}

#[test]
fn what_is_valid_and_dangerous_is_said() {
    assert_says(&loaded("").warnings.join("\n"), &["no [[route]]"]);
    let short = format!("[policy]\nretention = \"1m\"\nretention_from = \"start\"\n{ROUTE}");
    assert_says(
        &loaded(&short).warnings.join("\n"),
        &["route orders", "retention", "capture_timeout"],
    );
    let brief = format!("[policy]\nretention = \"1m\"\n{ROUTE}");
    assert_says(
        &loaded(&brief).warnings.join("\n"),
        &["route orders", "retention", "unknown may be forgotten"],
    );
    let large = format!("[policy]\nmax_request_body = \"1GiB\"\n{ROUTE}");
    assert_says(
        &loaded(&large).warnings.join("\n"),
        &["route orders", "max_buffered_bytes"],
    );
    assert_eq!(loaded(ROUTE).warnings, [""; 0]);
}

#[test]
fn placeholders_of_other_routers_are_said_to_be_literals() {
    for (path, says) in [
        ("/orders/:id", "{id}"),
        ("/orders/*", "{*rest}"),
        ("/files/**", "{*rest}"),
    ] {
        let text = ROUTE.replace("/orders", path);
        assert_says(&loaded(&text).warnings.join("\n"), &["route orders", says]);
    }
    for path in ["/orders/{id}", "/orders:batch", "/a*b"] {
        assert_eq!(loaded(&ROUTE.replace("/orders", path)).warnings, [""; 0]);
    }
}

#[test]
fn callers_that_may_surprise_are_advice() {
    for (from, word) in [
        ("authorization", "new caller"),
        ("header:X-C", "freely"),
        ("peer-ip", "load balancer"),
    ] {
        let text = format!("[identity]\nfrom = [\"{from}\"]\n{ROUTE}");
        let advice = loaded(&text).advice;
        assert_eq!(advice.len(), 1, "{advice:?}");
        assert_says(&advice.join("\n"), &["orders", word]);
        assert!(
            loaded(&format!("{text}key = \"off\"\n")).advice.is_empty(),
            "{from}"
        );
    }
    let trusted = format!(
        "[server]\ntrusted_proxies = [\"10.0.0.0/8\"]\n[identity]\nfrom = [\"peer-ip\"]\n{ROUTE}"
    );
    assert!(loaded(&trusted).advice.is_empty());
}

#[test]
fn a_derived_key_is_advised_to_be_forgotten_soon() {
    let text = format!("{ROUTE}key = \"derived\"\nretention = \"10s\"\n");
    assert_says(
        &loaded(&text).advice.join("\n"),
        &["route orders", "short retention"],
    );
}

#[test]
fn what_is_not_protected_while_the_store_is_gone_is_advice() {
    let text = format!("{ROUTE}on_store_failure = \"bypass\"\n");
    assert_says(
        &loaded(&text).advice.join("\n"),
        &["on_store_failure", "route orders", "every retry executes"],
    );
    let text = format!("{ROUTE}on_store_failure = \"bypass\"\nkey = \"off\"\n");
    assert_eq!(loaded(&text).advice, [""; 0]);
}

#[test]
fn waiting_for_replicas_and_going_on_without_them_is_warned_of() {
    let store = |kind: &str, wanted: u32| {
        format!("[store]\nkind = \"{kind}\"\n[store.redis]\nwait_replicas = {wanted}\n")
    };
    let bypass = format!("{ROUTE}on_store_failure = \"bypass\"\n");
    let warnings = |store: String, route: &str| loaded(&format!("{store}{route}")).warnings;
    assert_says(
        &warnings(store("redis", 1), &bypass).join("\n"),
        &["route orders", "wait_replicas", "unprotected"],
    );
    assert_eq!(warnings(store("redis", 0), &bypass), [""; 0]);
    assert_eq!(warnings(store("memory", 1), &bypass), [""; 0]);
    assert_eq!(warnings(store("redis", 1), ROUTE), [""; 0]);
}

#[test]
fn a_route_under_a_wrong_name_is_not_said_to_be_missing_too() {
    let reading = config::parse("proxy.toml", &ROUTE.replace("route", "routes"), []);
    assert_says(&reading.problems.to_string(), &["did you mean route?"]);
    assert_eq!(reading.warnings, [""; 0]);
}

#[test]
fn keys_without_a_store_are_warned_of() {
    let none = "[store]\nkind = \"none\"\n";
    assert_says(
        &loaded(&format!("{none}{ROUTE}")).warnings.join("\n"),
        &["store.kind", "501"],
    );
    let off = format!("{none}{ROUTE}key = \"off\"\n");
    assert_eq!(loaded(&off).warnings, [""; 0]);
}

#[test]
fn an_admin_listener_that_others_reach_without_a_token_is_advice() {
    let advice = |listen: &str| {
        let text = format!(
            "[admin]\nlisten = {listen}\n{}",
            ROUTE.to_owned() + "key = \"off\"\n"
        );
        loaded(&text).advice
    };
    for open in ["\"0.0.0.0:9090\"", "[\"[::]:9090\", \"127.0.0.1:9091\"]"] {
        assert_says(
            &advice(open).join("\n"),
            &["admin.listen", ":9090", "token_file", "403"],
        );
    }
    let here = "[\"127.0.0.1:9090\", \"[::1]:9090\", \"localhost:9091\", \"unix:/run/a.sock\"]";
    assert_eq!(advice(here), [""; 0]);
}
