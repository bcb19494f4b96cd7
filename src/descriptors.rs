//! Open files: how many the process may have, and how many client connections fit into that.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Files that a process has beside those of its workers, listeners and connections: standard streams, event loops, signals, and
/// those that are open for a moment, as a configuration that is read and a name that is resolved.
const HOUSE: usize = 16;

/// Files of a worker's event loop.
const A_WORKER: usize = 4;

/// Files of a client's connection: its own, and one to an upstream.
const A_CONNECTION: usize = 2;

/// Makes the soft limit as high as the hard one.
///
/// # Errors
/// The system forbids it; the limit stays as it is then.
pub fn raise() -> std::io::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit)?;
    }
    Ok(())
}

/// The soft limit; `usize::MAX`: there is none.
#[must_use]
pub fn limit() -> usize {
    let limit = getrlimit(Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    })
}

/// How many client connections, of those that are `wanted`, fit into `limit` files beside `workers` and `listeners`; at least one.
///
/// Each is counted with one upstream connection. Calls that outlive their clients and the streams of HTTP/2 may need more; where there is
/// no file for one, that call is answered as upstream-unreachable.
#[must_use]
pub fn fitting(wanted: usize, limit: usize, workers: usize, listeners: usize) -> usize {
    let house = HOUSE
        .saturating_add(workers.saturating_mul(A_WORKER))
        .saturating_add(listeners)
        .saturating_add(operators(limit))
        .saturating_add(refusals(limit));
    let room = limit.saturating_sub(house) / A_CONNECTION;
    wanted.min(room).max(1)
}

/// How many operators' connections are counted with: no limit, for these are fewer than their bound nearly always.
fn operators(limit: usize) -> usize {
    (limit / 8).min(128)
}

/// How many connections may be told at a time that there is no room for them.
#[must_use]
pub fn refusals(limit: usize) -> usize {
    (limit / 16).clamp(1, 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_left_alone_and_what_does_not_is_lowered() {
        assert_eq!(fitting(10_000, usize::MAX, 8, 3), 10_000);
        assert_eq!(fitting(10_000, 1 << 20, 8, 3), 10_000);
        let lowered = fitting(10_000, 1024, 2, 2);
        assert!((300..512).contains(&lowered), "{lowered}");
        let few = fitting(10_000, 64, 2, 2);
        assert!((8..32).contains(&few), "{few}");
        assert_eq!(fitting(3, 1024, 2, 2), 3);
        assert_eq!(fitting(10_000, 0, usize::MAX, usize::MAX), 1);
    }

    #[test]
    fn the_limit_is_raised_to_the_hard_one() {
        raise().expect("a process may raise its own limit");
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
        assert!(limit() > 32);
    }
}
