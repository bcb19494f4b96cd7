//! Requests that ask to switch protocols. Each has a connection of its own, which never serves another: what follows a switch is not HTTP.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
};

use http::{Request, Response, StatusCode, Version, response};
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};

use super::{
    MaybeSent, OutgoingBody, Pool, SendFailure, UpstreamBody, framing::judge, pool::Fresh,
    received::Received, sent::Used,
};

/// What came of a request to switch.
#[derive(Debug)]
pub enum Switch {
    /// An answer like any other.
    Answer(Response<UpstreamBody>),
    /// 101: its head, and the connection from the first byte behind it.
    Switched(Box<response::Parts>, Switched),
}

/// A connection to an upstream that speaks something else by now. It counts as open until it is dropped.
#[derive(Debug)]
pub struct Switched {
    stream: TokioIo<Upgraded>,
}

impl Pool {
    /// Sends one request, whose head asks to switch protocols, on a connection of its own.
    ///
    /// Dropping the future closes the connection, with the request sent in part or whole.
    ///
    /// # Errors
    /// What is known of the request when no answer came.
    pub async fn switch(&self, request: Request<OutgoingBody>) -> Result<Switch, SendFailure> {
        let Fresh {
            mut sender,
            turn,
            connection,
        } = self.alone().await.map_err(SendFailure::NotSent)?;
        turn.begins();
        let mut connection = Box::pin(connection.with_upgrades());
        let mut running = true;
        let answered = {
            let mut call = pin!(sender.try_send_request(request));
            loop {
                tokio::select! {
                    biased;
                    answered = call.as_mut() => break answered,
                    // What went wrong on it is told to the call.
                    _ = connection.as_mut(), if running => running = false,
                }
            }
        };
        let mut response = answered.map_err(|failed| SendFailure::tried(failed, Used::Never))?;
        judge(response.status(), response.headers())
            .map_err(|why| SendFailure::MaybeSent(MaybeSent::not_believed(why)))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            if running {
                // It is driven until its one answer has ended; whoever drops the answer ends it too.
                self.tasks().detach(async move {
                    let _ = connection.await;
                });
            }
            return Ok(Switch::Answer(response.map(|incoming| {
                UpstreamBody::alone(Received::new(incoming, Version::HTTP_11))
            })));
        }
        let upgraded = hyper::upgrade::on(&mut response);
        if running {
            // It ends by handing the stream over, with what was read ahead of it.
            connection
                .await
                .map_err(|error| SendFailure::unanswered(error, Used::Before))?;
        }
        let stream = upgraded
            .await
            .map_err(|error| SendFailure::unanswered(error, Used::Before))?;
        let (parts, _): (_, Incoming) = response.into_parts();
        let switched = Switched {
            stream: TokioIo::new(stream),
        };
        Ok(Switch::Switched(Box::new(parts), switched))
    }
}

impl AsyncRead for Switched {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Switched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
