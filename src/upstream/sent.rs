//! Evidence: was a request sent? This is the only module that can say it was not.

use std::{error::Error as _, fmt, io};

use hyper::client::conn::TrySendError;
use rustls::AlertDescription;

use super::{connect::Unreached, http1::Unfinished};

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
    Unfinished(Unfinished),
    SwitchedProtocols,
    /// It was answered, by what is no answer.
    NotBelieved(&'static str),
}

#[derive(Debug)]
enum Cause {
    Connect(Unreached),
    /// hyper gave the request back as a value: its connection ended before the request was started.
    GivenBack(hyper::Error),
    /// The connection was closed, broken or spoken on before the request was begun.
    NotQuiet(io::Result<usize>),
    /// The upstream reset the stream with `REFUSED_STREAM`: nothing of it was processed (RFC 9113, section 8.7).
    RefusedStream,
    /// The upstream ended the handshake after ours was done: it does not take the certificate, so that it has decrypted no request
    /// (RFC 8446, section 4.4.2.4 and 6.2).
    CertificateRefused(AlertDescription),
}

/// Whether a connection has served before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Used {
    /// Nothing has come on it yet.
    Never,
    /// It may have answered others.
    Before,
}

impl SendFailure {
    /// What a request comes to that was tried on one connection, and was not answered.
    pub(super) fn tried<T>(mut failed: TrySendError<T>, used: Used) -> Self {
        match failed.take_message() {
            Some(untouched) => Self::NotSent(NotSent::given_back(&untouched, failed.into_error())),
            None => Self::unanswered(failed.into_error(), used),
        }
    }

    /// What a request comes to that went into a connection, did not come back, and was not answered.
    pub(super) fn unanswered(error: hyper::Error, used: Used) -> Self {
        if is_refused_stream(&error) {
            return Self::NotSent(NotSent(Cause::RefusedStream));
        }
        match refused_certificate(&error) {
            Some(alert) if used == Used::Never => {
                Self::NotSent(NotSent(Cause::CertificateRefused(alert)))
            }
            _ => Self::MaybeSent(MaybeSent(Started::NoAnswer(error))),
        }
    }
}

impl SendFailure {
    /// What a request comes to that was begun on an HTTP/1 connection.
    pub(super) fn unfinished(why: Unfinished, used: Used) -> Self {
        match why {
            Unfinished::NotBegun(unasked) => Self::NotSent(NotSent::unused(unasked)),
            Unfinished::Io(ref error) if used == Used::Never => match certificate_alert(error) {
                Some(alert) => Self::NotSent(NotSent(Cause::CertificateRefused(alert))),
                None => Self::MaybeSent(MaybeSent(Started::Unfinished(why))),
            },
            _ => Self::MaybeSent(MaybeSent(Started::Unfinished(why))),
        }
    }
}

fn is_refused_stream(error: &hyper::Error) -> bool {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<h2::Error>());
    cause.is_some_and(|cause| {
        cause.is_reset() && cause.is_remote() && cause.reason() == Some(h2::Reason::REFUSED_STREAM)
    })
}

/// The alert by which a server says that it does not take the client's certificate.
fn refused_certificate(error: &hyper::Error) -> Option<AlertDescription> {
    certificate_alert(error.source()?.downcast_ref()?)
}

fn certificate_alert(error: &io::Error) -> Option<AlertDescription> {
    let cause = error.get_ref()?;
    let Some(rustls::Error::AlertReceived(alert)) = cause.downcast_ref() else {
        return None;
    };
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
    )
    .then_some(*alert)
}

impl NotSent {
    /// No connection could be made.
    pub(super) fn connect(why: Unreached) -> Self {
        Self(Cause::Connect(why))
    }

    /// A connection that the upstream has done this to `unasked` before anything was written to it.
    pub(super) fn unused(unasked: io::Result<usize>) -> Self {
        let alert = unasked.as_ref().err().and_then(certificate_alert);
        Self(alert.map_or(Cause::NotQuiet(unasked), Cause::CertificateRefused))
    }

    /// The request itself came back, and with it the proof.
    pub(super) fn given_back<T>(_proof: &T, error: hyper::Error) -> Self {
        Self(Cause::GivenBack(error))
    }
}

impl MaybeSent {
    /// What came as an answer is none that can be believed.
    pub(super) fn not_believed(why: &'static str) -> Self {
        Self(Started::NotBelieved(why))
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
            Cause::Connect(why) => fmt::Display::fmt(why, f),
            Cause::RefusedStream => f.write_str("the upstream refused the stream"),
            Cause::CertificateRefused(alert) => {
                write!(f, "the upstream does not take the certificate: {alert:?}")
            }
            Cause::NotQuiet(Ok(0)) => f.write_str("the connection was closed before it was used"),
            Cause::NotQuiet(Ok(_)) => f.write_str("the upstream speaks before it is asked"),
            Cause::NotQuiet(Err(error)) => {
                write!(f, "the connection broke before it was used: {error}")
            }
            Cause::GivenBack(error) => {
                write!(f, "the connection ended before it was used: {error}")
            }
        }
    }
}

impl fmt::Display for MaybeSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Started::NoAnswer(error) => match error.source() {
                Some(cause) => write!(f, "{error}: {cause}"),
                None => fmt::Display::fmt(error, f),
            },
            Started::Unfinished(why) => fmt::Display::fmt(why, f),
            Started::NotBelieved(why) => write!(f, "the answer is not to be believed: {why}"),
            Started::SwitchedProtocols => f.write_str("the upstream switched protocols unasked"),
        }
    }
}
