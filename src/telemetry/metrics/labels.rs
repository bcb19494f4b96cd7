//! The label values: enums with one spelling each. Metrics, logs and documents use it.

use http::StatusCode;

/// A closed set of label values.
pub(super) trait Label: Copy + 'static {
    /// Every value, in the order of declaration.
    const ALL: &'static [Self];

    /// How metrics and logs spell it.
    fn text(self) -> &'static str;

    /// Its place in [`Self::ALL`].
    fn index(self) -> usize;
}

macro_rules! labels {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$value_doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$value_doc])* $value,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// How metrics and logs spell it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl Label for $name {
            const ALL: &'static [Self] = $name::ALL;

            fn text(self) -> &'static str {
                self.as_str()
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

labels! {
    /// How a request ended: `outcome` (contract, section 11). A request has exactly one.
    pub enum Outcome {
        /// Executed, and its record is complete or a tombstone.
        Miss = "miss",
        /// Answered from a complete record.
        Hit = "hit",
        /// Waited for the running call and shared its answer.
        Joined = "joined",
        /// 409 `in-flight`: at once, after `wait_timeout`, or over `max_waiters`.
        Conflict = "conflict",
        /// 422 `key-reused`, or its 409 while the first runs.
        Mismatch = "mismatch",
        /// 409 `outcome-unknown`.
        Unknown = "unknown",
        /// 409 `response-not-retained`.
        NotRetained = "not_retained",
        /// 409 `key-expired`.
        Expired = "expired",
        /// 400 `key-missing`.
        KeyMissing = "key_missing",
        /// 400 `key-invalid`.
        KeyInvalid = "key_invalid",
        /// 401 `caller-missing`.
        CallerMissing = "caller_missing",
        /// Executed, and its answer is not one that is stored.
        Released = "released",
        /// 503 `overloaded`.
        Overloaded = "overloaded",
        /// 413 `body-too-large`.
        TooLarge = "too_large",
        /// 501 `no-store`.
        NoStore = "no_store",
        /// 503 `store-unavailable` or `store-full`.
        StoreFailure = "store_failure",
        /// 502 or 504: the upstream gave no usable answer.
        UpstreamFailure = "upstream_failure",
        /// Refused for what it is as HTTP, whatever its key: a method, target or expectation that is not served, a broken
        /// body or one that came too late.
        BadRequest = "bad_request",
        /// On a route, without a key where it is optional, or with `key = "off"`.
        Unkeyed = "unkeyed",
        /// With a key, let through unprotected.
        Bypass = "bypass",
        /// On no route.
        Passthrough = "passthrough",
        /// On no route, with a key header: often a mistyped path.
        PassthroughKeyed = "passthrough_keyed",
    }
}

impl Outcome {
    /// The outcomes that alerts watch on the route of this name: their counts are there from the start, at 0.
    pub(super) const fn watched(route: &str) -> &'static [Self] {
        if route.is_empty() {
            return &[Self::UpstreamFailure, Self::PassthroughKeyed];
        }
        &[
            Self::Mismatch,
            Self::Unknown,
            Self::Overloaded,
            Self::StoreFailure,
            Self::UpstreamFailure,
            Self::Bypass,
        ]
    }
}

labels! {
    /// What became of an executed request's record: `as` (contract, section 11).
    pub enum SettledAs {
        /// Its answer is kept.
        Complete = "complete",
        /// Nothing is kept.
        Released = "released",
        /// Nobody can tell whether it was executed.
        Unknown = "unknown",
        /// It was executed; its answer is not kept.
        Tombstone = "tombstone",
        /// Its answer came after the client was told 504; it counts as this alone.
        Late = "late",
    }
}

labels! {
    /// What an upstream call was answered with: `status_class` (contract, section 11).
    pub enum StatusClass {
        /// 100 to 199.
        Informational = "1xx",
        /// 200 to 299.
        Success = "2xx",
        /// 300 to 399.
        Redirection = "3xx",
        /// 400 to 499.
        ClientError = "4xx",
        /// 500 and over: an unknown class counts as a server's error (RFC 9110, section 15).
        ServerError = "5xx",
        /// No answer.
        None = "none",
    }
}

impl From<Option<StatusCode>> for StatusClass {
    fn from(status: Option<StatusCode>) -> Self {
        match status.map(|status| status.as_u16()) {
            None => Self::None,
            Some(..200) => Self::Informational,
            Some(200..300) => Self::Success,
            Some(300..400) => Self::Redirection,
            Some(400..500) => Self::ClientError,
            Some(500..) => Self::ServerError,
        }
    }
}

impl From<StatusCode> for StatusClass {
    fn from(status: StatusCode) -> Self {
        Some(status).into()
    }
}

labels! {
    /// What a store was asked: `operation`.
    pub enum StoreOp {
        /// To read a record.
        Look = "look",
        /// For the right to execute.
        Begin = "begin",
        /// To prolong a lease.
        Renew = "renew",
        /// To write what became of a claim.
        Settle = "settle",
    }
}

labels! {
    /// What a store answered: `result`.
    pub enum StoreResult {
        /// What was asked was done.
        Ok = "ok",
        /// The claim is no longer its holder's.
        Lost = "lost",
        /// There is no room.
        Full = "full",
        /// The store did not answer, or not usably.
        Unavailable = "unavailable",
    }
}

labels! {
    /// Why a record left a store before anybody settled it: `cause`.
    pub enum EvictionCause {
        /// There was no room; protection was lost.
        Size = "size",
        /// Its retention had passed.
        Expired = "expired",
        /// An operator purged it.
        Purged = "purged",
    }
}

labels! {
    /// Which side a connection is on: `side`.
    pub enum Side {
        /// From a client.
        Client = "client",
        /// To an upstream.
        Upstream = "upstream",
    }
}

labels! {
    /// Why a connection to an upstream could not be made: `reason`.
    pub enum ConnectFailure {
        /// Its name could not be resolved.
        Dns = "dns",
        /// None of its addresses took the connection.
        Connect = "connect",
        /// It was not there, or its handshake not done, in `connect_timeout`.
        Timeout = "timeout",
        /// TLS could not be agreed on, or it did not prove who it is, or speaks another HTTP than it is to.
        Tls = "tls",
    }
}

labels! {
    /// What became of a new configuration, or of changed certificates: `result`.
    pub enum Reload {
        /// It is in effect.
        Applied = "applied",
        /// The old one stays.
        Refused = "refused",
    }
}

labels! {
    /// Why a client's TLS handshake failed: `reason`.
    pub enum Handshake {
        /// It was not over within `head_timeout`.
        Late = "late",
        /// The client closed the connection first, as what only probes a port does.
        Gone = "gone",
        /// What came is no TLS, such as HTTP in cleartext.
        NotTls = "not_tls",
        /// Nothing that both speak: a version before 1.2, ciphers, or no common ALPN protocol.
        Incompatible = "incompatible",
        /// The client's certificate is missing where it is required, or not one that is believed.
        ClientCertificate = "client_certificate",
        /// The client refused, as one does that does not believe the server's certificate.
        Refused = "refused",
        /// Anything else.
        Broken = "broken",
    }
}

labels! {
    /// What became of a span that was recorded: `result`.
    pub enum SpanEnd {
        /// The collector has it.
        Exported = "exported",
        /// The queue to the collector was full.
        QueueFull = "queue_full",
        /// The collector did not want it.
        Refused = "refused",
        /// The collector could not be reached, did not answer in time, or not usably, however often it was tried.
        Undelivered = "undelivered",
    }
}

labels! {
    /// A bound of the proxy's own: `limit`. All but the last two are named as in the configuration.
    pub enum Limit {
        /// Client connections at a time.
        MaxConnections = "max_connections",
        /// Upstream calls of keyed requests at a time.
        MaxExecutions = "max_executions",
        /// Bytes of keyed requests' bodies held at a time.
        MaxBufferedBytes = "max_buffered_bytes",
        /// Claims, unknown records and tombstones in the memory store.
        MaxClaims = "max_claims",
        /// Bytes of the disk store's database.
        MaxBytes = "max_bytes",
        /// Waiters for one key.
        MaxWaiters = "max_waiters",
        /// Connections to the admin listeners; fixed.
        AdminConnections = "admin_connections",
        /// Open files of the process: its own limit, or the system's.
        OpenFiles = "open_files",
    }
}

labels! {
    /// What a client sent too much of over HTTP/2, so that its connection was ended: `reason`.
    pub enum Flood {
        /// CONTINUATION frames in one head.
        Continuation = "continuation",
        /// Frames that carry nothing of a request.
        Control = "control",
        /// Requests that were reset before they were answered.
        Reset = "reset",
        /// Streams: reset before they were looked at, broken so that the proxy reset them, or full of empty pieces.
        Stream = "stream",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn texts<L: Label>() -> Vec<&'static str> {
        for (place, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), place);
        }
        let texts: Vec<_> = L::ALL.iter().map(|label| label.text()).collect();
        let distinct: HashSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len(), "{texts:?}");
        texts
    }

    #[test]
    fn outcomes_are_spelt_as_documented() {
        assert_eq!(
            texts::<Outcome>().join(" "),
            "miss hit joined conflict mismatch unknown not_retained expired key_missing key_invalid caller_missing \
             released overloaded too_large no_store store_failure upstream_failure bad_request unkeyed bypass passthrough \
             passthrough_keyed"
        );
    }

    #[test]
    fn other_labels_are_spelt_as_documented() {
        let all = [
            (
                "complete released unknown tombstone late",
                texts::<SettledAs>(),
            ),
            ("1xx 2xx 3xx 4xx 5xx none", texts::<StatusClass>()),
            ("look begin renew settle", texts::<StoreOp>()),
            ("ok lost full unavailable", texts::<StoreResult>()),
            ("size expired purged", texts::<EvictionCause>()),
            ("client upstream", texts::<Side>()),
            ("dns connect timeout tls", texts::<ConnectFailure>()),
            ("applied refused", texts::<Reload>()),
            (
                "late gone not_tls incompatible client_certificate refused broken",
                texts::<Handshake>(),
            ),
            (
                "max_connections max_executions max_buffered_bytes max_claims max_bytes max_waiters admin_connections open_files",
                texts::<Limit>(),
            ),
            ("continuation control reset stream", texts::<Flood>()),
        ];
        for (documented, spelt) in all {
            assert_eq!(spelt.join(" "), documented);
        }
    }

    #[test]
    fn every_status_has_a_class() {
        let class = |code: u16| StatusClass::from(StatusCode::from_u16(code).unwrap()).as_str();
        for (code, expected) in [
            (100, "1xx"),
            (199, "1xx"),
            (200, "2xx"),
            (299, "2xx"),
            (302, "3xx"),
            (400, "4xx"),
            (499, "4xx"),
            (500, "5xx"),
            (599, "5xx"),
            (600, "5xx"),
            (999, "5xx"),
        ] {
            assert_eq!(class(code), expected, "{code}");
        }
        assert_eq!(StatusClass::from(None).as_str(), "none");
    }
}
