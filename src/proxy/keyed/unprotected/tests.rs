//! What stands in the way of a request for which the store has failed, at moments that cannot be met from outside.

use std::{future::poll_fn, pin::pin, task::Poll};

use bytes::Bytes;
use http::Request;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    config,
    core::{
        fixtures::{answer, id, request},
        present::Present,
        trace::Trace,
    },
    flight::{Boarding, Landing, Seat},
    proxy::{Course, Peer, Place, Proxy, TraceIds, Worker, departure::LeftAs},
    tasks::Tasks,
    telemetry::{access::AccessLog, metrics::Metrics, spans::Spans},
    upstream::{Origin, Pool},
};

/// A proxy whose upstream takes no connections: a request that is forwarded is told so.
struct House {
    worker: Arc<Worker>,
    peer: Peer,
}

impl House {
    fn new() -> Self {
        let text = "upstream.url = 'http://127.0.0.1:1'\npolicy.on_store_failure = 'bypass'\n\
             [[route]]\nname = 'orders'\nmethods = ['POST']\npath = '/orders'\n";
        let loaded = config::parse("test", text, []).loaded();
        let config = loaded.expect("a configuration").config;
        let names: Vec<_> = config.routes.iter().map(|one| one.name.clone()).collect();
        let metrics = Metrics::new(&names);
        let (access, spans) = (AccessLog::off(), Spans::off());
        let proxy = Proxy::new(&config, Vec::new(), &metrics, access, spans).expect("a proxy");
        let executions = Tasks::new(Handle::current(), TaskTracker::new());
        let origin = Origin::new(config.upstreams[0].clone(), metrics).expect("an upstream");
        let worker = Worker {
            proxy: Arc::new(proxy),
            pools: vec![Pool::new(origin, executions.clone())],
            executions,
            times: Arc::default(),
            joins: Arc::default(),
            renewals: Arc::default(),
            traces: Arc::new(TraceIds::new().expect("random bytes")),
        };
        Self {
            worker: Arc::new(worker),
            peer: Peer::new(None, &[]),
        }
    }

    /// Somebody asks the store for the claim.
    fn asks(&self) -> Seat {
        match self.worker.proxy.flights.board(id(1), &request("a")) {
            Boarding::Lead(seat) => seat,
            Boarding::Join(_) => panic!("somebody asks already"),
        }
    }

    /// What another copy of its request comes to, for which the store fails; `known`: what it has known before; `meanwhile`: what happens once it
    /// waits. `None`: the store is asked again.
    async fn fails(&self, known: &mut Known, meanwhile: impl FnOnce()) -> Option<Answer> {
        let head = Request::post("/orders").body(()).expect("a request");
        let (mut parts, ()) = head.into_parts();
        let place = self.place(&parts);
        let left_as = LeftAs::of(&Course::Through(place.through(Outcome::Bypass)));
        let visit = self.visit(&place, &left_as);
        let mut buffered = Buffered {
            body: Bytes::new(),
            room: self.worker.proxy.buffered.take(0).expect("room"),
        };
        let failed = visit.failed(StoreError::Unavailable, known, &mut parts, &mut buffered);
        let mut failed = pin!(failed);
        let polled = poll_fn(|cx| Poll::Ready(failed.as_mut().poll(cx))).await;
        meanwhile();
        match polled {
            Poll::Ready(answer) => answer,
            Poll::Pending => failed.await,
        }
    }

    /// What it knows when it comes.
    fn known(&self) -> Known {
        let head = Request::post("/orders").body(()).expect("a request");
        let place = self.place(&head.into_parts().0);
        let left_as = LeftAs::of(&Course::Through(place.through(Outcome::Bypass)));
        self.visit(&place, &left_as).known()
    }

    fn place(&self, parts: &Parts) -> Place<'_> {
        Place {
            index: 0,
            route: self.worker.proxy.router.get(0).expect("a route"),
            path: "/orders",
            peer: &self.peer,
            trace: Trace::of(&parts.headers, || [1, 2, 3]),
            traced: None,
            present: Present::of(&parts.headers),
        }
    }

    fn visit<'a>(&'a self, place: &'a Place<'a>, left_as: &'a LeftAs) -> Visit<'a> {
        Visit {
            worker: &self.worker,
            place,
            id: id(1),
            fingerprint: request("a"),
            left_as,
        }
    }
}

fn shared() -> Landing {
    Landing::Shared(Arc::new(answer(b"done")))
}

/// How it was answered.
fn outcome(answer: Option<Answer>) -> Option<Outcome> {
    answer.map(|answer| answer.outcome)
}

#[tokio::test]
async fn a_copy_joins_the_call_whose_claim_was_still_asked_for() {
    let house = House::new();
    let seat = house.asks();
    let mut nothing = Known::default();
    let joined = house.fails(&mut nothing, || {
        seat.running();
        seat.land(shared());
    });
    assert_eq!(outcome(joined.await), Some(Outcome::Joined));
}

#[tokio::test]
async fn where_that_claim_is_not_given_the_store_is_asked_again_or_has_failed_for_all() {
    let house = House::new();
    let seat = house.asks();
    let mut nothing = Known::default();
    let again = house.fails(&mut nothing, || drop(seat)).await;
    assert!(again.is_none(), "{again:?}");
    let seat = house.asks();
    let failed = Landing::StoreFailed(StoreError::Unavailable);
    let forwarded = house.fails(&mut nothing, || seat.land(failed));
    assert_eq!(outcome(forwarded.await), Some(Outcome::UpstreamFailure));
}

#[tokio::test]
async fn a_call_that_ended_since_the_copy_came_is_joined_once() {
    let house = House::new();
    let seat = house.asks();
    let mut known = house.known();
    seat.running();
    seat.land(shared());
    let joined = house.fails(&mut known, || {}).await;
    assert_eq!(outcome(joined), Some(Outcome::Joined));
    let seat = house.asks();
    let mut known = house.known();
    drop(seat);
    assert!(house.fails(&mut known, || {}).await.is_none(), "it is over");
    let forwarded = house.fails(&mut known, || {}).await;
    assert_eq!(outcome(forwarded), Some(Outcome::UpstreamFailure));
}

#[tokio::test]
async fn where_others_waited_for_a_call_elsewhere_when_the_copy_came_it_waits_too() {
    let house = House::new();
    let mut known = Known {
        elsewhere: true,
        ..Known::default()
    };
    let told = house.fails(&mut known, || {}).await;
    assert_eq!(outcome(told), Some(Outcome::Conflict));
}
