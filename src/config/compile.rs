//! The way from a file and an environment to a configuration that can be served: every section, once, in order.

use std::{path::Path, sync::Arc};

use super::{
    Config, Loaded, Printed, Problems, Published, Upstream, environment,
    identity::{self, Certificates, Replays, Usage, Verifiers},
    problem::{Problem, Refusal},
    reader::{Layer, Report, Section, Show},
    route::{self, Ground},
    server,
    source::{self, Origin, Table},
    store, upstream,
};

/// Everything that reading a configuration gives, whether or not it can be served.
#[derive(Debug)]
pub struct Reading {
    /// What is wrong.
    pub problems: Problems,
    /// What an operator should know at every start.
    pub warnings: Vec<String>,
    /// What an operator should know who checks a configuration.
    pub advice: Vec<String>,
    /// The effective values, without secrets; nothing where the file is no TOML.
    pub printed: Printed,
    config: Option<Config>,
}

impl Reading {
    /// The configuration, if nothing is wrong with it, to look at.
    #[must_use]
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref().filter(|_| self.problems.is_empty())
    }

    /// The configuration, if nothing is wrong with it.
    ///
    /// # Errors
    /// Every problem that was found.
    pub fn loaded(self) -> Result<Loaded, Problems> {
        match self.config {
            Some(config) if self.problems.is_empty() => Ok(Loaded {
                config,
                warnings: self.warnings,
                advice: self.advice,
                printed: self.printed,
            }),
            _ => Err(self.problems),
        }
    }
}

/// Reads the file and lays the variables over it. The files that it names are read too, and nothing else is opened.
pub fn read(path: &Path, variables: impl IntoIterator<Item = (String, String)>) -> Reading {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&name, &text, variables),
        Err(error) => {
            let why = match error.kind() {
                std::io::ErrorKind::InvalidData => "the file is not UTF-8".into(),
                _ => format!("the file cannot be read: {error}"),
            };
            let problem = Problem::new(Origin::File, "", None, Refusal::wrong(why));
            finish(&name, &Report::default(), vec![problem], None)
        }
    }
}

/// The same for a text that is in memory; `name` stands for the file in problems.
pub fn parse(
    name: &str,
    text: &str,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Reading {
    let report = Report::default();
    // A file that cannot be read still leaves the environment to be checked.
    let (mut table, mut problems) = match source::document(text) {
        Ok(table) => (table, Vec::new()),
        Err(problems) => (Table::new(), problems),
    };
    let is_document = problems.is_empty();
    problems.extend(environment::overlay(&mut table, variables));
    let config = if is_document {
        compile(&report, table)
    } else {
        None
    };
    finish(name, &report, problems, config)
}

fn finish(
    name: &str,
    report: &Report,
    mut problems: Vec<Problem>,
    config: Option<Config>,
) -> Reading {
    problems.append(&mut report.problems.take());
    if problems.is_empty() && config.is_none() {
        let why = "it cannot be read, and idem-proxy cannot say why: this is a fault of idem-proxy";
        problems.push(Problem::new(Origin::File, "", None, Refusal::wrong(why)));
    }
    Reading {
        problems: Problems::new(name, problems),
        warnings: report.warnings.take(),
        advice: report.advice.take(),
        printed: report.printed.take(),
        config,
    }
}

fn compile(report: &Report, table: Table) -> Option<Config> {
    let layer = Layer {
        table,
        ..Layer::default()
    };
    let mut root = Section::open(report, Origin::File, "", Show::All, vec![layer]);
    let server = server::server(root.child("server", Show::All));
    let admin = server::admin(root.child("admin", Show::All), server.as_ref());
    let mut upstreams: Vec<(String, Option<Upstream>)> = Vec::new();
    upstreams.push((
        String::new(),
        upstream::upstream(root.child("upstream", Show::All), ""),
    ));
    for (name, section) in root.child("upstreams", Show::Given).named() {
        let read = upstream::upstream(section, &name);
        upstreams.push((name, read));
    }
    let store = store::store(root.child("store", Show::All));
    let identity = root.child("identity", Show::All);
    let mut ground = Ground {
        policy: Vec::new(),
        identity: identity.layers().to_vec(),
        upstreams,
        verifiers: Verifiers::default(),
        certificates: Certificates::of(server.as_ref()),
    };
    // With routes, each of them says who its callers are; this is what they say it over.
    let usage = if root.find("route").is_some() {
        Usage::Ground
    } else {
        Usage::InEffect(Replays::of_defaults(&root))
    };
    let identity = identity::identity(identity, &ground.verifiers, ground.certificates, usage);
    let telemetry = server::telemetry(root.child("telemetry", Show::All));
    let policy = root.child("policy", Show::All);
    ground.policy = policy.layers().to_vec();
    let defaults = route::defaults(policy, identity);
    let routes = root
        .tables("route")
        .and_then(|sections| route::routes(sections, &ground));
    root.finish();
    let upstreams: Option<Vec<Upstream>> = ground
        .upstreams
        .into_iter()
        .map(|(_, upstream)| upstream)
        .collect();
    let config = Config {
        server: server?,
        admin: admin?,
        upstreams: upstreams?,
        store: store?,
        telemetry: telemetry?,
        verifiers: ground.verifiers.into_list(),
        routes: routes?,
        defaults: Arc::new(defaults?),
        published: Published::of(&report.printed.borrow()),
    };
    route::warn(report, &config);
    identity::advise(report, &config.verifiers);
    Some(config)
}
