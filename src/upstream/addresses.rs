//! In which order the addresses of a name are tried, and how long a connection to one of them is kept.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use crate::config::Target;

/// So many addresses of a name are tried; more are left out.
const MAX_ADDRESSES: usize = 32;

/// A connection to a name is used for about so long (a tenth more or less), so that a name which leads elsewhere is followed.
const LIFETIME: Duration = Duration::from_mins(5);

/// The addresses as they are tried (RFC 8305, section 4): the families in turn, beginning with the resolver's first choice, and in the
/// resolver's order within each. No address stands twice.
pub(super) fn in_turn(resolved: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut distinct: Vec<SocketAddr> = Vec::new();
    for address in resolved {
        if !distinct.contains(&address) {
            distinct.push(address);
        }
        if distinct.len() == MAX_ADDRESSES {
            break;
        }
    }
    let Some(first) = distinct.first().map(SocketAddr::is_ipv6) else {
        return distinct;
    };
    let (chosen, others): (Vec<_>, Vec<_>) = distinct
        .into_iter()
        .partition(|address| address.is_ipv6() == first);
    let (mut chosen, mut others) = (chosen.into_iter(), others.into_iter());
    let mut ordered = Vec::new();
    loop {
        let pair = [chosen.next(), others.next()];
        if pair == [None, None] {
            return ordered;
        }
        ordered.extend(pair.into_iter().flatten());
    }
}

/// How long a new connection to `target` may be used; `None`: for as long as it stands, for what it leads to cannot change.
pub(super) fn lifetime(target: &Target) -> Option<Duration> {
    match target {
        Target::Tcp { host, .. } if host.parse::<IpAddr>().is_err() => {
            // The hasher's keys are random: connections that were made together do not end together.
            Some(around(LIFETIME, RandomState::new().build_hasher().finish()))
        }
        Target::Tcp { .. } | Target::Unix(_) => None,
    }
}

/// `span`, a tenth shorter to a tenth longer.
fn around(span: Duration, random: u64) -> Duration {
    let fifth = u64::try_from(span.as_millis() / 5).unwrap_or(u64::MAX);
    span * 9 / 10 + Duration::from_millis(random % fifth.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(resolved: &[&str]) -> Vec<String> {
        let parsed = resolved.iter().map(|text| text.parse().unwrap());
        in_turn(parsed).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_families_take_turns_in_the_resolvers_order() {
        let resolved = [
            "[2001:db8::1]:80",
            "[2001:db8::2]:80",
            "[2001:db8::3]:80",
            "192.0.2.1:80",
            "192.0.2.2:80",
        ];
        assert_eq!(
            ordered(&resolved),
            [
                "[2001:db8::1]:80",
                "192.0.2.1:80",
                "[2001:db8::2]:80",
                "192.0.2.2:80",
                "[2001:db8::3]:80"
            ]
        );
        assert_eq!(
            ordered(&["192.0.2.1:80", "192.0.2.2:80", "[2001:db8::1]:80"]),
            ["192.0.2.1:80", "[2001:db8::1]:80", "192.0.2.2:80"]
        );
    }

    #[test]
    fn one_family_keeps_its_order_and_nothing_stands_twice() {
        assert_eq!(
            ordered(&["192.0.2.2:80", "192.0.2.1:80", "192.0.2.2:80"]),
            ["192.0.2.2:80", "192.0.2.1:80"]
        );
        assert!(ordered(&[]).is_empty());
    }

    #[test]
    fn a_name_with_endless_addresses_is_tried_within_bounds() {
        let endless = (0..).map(|n: u32| SocketAddr::from((n.to_be_bytes(), 80)));
        assert_eq!(in_turn(endless).len(), MAX_ADDRESSES);
    }

    #[test]
    fn connections_to_names_end_and_not_all_at_once() {
        let tcp = |host: &str| Target::Tcp {
            host: host.to_owned(),
            port: 80,
        };
        for literal in ["127.0.0.1", "::1"] {
            assert_eq!(lifetime(&tcp(literal)), None);
        }
        assert_eq!(lifetime(&Target::Unix("/run/a.sock".into())), None);
        let ages: Vec<_> = (0..50)
            .filter_map(|_| lifetime(&tcp("api.internal")))
            .collect();
        assert_eq!(ages.len(), 50);
        let bounds = Duration::from_secs(270)..Duration::from_secs(330);
        assert!(ages.iter().all(|age| bounds.contains(age)), "{ages:?}");
        assert!(ages.iter().any(|age| *age != ages[0]), "{ages:?}");
    }
}
