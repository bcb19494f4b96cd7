//! Evidence: was a request sent? This is the only module that can say it was not.

use std::fmt;

/// Why a request got no answer, by what the upstream may have seen of it.
#[derive(Debug)]
pub enum SendFailure {
    /// Not one byte of it was written: the upstream cannot have executed it.
    NotSent(NotSent),
    /// It may have been read, whole or in part, and executed.
    MaybeSent(MaybeSent),
}

/// Proof that not one byte was written. Made here alone, from what proves it.
#[derive(Debug)]
pub struct NotSent(Cause);

/// A request that was started and got no usable answer; why.
#[derive(Debug)]
pub struct MaybeSent(Started);

#[derive(Debug)]
enum Started {
    NoAnswer(hyper::Error),
    SwitchedProtocols,
}

#[derive(Debug)]
enum Cause {
    Connect(std::io::Error),
    ConnectTimeout,
    /// hyper gave the request back as a value: its connection ended before the request was started.
    GivenBack(hyper::Error),
}

impl NotSent {
    /// No connection could be made.
    pub(super) fn connect(error: std::io::Error) -> Self {
        Self(Cause::Connect(error))
    }

    /// No connection was made in time.
    pub(super) fn connect_timeout() -> Self {
        Self(Cause::ConnectTimeout)
    }

    /// The request itself came back, and with it the proof.
    pub(super) fn given_back<T>(_proof: &T, error: hyper::Error) -> Self {
        Self(Cause::GivenBack(error))
    }
}

impl MaybeSent {
    /// The request went into a connection and did not come back.
    pub(super) fn new(error: hyper::Error) -> Self {
        Self(Started::NoAnswer(error))
    }

    /// The upstream answered by switching to a protocol that nobody had asked for.
    #[must_use]
    pub fn switched_protocols() -> Self {
        Self(Started::SwitchedProtocols)
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(why) => write!(f, "nothing was sent: {why}"),
            Self::MaybeSent(why) => write!(f, "sent at least in part: {why}"),
        }
    }
}

impl fmt::Display for NotSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Connect(error) => write!(f, "cannot connect: {error}"),
            Cause::ConnectTimeout => f.write_str("cannot connect: no answer in connect_timeout"),
            Cause::GivenBack(error) => {
                write!(f, "the connection ended before it was used: {error}")
            }
        }
    }
}

impl fmt::Display for MaybeSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Started::NoAnswer(error) => fmt::Display::fmt(error, f),
            Started::SwitchedProtocols => f.write_str("the upstream switched protocols unasked"),
        }
    }
}
