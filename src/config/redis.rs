//! Reads `[store.redis]`.

use std::{fmt, time::Duration};

use redis::{ConnectionAddr, IntoConnectionInfo as _};
use zeroize::Zeroizing;

use super::{RedisStore, problem::Refusal, reader::Section, secret, server::MOMENT, store::scheme};

/// The URL of a Redis server. It may hold a password: it is never shown whole, and overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(Zeroizing<String>);

impl RedisUrl {
    /// All of it, for who connects.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Without its secrets, for logs.
    #[must_use]
    pub fn shown(&self) -> String {
        secret::url(&self.0)
    }

    /// Whether it says which port; where it does not, the port is the usual one of what is called.
    #[must_use]
    pub fn has_port(&self) -> bool {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        // An address in brackets has colons of its own.
        let after = host.rsplit(']').next().unwrap_or_default();
        after
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.is_empty())
    }

    /// What a parameter of its query says; `None`: it is not there.
    fn parameter(&self, name: &str) -> Option<&str> {
        let (_, query) = self.0.split_once('?')?;
        let query = query.split('#').next().unwrap_or_default();
        query.split('&').find_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (key == name).then_some(value)
        })
    }

    /// All but where it leads: what every URL of a list has to share.
    fn shared(&self) -> impl PartialEq + use<> {
        let scheme = self.0.split("://").next().map(str::to_owned);
        let tail = self.0.split_once(['?', '#']);
        let tail = tail.map(|(_, tail)| Zeroizing::new(tail.to_owned()));
        let info = self.0.as_str().into_connection_info().ok();
        let account = info.map(|info| {
            let redis = info.redis_settings();
            let secret = |text: Option<&str>| text.map(|text| Zeroizing::new(text.to_owned()));
            (
                secret(redis.username()),
                secret(redis.password()),
                redis.db(),
            )
        });
        (scheme, tail, account)
    }

    /// The database that it names, if it leads to a host; `None`: it leads to a Unix socket.
    fn database(&self) -> Option<i64> {
        let info = self.0.as_str().into_connection_info().ok()?;
        match info.addr() {
            ConnectionAddr::Unix(_) => None,
            _ => Some(info.redis_settings().db()),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisUrl").field(&self.shown()).finish()
    }
}

/// A URL that can be connected to.
impl std::str::FromStr for RedisUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.into_connection_info()
            .map_err(|_| "it is no URL of a Redis server")?;
        Ok(Self(Zeroizing::new(text.to_owned())))
    }
}

/// `store.redis.url` and `store.redis.topology`: which servers there are, and how the one that has a record is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisServers {
    /// One server has them all.
    Single(RedisUrl),
    /// Some nodes of a cluster, never none; they tell of the others. All URLs have the same credentials.
    Cluster(Vec<RedisUrl>),
    /// Sentinels, never none, who know the server that has them all at the time.
    Sentinel {
        /// Where they are; the credentials and the database are those of the server. All URLs have the same.
        sentinels: Vec<RedisUrl>,
        /// What they call it.
        master: String,
    },
}

impl RedisServers {
    /// Without secrets, for logs.
    #[must_use]
    pub fn shown(&self) -> String {
        let list = |urls: &[RedisUrl]| {
            let urls: Vec<_> = urls.iter().map(RedisUrl::shown).collect();
            urls.join(" ")
        };
        match self {
            Self::Single(url) => url.shown(),
            Self::Cluster(nodes) => list(nodes),
            Self::Sentinel { sentinels, .. } => list(sentinels),
        }
    }
}

#[derive(Clone, Copy)]
enum Topology {
    Single,
    Cluster,
    Sentinel,
}

impl Topology {
    /// What these URLs are in it.
    fn servers(self, mut urls: Vec<RedisUrl>) -> Result<RedisServers, &'static str> {
        let master = urls.first().and_then(|url| url.parameter("master"));
        let master = master.map(str::to_owned);
        if master.is_some() && !matches!(self, Self::Sentinel) {
            return Err(
                "master=… in a URL is for topology = \"sentinel\": it is what the sentinels call the server",
            );
        }
        if let Self::Single = self {
            return match (urls.pop(), urls.is_empty()) {
                (Some(url), true) => Ok(RedisServers::Single(url)),
                _ => Err("topology = \"single\" takes one URL"),
            };
        }
        let Some((first, others)) = urls.split_first() else {
            return Err("at least one URL is needed");
        };
        let shared = first.shared();
        if !others.iter().all(|url| url.shared() == shared) {
            return Err(
                "its URLs differ in more than host and port: scheme, user, password, database and query must be the same in each",
            );
        }
        let Some(database) = first.database() else {
            return Err("a Unix socket leads to one server: topology = \"single\"");
        };
        if let Self::Cluster = self {
            return match database {
                0 => Ok(RedisServers::Cluster(urls)),
                _ => Err("a cluster has no database but 0"),
            };
        }
        let master = master.unwrap_or_else(|| "mymaster".into());
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if master.is_empty() || !master.chars().all(named) {
            return Err(
                "master=… is no name that sentinels know: letters, digits, \".\", \"-\" and \"_\"",
            );
        }
        Ok(RedisServers::Sentinel {
            sentinels: urls,
            master,
        })
    }
}

/// Whether the store is the one in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// What this version lacks is refused.
    Yes,
    /// Names and kinds are checked.
    No,
}

const SCHEMES: [&str; 3] = ["redis://", "rediss://", "redis+unix://"];
const DEFAULT: &str = "redis://127.0.0.1:6379";

/// Reads the table. Where it is not chosen, what it gives has no effect.
pub(super) fn redis(mut section: Section<'_>, chosen: Chosen) -> Option<RedisStore> {
    let s = &mut section;
    let given = s.find("url").is_some();
    let urls = if !given && s.find("url_file").is_some() {
        // The default is not in effect, and beside url_file it would be refused where it is printed.
        s.overruled("url");
        Some(Vec::new())
    } else {
        s.one_or_more("url", DEFAULT, |url| {
            scheme(url, &SCHEMES)?;
            url.parse::<RedisUrl>().map_err(|why| {
                Refusal::wrong(why).allowed("\"redis[s]://user:password@host:port/db\"")
            })
        })
    };
    let file = if chosen == Chosen::Yes {
        if given && s.find("url_file").is_some() {
            s.object("url_file", "url is given too: give one of them");
        }
        s.text_or("url_file", None, |path| from_file(path).map(Some))
    } else {
        s.skip("url_file");
        Some(None)
    };
    let topologies = [
        ("single", Some(Topology::Single)),
        ("cluster", Some(Topology::Cluster)),
        ("sentinel", Some(Topology::Sentinel)),
    ];
    let topology = s.choice("topology", "single", &topologies);
    let timeout = s.duration("timeout", "500ms", MOMENT);
    let replicas = s.count::<u32>("wait_replicas", 0, 0..=1000);
    let allow_eviction = s.flag("allow_eviction", false);
    let servers = match (file, urls, topology) {
        (Some(Some(urls)), _, Some(topology)) => Some(("url_file", topology.servers(urls))),
        (Some(None), Some(urls), Some(topology)) => Some(("url", topology.servers(urls))),
        _ => None,
    };
    let servers = match (servers, chosen) {
        (Some((_, Ok(servers))), _) => Some(servers),
        (Some((key, Err(why))), Chosen::Yes) => {
            s.object(key, why);
            None
        }
        // Nothing is connected to.
        (Some(_), Chosen::No) => DEFAULT.parse().ok().map(RedisServers::Single),
        (None, _) => None,
    };
    section.finish();
    Some(RedisStore {
        servers: servers?,
        timeout: timeout.filter(|timeout| *timeout > Duration::ZERO)?,
        wait_replicas: replicas?,
        allow_eviction: allow_eviction?,
    })
}

/// The URLs in a file, one a line. Its content is never shown.
fn from_file(path: &str) -> Result<Vec<RedisUrl>, Refusal> {
    let refuse = |why: String| Refusal::wrong(why).allowed("a file with one URL a line");
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(format!("the file cannot be read: {error}")))?;
    let text = Zeroizing::new(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let urls: Result<Vec<RedisUrl>, Refusal> = lines
        .map(|url| {
            if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
                return Err(refuse("what is in it is no URL of a Redis server".into()));
            }
            url.parse()
                .map_err(|why: &str| refuse(format!("what is in it: {why}")))
        })
        .collect();
    match urls? {
        none if none.is_empty() => Err(refuse("it is empty".into())),
        urls => Ok(urls),
    }
}
