//! Routes: what is wrong with one, or with two together.

use crate::common::{ROUTE, assert_says, load, problems};

fn route(lines: &str) -> String {
    format!("[[route]]\n{lines}\n")
}

#[test]
fn each_fault_is_named() {
    let twin = "name = \"twice\"\nmethods = [\"POST\"]\npath = \"/a\"";
    let other = "name = \"twice\"\nmethods = [\"POST\"]\npath = \"/b\"";
    let same = "name = \"other\"\nmethods = [\"PUT\", \"POST\"]\npath = \"/%61/\"";
    for (text, words) in [
        (
            route(twin) + &route(other),
            ["route[twice].name", "another route is named twice"],
        ),
        (
            route(twin) + &route(same),
            ["route[other].path", "route twice takes POST"],
        ),
        (
            route(&twin.replace("/a", "/a/{*rest}/b")),
            ["route[twice].path", "rest"],
        ),
        (
            route(&format!("{twin}\nupstream = \"nowhere\"")),
            ["\"nowhere\"", "no [upstreams.NAME]"],
        ),
        (
            route(&format!("{twin}\nkey_format = \"(\"")),
            ["route[twice].key_format", "unclosed group"],
        ),
        (
            route(&format!("{twin}\nretenton = \"1h\"")),
            ["route[twice].retenton", "did you mean retention?"],
        ),
        (
            route(&format!("{twin}\nidentity = {{ form = [] }}")),
            ["route[twice].identity.form", "did you mean from?"],
        ),
        (
            route(twin) + "[upstreams.b]\nprotocol = \"http2\"",
            ["upstreams.b.url", "missing"],
        ),
        (
            route("methods = [\"POST\"]\npath = \"/a\""),
            ["route[0].name", "missing"],
        ),
        (
            route("name = \"n\"\npath = \"/a\""),
            ["route[n].methods", "missing"],
        ),
        (
            route("name = \"n\"\nmethods = [\"POST\"]"),
            ["route[n].path", "missing"],
        ),
        (
            route("name = \"n\"\nmethods = []\npath = \"/a\""),
            ["route[n].methods", "empty"],
        ),
        (
            route(&twin.replace("POST", "post")),
            ["route[twice].methods[0] = \"post\"", "upper case"],
        ),
        (
            route(&twin.replace("POST", "A B")),
            ["route[twice].methods[0]", "no method"],
        ),
        (
            route(&twin.replace("POST", "TRACE")),
            ["route[twice].methods[0]", "never serves"],
        ),
        (
            route(twin).replace("[[route]]", "[route]"),
            ["route = {", "not a list"],
        ),
        ("route = [1]".to_owned(), ["route[0] = 1", "not a table"]),
    ] {
        assert_says(&problems(&text), &words);
    }
}

#[test]
fn a_named_upstream_is_found_and_a_slip_of_one_is_named() {
    let text = format!(
        "[upstreams.ledger]\nurl = \"http://l:1\"\n[upstreams.billing]\nurl = \"http://b:1\"\n{ROUTE}"
    );
    let config = load(&format!("{text}upstream = \"ledger\"\n"));
    let chosen = &config.upstreams[config.routes[0].upstream];
    assert_eq!(
        (chosen.name.as_str(), chosen.authority.as_str()),
        ("ledger", "l:1")
    );
    assert_eq!(load(&text).routes[0].upstream, 0);
    assert_eq!(config.upstreams[0].name, "");
    let said = problems(&format!("{text}upstream = \"biling\"\n"));
    assert_says(&said, &["billing, ledger", "did you mean billing?"]);
}

#[test]
fn placeholders_of_other_names_are_the_same_path() {
    let one = "name = \"one\"\nmethods = [\"POST\"]\npath = \"/a/{id}\"";
    let two = "name = \"two\"\nmethods = [\"POST\"]\npath = \"/a/{other}\"";
    assert_says(
        &problems(&(route(one) + &route(two))),
        &["route one takes POST /a/{other} already"],
    );
    load(&(route(one) + &route(&two.replace("POST", "PUT"))));
    load(&(route(one) + &route(&two.replace("{other}", "{*rest}"))));
}

#[test]
fn a_method_in_lower_case_is_told_what_it_means() {
    let said = |method: &str| problems(&ROUTE.replace("POST", method));
    assert_says(
        &said("post"),
        &["methods[0] = \"post\"", "did you mean \"POST\"?"],
    );
    assert!(!said("connect").contains("did you mean"));
}
