//! What a server must be to be trusted with records, looked at on every connection and every few seconds.

use std::collections::HashMap;

/// What `INFO` and `CONFIG GET` say.
#[derive(Debug, Default)]
pub(super) struct Said {
    info: HashMap<String, String>,
    /// `appendfsync` and `save`, where the server tells them.
    config: HashMap<String, String>,
}

/// Why a server is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It may drop records under memory pressure.
    #[error(
        "its maxmemory-policy is {0}, so that it may drop claims and answers under memory pressure and operations run twice; set it to noeviction, or store.redis.allow_eviction = true"
    )]
    Evicts(String),
    /// It lacks what the scripts need.
    #[error("it is version {0}; Redis 6.2 or later, or Valkey, is needed")]
    TooOld(String),
    /// It takes no writes.
    #[error("it is a replica: it takes no writes")]
    Replica,
}

impl Said {
    pub(super) fn new(info: &str, config: HashMap<String, String>) -> Self {
        let pair = |line: &str| {
            let (name, value) = line.trim_end().split_once(':')?;
            Some((name.to_owned(), value.to_owned()))
        };
        Self {
            info: info.lines().filter_map(pair).collect(),
            config,
        }
    }

    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    pub(super) fn version(&self) -> &str {
        self.info("redis_version")
    }

    pub(super) fn used_memory(&self) -> u64 {
        self.info("used_memory").parse().unwrap_or(0)
    }

    /// How many replicas are connected and follow.
    pub(super) fn replicas(&self) -> u32 {
        let number = |name: &String| {
            let digits = name.strip_prefix("slave");
            digits.is_some_and(|digits| digits.parse::<u32>().is_ok())
        };
        let online = |said: &str| said.split(',').any(|part| part == "state=online");
        let replicas = self
            .info
            .iter()
            .filter(|(name, said)| number(name) && online(said));
        u32::try_from(replicas.count()).unwrap_or(u32::MAX)
    }

    pub(super) fn unfit(&self, allow_eviction: bool) -> Option<Unfit> {
        let mut parts = self.version().split('.').map(str::parse::<u32>);
        let (major, minor) = (parts.next(), parts.next());
        if let (Some(Ok(major)), Some(Ok(minor))) = (major, minor)
            && (major, minor) < (6, 2)
        {
            return Some(Unfit::TooOld(self.version().to_owned()));
        }
        let policy = self.policy();
        if policy != "noeviction" && !allow_eviction {
            return Some(Unfit::Evicts(policy.to_owned()));
        }
        (self.info("role") != "master").then_some(Unfit::Replica)
    }

    fn policy(&self) -> &str {
        match self.info("maxmemory_policy") {
            "" => "unknown",
            policy => policy,
        }
    }

    /// What can be lost, one sentence each.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let policy = self.policy();
        if policy != "noeviction" {
            warnings.push(format!(
                "maxmemory-policy is {policy} and not noeviction: under memory pressure claims and answers are dropped, and operations run twice"
            ));
        }
        let save = self.config.get("save").map_or("", String::as_str);
        if self.info("aof_enabled") != "1" {
            warnings.push(if save.is_empty() {
                "it keeps nothing on a disk: a restart of Redis forgets every key".to_owned()
            } else {
                "appendonly is off: a crash of Redis forgets every key since its last snapshot"
                    .to_owned()
            });
        } else if let Some(fsync) = self.config.get("appendfsync")
            && fsync != "always"
        {
            warnings.push(format!(
                "appendfsync is {fsync}: a power cut forgets the keys of the last second or more"
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(info: &str, config: &[(&str, &str)]) -> Said {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Said::new(info, config.iter().map(pair).collect())
    }

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nused_memory:17\r\n";

    #[test]
    fn a_server_that_drops_or_refuses_or_is_too_old_is_unfit() {
        assert_eq!(said(GOOD, &[]).unfit(false), None);
        assert_eq!(said(GOOD, &[]).used_memory(), 17);
        let lru = GOOD.replace("noeviction", "allkeys-lru");
        let evicts = Some(Unfit::Evicts("allkeys-lru".into()));
        assert_eq!(said(&lru, &[]).unfit(false), evicts);
        assert_eq!(said(&lru, &[]).unfit(true), None);
        let followed = format!(
            "{GOOD}connected_slaves:3\r\nslave0:ip=h,port=1,state=online,offset=1,lag=0\r\n\
             slave1:ip=h,port=2,state=wait_bgsave,offset=0,lag=0\r\nslave2:ip=h,port=3,state=online,offset=1,lag=1\r\n"
        );
        assert_eq!(said(&followed, &[]).replicas(), 2);
        assert_eq!(said(GOOD, &[]).replicas(), 0);
        let silent = said("redis_version:7.0.0\nrole:master", &[]);
        assert_eq!(silent.unfit(false), Some(Unfit::Evicts("unknown".into())));
        let replica = GOOD.replace("role:master", "role:slave");
        assert_eq!(said(&replica, &[]).unfit(false), Some(Unfit::Replica));
        for (version, fit) in [("6.0.16", false), ("6.2.0", true), ("10.0.1", true)] {
            let info = GOOD.replace("7.0.15", version);
            assert_eq!(said(&info, &[]).unfit(false).is_none(), fit, "{version}");
        }
    }

    #[test]
    fn what_can_be_lost_is_said() {
        let always = [("appendfsync", "always")];
        assert_eq!(said(GOOD, &always).warnings(), Vec::<String>::new());
        assert_eq!(said(GOOD, &[]).warnings(), Vec::<String>::new());
        let everysec = said(GOOD, &[("appendfsync", "everysec")]).warnings();
        assert!(everysec[0].contains("last second"), "{everysec:?}");
        let off = GOOD.replace("aof_enabled:1", "aof_enabled:0");
        let none = said(&off, &[("save", "")]).warnings();
        assert!(none[0].contains("every key"), "{none:?}");
        let snapshots = said(&off, &[("save", "3600 1")]).warnings();
        assert!(snapshots[0].contains("last snapshot"), "{snapshots:?}");
        let lru = GOOD.replace("noeviction", "allkeys-lru");
        let lru = said(&lru, &always).warnings();
        assert!(lru[0].contains("noeviction"), "{lru:?}");
    }
}
