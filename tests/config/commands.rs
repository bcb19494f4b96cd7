//! `--check` and `--print-config`.

use idem_proxy::cli::{self, Exit};

use crate::common::{ROUTE, assert_says, load_with};

struct Said {
    exit: Exit,
    out: String,
    err: String,
}

fn run(text: &str, variables: &[(&str, &str)], command: Asked) -> Said {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("proxy.toml");
    std::fs::write(&path, text).expect("written");
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = match command {
        Asked::Check => cli::check(&path, variables, &mut out, &mut err),
        Asked::Print => cli::print_config(&path, variables, &mut out, &mut err),
    };
    Said {
        exit: exit.expect("written"),
        out: String::from_utf8(out).expect("UTF-8"),
        err: String::from_utf8(err).expect("UTF-8"),
    }
}

#[derive(Clone, Copy)]
enum Asked {
    Check,
    Print,
}

const STRIPE: &str = "[policy]\ndialect = \"stripe-v1\"\nretention = \"1h\"\n[store]\nkind = \"redis\"\n\
                      [store.redis]\nurl = \"redis://user:hunter2@127.0.0.1:6379\"\n";

#[test]
fn check_says_valid_or_every_problem() {
    let good = run(ROUTE, &[], Asked::Check);
    assert_eq!(good.exit, Exit::Done);
    assert_says(&good.out, &["proxy.toml", "valid"]);
    assert_says(&good.err, &["warning: identity.from"]);
    let bad = run("[policy]\nlease = \"x\"\nretenton = 1\n", &[], Asked::Check);
    assert_eq!(
        (bad.exit, bad.err.lines().count()),
        (Exit::Refused, 2),
        "{}",
        bad.err
    );
}

#[test]
fn check_looks_at_the_folder_of_the_disk_store_and_makes_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = |path: &str| {
        let path = folder.path().join(path);
        format!("[store]\nkind = \"disk\"\n[store.disk]\npath = {path:?}\n{ROUTE}")
    };
    let good = run(&store("new"), &[], Asked::Check);
    assert_eq!(good.exit, Exit::Done, "{}", good.err);
    assert!(!folder.path().join("new").exists());
    let bad = run(&store("missing/new"), &[], Asked::Check);
    assert_eq!(bad.exit, Exit::Refused);
    assert_says(&bad.err, &["store.disk.path", "parent"]);
    let other = store("missing/new").replace("\"disk\"", "\"memory\"");
    assert_eq!(run(&other, &[], Asked::Check).exit, Exit::Done);
}

#[test]
fn check_refuses_what_this_version_lacks() {
    let text = STRIPE.replacen("kind = \"redis\"", "kind = \"postgres\"", 1);
    let said = run(&text, &[], Asked::Check);
    assert_eq!(said.exit, Exit::Refused);
    assert_says(&said.err, &["store.kind", "not available in this version"]);
    assert!(!said.err.contains("hunter2"), "{}", said.err);
}

#[test]
fn print_config_shows_what_is_in_effect_and_no_secret() {
    let said = run(
        STRIPE,
        &[("IDEM_PROXY_UPSTREAM__URL", "http://127.0.0.1:9")],
        Asked::Print,
    );
    assert_eq!(said.exit, Exit::Done, "{}", said.err);
    assert_says(
        &said.out,
        &[
            "url = \"http://127.0.0.1:9\"",
            "dialect = \"stripe-v1\"",
            "marker_header = \"Idempotent-Replayed\"",
            "retention = \"1h\"",
            "kind = \"redis\"",
            "url = \"redis://user:***@127.0.0.1:6379\"",
            "topology = \"single\"",
        ],
    );
    assert!(!(said.out + &said.err).contains("hunter2"));
}

#[test]
fn print_config_of_a_wrong_file_prints_the_problems_alone() {
    let said = run(
        "[policy]\nlease = \"x\"\n[store]\nkind = \"postgres\"\n",
        &[],
        Asked::Print,
    );
    assert_eq!((said.exit, said.out.as_str()), (Exit::Refused, ""));
    assert_says(&said.err, &["policy.lease", "store.kind"]);
}

#[test]
fn credentials_of_any_url_stay_hidden() {
    for text in [
        "[upstream]\nurl = \"http://user:hunter2@a\"",
        "[upstream]\nurl = [\"http://user:hunter2@a\"]",
        "[telemetry]\notlp_endpoint = \"http://user:hunter2@c\"",
        "[store.redis]\nurl = [\"redis://:hunter2@a\", \"hunter2\"]",
        "[store.redis]\nurl = { password = \"hunter2\" }",
        "[store.postgres]\nurl = \"postgres://h/db?password=hunter2\"",
        "[store.postgres]\nurl = \"mysql://u:hunter2@h\"",
        "[identity.jwt]\njwks_url = \"https://u:hunter2@h\"",
    ] {
        for command in [Asked::Check, Asked::Print] {
            let said = run(text, &[], command);
            assert!(!(said.out + &said.err).contains("hunter2"), "{text}");
        }
    }
}

#[test]
fn what_is_printed_loads_again_and_is_the_same() {
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:1\", \"unix:/run/a \\\"b\\\".sock\"]\n[upstreams.\"a b\"]\nurl = \"unix:/x\"\n\
         [store.redis]\nurl = \"redis://u:p@h\"\n[identity]\nfrom = []\n\
         [policy]\ndialect = \"stripe-v2\"\nerrors = \"problem\"\nkey_required_if = [{{ header = \"a\", matches = '^\\d' }}]\n\
         key_format = '[\"\\\\]+'\n{ROUTE}upstream = \"a b\"\ndialect = \"ietf\"\nreplay_headers = [\"location\"]\n\
         [route.fingerprint]\nonly = [\"/a~1b\"]\n[route.identity]\nfrom = [\"cookie:c\"]\n{}",
        ROUTE.replace("orders", "others")
    );
    let first = run(
        &text,
        &[("IDEM_PROXY_STORE__NAMESPACE", "1\n2".trim_end())],
        Asked::Print,
    );
    // A line break is no name: the namespace is refused, and so nothing is printed.
    assert_eq!(first.exit, Exit::Refused);
    let first = run(
        &text,
        &[("IDEM_PROXY_STORE__NAMESPACE", "12")],
        Asked::Print,
    );
    assert_eq!(first.exit, Exit::Done, "{}", first.err);
    let again = run(&first.out, &[], Asked::Print);
    assert_eq!(again.exit, Exit::Done, "{}", again.err);
    assert_eq!(again.out, first.out);
    let (old, new) = (
        load_with(&text, &[("IDEM_PROXY_STORE__NAMESPACE", "12")]),
        load_with(&first.out, &[]),
    );
    let (old, new) = (old.expect("valid").config, new.expect("valid").config);
    assert_eq!(format!("{old:?}"), format!("{new:?}"));
}
