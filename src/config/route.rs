//! Reads `[[route]]`: each route's own keys, and its policy from the layers under it.

use std::{collections::BTreeMap, sync::Arc};

use http::Method;

use super::{
    Config, Route, StoreKind, Upstream,
    identity::{self, Certificates, Replays, Usage, Verifiers},
    policy,
    problem::Refusal,
    reader::{Layer, Report, Section, Show},
    source::Value,
};
use crate::core::{
    path::{Segment, Template},
    policy::{
        CallerPart, Identity, KeyRule, OnStoreFailure, Policy, RetentionFrom, RouteName,
        UnknownOutcome,
    },
};

/// What routes are read over.
#[derive(Debug)]
pub(super) struct Ground {
    /// `[policy]`
    pub(super) policy: Vec<Layer>,
    /// `[identity]`
    pub(super) identity: Vec<Layer>,
    /// `[upstream]`, then `[upstreams.NAME]`; `None`: something in it is refused.
    pub(super) upstreams: Vec<(String, Option<Upstream>)>,
    /// What identities index.
    pub(super) verifiers: Verifiers,
    /// What identities may ask for.
    pub(super) certificates: Certificates,
}

/// Reads every route; what is wrong with several together is found too.
pub(super) fn routes(sections: Vec<Section<'_>>, ground: &Ground) -> Option<Vec<Route>> {
    let mut names: Vec<RouteName> = Vec::new();
    let mut shapes: BTreeMap<(String, Vec<Segment>), RouteName> = BTreeMap::new();
    let mut routes = Vec::new();
    for section in sections {
        let printable = |name: &&str| !name.contains(char::is_control);
        let path = match section.own_text("name").filter(printable) {
            Some(name) => format!("route[{name}]"),
            None => section.path().to_owned(),
        };
        let mut section = section.renamed(path, "[[route]]", ground.policy.clone());
        let route = route(&mut section, ground, |section, name, methods, template| {
            if names.contains(name) {
                section.object(
                    "name",
                    format!("another route is named {} already", name.as_str()),
                );
            }
            names.push(name.clone());
            for method in methods {
                let shape = (method.to_string(), template.segments().to_vec());
                if let Some(other) = shapes.insert(shape, name.clone()) {
                    let other = other.as_str();
                    section.object(
                        "path",
                        format!("route {other} takes {method} {} already", template.as_str()),
                    );
                }
            }
        });
        section.finish();
        routes.push(route);
    }
    routes.into_iter().collect()
}

fn route<'a>(
    s: &mut Section<'a>,
    ground: &Ground,
    mut compare: impl FnMut(&Section<'a>, &RouteName, &[Method], &Template),
) -> Option<Route> {
    let name = s.required("name", "the route's label in metrics and logs", route_name);
    let methods = s.required_list(
        "methods",
        "the methods that it takes, such as [\"POST\"]",
        method,
    );
    let path = s.required(
        "path",
        "the path that it takes, such as \"/orders/{id}\"",
        |text| {
            Template::parse(text).map_err(|why| {
                Refusal::wrong(why).allowed("\"/orders\", \"/orders/{id}\", \"/files/{*rest}\"")
            })
        },
    );
    let upstream = s.text_or("upstream", 0, |text| upstream(text, &ground.upstreams));
    if methods.as_ref().is_some_and(Vec::is_empty) {
        s.object("methods", "it is empty: the route would take nothing");
    }
    if let (Some(name), Some(path)) = (&name, &path) {
        compare(s, name, methods.as_deref().unwrap_or_default(), path);
    }
    policy::dialect(s);
    // Who calls a route without keys is never asked.
    let usage = match s.find("key") {
        Some((node, _)) if node.value == Value::text("off") => Usage::Ground,
        _ => Usage::InEffect(Replays::of(s)),
    };
    let identity = identity::identity(
        s.child_over("identity", Show::All, ground.identity.clone()),
        &ground.verifiers,
        ground.certificates,
        usage,
    );
    let policy = policy::policy(s, identity);
    Some(Route {
        name: name?,
        methods: methods?,
        path: path?,
        upstream: upstream?,
        policy: Arc::new(policy?),
    })
}

fn route_name(text: &str) -> Result<RouteName, Refusal> {
    if text.is_empty() || text.len() > 255 || text.contains(char::is_control) {
        return Err(
            Refusal::wrong("it is no name").allowed("1 to 255 bytes without control characters")
        );
    }
    Ok(RouteName::new(text))
}

fn method(text: &str) -> Result<Method, Refusal> {
    let refuse = |why: &str| {
        Refusal::wrong(why).allowed("methods in upper case, such as POST, PUT, PATCH, DELETE")
    };
    if text.contains(|c: char| c.is_ascii_lowercase()) {
        let refusal = refuse("methods are case-sensitive, and this is none");
        let upper = text.to_ascii_uppercase();
        return Err(match method(&upper) {
            Ok(_) => refusal.meant(&upper),
            Err(_) => refusal,
        });
    }
    match Method::from_bytes(text.as_bytes()) {
        Ok(Method::CONNECT | Method::TRACE) => Err(refuse("the proxy never serves this method")),
        Ok(method) => Ok(method),
        Err(_) => Err(refuse("it is no method")),
    }
}

fn upstream(text: &str, upstreams: &[(String, Option<Upstream>)]) -> Result<usize, Refusal> {
    let named = || {
        upstreams
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !name.is_empty())
    };
    let known: Vec<&str> = named().collect();
    let found = upstreams
        .iter()
        .position(|(name, _)| !name.is_empty() && name == text);
    found.ok_or_else(|| {
        if known.is_empty() {
            return Refusal::wrong("there is no [upstreams.NAME]")
                .allowed("the name of an [upstreams.NAME]");
        }
        Refusal::wrong("there is no upstream of this name")
            .allowed(known.join(", "))
            .near(text, &known)
    })
}

/// Of leases that no claim outlives which the store gives late.
fn warn_of_short_leases(report: &Report, config: &Config) {
    let timeout = config.store.redis.timeout;
    let hasty: Vec<&str> = config
        .routes
        .iter()
        .filter(|route| route.policy.key != KeyRule::Off)
        .filter(|route| {
            config.store.kind == StoreKind::Redis && route.policy.terms.lease <= timeout
        })
        .map(|route| route.name.as_str())
        .collect();
    if !hasty.is_empty() {
        report.warn(format!(
            "lease of route {}: it is no longer than store.redis.timeout: a claim that the store gives late is over before its call \
             can begin, and its request is refused",
            hasty.join(", ")
        ));
    }
}

/// What is valid and may not be what was meant.
pub(super) fn warn(report: &Report, config: &Config) {
    let (routes, upstreams, server) = (&config.routes, &config.upstreams, &config.server);
    // Where something is wrong, a route may be there under a name that is none.
    if routes.is_empty() && report.problems.borrow().is_empty() {
        report.warn("there is no [[route]]: every request passes through unprotected".into());
    }
    let keyed = || {
        routes
            .iter()
            .filter(|route| route.policy.key != KeyRule::Off)
    };
    for route in routes {
        for segment in route.path.as_str().split('/') {
            if let Some(meant) = placeholder(segment) {
                report.warn(format!(
                    "route {}: `{segment}` in its path is these very characters; {meant}",
                    route.name.as_str()
                ));
            }
        }
    }
    if config.store.kind == StoreKind::None && keyed().next().is_some() {
        report.warn(
            "store.kind = \"none\": every request with a key gets 501 no-store on the routes that take keys".into(),
        );
    }
    for route in keyed() {
        let (name, policy) = (route.name.as_str(), &route.policy);
        let capture = upstreams
            .get(route.upstream)
            .map(|upstream| upstream.capture_timeout);
        if capture > Some(policy.terms.retention)
            && let Some(lost) = lost(policy)
        {
            report.warn(format!(
                "route {name}: retention, counted from the start, is shorter than the upstream's capture_timeout: {lost}"
            ));
        }
        if policy.max_request_body > server.max_buffered_bytes {
            report.warn(format!(
                "route {name}: max_request_body is over server.max_buffered_bytes: the largest bodies can never be held"
            ));
        }
    }
    for route in keyed().filter(|route| route.policy.key == KeyRule::Derived) {
        report.advise(format!(
            "route {}: key = \"derived\" answers whatever is equal from the first answer until its retention ends, what a \
             caller means to do twice included: give it a short retention",
            route.name.as_str()
        ));
    }
    let unprotected: Vec<&str> = keyed()
        .filter(|route| route.policy.on_store_failure == OnStoreFailure::Bypass)
        .map(|route| route.name.as_str())
        .collect();
    if !unprotected.is_empty() {
        report.advise(format!(
            "on_store_failure of route {}: with \"bypass\" nothing is protected while the store does not answer, or cannot read a \
             record: every copy and every retry executes, also of what was executed before",
            unprotected.join(", ")
        ));
        if config.store.kind == StoreKind::Redis && config.store.redis.wait_replicas > 0 {
            report.warn(format!(
                "on_store_failure of route {}: \"bypass\" undoes store.redis.wait_replicas: with fewer replicas every new key \
                 executes unprotected, although Redis is up",
                unprotected.join(", ")
            ));
        }
    }
    warn_of_short_leases(report, config);
    let advice = |has: &dyn Fn(&CallerPart) -> bool, why: &str| {
        let concerned = keyed().filter(|route| route.policy.identity.from.iter().any(has));
        let names: Vec<&str> = concerned.map(|route| route.name.as_str()).collect();
        if !names.is_empty() {
            report.advise(format!(
                "identity.from of route {}: {why}",
                names.join(", ")
            ));
        }
    };
    advice(
        &|part| *part == CallerPart::Authorization,
        "\"authorization\" makes a refreshed or per-request credential a new caller, whose retries run again",
    );
    advice(
        &|part| matches!(part, CallerPart::Header(_)),
        "\"header:NAME\" is safe only where clients cannot set that header freely",
    );
    advice(
        &|part| *part == CallerPart::SigV4,
        "\"sigv4\" names its caller without proof: who knows an access key id can read the answers stored for it, \
         unless something in front verifies signatures",
    );
    if server.trusted_proxies.is_empty() {
        advice(
            &|part| *part == CallerPart::PeerIp,
            "\"peer-ip\" without server.trusted_proxies is the TCP peer: behind a load balancer all clients are one caller",
        );
    }
}

/// What is lost by a retention that is shorter than the upstream's `capture_timeout`. An unknown outcome is kept from the start of its call,
/// whatever an answer's retention counts from.
fn lost(policy: &Policy) -> Option<&'static str> {
    match (policy.terms.retention_from, policy.terms.unknown) {
        (RetentionFrom::Start, _) => Some("a record may end before its answer comes"),
        (RetentionFrom::Completion, UnknownOutcome::HoldForever | UnknownOutcome::HoldFor(_)) => {
            Some(
                "an outcome that is unknown may be forgotten at once, and a retry then executes again",
            )
        }
        (RetentionFrom::Completion, UnknownOutcome::Release) => None,
    }
}

/// What a literal segment was probably meant to be, where other routers read it as a placeholder.
fn placeholder(segment: &str) -> Option<String> {
    match segment {
        "*" => Some("any one segment is {name}, the rest is {*rest}".to_owned()),
        "**" => Some("the rest is {*rest}".to_owned()),
        _ => {
            let name = segment.strip_prefix(':')?;
            Some(format!("one segment of any characters is {{{name}}}"))
        }
    }
}

/// The policy and identity of requests that match no route: those of `[policy]` and `[identity]`.
pub(super) fn defaults(mut section: Section<'_>, identity: Option<Identity>) -> Option<Policy> {
    policy::dialect(&mut section);
    let policy = policy::policy(&mut section, identity);
    section.finish();
    policy
}
