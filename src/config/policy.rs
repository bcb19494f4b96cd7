//! Reads the keys that stand in `[policy]` and in every `[[route]]`: one policy from its layers.

use std::{sync::Arc, time::Duration};

use http::HeaderName;

use super::{
    dialect::DIALECTS,
    kinds::{choose, duration, durations},
    problem::Refusal,
    reader::{Section, Show},
    server::{MANY, MOMENT},
    words::{
        docs_url, end_to_end, header_name, key_format, key_source, marker_value, media_type,
        optional_header, regex, upstream_path,
    },
};
use crate::core::policy::{
    AfterExpiry, BodyMode, EmptyKey, ErrorShape, Errors, FingerprintRule, Identity, InFlight,
    JsonPointer, KeyFormat, KeyPlace, KeyRule, KeySource, KeySyntax, Marker, MismatchInFlight,
    MissingCaller, OnStoreFailure, Policy, QueryMode, ReplayHeaders, RequiredIf, RetentionFrom,
    Scope, StatusSet, Terms, UnknownOutcome,
};

/// A claim shorter than this would lapse in a pause of the scheduler.
const LEAST_LEASE: Duration = Duration::from_millis(100);

/// Reads the key `dialect` and puts the preset in its place; to be read before the keys that it sets.
pub(super) fn dialect(section: &mut Section<'_>) {
    let words = DIALECTS.map(|dialect| (dialect.name, Some(dialect)));
    if let Some(dialect) = section.choice("dialect", "standard", &words) {
        section.choose_preset(dialect);
    }
}

/// Reads every policy key but `dialect`.
pub(super) fn policy(s: &mut Section<'_>, identity: Option<Identity>) -> Option<Policy> {
    let keys = keys(s);
    let rules = [
        ("operation", Some(Scope::Operation)),
        ("caller", Some(Scope::Caller)),
    ];
    let scope = s.choice("scope", "operation", &rules);
    let flight = flight(s);
    let statuses = "classes and codes: \"2xx\", \"404\", \"!429\"";
    let store_responses = statuses_of(s, "store_responses", &["2xx"], statuses);
    let unknown_responses = statuses_of(s, "unknown_responses", &[], statuses);
    let terms = terms(s);
    let retry_after = s.duration("retry_after", "2s", MOMENT);
    let replay_headers = replay_headers(s);
    let marker = marker(s);
    let expiry_header = s.text("expiry_header", "", optional_header);
    if let (Some(Some(expiry)), Some(Some(marker))) =
        (&expiry_header, marker.as_ref().map(|m| &m.header))
        && expiry == marker
    {
        s.object(
            "expiry_header",
            format!("it is the same header as marker_header: {expiry}"),
        );
    }
    let max_request_body = s.size("max_request_body", "1MiB");
    let max_response_body = s.size("max_response_body", "1MiB");
    let stream_types = s.list("stream_types", &["text/event-stream"], media_type);
    let failures = [
        ("reject", Some(OnStoreFailure::Reject)),
        ("bypass", Some(OnStoreFailure::Bypass)),
    ];
    let on_store_failure = s.choice("on_store_failure", "reject", &failures);
    let replay_auth = s.text("replay_auth", "", upstream_path);
    let errors = errors(s);
    let fingerprint = fingerprint(s.child("fingerprint", Show::All));
    if let (Some(keys), Some(identity)) = (&keys, &identity)
        && keys.rule == KeyRule::Derived
        && identity.missing == MissingCaller::Anonymous
    {
        s.object(
            "key",
            "derived, with identity.missing = \"anonymous\": strangers that send the same would get each other's answers",
        );
    }
    let (keys, flight) = (keys?, flight?);
    let fingerprint = fingerprint.map(|rule| without_carriers(rule, &keys.sources));
    Some(Policy {
        key: keys.rule,
        key_sources: keys.sources,
        key_syntax: keys.syntax,
        key_format: keys.format,
        key_max_length: keys.max_length,
        empty_key: keys.empty,
        key_required_if: keys.required_if,
        identity: identity?,
        scope: scope?,
        fingerprint: Arc::new(fingerprint?),
        in_flight: flight.rule,
        wait_timeout: flight.wait_timeout,
        max_waiters: flight.max_waiters,
        mismatch_in_flight: flight.mismatch,
        store_responses: store_responses?,
        unknown_responses: unknown_responses?,
        terms: terms?,
        retry_after: retry_after?,
        replay_headers: replay_headers?,
        marker: marker?,
        expiry_header: expiry_header?,
        max_request_body: max_request_body?,
        max_response_body: max_response_body?,
        stream_types: stream_types?,
        on_store_failure: on_store_failure?,
        replay_auth: replay_auth?,
        errors: errors?,
    })
}

struct Keys {
    rule: KeyRule,
    sources: Vec<KeySource>,
    syntax: KeySyntax,
    format: KeyFormat,
    max_length: usize,
    empty: EmptyKey,
    required_if: Vec<RequiredIf>,
}

fn keys(s: &mut Section<'_>) -> Option<Keys> {
    let rules = [
        ("required", Some(KeyRule::Required)),
        ("optional", Some(KeyRule::Optional)),
        ("off", Some(KeyRule::Off)),
        ("derived", Some(KeyRule::Derived)),
    ];
    let rule = s.choice("key", "optional", &rules);
    let sources = s.list("key_sources", &["header:Idempotency-Key"], key_source);
    if sources.as_ref().is_some_and(Vec::is_empty) {
        s.object(
            "key_sources",
            "it is empty: a key could stand nowhere; key = \"off\" turns keys off",
        );
    }
    let syntaxes = [
        ("either", Some(KeySyntax::Either)),
        ("structured", Some(KeySyntax::Structured)),
        ("raw", Some(KeySyntax::Raw)),
    ];
    let syntax = s.choice("key_syntax", "either", &syntaxes);
    let format = s.text("key_format", "any", key_format);
    let max_length = s.count("key_max_length", 255, 1..=65_536);
    let empties = [
        ("reject", Some(EmptyKey::Reject)),
        ("bypass", Some(EmptyKey::Bypass)),
    ];
    let empty = s.choice("empty_key", "reject", &empties);
    let required_if = s.tables("key_required_if").and_then(|entries| {
        let entries: Vec<Option<RequiredIf>> = entries.into_iter().map(required_if).collect();
        entries.into_iter().collect()
    });
    Some(Keys {
        rule: rule?,
        sources: sources?,
        syntax: syntax?,
        format: format?,
        max_length: max_length?,
        empty: empty?,
        required_if: required_if?,
    })
}

fn required_if(mut section: Section<'_>) -> Option<RequiredIf> {
    let header = section.required("header", "the header to look at", header_name);
    let matches = section.required("matches", "the regular expression to search for", regex);
    section.finish();
    Some(RequiredIf {
        header: header?,
        matches: matches?,
    })
}

struct Flight {
    rule: InFlight,
    wait_timeout: Duration,
    max_waiters: usize,
    mismatch: MismatchInFlight,
}

fn flight(s: &mut Section<'_>) -> Option<Flight> {
    let rules = [
        ("wait", Some(InFlight::Wait)),
        ("conflict", Some(InFlight::Conflict)),
    ];
    let rule = s.choice("in_flight", "wait", &rules);
    let wait_timeout = s.duration("wait_timeout", "30s", MOMENT);
    let max_waiters = s.count("max_waiters", 1000, 1..=MANY);
    let answers = [
        ("mismatch", Some(MismatchInFlight::Mismatch)),
        ("conflict", Some(MismatchInFlight::Conflict)),
    ];
    let mismatch = s.choice("mismatch_in_flight", "mismatch", &answers);
    Some(Flight {
        rule: rule?,
        wait_timeout: wait_timeout?,
        max_waiters: max_waiters?,
        mismatch: mismatch?,
    })
}

fn statuses_of(
    s: &mut Section<'_>,
    key: &'static str,
    default: &[&str],
    allowed: &str,
) -> Option<StatusSet> {
    let entries = s.list(key, default, |text| match StatusSet::parse(&[text]) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Refusal::wrong("it is no status").allowed(allowed)),
    })?;
    StatusSet::parse(&entries).ok()
}

fn terms(s: &mut Section<'_>) -> Option<Terms> {
    let retention = s.duration("retention", "24h", MOMENT);
    let starts = [
        ("completion", Some(RetentionFrom::Completion)),
        ("start", Some(RetentionFrom::Start)),
    ];
    let retention_from = s.choice("retention_from", "completion", &starts);
    let ends = [
        ("execute", Some(Refused::No)),
        ("refuse", Some(Refused::Yes)),
    ];
    let after_expiry = s.choice("after_expiry", "execute", &ends);
    let refuse_for = s.duration("refuse_for", "30d", MOMENT);
    let lease = s.duration("lease", "60s", LEAST_LEASE);
    let outcomes = [("hold", Some(Held::Yes)), ("release", Some(Held::No))];
    let outcome = s.choice("unknown_outcome", "hold", &outcomes);
    let forms = format!("\"forever\", or {}", durations(MOMENT));
    let hold = s.text_of("unknown_hold", "forever", &forms, |text| match text {
        "forever" => Ok(UnknownOutcome::HoldForever),
        // A word is a slip of `forever` rather than a duration.
        text => duration(text, MOMENT)
            .map(UnknownOutcome::HoldFor)
            .map_err(|refusal| refusal.allowed(forms.as_str()).near(text, &["forever"])),
    });
    Some(Terms {
        retention: retention?,
        retention_from: retention_from?,
        after_expiry: match (after_expiry?, refuse_for?) {
            (Refused::No, _) => AfterExpiry::Execute,
            (Refused::Yes, span) => AfterExpiry::RefuseFor(span),
        },
        lease: lease?,
        unknown: match (outcome?, hold?) {
            (Held::Yes, hold) => hold,
            (Held::No, _) => UnknownOutcome::Release,
        },
    })
}

/// `after_expiry`, before `refuse_for` is known.
#[derive(Clone, Copy)]
enum Refused {
    Yes,
    No,
}

/// `unknown_outcome`, before `unknown_hold` is known.
#[derive(Clone, Copy)]
enum Held {
    Yes,
    No,
}

fn replay_headers(s: &mut Section<'_>) -> Option<ReplayHeaders> {
    let words = [
        ("end-to-end", Some(Carried::EndToEnd)),
        ("none", Some(Carried::None)),
    ];
    let word = |text: &str| {
        choose(text, &words)
            .map_err(|refusal| refusal.allowed("end-to-end, none, or a list of header names"))
    };
    let read = s.word_or_list("replay_headers", "end-to-end", word, end_to_end)?;
    Some(match read {
        Ok(Carried::EndToEnd) => ReplayHeaders::EndToEnd,
        Ok(Carried::None) => ReplayHeaders::None,
        Err(names) => ReplayHeaders::Only(names),
    })
}

/// The words of `replay_headers`.
#[derive(Clone, Copy)]
enum Carried {
    EndToEnd,
    None,
}

fn marker(s: &mut Section<'_>) -> Option<Marker> {
    let header = s.text("marker_header", "Idempotency-Key-Reply", optional_header);
    let miss = s.text("marker_miss", "miss", marker_value);
    let hit = s.text("marker_hit", "hit", marker_value);
    Some(Marker {
        header: header?,
        miss: miss?,
        hit: hit?,
    })
}

fn errors(s: &mut Section<'_>) -> Option<Errors> {
    let shapes = ErrorShape::ALL.map(|shape| (shape.as_str(), Some(shape)));
    let shape = s.choice("errors", "problem", &shapes);
    let base = s.text("problem_base", "urn:idem-proxy:problem:", |text| {
        let fits = text
            .chars()
            .all(|c| c.is_ascii_graphic() && !r#"<>"\^`{|}"#.contains(c));
        if fits {
            Ok(text.to_owned())
        } else {
            Err(Refusal::wrong("it is no start of a URI")
                .allowed("the characters of a URI (RFC 3986, section 2)"))
        }
    });
    let docs = s.text("docs_url", "", docs_url);
    let (base, docs) = (base?, docs?);
    let (type_base, link) =
        docs.map_or((base, None), |(url, link)| (format!("{url}#"), Some(link)));
    Some(Errors {
        shape: shape?,
        type_base,
        link,
    })
}

fn fingerprint(mut section: Section<'_>) -> Option<FingerprintRule> {
    let s = &mut section;
    let method = s.flag("method", true);
    let path = s.flag("path", true);
    let queries = [
        ("exact", Some(QueryMode::Exact)),
        ("sorted", Some(QueryMode::Sorted)),
        ("off", Some(QueryMode::Off)),
    ];
    let query = s.choice("query", "exact", &queries);
    let headers = s.list("headers", &["content-type"], |text| {
        match header_name(text)? {
            name if name == http::header::AUTHORIZATION => Err(Refusal::wrong(
                "a credential is never part of the fingerprint: it belongs to identity.from",
            )),
            name => Ok(name),
        }
    });
    let bodies = [
        ("auto", Some(BodyMode::Auto)),
        ("json", Some(BodyMode::Json)),
        ("form", Some(BodyMode::Form)),
        ("multipart", Some(BodyMode::Multipart)),
        ("raw", Some(BodyMode::Raw)),
        ("off", Some(BodyMode::Off)),
    ];
    let body = s.choice("body", "auto", &bodies);
    let pointer = |text: &str| {
        let refuse = || {
            Refusal::wrong("it is no JSON pointer").allowed("RFC 6901, such as \"/meta/sent_at\"")
        };
        JsonPointer::parse(text).ok_or_else(refuse)
    };
    let ignore = s.list("ignore", &[], pointer);
    let only = s.list("only", &[], pointer);
    section.finish();
    Some(FingerprintRule {
        method: method?,
        path: path?,
        query: query?,
        headers: headers?,
        body: body?,
        ignore: ignore?,
        only: only?,
    })
}

/// What carries a key is no part of the fingerprint, even if it is listed: a retry may carry its key elsewhere.
fn without_carriers(mut rule: FingerprintRule, sources: &[KeySource]) -> FingerprintRule {
    let carries = |name: &HeaderName| {
        let is = |place: &KeyPlace| matches!(place, KeyPlace::Header(own) if own == name);
        sources.iter().any(|source| is(&source.place))
    };
    rule.headers.retain(|name| !carries(name));
    rule
}
