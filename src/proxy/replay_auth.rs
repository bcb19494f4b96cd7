//! `replay_auth`: the upstream is asked before anyone gets an answer that another request brought about.
//!
//! The question is a GET with the caller's credentials: what `identity.from` names, Authorization and Cookie, and who came
//! by which way (Host, X-Forwarded-*), as the upstream gets them with any request. 2xx permits. Any other answer below 500
//! is a refusal and goes to the client; whatever is no answer, or says nothing, is doubt. On doubt nothing is replayed.
//! The question is a call to the upstream like others: it takes one of `max_executions`, goes through the pool, ends
//! within `response_timeout`, and is counted.

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode,
    header::{AUTHORIZATION, COOKIE, FORWARDED, HOST},
    request::Parts,
    uri::{Authority, PathAndQuery, Uri},
};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{Instant, timeout};

use super::{
    Place, Refusal, Worker,
    answer::{Answer, mark},
    body::AnswerBody,
    forward::{outgoing_head, passed},
};
use crate::{
    core::{
        policy::{CallerPart, Identity},
        problem::Problem,
        record::ShortId,
    },
    telemetry::{
        metrics::{Limit, Outcome, StatusClass},
        spans::CallEnd,
    },
    upstream::{OutgoingBody, UpstreamBody},
};

/// Why a caller does not get an answer that is there.
enum Denied {
    /// The upstream's refusal, as it came.
    Refused(Response<AnswerBody>),
    /// It was not asked, or did not say; and how that is counted.
    Doubt(Refusal),
}

/// Whether the caller of the request `asking` may have the answer of `record`, where the route wants that to be asked.
///
/// Dropping the future drops the question and changes nothing.
///
/// # Errors
/// The caller does not get it, but this: the upstream's refusal (counted as `caller_missing`), or 502
/// `upstream-failed` on doubt (`upstream_failure`), or 503 `overloaded`.
pub(super) async fn permitted(
    worker: &Worker,
    place: &Place<'_>,
    asking: &Parts,
    record: ShortId,
) -> Result<(), Box<Answer>> {
    let policy = &place.route.policy;
    let Some(path) = &policy.replay_auth else {
        return Ok(());
    };
    // Boxed, the question costs nothing where it is not asked.
    let denied = match Box::pin(ask(worker, place, path, asking)).await {
        Ok(()) => return Ok(()),
        Err(Denied::Refused(refusal)) => Answer::new(refusal, Outcome::CallerMissing).of(record),
        Err(Denied::Doubt(refusal)) => worker.refused(policy, &refusal, Some(record)),
    };
    Err(Box::new(denied))
}

async fn ask(
    worker: &Worker,
    place: &Place<'_>,
    path: &PathAndQuery,
    asking: &Parts,
) -> Result<(), Denied> {
    let proxy = &worker.proxy;
    let doubt = || Denied::Doubt((Problem::UpstreamFailed, Outcome::UpstreamFailure));
    let Some(pool) = worker.pools.get(place.route.upstream) else {
        return Err(doubt()); // checked when it was configured
    };
    let Some(_permit) = proxy.executions.take(1) else {
        proxy.metrics.limit_refused(Limit::MaxExecutions);
        return Err(Denied::Doubt((Problem::Overloaded, Outcome::Overloaded)));
    };
    let policy = &place.route.policy;
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.uri = Uri::from(path.clone());
    parts.headers = credentials(&policy.identity, asking);
    place.trace.copy(&asking.headers, &mut parts.headers);
    outgoing_head(
        &mut parts,
        worker,
        place.peer,
        &place.trace,
        pool.upstream(),
    );
    let call = place
        .traced
        .map(|traced| traced.call(worker, &place.trace, &parts.method, &mut parts.headers));
    let question = Request::from_parts(parts, OutgoingBody::whole(Bytes::new()));

    let sent = Instant::now();
    let deadline = sent + pool.upstream().response_timeout;
    let answered = pool
        .response_timers()
        .within(deadline, pool.send(question))
        .await;
    let status = match &answered {
        Some(Ok(response)) => Some(response.status()),
        Some(Err(_)) | None => None,
    };
    let metrics = proxy.metrics.route(Some(place.index));
    metrics.upstream(StatusClass::from(status), sent.elapsed());
    if let Some(call) = call {
        let end = match (status, &answered) {
            (Some(status), _) => CallEnd::Answered(status),
            (None, Some(_)) => CallEnd::Failed(Problem::UpstreamFailed.slug()),
            (None, None) => CallEnd::Failed(Problem::UpstreamTimeout.slug()),
        };
        call.end(worker, end, sent);
    }
    match answered {
        Some(Ok(response)) if response.status().is_success() => {
            let_go(worker, response.into_body());
            Ok(())
        }
        Some(Ok(response)) if refuses(response.status()) => {
            let mut refusal = passed(response);
            // Whatever the upstream sends under that name, this is no replay.
            mark(refusal.headers_mut(), policy, None);
            Err(Denied::Refused(refusal))
        }
        Some(Ok(_)) | None => {
            let status = status.map(|status| status.as_u16());
            tracing::warn!(
                upstream = pool.upstream().name,
                status,
                "replay_auth has no verdict; nothing was replayed"
            );
            Err(doubt())
        }
        Some(Err(failure)) => {
            tracing::warn!(upstream = pool.upstream().name, %failure, "replay_auth could not be asked; nothing was replayed");
            Err(doubt())
        }
    }
}

/// Whether this is a verdict against the caller.
fn refuses(status: StatusCode) -> bool {
    status.is_redirection() || status.is_client_error()
}

/// Of a request's headers, those that say who is calling and by which way.
fn credentials(identity: &Identity, asking: &Parts) -> HeaderMap {
    let named = |name: &HeaderName| {
        let is_it = |part: &CallerPart| matches!(part, CallerPart::Header(own) if own == name);
        identity.from.iter().any(is_it)
    };
    let carried = |name: &HeaderName| {
        [AUTHORIZATION, COOKIE, FORWARDED, HOST].contains(name)
            || name.as_str().starts_with("x-forwarded-")
            || named(name)
    };
    let mut headers = HeaderMap::new();
    for (name, value) in asking.headers.iter().filter(|(name, _)| carried(name)) {
        headers.append(name.clone(), value.clone());
    }
    // The target's own authority wins over Host (RFC 9112, section 3.2.2).
    let authority = asking.uri.authority().map(Authority::as_str);
    if let Some(host) = authority.and_then(|host| HeaderValue::from_str(host).ok()) {
        headers.insert(HOST, host);
    }
    headers
}

/// Reads what is left of a permission, within bounds, so that its connection can be used again. Nobody waits for it.
fn let_go(worker: &Worker, body: UpstreamBody) {
    if !body.is_end_stream() {
        // A body that is too long, too slow or broken costs its connection and nothing else.
        let rest = timeout(REST_TIME, Limited::new(body, REST_BYTES).collect());
        worker.executions.detach(async move { drop(rest.await) });
    }
}

/// The most that is read of a permission's body, in bytes.
const REST_BYTES: usize = 64 * 1024;

/// How long that may take.
const REST_TIME: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::policy::MissingCaller;

    #[test]
    fn the_question_has_the_callers_credentials_and_nothing_of_the_write() {
        let request = Request::post("http://shop.example/orders")
            .header("host", "other.example")
            .header("authorization", "Bearer a")
            .header("cookie", "sid=1")
            .header("cookie", "b=2")
            .header("x-tenant", "t")
            .header("x-forwarded-for", "192.0.2.1")
            .header("x-forwarded-host", "h")
            .header("forwarded", "for=192.0.2.1")
            .header("idempotency-key", "k")
            .header("content-type", "application/json")
            .header("content-length", "2")
            .header("expect", "100-continue")
            .header("x-other", "o");
        let (asking, ()) = request.body(()).expect("a request").into_parts();
        let identity = Identity {
            from: vec![
                CallerPart::Header(HeaderName::from_static("x-tenant")),
                CallerPart::PeerIp,
            ],
            missing: MissingCaller::Reject,
            jwt: None,
        };
        let carried = credentials(&identity, &asking);
        let mut names: Vec<&str> = carried.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "authorization",
                "cookie",
                "forwarded",
                "host",
                "x-forwarded-for",
                "x-forwarded-host",
                "x-tenant"
            ]
        );
        assert_eq!(carried.get_all("cookie").iter().count(), 2);
        assert_eq!(carried.get("host").expect("a host"), "shop.example");
    }

    #[test]
    fn only_redirections_and_client_errors_are_verdicts_against_a_caller() {
        for (code, refusal) in [
            (302, true),
            (401, true),
            (499, true),
            (500, false),
            (101, false),
        ] {
            let status = StatusCode::from_u16(code).expect("a status");
            assert_eq!(refuses(status), refusal, "{code}");
        }
    }
}
