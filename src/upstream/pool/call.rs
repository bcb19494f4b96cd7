//! Requests on their way, as their callers wait for them.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request};

use super::{Pool, still};
use crate::upstream::{
    SendFailure, UpstreamBody,
    http1::{Answer, Connection, Unfinished},
    leave::Leave,
    sent::Used,
};

/// A request that was taken; its answer's head. It is small: the request is where its connection is.
#[must_use = "what is not polled is not sent"]
pub struct Call(pub(super) Way);

pub(super) enum Way {
    /// On an HTTP/1 connection that stood.
    Standing(Exchange),
    /// Making a connection is rare and its future large; boxed, it costs the others nothing.
    Any(Pin<Box<dyn Future<Output = Result<Response<UpstreamBody>, SendFailure>> + Send>>),
}

impl Future for Call {
    type Output = Result<Response<UpstreamBody>, SendFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Way::Standing(exchange) = &mut self.0 {
            match (
                ready!(Pin::new(&mut *exchange).poll(cx)),
                exchange.on.take(),
            ) {
                (Err(SendFailure::NotSent(why)), Some((untouched, pool))) => {
                    let leave = exchange.leave.take();
                    self.0 = Way::Any(Box::pin(async move {
                        pool.exchange_again(untouched, why, leave).await
                    }));
                }
                (outcome, _) => return Poll::Ready(outcome),
            }
        }
        match &mut self.0 {
            Way::Any(call) => call.as_mut().poll(cx),
            Way::Standing(..) => Poll::Pending, // it was replaced above
        }
    }
}

/// The request that goes out with this head, of which nothing is left.
pub(crate) fn take_request<B>(head: &mut request::Parts, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = mem::take(&mut head.method);
    *request.uri_mut() = mem::take(&mut head.uri);
    *request.version_mut() = head.version;
    *request.headers_mut() = mem::take(&mut head.headers);
    *request.extensions_mut() = mem::take(&mut head.extensions);
    request
}

/// A request on an HTTP/1 connection.
pub(super) struct Exchange {
    /// Until the head has come; and where nothing of the request was taken, which is then still here.
    pub(super) on: Option<(Box<Connection>, Pool)>,
    pub(super) used: Used,
    /// Where it may be begun only for so long.
    pub(super) leave: Option<Leave>,
}

impl Future for Exchange {
    type Output = Result<Response<UpstreamBody>, SendFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let used = self.used;
        let Self { on, leave, .. } = &mut *self;
        let head = match on {
            Some((connection, _)) => {
                if connection.is_untouched()
                    && let Err(over) = still(leave.as_ref())
                {
                    *on = None; // nor is it to be tried on another
                    return Poll::Ready(Err(over));
                }
                ready!(connection.poll_head(cx))
            }
            None => return Poll::Pending, // it has completed, and is not polled any more
        };
        let on = self.on.take();
        let (head, (connection, pool)) = match (head, on) {
            (Ok(head), Some(on)) => (head, on),
            (Err(why @ Unfinished::NotBegun(_)), on) => {
                self.on = on;
                return Poll::Ready(Err(SendFailure::unfinished(why, used)));
            }
            (Err(why), _) => return Poll::Ready(Err(SendFailure::unfinished(why, used))),
            (Ok(_), None) => return Poll::Pending,
        };
        let body = Answer::new(head.body, connection, pool);
        let mut response = Response::new(UpstreamBody::http1(body));
        *response.status_mut() = head.status;
        *response.version_mut() = head.version;
        *response.headers_mut() = head.fields;
        if let Some(reason) = head.reason {
            response.extensions_mut().insert(reason);
        }
        Poll::Ready(Ok(response))
    }
}
