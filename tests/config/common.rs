//! Reading a text, and saying what is expected of it.

use idem_proxy::{
    config::{self, Config, Loaded, Problems},
    core::policy::Policy,
};

pub(crate) const ROUTE: &str =
    "\n[[route]]\nname = \"orders\"\nmethods = [\"POST\"]\npath = \"/orders\"\n";

pub(crate) fn load_with(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    config::parse("proxy.toml", text, variables).loaded()
}

pub(crate) fn load(text: &str) -> Config {
    match load_with(text, &[]) {
        Ok(loaded) => loaded.config,
        Err(problems) => panic!("{problems}"),
    }
}

pub(crate) fn problems_with(text: &str, variables: &[(&str, &str)]) -> String {
    load_with(text, variables).expect_err(text).to_string()
}

pub(crate) fn problems(text: &str) -> String {
    problems_with(text, &[])
}

pub(crate) fn assert_says(said: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{word:?} is not in:\n{said}");
    }
}

/// The policy of the one route.
pub(crate) fn policy(text: &str) -> Policy {
    let config = load(text);
    let route = config.routes.first().expect("a route");
    (*route.policy).clone()
}
