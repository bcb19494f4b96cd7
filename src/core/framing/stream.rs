//! What one HTTP/1.x client sends, as requests.

use super::{
    chunked::{self, Chunked},
    fault::Fault,
    head::{After, Body, Head},
};

/// The limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `max_head_bytes`: a whole head, with the empty line behind it.
    pub head_bytes: usize,
    /// `max_target_bytes`: a target's path and query.
    pub target_bytes: usize,
}

/// Follows the bytes of one client. It holds none of them: those that are not passed on yet are given to it again.
#[derive(Clone, Debug)]
pub struct Stream {
    limits: Limits,
    heads: u64,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Head(Head),
    Length { left: u64, after: After },
    Chunked { body: Chunked, after: After },
    Undecided,
    Tunnel,
    Broken(Then),
}

/// What came of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// So many of the bytes may be passed on: whole heads, and bodies as they come.
    pub pass: usize,
    /// What is behind them.
    pub then: Then,
}

/// What is behind the bytes that may be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing, or the beginning of a head, which is to be given again with what follows it.
    More,
    /// Bytes, if any, that are not looked at until it is known whether the last request has switched protocols
    /// ([`Stream::tunnel`], [`Stream::no_tunnel`]).
    Undecided,
    /// A head that is refused. Nothing behind it is ever read.
    Refused(Fault),
    /// What cannot be the body that it should be. Nothing behind it is ever read.
    Broken(Fault),
}

/// Where between requests the reading is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a head, or before one.
    Head,
    /// In a body.
    Body,
    /// Elsewhere: the bytes are not looked at.
    Elsewhere,
}

impl Stream {
    /// At the beginning of a connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            heads: 0,
            state: State::Head(Head::default()),
        }
    }

    /// Reads on. `bytes` are all that were not passed on so far: what a [`Then::More`] left, and what is new.
    pub fn read(&mut self, bytes: &[u8]) -> Read {
        let mut pass = 0;
        loop {
            let rest = bytes.get(pass..).unwrap_or_default();
            match self.step(rest) {
                Step::Passed(count) => pass += count,
                Step::Then { passed, then } => {
                    pass += passed;
                    return Read { pass, then };
                }
            }
        }
    }

    fn step(&mut self, rest: &[u8]) -> Step {
        let (passed, next) = match &mut self.state {
            State::Head(_) if rest.is_empty() => return Step::then(0, Then::More),
            State::Head(head) => match head.read(rest, &self.limits) {
                Ok(None) => return Step::then(0, Then::More),
                Ok(Some(whole)) => {
                    self.heads += 1;
                    (whole.length, State::body(whole.body, whole.after))
                }
                Err(fault) => return self.broken(0, Then::Refused(fault)),
            },
            State::Length { left, after } => {
                let here = rest.len() as u64;
                if *left > here {
                    *left -= here;
                    return Step::then(rest.len(), Then::More);
                }
                // Not more than what is here, which is counted in usize.
                let last = usize::try_from(*left).unwrap_or(0);
                (last, State::behind(*after))
            }
            State::Chunked { body, after } => {
                let progress = body.read(rest);
                match progress.then {
                    chunked::Then::More => return Step::then(progress.good, Then::More),
                    chunked::Then::Fault(fault) => {
                        return self.broken(progress.good, Then::Broken(fault));
                    }
                    chunked::Then::End => (progress.good, State::behind(*after)),
                }
            }
            State::Undecided => return Step::then(0, Then::Undecided),
            State::Tunnel => return Step::then(rest.len(), Then::More),
            State::Broken(then) => return Step::then(0, *then),
        };
        self.state = next;
        Step::Passed(passed)
    }

    fn broken(&mut self, passed: usize, then: Then) -> Step {
        self.state = State::Broken(then);
        Step::then(passed, then)
    }

    /// How many whole heads there were.
    #[must_use]
    pub const fn heads(&self) -> u64 {
        self.heads
    }

    /// Where the reading is.
    #[must_use]
    pub const fn place(&self) -> Place {
        match self.state {
            State::Head(_) => Place::Head,
            State::Length { .. } | State::Chunked { .. } => Place::Body,
            State::Undecided | State::Tunnel | State::Broken(_) => Place::Elsewhere,
        }
    }

    /// Whether the last head asked for another protocol, so that what follows its request is not looked at before it is decided.
    #[must_use]
    pub const fn asks_upgrade(&self) -> bool {
        matches!(
            self.state,
            State::Undecided
                | State::Length {
                    after: After::Upgrade,
                    ..
                }
                | State::Chunked {
                    after: After::Upgrade,
                    ..
                }
        )
    }

    /// The protocol was switched: from here on every byte passes.
    pub fn tunnel(&mut self) {
        if self.asks_upgrade() {
            self.state = State::Tunnel;
        }
    }

    /// The protocol was not switched: another request may follow.
    pub fn no_tunnel(&mut self) {
        match &mut self.state {
            State::Undecided => self.state = State::behind(After::Request),
            State::Length { after, .. } | State::Chunked { after, .. } => *after = After::Request,
            State::Head(_) | State::Tunnel | State::Broken(_) => {}
        }
    }

    /// Nothing is read any more, because of `fault`.
    pub fn refuse(&mut self, fault: Fault) {
        self.state = State::Broken(Then::Refused(fault));
    }
}

enum Step {
    /// So many bytes may pass, and the reading goes on behind them.
    Passed(usize),
    /// So many bytes may pass, and that is all.
    Then { passed: usize, then: Then },
}

impl Step {
    const fn then(passed: usize, then: Then) -> Self {
        Self::Then { passed, then }
    }
}

impl State {
    fn body(body: Body, after: After) -> Self {
        match body {
            Body::Length(0) => Self::behind(after),
            Body::Length(left) => Self::Length { left, after },
            Body::Chunked => Self::Chunked {
                body: Chunked::default(),
                after,
            },
        }
    }

    /// Behind a request.
    fn behind(after: After) -> Self {
        match after {
            After::Request => Self::Head(Head::default()),
            After::Upgrade => Self::Undecided,
        }
    }
}
