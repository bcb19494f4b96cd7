//! The service: what happens to a request from its head to its answer. Each request walks through here once.
//!
//! A request without a key, or without a route, streams through (`forward`) and touches no store, no buffer and no lock. A
//! keyed one goes the way of the contract's section 4 (`keyed`); the right to execute is carried out by work of the proxy's own
//! (`execute`), which goes on as a task where its client goes away, so that this changes nothing. One whose key may stand in its body is
//! read first (`unread`). One without a key that asks for another protocol may become a tunnel (`upgrade`), which its client's connection runs.
//!
//! Requests come here in the form of HTTP/1.1, whichever version they were sent by: what is judged before, and how answers are
//! framed, is the affair of `server`.

mod answer;
mod body;
mod buffered;
mod caller;
mod departure;
mod execute;
mod finish;
mod forward;
mod keyed;
mod lease;
mod peer;
mod policy_page;
mod read_away;
mod records;
mod replay_auth;
mod settle;
mod setup;
mod traced;
mod traces;
mod unread;
mod upgrade;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, header::ALLOW};
use http_body::Body as _;
use hyper::body::Incoming;
use ipnet::IpNet;
use tokio::time::Instant;

use self::{
    answer::Answer,
    departure::{LeftAs, Open},
    forward::{Through, forward},
    keyed::{Keyed, Name},
    read_away::{Rest, read_away},
    traced::{RequestSpan, Traced},
    unread::Unread,
};
pub use self::{
    body::{AnswerBody, CutOff, Pipe, Resumed},
    peer::Peer,
    policy_page::PolicyPage,
    records::Records,
    traces::TraceIds,
    upgrade::Tunnel,
};
use crate::{
    config::Route,
    core::{
        carrier::BodyKind,
        forwarding::{self, Hop, MaxForwards},
        framing,
        headers::expectation_can_be_met,
        key::{self, Head, Key, KeyFound, Sought},
        path::normalise,
        policy::{Errors, KeyRule, Policy},
        present::{Kind, Present},
        problem::{KeyRefused, Problem},
        record::ShortId,
        trace::Trace,
    },
    flight::Flights,
    identity::Kept,
    limit::Limit,
    route::{Match, Router},
    store::clock::{Clock as _, SystemClock},
    tasks::Tasks,
    telemetry::{
        access::{AccessLog, Line},
        metrics::{Metrics, Outcome},
        spans::Spans,
    },
    timers::Timers,
    upstream::Pool,
};

/// What all workers of one proxy share, under one configuration. A reload makes another one: requests that have begun keep theirs to
/// their end. Records, flights, limits, `hop` and counts are the same for all of them.
#[derive(Debug)]
pub struct Proxy {
    /// Which policy a request falls under.
    pub router: Router,
    /// The headers that carry keys on any route: what makes a request without a route `passthrough_keyed`.
    pub key_headers: Vec<HeaderName>,
    /// The headers that anything here is decided by: twins of them that are spelt with `_` are dropped.
    pub acted_on: Vec<HeaderName>,
    /// This process in `Via`, not to be guessed: a request that has it comes from here.
    pub hop: Hop,
    /// How errors are said where no route says it.
    pub errors: Errors,
    /// Where records are.
    pub records: Arc<Records>,
    /// Part of every record's id.
    pub namespace: String,
    /// What runs here.
    pub flights: Arc<Flights>,
    /// `max_executions`
    pub executions: Arc<Limit>,
    /// `max_buffered_bytes`
    pub buffered: Arc<Limit>,
    /// `body_timeout`
    pub body_timeout: Duration,
    /// `max_target_bytes`
    pub max_target_bytes: usize,
    /// `trusted_proxies`
    pub trusted: Vec<IpNet>,
    /// The published policy; `None`: it is not published.
    pub policy_page: Option<PolicyPage>,
    /// Who verifies tokens; an identity holds an index into this list.
    pub verifiers: Vec<Kept>,
    /// What is counted.
    pub metrics: Metrics,
    /// One line a request.
    pub access: AccessLog,
    /// What keyed requests leave of their traces.
    pub spans: Spans,
    /// The time that dates in answers go by.
    pub clock: SystemClock,
}

/// One worker's part of the proxy under one configuration: its connections to the upstreams, and where its executions run.
#[derive(Debug)]
pub struct Worker {
    /// What all workers share.
    pub proxy: Arc<Proxy>,
    /// One pool an upstream, in the order of the configuration.
    pub pools: Vec<Pool>,
    /// Executions are spawned here and waited for at a drain.
    pub executions: Tasks,
    /// For the times of client connections.
    pub times: Arc<Timers>,
    /// For how long who joins a call waits for it.
    pub joins: Arc<Timers>,
    /// For when a claim is to be renewed.
    pub renewals: Arc<Timers>,
    /// Ids of the traces that begin here.
    pub traces: Arc<TraceIds>,
}

/// A request on its route.
struct Place<'a> {
    /// The route's index, for metrics and logs.
    index: usize,
    route: &'a Route,
    /// Normalised.
    path: &'a str,
    peer: &'a Peer,
    trace: Trace,
    /// Set where the request may turn out to be keyed, and its trace is recorded.
    traced: Option<Traced>,
    present: Present,
}

/// What was read of every head at first.
#[derive(Clone, Copy)]
struct Arrived {
    trace: Trace,
    present: Present,
}

/// An error of the proxy's own, and how it is counted.
type Refusal = (Problem, Outcome);

/// Which way a request goes.
enum Course<'a> {
    /// None: this is the answer.
    Answered(Box<Answer>),
    /// Through, as it comes.
    Through(Through<'a>),
    /// Under its key.
    Keyed(keyed::Keyed<'a>),
    /// Its body says.
    Unread(unread::Unread<'a>),
}

/// What follows from the key that was found, or not.
enum ByKey<'a> {
    Refused(Box<Answer>),
    Through(Through<'a>),
    Keyed(Key),
}

impl Worker {
    /// Answers one request. It always answers; what can go wrong is an answer too.
    ///
    /// Dropping the future, as a client that goes away does, ends an unkeyed call to the upstream and leaves a keyed one alone. The
    /// request is counted and logged either way.
    pub async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> Response<AnswerBody> {
        let started = Instant::now();
        let peer = peer.judged(&self.proxy.trusted);
        let method = request.method().clone();
        let uri = request.uri().clone();
        let path = normalise(uri.path());
        let present = Present::of(request.headers());
        if present.has(Kind::Underscored) {
            framing::drop_underscore_twins(request.headers_mut(), &self.proxy.acted_on);
        }
        let trace = Trace::in_head(request.headers(), present, || self.traces.next());
        let arrived = Arrived { trace, present };
        let (route, course) = self.dispatch(&request, &peer, &path, arrived);
        let span = RequestSpan::of(&self, &course, &trace, route, &method, started);
        let open = Open {
            worker: &self,
            method: &method,
            route,
            trace: trace.id(),
            started,
            left_as: LeftAs::of(&course),
        };
        let left_as = &open.left_as;
        let answer = match course {
            Course::Answered(answer) => answer.behind(read_away(request).await),
            Course::Through(through) => {
                let (mut parts, incoming) = request.into_parts();
                forward(&self, through, &mut parts, incoming, &peer).await
            }
            // The keyed path is the larger one by far; boxed, it costs the other nothing.
            Course::Keyed(keyed) => Box::pin(keyed::answer(&self, keyed, request, left_as)).await,
            Course::Unread(unread) => {
                Box::pin(unread::answer(&self, unread, request, left_as)).await
            }
        };
        let took = started.elapsed();
        if let Some(mut span) = span {
            span.answered(&answer);
        }
        open.answered(&answer, took);
        answer.response
    }

    /// Refuses a request that could not be read: it is counted and logged as any other, but for what is not known of it.
    #[must_use]
    pub fn refuse(&self, problem: Problem) -> Response<AnswerBody> {
        let errors = &self.proxy.errors;
        let answer = self.error(errors, &(problem, Outcome::BadRequest), None);
        let metrics = self.proxy.metrics.route(None);
        metrics.request(answer.outcome, Duration::ZERO);
        self.proxy.access.line(&Line {
            method: &unknown_method(),
            route: None,
            outcome: answer.outcome,
            status: Some(answer.response.status()),
            record: None,
            trace: None,
            took: Duration::ZERO,
            upstream: None,
            request_bytes: None,
            response_bytes: answer.response.body().size_hint().exact(),
        });
        answer.response
    }

    /// The route's index, for metrics and logs, and which way the request goes. The request stays where it is: whoever takes it
    /// copies it.
    fn dispatch<'a>(
        &'a self,
        request: &Request<Incoming>,
        peer: &'a Peer,
        path: &'a str,
        arrived: Arrived,
    ) -> (Option<usize>, Course<'a>) {
        if let Some(problem) = self.refusal(request, arrived.present) {
            return (None, self.turned_away(problem));
        }
        if let Some(page) = self.proxy.policy_page.as_ref()
            && page.is_at(path)
        {
            let (errors, now) = (&self.proxy.errors, self.proxy.clock.now());
            let answer = page.answer(request.method(), request.headers(), errors, now);
            return (None, Course::Answered(Box::new(answer)));
        }
        if forwarding::max_forwards(request.method(), request.headers()) == MaxForwards::Here {
            return (None, Course::Answered(Box::new(answer::options())));
        }
        let index = match self.proxy.router.find(request.method(), path) {
            Match::Route(index) => index,
            Match::None => return (None, self.pass_through(request, arrived)),
            Match::MethodCase => {
                let problem = Problem::BadRequest(
                    "Methods are case-sensitive, and this one is written in upper case.",
                );
                return (None, self.turned_away(problem));
            }
        };
        let Some(route) = self.proxy.router.get(index) else {
            return (None, self.pass_through(request, arrived)); // an index of the router's own is always there
        };
        let place = Place {
            index,
            route,
            path,
            peer,
            trace: arrived.trace,
            traced: None,
            present: arrived.present,
        };
        (Some(index), self.on_route(request, place))
    }

    fn on_route<'a>(&'a self, request: &Request<Incoming>, mut place: Place<'a>) -> Course<'a> {
        let policy = &place.route.policy;
        match policy.key {
            KeyRule::Off => return Course::Through(place.through(Outcome::Unkeyed)),
            KeyRule::Derived => {
                place.traced = Traced::begin(self, &place.trace);
                let name = Name::Derived;
                return Course::Keyed(Keyed { place, name });
            }
            KeyRule::Required | KeyRule::Optional => {}
        }
        let head = Head {
            headers: request.headers(),
            query: request.uri().query(),
        };
        let kind = body_kind(policy, head.headers, request.body());
        let found = match key::find_in_head(policy, head, kind) {
            Ok(Sought::InBody) => {
                place.traced = Traced::begin(self, &place.trace);
                return Course::Unread(Unread { place, kind });
            }
            Ok(Sought::Found(found)) => Ok(found),
            Err(refused) => Err(refused),
        };
        match self.by_key(&place, request.headers(), found) {
            ByKey::Refused(answer) => Course::Answered(answer),
            ByKey::Through(through) => Course::Through(through),
            ByKey::Keyed(key) => {
                place.traced = Traced::begin(self, &place.trace);
                let name = Name::Key(key);
                Course::Keyed(Keyed { place, name })
            }
        }
    }

    /// What follows from the search for the key, whether or not the body was read for it.
    fn by_key<'a>(
        &self,
        place: &Place<'a>,
        headers: &HeaderMap,
        found: Result<KeyFound, KeyRefused>,
    ) -> ByKey<'a> {
        let policy = &place.route.policy;
        let refused = |problem, outcome| {
            ByKey::Refused(Box::new(self.refused(policy, &(problem, outcome), None)))
        };
        match found {
            Err(fault) => refused(Problem::KeyInvalid(fault), Outcome::KeyInvalid),
            Ok(KeyFound::Key(key)) => ByKey::Keyed(key),
            Ok(KeyFound::Absent | KeyFound::Bypassed) if key::required(policy, headers) => {
                let carrier = policy.key_carrier();
                refused(Problem::KeyMissing { carrier }, Outcome::KeyMissing)
            }
            Ok(KeyFound::Absent) => ByKey::Through(place.through(Outcome::Unkeyed)),
            Ok(KeyFound::Bypassed) => ByKey::Through(place.through(Outcome::Bypass)),
        }
    }

    fn pass_through(&self, request: &Request<Incoming>, arrived: Arrived) -> Course<'_> {
        let keyed = self
            .proxy
            .key_headers
            .iter()
            .any(|name| request.headers().contains_key(name));
        let outcome = if keyed {
            Outcome::PassthroughKeyed
        } else {
            Outcome::Passthrough
        };
        Course::Through(Through {
            upstream: 0,
            route: None,
            errors: &self.proxy.errors,
            outcome,
            trace: arrived.trace,
            present: arrived.present,
        })
    }

    /// What no request may be, whatever its route.
    fn refusal(&self, request: &Request<Incoming>, present: Present) -> Option<Problem> {
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Some(Problem::MethodNotAllowed);
        }
        let headers = request.headers();
        let judged = framing::check(request.version(), headers, present, &self.proxy.acted_on);
        if let Err(why) = judged {
            return Some(Problem::BadRequest(why));
        }
        let uri = request.uri();
        let named = uri.authority();
        if named.is_some_and(|named| !framing::is_authority(named.as_str().as_bytes()))
            || !matches!(uri.scheme_str(), None | Some("http" | "https"))
        {
            return Some(Problem::BadRequest(
                "A target names a host and a port by http or https, or none (RFC 9112, section 3.2.2).",
            ));
        }
        let target = uri.path_and_query();
        let target = target.map_or("", |target| target.as_str());
        if target.len() > self.proxy.max_target_bytes {
            return Some(Problem::TargetTooLong);
        }
        if !target.is_ascii() {
            return Some(Problem::BadRequest(
                "A target is ASCII; other characters are percent-encoded (RFC 3986, section 2.1).",
            ));
        }
        if !(target.starts_with('/') || (target == "*" && request.method() == Method::OPTIONS)) {
            return Some(Problem::BadRequest(
                "A target is a path, or * for OPTIONS (RFC 9110, section 7.1).",
            ));
        }
        if present.has(Kind::Via) && self.proxy.hop.is_in(headers) {
            return Some(Problem::LoopDetected);
        }
        (present.has(Kind::Expect) && !expectation_can_be_met(headers))
            .then_some(Problem::ExpectationFailed)
    }

    /// Refuses what no request may be.
    fn turned_away(&self, problem: Problem) -> Course<'_> {
        let method = matches!(problem, Problem::MethodNotAllowed);
        let refusal = (problem, Outcome::BadRequest);
        let mut refused = self.error(&self.proxy.errors, &refusal, None);
        if method {
            // RFC 9110, section 15.5.6. What of these the upstream takes is its own affair.
            let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
            refused.response.headers_mut().insert(ALLOW, methods);
        }
        Course::Answered(Box::new(refused))
    }

    /// One of the proxy's own errors, on a route.
    fn refused(&self, policy: &Policy, refusal: &Refusal, record: Option<ShortId>) -> Answer {
        self.error(&policy.errors, refusal, record)
    }

    fn error(
        &self,
        errors: &Errors,
        (problem, outcome): &Refusal,
        record: Option<ShortId>,
    ) -> Answer {
        Answer::problem(problem, *outcome, errors, record, self.proxy.clock.now())
    }
}

impl<'a> Place<'a> {
    /// Through, as what it then counts as.
    fn through(&self, outcome: Outcome) -> Through<'a> {
        Through {
            upstream: self.route.upstream,
            route: Some(self.index),
            errors: &self.route.policy.errors,
            outcome,
            trace: self.trace,
            present: self.present,
        }
    }
}

/// The method of a request that could not be read: `other`, in logs.
fn unknown_method() -> Method {
    Method::from_bytes(b"-").unwrap_or_default()
}

/// How this body is read for keys. Where there is none, or no source stands in one, that is not at all.
fn body_kind(policy: &Policy, headers: &HeaderMap, body: &Incoming) -> BodyKind {
    if body.is_end_stream() {
        return BodyKind::Opaque;
    }
    BodyKind::of(&policy.key_sources, headers)
}
