//! What the contract names and this version lacks.

use idem_proxy::config::StoreKind;

use crate::common::{assert_says, load, load_with, problems};

#[test]
fn what_this_version_lacks_is_refused_and_never_ignored() {
    let all = load_with("[store]\nkind = \"postgres\"", &[]).expect_err("it is not built");
    assert!(all.only_unavailable(), "{all}");
    let said = all.to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_says(&said, &["store.kind", "not available in this version"]);
}

#[test]
fn what_asks_for_nothing_is_taken() {
    load(
        "[upstream]\nprotocol = \"http1\"\n[identity]\ntrust_unverified = false\n\
         [policy]\non_store_failure = \"reject\"\n[telemetry]\notlp_endpoint = \"\"\notlp_sample_ratio = 1\n",
    );
}

#[test]
fn stores_that_are_not_chosen_are_checked_and_have_no_effect() {
    let config = load(
        "[store.disk]\npath = \"/d\"\nmax_bytes = \"1GiB\"\n[store.redis]\nurl = [\"redis://a\", \"rediss://b\"]\n\
         url_file = \"u\"\ntopology = \"cluster\"\ntimeout = \"1s\"\nwait_replicas = 1\nallow_eviction = true\n\
         [store.postgres]\nurl = \"postgres://h/db\"\n",
    );
    assert_eq!(config.store.kind, StoreKind::Memory);
    assert_says(
        &problems("[store.redis]\nurl = \"http://a\""),
        &["store.redis.url", "redis://"],
    );
}

#[test]
fn wrong_beside_unavailable_is_wrong() {
    let all = load_with("[store]\nkind = \"postgres\"\nnamespcae = \"n\"", &[]).expect_err("both");
    assert!(!all.only_unavailable());
    assert_eq!(all.len(), 2, "{all}");
    assert_says(&all.to_string(), &["did you mean namespace?"]);
}
