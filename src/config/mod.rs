//! The configuration as the rest of the house reads it: checked, resolved, every default filled in.
//!
//! [`load`] reads a file and lays the environment over it: environment, file, defaults, in this order. All problems
//! are found at once. What is in effect is noted as it is read: `printed` shows it to operators, `published` to clients.
//! `source` and `environment` make one tree of values that know where they stand; `reader` walks it,
//! and the calls of `server`, `upstream`, `store`, `policy` and `route` are the schema: no key is listed elsewhere.

mod address;
mod compile;
mod dialect;
mod environment;
mod identity;
mod kinds;
mod otlp;
mod policy;
mod printed;
mod problem;
mod published;
mod reader;
mod redis;
mod route;
mod seal_keys;
mod secret;
mod server;
mod source;
mod store;
mod tls;
mod token;
mod units;
mod upstream;
mod words;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use http::Method;
use ipnet::IpNet;

use crate::{
    core::{
        path::Template,
        policy::{KeyRule, OnStoreFailure, Policy, RouteName},
    },
    tls::{ServerFiles, UpstreamFiles},
};

pub use self::otlp::{Otlp, OtlpTransport};
pub use self::redis::{RedisServers, RedisUrl};
pub use self::{
    address::admin_url,
    compile::{Reading, parse, read},
    environment::{environment, rust_log},
    printed::Printed,
    problem::Problems,
    published::Published,
    seal_keys::SealKeys,
    token::Token,
};

/// Reads the file at `path`, lays the variables over it and compiles the configuration.
///
/// `variables` are those of [`environment`] for a process, others for a test.
///
/// # Errors
/// Every problem that there is, what this version does not have included.
pub fn load(
    path: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Loaded, Problems> {
    read(path, variables).loaded()
}

/// A configuration that can be served.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What an operator should know at every start, one sentence each.
    pub warnings: Vec<String>,
    /// What an operator should know who checks a configuration, one sentence each.
    pub advice: Vec<String>,
    /// The effective values, without secrets.
    pub printed: Printed,
}

/// Everything that one process is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[admin]`
    pub admin: Admin,
    /// `[upstream]` first, then `[upstreams.NAME]` by name; a route holds an index into this list.
    pub upstreams: Vec<Upstream>,
    /// `[store]`
    pub store: Store,
    /// `[telemetry]`
    pub telemetry: Telemetry,
    /// Each `[identity.jwt]` that is in effect; an identity holds an index into this list.
    pub verifiers: Vec<crate::identity::Settings>,
    /// `[[route]]`, in the order of the file.
    pub routes: Vec<Route>,
    /// `[policy]` and `[identity]` by themselves: how a request that matches no route is answered.
    pub defaults: Arc<Policy>,
    /// What clients may read of [`Self::routes`].
    pub published: Published,
}

impl Config {
    /// Whether requests are refused while the store does not answer. Where every route that takes keys forwards them then, they are not.
    #[must_use]
    pub fn needs_store(&self) -> bool {
        let takes_keys = |route: &&Route| route.policy.key != KeyRule::Off;
        let mut keyed = self.routes.iter().filter(takes_keys).peekable();
        keyed.peek().is_none()
            || keyed.any(|route| route.policy.on_store_failure == OnStoreFailure::Reject)
    }
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// `host:port`; an IPv6 address stands in brackets.
    Tcp(String),
    /// `unix:/path`
    Unix(PathBuf),
}

/// The address as it is configured.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// `[server]`: the side of the clients.
#[derive(Debug, Clone)]
pub struct Server {
    /// Where clients connect; never empty.
    pub listen: Vec<Listen>,
    /// Threads that serve; 0: as many as the CPUs that this control group may use.
    pub workers: usize,
    /// After SIGTERM: not ready, but still accepting for so long.
    pub drain_delay: Duration,
    /// Then what runs may finish for so long.
    pub drain_timeout: Duration,
    /// How long a request head may take.
    pub head_timeout: Duration,
    /// How long the next piece of a request body may take.
    pub body_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub keepalive_timeout: Duration,
    /// How long a client may take none of what is written to it.
    pub write_timeout: Duration,
    /// The largest request head, in bytes.
    pub max_head_bytes: usize,
    /// The longest target, in bytes.
    pub max_target_bytes: usize,
    /// Client connections at a time.
    pub max_connections: usize,
    /// Upstream calls of keyed requests at a time.
    pub max_executions: usize,
    /// Bytes of keyed requests' bodies held at a time.
    pub max_buffered_bytes: usize,
    /// Where the published policy is, as routes see paths; `None`: nowhere.
    pub policy_path: Option<String>,
    /// Peers whose `Forwarded` and `X-Forwarded-*` are believed.
    pub trusted_proxies: Vec<IpNet>,
    /// `[server.tls]`; `None`: cleartext.
    pub tls: Option<ServerFiles>,
}

/// `[admin]`: the side of the operators.
#[derive(Debug, Clone)]
pub struct Admin {
    /// Where metrics and health are served; may be empty.
    pub listen: Vec<Listen>,
    /// `token_file`: the bearer token of the API; `None`: it is served on loopback and unix listeners alone.
    pub token: Option<Token>,
}

/// `[upstream]` or one `[upstreams.NAME]`: a service behind the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Its name; `""` for `[upstream]`.
    pub name: String,
    /// Where it listens.
    pub target: Target,
    /// Host and port as the URL has them: the Host header where `host = "upstream"`.
    pub authority: http::uri::Authority,
    /// `https`: how TLS is spoken to it; `None`: in cleartext.
    pub tls: Option<UpstreamFiles>,
    /// Which HTTP is spoken to it.
    pub protocol: Protocol,
    /// How long a connection may take to be made, its TLS handshake included.
    pub connect_timeout: Duration,
    /// How long until the answer can start.
    pub response_timeout: Duration,
    /// How long the proxy itself goes on waiting.
    pub capture_timeout: Duration,
    /// Idle connections kept.
    pub max_idle_connections: usize,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// Whose Host header it gets.
    pub host: HostHeader,
}

/// Where an upstream listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `http://host:port`, `https://host:port`
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// `unix:/path.sock`
    Unix(PathBuf),
}

/// `upstream.protocol`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Over TLS what ALPN says; HTTP/1.1 in cleartext.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; in cleartext by prior knowledge.
    Http2,
}

/// `upstream.host`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostHeader {
    /// The client's.
    Preserve,
    /// The URL's.
    Upstream,
}

/// `[store]`
#[derive(Debug, Clone)]
pub struct Store {
    /// Which kind.
    pub kind: StoreKind,
    /// Part of every record's id.
    pub namespace: String,
    /// `[store.memory]`
    pub memory: MemoryLimits,
    /// `[store.disk]`
    pub disk: DiskStore,
    /// `[store.redis]`
    pub redis: RedisStore,
    /// `encryption_key_file`: what is kept outside this process is encrypted; `None`: it is not.
    pub seal: Option<SealKeys>,
}

/// `store.kind`, as far as this version has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Keyed requests get 501.
    None,
    /// In this process's memory.
    Memory,
    /// In a folder of this machine.
    Disk,
    /// In a Redis or Valkey server that several proxies share.
    Redis,
}

/// `[store.disk]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStore {
    /// The folder; made if it is not there, but not its parent.
    pub path: PathBuf,
    /// How large its database may become, in bytes; full, new keys are refused.
    pub max_bytes: u64,
}

/// `[store.redis]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisStore {
    /// Where the servers are, and the credentials for them.
    pub servers: RedisServers,
    /// How long one operation may take.
    pub timeout: Duration,
    /// How many replicas a claim waits for, within `timeout`; 0: it waits for none.
    pub wait_replicas: u32,
    /// Whether a server is used that may drop records under memory pressure.
    pub allow_eviction: bool,
}

/// `[store.memory]`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes of complete records.
    pub max_bytes: u64,
    /// How many complete records; `None`: bounded by bytes alone.
    pub max_records: Option<u64>,
    /// How many claims, unknown records and tombstones.
    pub max_claims: usize,
    /// What happens when complete records fill it.
    pub on_full: OnFull,
}

/// `store.memory.on_full`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFull {
    /// The least recently used complete record goes.
    Evict,
    /// New keyed requests are refused.
    Reject,
}

/// `[telemetry]`
#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    /// How log lines look.
    pub log_format: LogFormat,
    /// A `tracing` filter; `RUST_LOG` wins over it.
    pub log_level: String,
    /// Whether each request gets a line.
    pub access_log: bool,
    /// Where traces go; `None`: nowhere, as is the default.
    pub otlp: Option<Otlp>,
}

/// `telemetry.log_format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
}

/// One `[[route]]`.
#[derive(Debug, Clone)]
pub struct Route {
    /// Its name, unique.
    pub name: RouteName,
    /// The methods it takes; never empty.
    pub methods: Vec<Method>,
    /// The path it takes.
    pub path: Template,
    /// Which of [`Config::upstreams`] it goes to.
    pub upstream: usize,
    /// What it promises.
    pub policy: Arc<Policy>,
}
