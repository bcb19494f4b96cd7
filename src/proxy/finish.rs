//! The end of an execution: the record first, then whoever waits.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, header::TRAILER, response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::{
    sync::{mpsc::Sender, oneshot},
    time::{Instant, timeout},
};

use super::{
    answer::{expires, mark, trail},
    body::{AnswerBody, Piece, Resumed},
    execute::First,
    lease::Lease,
    settle::Settling,
};
use crate::{
    core::{
        headers::{is_bodyless, kept_for_replay},
        outcome::{Failure, Verdict},
        policy::ReplayHeaders,
        problem::Problem,
        record::{Gathered, NotRetained, ShortId, State, StoredAnswer},
        trailers::Taken,
        transition::Settlement,
    },
    flight::{Landing, Seat},
    limit::Permit,
    store::{Claim, Settled},
    telemetry::metrics::Outcome,
    upstream::UpstreamBody,
};

/// An answer that is here whole.
pub(super) struct Whole {
    pub(super) parts: response::Parts,
    pub(super) body: Gathered,
    /// Mostly none.
    pub(super) trailers: HeaderMap,
    pub(super) verdict: Verdict,
}

/// An answer that is not kept, as it comes.
pub(super) struct Live {
    pub(super) parts: response::Parts,
    /// What was read of its body, in reverse order.
    pub(super) read: Vec<Frame<Bytes>>,
    /// What follows.
    pub(super) rest: UpstreamBody,
    pub(super) verdict: Verdict,
    /// Why it is not kept, if it was to be.
    pub(super) why: NotRetained,
}

/// What is left to do: settle, land, answer.
pub(super) struct Finish<'a> {
    pub(super) settling: Settling<'a>,
    /// When the proxy itself gives the call up: `capture_timeout`.
    pub(super) deadline: Instant,
    pub(super) first: oneshot::Sender<First>,
    /// Whether the first client takes trailers.
    pub(super) taken: Taken,
    pub(super) seat: Seat,
    /// Its place among the executions, which it has to its end.
    pub(super) permit: Permit,
    /// What it holds of `max_buffered_bytes`.
    pub(super) room: Permit,
}

impl Finish<'_> {
    /// There is no answer.
    pub(super) async fn failed(self, claim: Claim, failure: Failure) {
        // Who joined waits by a time of its own: to it, a call that ended in nothing has failed.
        let (problem, joined) = match failure {
            Failure::NotSent => (Problem::UpstreamUnreachable, Problem::UpstreamUnreachable),
            Failure::WithoutLeave => (Problem::StoreUnavailable, Problem::StoreUnavailable),
            Failure::MaybeSent => (Problem::UpstreamFailed, Problem::UpstreamFailed),
            Failure::TimedOut => (Problem::UpstreamTimeout, Problem::UpstreamFailed),
        };
        let settling = Settling {
            late: false, // there is no answer that could be
            ..self.settling
        };
        let held = (self.permit, self.room);
        settling.settle(claim, failure.settlement(), held).await;
        self.seat.land(Landing::Failed(joined));
        // Whoever is gone needs no answer.
        let _ = self.first.send(First::Failed(problem));
    }

    /// The answer is here.
    pub(super) async fn whole(self, claim: Claim, method: &Method, whole: Whole) {
        let Whole {
            mut parts,
            body,
            trailers,
            verdict,
        } = whole;
        let policy = self.settling.policy;
        let bodyless = is_bodyless(method, parts.status);
        let body = if bodyless {
            Gathered::Own(Bytes::new())
        } else {
            body
        };
        let rule = match verdict {
            Verdict::Keep | Verdict::Stream(_) => &policy.replay_headers,
            // An answer that is not stored is shared as it is, but for what is the first client's alone.
            Verdict::Release | Verdict::Unknown => &ReplayHeaders::EndToEnd,
        };
        // Each answer announces what stands behind it, and some clients get nothing there.
        parts.headers.remove(TRAILER);
        let keeps = kept_for_replay(rule, bodyless);
        let mut answer = StoredAnswer::capture_some(parts.status, &parts.headers, keeps, body);
        if !bodyless {
            // Where there is no body there is nothing to stand behind.
            answer = answer.with_trailers(&trailers);
        }
        if let Some(traced) = self.settling.traced {
            answer = answer.executed_in(traced.span());
        }
        // From here on there is one copy of the body, in a buffer of its own.
        let body = Bytes::clone(answer.body());
        let mut response = Response::from_parts(parts, AnswerBody::whole(body));
        trail(&mut response, &answer, self.taken);
        let settlement = match verdict {
            Verdict::Keep | Verdict::Stream(_) => Settlement::Complete(answer.clone()),
            Verdict::Release => Settlement::Release,
            Verdict::Unknown => Settlement::Unknown,
        };
        let held = (self.permit, self.room);
        let settled = self.settling.settle(claim, settlement, held).await;
        let (landing, outcome) = match settled {
            Some(Settled::Kept(record))
                if matches!(record.state, State::Complete(_) | State::Tombstone { .. }) =>
            {
                mark(response.headers_mut(), policy, policy.marker.miss.as_ref());
                expires(response.headers_mut(), policy, record.expires_at);
                let landing = match record.state {
                    State::Complete(_) => Landing::Complete(record),
                    _ => Landing::Tombstone {
                        status: response.status(),
                        expires_at: record.expires_at,
                    },
                };
                (landing, Outcome::Miss)
            }
            Some(Settled::Kept(_) | Settled::Released | Settled::Lost) | None => {
                mark(response.headers_mut(), policy, None);
                (Landing::Shared(Arc::new(answer)), unstored(verdict))
            }
        };
        self.seat.land(landing);
        let _ = self.first.send(First::Answer {
            response: Box::new(response),
            outcome,
        });
    }

    /// An answer that is not kept, and is the first client's alone.
    pub(super) async fn live(self, claim: Claim, live: Live) {
        if live.verdict == Verdict::Release {
            return self.released(claim, live).await;
        }
        let policy = self.settling.policy;
        let status = live.parts.status;
        let body = AnswerBody::Resumed(Box::new(Resumed {
            read: live.read,
            rest: live.rest,
            _room: self.permit,
        }));
        let mut response = Response::from_parts(live.parts, body);
        let settlement = match live.verdict {
            Verdict::Keep | Verdict::Stream(_) => Settlement::Tombstone {
                status,
                why: live.why,
            },
            Verdict::Release | Verdict::Unknown => Settlement::Unknown,
        };
        let (landing, outcome) = match self.settling.settle(claim, settlement, self.room).await {
            Some(Settled::Kept(record)) if matches!(record.state, State::Tombstone { .. }) => {
                mark(response.headers_mut(), policy, policy.marker.miss.as_ref());
                expires(response.headers_mut(), policy, record.expires_at);
                let expires_at = record.expires_at;
                (Landing::Tombstone { status, expires_at }, Outcome::Miss)
            }
            Some(Settled::Kept(_) | Settled::Released | Settled::Lost) | None => {
                mark(response.headers_mut(), policy, None);
                (Landing::TooLarge, unstored(live.verdict))
            }
        };
        self.seat.land(landing);
        // The rest is the first client's and ends with it: if it is gone, the answer is dropped here and its connection closed.
        let _ = self.first.send(First::Answer {
            response: Box::new(response),
            outcome,
        });
    }

    /// An answer that is not to be stored and too large to be held: it passes while it comes, and only its end releases the key, for one
    /// that breaks off is no answer. A client that goes away changes nothing.
    async fn released(self, claim: Claim, live: Live) {
        let policy = self.settling.policy;
        let (pipe, body) = AnswerBody::piped();
        let mut response = Response::from_parts(live.parts, body);
        mark(response.headers_mut(), policy, None);
        let Self {
            settling,
            deadline,
            first,
            seat,
            taken: _,
            permit,
            room,
        } = self;
        let _running = settling.runs_until(deadline);
        seat.land(Landing::TooLarge);
        let _ = first.send(First::Answer {
            response: Box::new(response),
            outcome: Outcome::Released,
        });
        let passing = pass_on(
            live.read,
            live.rest,
            Outlet::new(pipe, deadline),
            settling.id.short(),
        );
        let lease = Lease {
            worker: settling.worker,
            claim: &claim,
            policy,
            leave: None,
        };
        let settlement = match lease.renewed(deadline, passing).await {
            Some(Passed::Whole) => Settlement::Release,
            Some(Passed::BrokenOff) | None => Settlement::Unknown,
        };
        settling.settle(claim, settlement, (permit, room)).await;
    }
}

/// How the outcome of an answer that was not stored is counted.
const fn unstored(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Unknown => Outcome::UpstreamFailure,
        Verdict::Keep | Verdict::Stream(_) | Verdict::Release => Outcome::Released,
    }
}

/// How the rest of an answer ended.
enum Passed {
    Whole,
    BrokenOff,
}

/// Passes an answer on to its end, whether or not somebody still takes it. `read` is in reverse order.
async fn pass_on(
    mut read: Vec<Frame<Bytes>>,
    mut rest: UpstreamBody,
    mut outlet: Outlet,
    record: ShortId,
) -> Passed {
    while let Some(piece) = read.pop() {
        outlet.put(Piece::Frame(piece)).await;
    }
    while let Some(frame) = rest.frame().await {
        match frame {
            Ok(frame) => outlet.put(Piece::Frame(frame)).await,
            Err(error) => {
                tracing::warn!(%record, %error, "an answer broke off");
                outlet.put(Piece::Broken(error)).await;
                return Passed::BrokenOff;
            }
        }
    }
    outlet.put(Piece::End).await;
    Passed::Whole
}

/// The proxy's end of a pipe. A client that takes nothing for a while loses the rest of its answer: it must not keep a key from being
/// settled.
struct Outlet {
    /// `None`: the client is gone, or was given up.
    pipe: Option<Sender<Piece>>,
    patience: Duration,
}

impl Outlet {
    /// For an answer that is waited for until `deadline`.
    fn new(pipe: Sender<Piece>, deadline: Instant) -> Self {
        let left = deadline.saturating_duration_since(Instant::now());
        Self {
            pipe: Some(pipe),
            patience: PATIENCE.min(left / 4),
        }
    }

    async fn put(&mut self, piece: Piece) {
        if let Some(pipe) = &self.pipe
            && !matches!(timeout(self.patience, pipe.send(piece)).await, Ok(Ok(())))
        {
            self.pipe = None;
        }
    }
}

/// How long a client may take nothing of an answer that holds up its key.
const PATIENCE: Duration = Duration::from_secs(30);
