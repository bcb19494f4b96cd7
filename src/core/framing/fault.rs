//! What is wrong with a request, as HTTP.

use crate::core::problem::Problem;

/// Why a client's bytes are not read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request line is none: three words, each behind one space.
    RequestLine,
    /// The method is no token.
    Method,
    /// The target has none of the forms of RFC 9112, section 3.2.
    Target,
    /// The target has bytes beyond ASCII.
    TargetNotAscii,
    /// The target is over its limit.
    TargetTooLong,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    Version,
    /// LF without CR.
    BareLf,
    /// CR without LF.
    BareCr,
    /// NUL or another control byte.
    Control,
    /// A line that goes on with white space.
    Folded,
    /// White space in or behind a field's name.
    SpaceInName,
    /// A field's name that is empty or no token, or a line without one.
    Name,
    /// No Host where one is needed, or two.
    Host,
    /// A Content-Length that is not one number.
    Length,
    /// Two Content-Lengths.
    LengthTwice,
    /// A Content-Length and a Transfer-Encoding.
    LengthAndCoding,
    /// A Transfer-Encoding other than one `chunked`.
    Coding,
    /// A Transfer-Encoding in HTTP/1.0.
    CodingInOld,
    /// The head is over its limit in bytes.
    HeadTooLarge,
    /// The head has too many fields.
    TooManyFields,
    /// The head did not come in time.
    HeadTooLate,
    /// A chunk's size is none.
    ChunkSize,
    /// A chunk's line or data does not end as it must.
    ChunkEnd,
    /// A chunk's extension is none, or the body's extensions are too long.
    ChunkExtension,
    /// A trailer field is none, or they are too long or too many.
    Trailers,
}

impl Fault {
    /// A sentence for the client.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::RequestLine => {
                "The request line is not a method, a target and a version with one space between them (RFC 9112, section 3)."
            }
            Self::Method => "The method is no token (RFC 9110, section 9.1).",
            Self::Target => {
                "The request's target is neither a path nor a URI (RFC 9112, section 3.2)."
            }
            Self::TargetNotAscii => {
                "A target is ASCII; other characters are percent-encoded (RFC 3986, section 2.1)."
            }
            Self::TargetTooLong => "The request's target is longer than this proxy takes.",
            Self::Version => "The version is neither HTTP/1.1 nor HTTP/1.0.",
            Self::BareLf => "A line ends with LF alone: it ends with CR and LF.",
            Self::BareCr => "A CR stands without LF: a line ends with both.",
            Self::Control => "A control character stands in the request's head.",
            Self::Folded => "A field goes on on a second line (RFC 9112, section 5.2).",
            Self::SpaceInName => {
                "White space stands before the colon of a field (RFC 9112, section 5.1)."
            }
            Self::Name => "A field has no name, or one that is no token (RFC 9110, section 5.1).",
            Self::Host => "A request has exactly one Host (RFC 9112, section 3.2).",
            Self::Length => "The Content-Length is not one decimal number.",
            Self::LengthTwice => "The Content-Length stands twice.",
            Self::LengthAndCoding => {
                "A request has a Content-Length or a Transfer-Encoding, not both."
            }
            Self::Coding => "The only transfer coding is chunked, once.",
            Self::CodingInOld => "HTTP/1.0 knows no Transfer-Encoding (RFC 9112, section 6.1).",
            Self::HeadTooLarge => "The request's head is larger than this proxy takes.",
            Self::TooManyFields => "The request's head has more fields than this proxy takes.",
            Self::HeadTooLate => "The request's head did not come in time.",
            Self::ChunkSize => "A chunk's size is no hexadecimal number of at most 16 digits.",
            Self::ChunkEnd => "A chunk does not end with CR and LF where it says.",
            Self::ChunkExtension => "A chunk's extension is malformed or too long.",
            Self::Trailers => "The trailers are malformed, too long or too many.",
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::TargetTooLong => Self::TargetTooLong,
            Fault::HeadTooLarge | Fault::TooManyFields => Self::HeadTooLarge,
            Fault::HeadTooLate => Self::RequestTimeout,
            Fault::RequestLine
            | Fault::Method
            | Fault::Target
            | Fault::TargetNotAscii
            | Fault::Version
            | Fault::BareLf
            | Fault::BareCr
            | Fault::Control
            | Fault::Folded
            | Fault::SpaceInName
            | Fault::Name
            | Fault::Host
            | Fault::Length
            | Fault::LengthTwice
            | Fault::LengthAndCoding
            | Fault::Coding
            | Fault::CodingInOld
            | Fault::ChunkSize
            | Fault::ChunkEnd
            | Fault::ChunkExtension
            | Fault::Trailers => Self::BadRequest(fault.sentence()),
        }
    }
}
