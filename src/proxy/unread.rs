//! A request that may carry its key in its body: the body is read before it is known which way the request goes.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, header::TRAILER};
use hyper::body::Incoming;

use super::{
    ByKey, Place, Rest, Worker, answer::Answer, buffered::Buffered, departure::LeftAs,
    forward::forward_whole, keyed,
};
use crate::{
    core::{
        carrier::{BodyKind, Document},
        key::{self, Head},
    },
    upstream::Received,
};

/// A request that waits for its body.
pub(super) struct Unread<'a> {
    pub(super) place: Place<'a>,
    /// How the body is read.
    pub(super) kind: BodyKind,
}

/// Reads the body, within the bounds of a keyed request's, and goes the way that it shows. Without a key the request passes
/// through, with the body as it came.
///
/// Dropping the future while the body is read refuses the request.
pub(super) async fn answer(
    worker: &Arc<Worker>,
    unread: Unread<'_>,
    request: Request<Incoming>,
    left_as: &LeftAs,
) -> Answer {
    let Unread { place, kind } = unread;
    let policy = &*place.route.policy;
    let (mut parts, incoming) = request.into_parts();
    let incoming = Received::new(incoming, parts.version);
    let read = Buffered::read(worker, policy.max_request_body, incoming, |_| ());
    let buffered = match read.await {
        Ok(buffered) => buffered,
        Err(refusal) => {
            let refused = worker.refused(policy, &refusal, None);
            return refused.behind(Rest::Unread);
        }
    };
    let document = Document::new(kind, Bytes::clone(&buffered.body));
    let head = Head {
        headers: &parts.headers,
        query: parts.uri.query(),
    };
    let found = key::find(policy, head, &document);
    match worker.by_key(&place, &parts.headers, found) {
        ByKey::Refused(answer) => *answer,
        ByKey::Keyed(key) => {
            let document = &document;
            keyed::answer_read(worker, &place, &key, parts, buffered, document, left_as).await
        }
        ByKey::Through(through) => {
            left_as.becomes(through.outcome);
            // The body goes out whole, and without the trailers that it may have come with.
            parts.headers.remove(TRAILER);
            let request = Request::from_parts(parts, buffered.body);
            let answer = forward_whole(worker, through, request, place.peer).await;
            drop(buffered.room);
            answer
        }
    }
}
