//! The service: what happens to a request from its head to its answer. Each request walks through here once.
//!
//! A request without a key, or without a route, streams through (`forward`) and touches no store, no buffer and no lock. A
//! keyed one goes the way of the contract's section 4 (`keyed`); the right to execute is carried out by a task of the proxy's
//! own (`execute`), so that a client that goes away changes nothing.

mod answer;
mod body;
mod caller;
mod execute;
mod finish;
mod forward;
mod keyed;
mod policy_page;
mod records;
mod replay_auth;
mod settle;

use std::{net::IpAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, header::EXPECT};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use ipnet::IpNet;
use tokio::time::Instant;

use self::{
    answer::Answer,
    forward::{Through, forward},
};
pub use self::{
    body::{AnswerBody, CutOff, Pipe},
    policy_page::PolicyPage,
    records::Records,
};
use crate::{
    config::Route,
    core::{
        framing,
        headers::{self, Arrival},
        key::{self, KeyFound},
        path::normalise,
        policy::{Errors, KeyRule},
        problem::Problem,
    },
    flight::Flights,
    identity::Verifier,
    limit::Limit,
    route::{Match, Router},
    store::clock::{Clock as _, SystemClock},
    tasks::Tasks,
    telemetry::{
        access::{AccessLog, Line},
        metrics::{Metrics, Outcome},
    },
    timers::Timers,
    upstream::Pool,
};

/// What all workers of one proxy share.
#[derive(Debug)]
pub struct Proxy {
    /// Which policy a request falls under.
    pub router: Router,
    /// The headers that carry keys on any route: what makes a request without a route `passthrough_keyed`.
    pub key_headers: Vec<HeaderName>,
    /// The headers that anything here is decided by: twins of them that are spelt with `_` are dropped.
    pub acted_on: Vec<HeaderName>,
    /// This process in `Via`, not to be guessed: a request that has it comes from here.
    pub hop: HeaderValue,
    /// How errors are said where no route says it.
    pub errors: Errors,
    /// Where records are.
    pub records: Records,
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
    pub verifiers: Vec<Arc<Verifier>>,
    /// What is counted.
    pub metrics: Metrics,
    /// One line a request.
    pub access: AccessLog,
    /// The time that dates in answers go by.
    pub clock: SystemClock,
}

/// One worker's part of the proxy: its connections to the upstreams, and where its executions run.
#[derive(Debug)]
pub struct Worker {
    /// What all workers share.
    pub proxy: Arc<Proxy>,
    /// One pool an upstream, in the order of the configuration.
    pub pools: Vec<Pool>,
    /// Executions are spawned here and waited for at a drain.
    pub executions: Tasks,
    /// For `head_timeout`.
    pub heads: Arc<Timers>,
}

/// Who is at the other end of a client's connection.
#[derive(Debug)]
pub struct Peer {
    /// The TCP peer's address; `None` on a unix socket.
    pub address: Option<IpAddr>,
    /// The same as upstreams are told.
    pub arrival: Arrival,
}

impl Peer {
    /// The peer at `address`, believed if it is in `trusted`.
    #[must_use]
    pub fn new(address: Option<IpAddr>, trusted: &[IpNet]) -> Self {
        let address = address.map(|ip| ip.to_canonical());
        Self {
            address,
            arrival: Arrival {
                // An address is visible ASCII, so this never is `None` where there is one.
                peer: address.and_then(|ip| HeaderValue::from_str(&ip.to_string()).ok()),
                trusted: address.is_some_and(|ip| trusted.iter().any(|net| net.contains(&ip))),
                proto: HeaderValue::from_static("http"),
            },
        }
    }
}

/// Which way a request goes.
enum Course<'a> {
    /// None: this is the answer.
    Answered(Box<Answer>),
    /// Through, as it comes.
    Through(Through<'a>),
    /// Under its key.
    Keyed(keyed::Keyed<'a>),
}

impl Worker {
    /// Answers one request. It always answers; what can go wrong is an answer too.
    ///
    /// Dropping the future, as a client that goes away does, ends an unkeyed call to the upstream and leaves a keyed one alone.
    pub async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> Response<AnswerBody> {
        let started = Instant::now();
        let method = request.method().clone();
        let uri = request.uri().clone();
        let path = normalise(uri.path());
        framing::drop_underscore_twins(request.headers_mut(), &self.proxy.acted_on);
        let (route, course) = self.dispatch(&request, &peer, &path);
        let answer = match course {
            Course::Answered(answer) => {
                read_away(request).await;
                *answer
            }
            Course::Through(through) => forward(&self, through, request, &peer).await,
            // The keyed path is the larger one by far; boxed, it costs the other nothing.
            Course::Keyed(keyed) => Box::pin(keyed::answer(&self, keyed, request)).await,
        };
        let took = started.elapsed();
        self.proxy
            .metrics
            .route(route)
            .request(answer.outcome, took);
        self.proxy.access.line(&Line {
            method: &method,
            route,
            outcome: answer.outcome,
            status: Some(answer.response.status()),
            record: answer.record,
            took,
            upstream: answer.upstream,
            request_bytes: answer.request_bytes,
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
    ) -> (Option<usize>, Course<'a>) {
        if let Some(problem) = self.refusal(request) {
            return (None, self.refuse(&problem, None, Outcome::BadRequest));
        }
        if let Some(page) = self.proxy.policy_page.as_ref()
            && page.is_at(path)
        {
            let (errors, now) = (&self.proxy.errors, self.proxy.clock.now());
            let answer = page.answer(request.method(), request.headers(), errors, now);
            return (None, Course::Answered(Box::new(answer)));
        }
        let index = match self.proxy.router.find(request.method(), path) {
            Match::Route(index) => index,
            Match::None => return (None, self.pass_through(request)),
            Match::MethodCase => {
                let problem = Problem::BadRequest(
                    "Methods are case-sensitive, and this one is written in upper case.",
                );
                return (None, self.refuse(&problem, None, Outcome::BadRequest));
            }
        };
        let Some(route) = self.proxy.router.get(index) else {
            return (None, self.pass_through(request)); // an index of the router's own is always there
        };
        (
            Some(index),
            self.on_route(request, peer, path, index, route),
        )
    }

    fn on_route<'a>(
        &'a self,
        request: &Request<Incoming>,
        peer: &'a Peer,
        path: &'a str,
        index: usize,
        route: &'a Route,
    ) -> Course<'a> {
        let policy = &route.policy;
        let through = |outcome| {
            Course::Through(Through {
                upstream: route.upstream,
                route: Some(index),
                errors: &policy.errors,
                outcome,
            })
        };
        if policy.key == KeyRule::Off {
            return through(Outcome::Unkeyed);
        }
        match key::find(policy, request.headers()) {
            Err(refused) => self.refuse(
                &Problem::KeyInvalid(refused),
                Some(route),
                Outcome::KeyInvalid,
            ),
            Ok(KeyFound::Key(key)) => Course::Keyed(keyed::Keyed {
                index,
                route,
                key,
                path,
                peer,
            }),
            Ok(KeyFound::Absent | KeyFound::Bypassed)
                if key::required(policy, request.headers()) =>
            {
                let carrier = policy.key_carrier();
                self.refuse(
                    &Problem::KeyMissing { carrier },
                    Some(route),
                    Outcome::KeyMissing,
                )
            }
            Ok(KeyFound::Absent) => through(Outcome::Unkeyed),
            Ok(KeyFound::Bypassed) => through(Outcome::Bypass),
        }
    }

    fn pass_through(&self, request: &Request<Incoming>) -> Course<'_> {
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
        })
    }

    /// What no request may be, whatever its route.
    fn refusal(&self, request: &Request<Incoming>) -> Option<Problem> {
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Some(Problem::MethodNotAllowed);
        }
        if let Err(why) = framing::check(request.version(), request.headers(), &self.proxy.acted_on)
        {
            return Some(Problem::BadRequest(why));
        }
        let target = request.uri().path_and_query();
        let target = target.map_or("", |target| target.as_str());
        if target.len() > self.proxy.max_target_bytes {
            return Some(Problem::TargetTooLong);
        }
        if !target.is_ascii() {
            return Some(Problem::BadRequest(
                "A target is ASCII; other characters are percent-encoded (RFC 3986, section 2.1).",
            ));
        }
        if headers::has_hop(request.headers(), &self.proxy.hop) {
            return Some(Problem::LoopDetected);
        }
        (!headers::expectation_can_be_met(request.headers())).then_some(Problem::ExpectationFailed)
    }

    /// One of the proxy's own errors, before there is a record.
    fn refuse(&self, problem: &Problem, route: Option<&Route>, outcome: Outcome) -> Course<'_> {
        let errors = route.map_or(&self.proxy.errors, |route| &route.policy.errors);
        let answer = Answer::problem(problem, outcome, errors, None, self.proxy.clock.now());
        Course::Answered(Box::new(answer))
    }
}

/// Reads the body of a request that is refused, if it is short: its connection can then serve the next request. A long one ends its
/// connection, and so does one that its client still holds back for a 100.
async fn read_away(request: Request<Incoming>) {
    if request.headers().contains_key(EXPECT) {
        return;
    }
    let mut body = request.into_body();
    let announced = body.size_hint().exact().unwrap_or(0);
    let mut left = SHORT_BODY;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len) as u64;
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    if announced <= SHORT_BODY {
        // What does not come in time is not waited for.
        let _ = tokio::time::timeout(SHORT_WAIT, reading).await;
    }
}

/// A refused body of so many bytes is read to its end.
const SHORT_BODY: u64 = 64 * 1024;

/// And so long it may take.
const SHORT_WAIT: Duration = Duration::from_secs(1);
