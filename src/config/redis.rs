//! Reads `[store.redis]`.

use std::{fmt, time::Duration};

use redis::IntoConnectionInfo as _;
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
    let urls = s.one_or_more("url", DEFAULT, |url| {
        scheme(url, &SCHEMES)?;
        url.parse::<RedisUrl>()
            .map_err(|why| Refusal::wrong(why).allowed("\"redis[s]://user:password@host:port/db\""))
    });
    let file = if chosen == Chosen::Yes {
        if given && s.find("url_file").is_some() {
            s.object("url_file", "url is given too: give one of them");
        }
        s.text_or("url_file", None, |path| from_file(path).map(Some))
    } else {
        s.skip("url_file");
        Some(None)
    };
    let there = |word| (word, (chosen == Chosen::No).then_some(()));
    let topologies = [("single", Some(())), there("cluster"), there("sentinel")];
    let topology = s.choice("topology", "single", &topologies);
    let timeout = s.duration("timeout", "500ms", MOMENT);
    let replicas = s.count::<u32>("wait_replicas", 0, 0..=1000);
    let allow_eviction = s.flag("allow_eviction", false);
    if chosen == Chosen::Yes && urls.as_ref().is_some_and(|urls| urls.len() != 1) {
        s.object("url", "topology = \"single\" takes one URL");
    }
    section.finish();
    topology?;
    let url = match file? {
        Some(url) => url,
        None => urls?.into_iter().next()?,
    };
    Some(RedisStore {
        url,
        timeout: timeout.filter(|timeout| *timeout > Duration::ZERO)?,
        wait_replicas: replicas?,
        allow_eviction: allow_eviction?,
    })
}

/// The one URL in a file. Its content is never shown.
fn from_file(path: &str) -> Result<RedisUrl, Refusal> {
    let refuse = |why: String| Refusal::wrong(why).allowed("a file with one URL in it");
    let text = std::fs::read_to_string(path)
        .map_err(|error| refuse(format!("the file cannot be read: {error}")))?;
    let text = Zeroizing::new(text);
    let url = text.trim();
    if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
        return Err(refuse("what is in it is no URL of a Redis server".into()));
    }
    url.parse()
        .map_err(|why: &str| refuse(format!("what is in it: {why}")))
}
