//! What a route promises: the compiled policy. `config` makes these values, everything else reads them.
//!
//! Each item names its key in the configuration (contract, section 3); its default stands there.

mod statuses;

use std::{sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, uri::PathAndQuery};
use regex::Regex;

pub use self::statuses::StatusSet;
use super::claims::ClaimPath;

/// A route's name: the label in metrics and logs. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteName(Arc<str>);

impl RouteName {
    /// A route of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as it is labelled and logged.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Everything that decides how a keyed request on one route is treated.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Whether a request needs a key: `key`.
    pub key: KeyRule,
    /// Where a key may stand, tried in order; never empty: `key_sources`.
    pub key_sources: Vec<KeySource>,
    /// How a key is written: `key_syntax`.
    pub key_syntax: KeySyntax,
    /// What a key must look like: `key_format`.
    pub key_format: KeyFormat,
    /// The longest key, in bytes of its content; at least 1: `key_max_length`.
    pub key_max_length: usize,
    /// What an empty value means: `empty_key`.
    pub empty_key: EmptyKey,
    /// Requests that need a key although the route does not; any entry suffices: `key_required_if`.
    pub key_required_if: Vec<RequiredIf>,
    /// Who the caller is: `[identity]`, or the route's own.
    pub identity: Identity,
    /// What a key is unique within: `scope`.
    pub scope: Scope,
    /// What must be the same in a retry: `[policy.fingerprint]`.
    pub fingerprint: Arc<FingerprintRule>,
    /// What a copy gets while the first runs: `in_flight`.
    pub in_flight: InFlight,
    /// How long a joiner waits: `wait_timeout`.
    pub wait_timeout: Duration,
    /// How many may join one key; more are a conflict: `max_waiters`.
    pub max_waiters: usize,
    /// What another request under the key gets while the first runs: `mismatch_in_flight`.
    pub mismatch_in_flight: MismatchInFlight,
    /// Statuses that complete a record: `store_responses`.
    pub store_responses: StatusSet,
    /// Statuses that leave the outcome unknown: `unknown_responses`. These win over `store_responses`.
    pub unknown_responses: StatusSet,
    /// How records live: retention, lease, unknown outcomes.
    pub terms: Terms,
    /// What `Retry-After` says to a copy of a running call, in whole seconds, at least 1: `retry_after`.
    pub retry_after: Duration,
    /// Which of the answer's headers are kept for replays: `replay_headers`.
    pub replay_headers: ReplayHeaders,
    /// The header that tells a first answer from a replay: `marker_header`, `marker_miss`, `marker_hit`.
    pub marker: Marker,
    /// The header that says when the key may be forgotten: `expiry_header`.
    pub expiry_header: Option<HeaderName>,
    /// The largest body of a keyed request, in bytes: `max_request_body`.
    pub max_request_body: usize,
    /// The largest answer that is kept, in bytes of its body: `max_response_body`.
    pub max_response_body: usize,
    /// Media types, in lower case, whose answers stream and leave a tombstone: `stream_types`.
    pub stream_types: Vec<String>,
    /// What a request gets while the store cannot answer: `on_store_failure`.
    pub on_store_failure: OnStoreFailure,
    /// What is asked of the upstream, with the caller's credentials, before an answer is replayed: `replay_auth`.
    pub replay_auth: Option<PathAndQuery>,
    /// How errors are said: `errors`, `problem_base`, `docs_url`.
    pub errors: Errors,
}

impl Policy {
    /// What carries a key here: where there are several sources, the first one's.
    #[must_use]
    pub fn key_carrier(&self) -> Option<Carrier> {
        self.key_sources
            .first()
            .map(|source| source.carrier.clone())
    }
}

/// `key`: whether requests on the route need one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRule {
    /// Without one: 400 `key-missing`.
    Required,
    /// Without one the request passes through.
    Optional,
    /// Keys are not looked at; the route passes through.
    Off,
    /// Every request is keyed, by the canonical digest of its fingerprint; keys that are sent are not looked at.
    Derived,
}

/// `key_sources`: one place where a key may stand, and what errors call it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySource {
    /// Where to look.
    pub place: KeyPlace,
    /// Its own name.
    pub carrier: Carrier,
}

/// Where a key may stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// `header:NAME`
    Header(HeaderName),
    /// `query:NAME`: a parameter of the query, by its decoded name.
    Query(String),
    /// `json:/pointer`: a value in a JSON body; the pointer has at least one token.
    Json(JsonPointer),
    /// `form:NAME`: a field of an `application/x-www-form-urlencoded` body, by its decoded name.
    Form(String),
}

/// The own name of what carries a key, spelt as configured: that of a header, a parameter or a field, or a JSON pointer, without
/// the `header:` before it. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carrier(Arc<str>);

impl Carrier {
    /// The carrier that is spelt so.
    #[must_use]
    pub fn new(spelt: &str) -> Self {
        Self(Arc::from(spelt))
    }

    /// Its name as it was configured.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `key_syntax` (contract, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySyntax {
    /// A structured-field string, or bare visible ASCII.
    Either,
    /// A structured-field string (RFC 9651, section 3.3.3) and nothing else.
    Structured,
    /// The bytes as they came.
    Raw,
}

/// `key_format`: what the content of a key must look like.
#[derive(Debug, Clone)]
pub enum KeyFormat {
    /// Anything.
    Any,
    /// 8-4-4-4-12 hexadecimal digits; letter case does not count.
    Uuid,
    /// A regular expression that the whole key must match, already anchored at both ends.
    Pattern(Regex),
}

/// `empty_key`: what an empty value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyKey {
    /// 400 `key-invalid`.
    Reject,
    /// No key at all.
    Bypass,
}

/// One entry of `key_required_if`.
#[derive(Debug, Clone)]
pub struct RequiredIf {
    /// The header that is looked at, every line of it.
    pub header: HeaderName,
    /// Searched for in each line's value.
    pub matches: Regex,
}

/// `[identity]`: who the caller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Combined in order; empty: all share one scope. `from`.
    pub from: Vec<CallerPart>,
    /// What an absent or empty part means for the whole: `missing`.
    pub missing: MissingCaller,
    /// Which of the configuration's verifiers reads tokens, as an index; `None`: no part of `from` is a claim, or
    /// nobody is identified by this. `[identity.jwt]`.
    pub jwt: Option<usize>,
}

/// One part of `identity.from`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerPart {
    /// `authorization`: the scheme in lower case, the value byte for byte.
    Authorization,
    /// `header:NAME`
    Header(HeaderName),
    /// `cookie:NAME`
    Cookie(String),
    /// `jwt:CLAIM`: a claim of the verified bearer token.
    Jwt(ClaimPath),
    /// `sigv4`: the access key id of an `AWS4-HMAC-SHA256` Authorization, which nobody here has verified.
    SigV4,
    /// `client-cert`: the SPIFFE id of the client's verified certificate, or else its subject.
    ClientCert,
    /// `peer-ip`
    PeerIp,
}

/// `identity.missing`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingCaller {
    /// 401 `caller-missing`.
    Reject,
    /// It counts as empty: all callers without it share one scope.
    Anonymous,
}

/// `scope`: what a key is unique within, beside the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// One key per caller, method and normalised path.
    Operation,
    /// One key per caller.
    Caller,
}

/// `[policy.fingerprint]`: what must be the same in a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FingerprintRule {
    /// Whether the method counts.
    pub method: bool,
    /// Whether the normalised path counts.
    pub path: bool,
    /// How the query counts.
    pub query: QueryMode,
    /// Headers that count, lower case; of `content-type` only the media type.
    pub headers: Vec<HeaderName>,
    /// How the body counts.
    pub body: BodyMode,
    /// JSON pointers (RFC 6901) left out of a JSON body.
    pub ignore: Vec<JsonPointer>,
    /// JSON pointers beside which nothing of a JSON body counts; empty: everything does.
    pub only: Vec<JsonPointer>,
}

/// `fingerprint.query`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryMode {
    /// Byte for byte.
    Exact,
    /// Sorted by name; the order within a name counts.
    Sorted,
    /// Not at all.
    Off,
}

/// `fingerprint.body`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyMode {
    /// By Content-Type (contract, section 6).
    Auto,
    /// As canonical JSON, whatever its type.
    Json,
    /// As a form: sorted by name; the order within a name counts.
    Form,
    /// As multipart without its boundary.
    Multipart,
    /// Byte for byte.
    Raw,
    /// Not at all.
    Off,
}

/// A JSON pointer (RFC 6901), split into its unescaped reference tokens; no token: the whole document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPointer(Vec<String>);

impl JsonPointer {
    /// Reads `""` or `/a/b`, with `~0` for `~` and `~1` for `/`. `None`: it is no JSON pointer.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self(Vec::new()));
        }
        let token = |raw: &str| {
            let stray = raw.replace("~0", "").replace("~1", "").contains('~');
            (!stray).then(|| raw.replace("~1", "/").replace("~0", "~"))
        };
        let tokens = text.strip_prefix('/')?.split('/').map(token);
        tokens.collect::<Option<_>>().map(Self)
    }

    /// Its reference tokens, from the root down.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.0
    }
}

/// `in_flight`: what a copy gets while the first runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InFlight {
    /// It joins and shares the answer.
    Wait,
    /// 409 `in-flight` at once.
    Conflict,
}

/// `mismatch_in_flight`: what another request under the key gets while the first runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MismatchInFlight {
    /// 422 `key-reused`.
    Mismatch,
    /// 409 `in-flight`.
    Conflict,
}

/// How the records of a route live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a record is kept; at least 1 ms: `retention`.
    pub retention: Duration,
    /// Since when: `retention_from`.
    pub retention_from: RetentionFrom,
    /// What its key does afterwards: `after_expiry`, `refuse_for`.
    pub after_expiry: AfterExpiry,
    /// How long a claim holds without being renewed: `lease`.
    pub lease: Duration,
    /// What an unknown outcome does to its key: `unknown_outcome`, `unknown_hold`.
    pub unknown: UnknownOutcome,
}

/// `retention_from`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetentionFrom {
    /// Since the answer was stored.
    Completion,
    /// Since the claim was made.
    Start,
}

/// `after_expiry` and `refuse_for` in one: what a key does once its retention has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterExpiry {
    /// It is forgotten, and executes as new.
    Execute,
    /// Every request under it is refused for so long, at least 1 ms; then it is forgotten.
    RefuseFor(Duration),
}

/// `unknown_outcome` and `unknown_hold` in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownOutcome {
    /// Held until somebody settles it or the retention, counted from the start, has passed.
    HoldForever,
    /// Held for so long from the moment it became unknown; then the same request may claim it again.
    HoldFor(Duration),
    /// Claimable at once.
    Release,
}

/// `replay_headers`: which of the answer's end-to-end headers a replay carries. `Set-Cookie` only if listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayHeaders {
    /// All but `Set-Cookie`.
    EndToEnd,
    /// Those that describe the body: Content-Type, Content-Encoding, Content-Language.
    None,
    /// Those that are listed, and those that describe the body.
    Only(Vec<HeaderName>),
}

/// `marker_header`, `marker_miss`, `marker_hit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The header's name; `None`: no marker at all.
    pub header: Option<HeaderName>,
    /// Its value on an answer that completed its record; `None`: no header then.
    pub miss: Option<HeaderValue>,
    /// Its value on a replay, and on a join of an answer that was stored; `None`: no header then.
    pub hit: Option<HeaderValue>,
}

/// `on_store_failure`: what a keyed request gets while the store cannot answer. A store that is full answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// 503 `store-unavailable`; nothing is executed.
    Reject,
    /// It is forwarded unprotected: nothing is claimed or stored, and a retry executes again.
    Bypass,
}

/// How errors are said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    /// `errors`
    pub shape: ErrorShape,
    /// What `type` starts with: `problem_base`, or `docs_url` and `#` where that is set.
    pub type_base: String,
    /// The `Link` header that every error carries: from `docs_url`.
    pub link: Option<HeaderValue>,
}

/// `errors`: the shape of an error's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorShape {
    /// `application/problem+json` (RFC 9457).
    Problem,
    /// Stripe's: `{"error": {"type", "code", "message"}}`.
    Stripe,
    /// `{"code", "message", "retryable", "field"}`, the last one where a key's carrier is at fault.
    Platform,
    /// EC2's: `<Response><Errors><Error>…`.
    AwsXml,
}

impl ErrorShape {
    /// Every shape there is.
    pub const ALL: [Self; 4] = [Self::Problem, Self::Stripe, Self::Platform, Self::AwsXml];

    /// Its word in `errors`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Stripe => "stripe",
            Self::Platform => "platform",
            Self::AwsXml => "aws-xml",
        }
    }
}

#[cfg(test)]
mod tests;
