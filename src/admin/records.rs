//! `/api/v1/records`: what operators see of records, and settle by hand (contract, sections 10 and 12). Never a header or a body of one.
//!
//! | path | answer |
//! |---|---|
//! | `GET /api/v1/records` | a page of them, the latest start first; by `state`, `route`, `limit`, and `after`, the `next` of a page before |
//! | `GET /api/v1/records/{id}` | one |
//! | `DELETE /api/v1/records/{id}` | 204: it is forgotten; 409 while a call runs under it |
//! | `POST /api/v1/records/{id}/resolve` | its unknown outcome is settled; 409 where it is not unknown |
//!
//! `{id}` is all 64 digits, or at least the first 16. A page costs one walk over the records of a memory store, and one of an index of a
//! disk store; one list is made at a time. A resolution is read within [`BODY_TIMEOUT`], and has at most [`MAX_BODY`] bytes. Every
//! change is logged, with who made it.

mod name;
mod query;
mod resolution;
mod row;

use std::time::Duration;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER},
};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use self::{name::Name, resolution::Wanted};
use super::{
    AdminState, By,
    answer::{Answer, explained, json, method_not_allowed, not_found},
    is_read,
};
use crate::{
    config::Route,
    core::{
        policy::{ReplayHeaders, RouteName},
        record::RecordId,
        transition::Resolution,
    },
    store::{Outcome, Purged, Row, StoreError},
    telemetry::metrics::SettledAs,
};

/// So many resolutions may be read at a time; more wait.
pub(super) const RESOLVING: usize = 4;

/// The largest document of a resolution, in bytes; more is 413.
const MAX_BODY: usize = 8 << 20;

/// How long such a document may take; longer is 408.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers a request for the records; `path` is what follows `/api/v1/records`.
///
/// Dropping the future makes a change that is under way or does not; what was made is logged only if it is not dropped.
pub(super) async fn answer(
    state: &AdminState,
    by: &By,
    request: Request<Incoming>,
    path: &str,
) -> Answer {
    let method = request.method();
    let Some(rest) = path.strip_prefix('/') else {
        if !is_read(method) {
            return method_not_allowed("GET, HEAD");
        }
        return list(state, request.uri().query()).await;
    };
    let (name, action) = match rest.split_once('/') {
        None => (rest, None),
        Some((name, "resolve")) => (name, Some(())),
        Some(_) => return not_found(),
    };
    let name = match Name::parse(name) {
        Ok(name) => name,
        Err(why) => return explained(StatusCode::BAD_REQUEST, why),
    };
    match (action, method) {
        (None, method) if is_read(method) => match found(state, &name).await {
            Ok(row) => json(&row::document(&row)),
            Err(refused) => refused,
        },
        (None, &Method::DELETE) => purge(state, by, &name).await,
        (None, _) => method_not_allowed("GET, HEAD, DELETE"),
        (Some(()), &Method::POST) => resolve(state, by, &name, request).await,
        (Some(()), _) => method_not_allowed("POST"),
    }
}

async fn list(state: &AdminState, query: Option<&str>) -> Answer {
    let query = match query::read(query.unwrap_or_default()) {
        Ok(query) => query,
        Err(why) => return explained(StatusCode::BAD_REQUEST, &why),
    };
    // The semaphore is never closed.
    let _alone = state.listing.acquire().await;
    // One more than asked for tells whether there are more.
    let one_more = crate::store::Query {
        limit: query.limit.saturating_add(1),
        ..query.clone()
    };
    let mut rows = match state.store.list(&one_more).await {
        Ok(rows) => rows,
        Err(why) => return no_answer(why),
    };
    let truncated = rows.len() > query.limit;
    rows.truncate(query.limit);
    let records: Vec<_> = rows.iter().map(row::document).collect();
    let mut document = serde_json::json!({ "records": records, "truncated": truncated });
    if let (true, Some(last), Some(members)) = (truncated, rows.last(), document.as_object_mut()) {
        members.insert("next".to_owned(), query::cursor(&last.place()).into());
    }
    json(&document)
}

/// The one record of this name.
async fn found(state: &AdminState, name: &Name) -> Result<Row, Answer> {
    if let Some(id) = name.full() {
        return state
            .store
            .row(&id)
            .await
            .map_err(no_answer)?
            .ok_or_else(no_record);
    }
    let rows = state.store.find(name.short()).await.map_err(no_answer)?;
    let mut fitting = rows.into_iter().filter(|row| name.fits(&row.id));
    the_one(fitting.next(), fitting.next()).map_err(NotOne::answer)
}

/// The id of the one record of this name, which need not be readable.
async fn unreadable(state: &AdminState, name: &Name) -> Result<RecordId, Answer> {
    if let Some(id) = name.full() {
        return Ok(id);
    }
    let ids = state.store.ids(name.short()).await.map_err(no_answer)?;
    let mut fitting = ids.into_iter().filter(|id| name.fits(id));
    the_one(fitting.next(), fitting.next()).map_err(NotOne::answer)
}

fn the_one<T>(first: Option<T>, second: Option<T>) -> Result<T, NotOne> {
    match (first, second) {
        (None, _) => Err(NotOne::None),
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(NotOne::Several),
    }
}

/// Why a name is not that of a record.
#[derive(Clone, Copy)]
enum NotOne {
    None,
    Several,
}

impl NotOne {
    fn answer(self) -> Answer {
        match self {
            Self::None => no_record(),
            Self::Several => explained(
                StatusCode::BAD_REQUEST,
                "Two records fit these digits: give more of them, or all 64.",
            ),
        }
    }
}

async fn purge(state: &AdminState, by: &By, name: &Name) -> Answer {
    let (id, row) = match found(state, name).await {
        Ok(row) => (row.id, Some(row)),
        // A record that cannot be read can be purged.
        Err(refused) if refused.status() == StatusCode::SERVICE_UNAVAILABLE => {
            match unreadable(state, name).await {
                Ok(id) => (id, None),
                Err(refused) => return refused,
            }
        }
        Err(refused) => return refused,
    };
    match state.store.purge(&id).await {
        Ok(Purged::Gone) => {
            tracing::info!(
                by = by.who,
                admitted = by.admitted.as_str(),
                record = %id.short(),
                route = row.as_ref().map_or("", |row| row.route.as_str()),
                was = row.as_ref().map_or("unreadable", |row| row.standing.as_str()),
                "an operator purged a record"
            );
            let mut done = Response::new(Full::new(Bytes::new()));
            *done.status_mut() = StatusCode::NO_CONTENT;
            done
        }
        Ok(Purged::Runs) => explained(
            StatusCode::CONFLICT,
            "A call runs under this record: without it the next request would be executed beside that call. It ends by \
             itself, at upstream.capture_timeout at the latest.",
        ),
        Ok(Purged::Absent) => no_record(),
        Err(why) => not_known(why),
    }
}

async fn resolve(state: &AdminState, by: &By, name: &Name, request: Request<Incoming>) -> Answer {
    let _reading = state.resolving.acquire().await;
    let wanted = match read(request).await {
        Ok(wanted) => wanted,
        Err(refused) => return refused,
    };
    let row = match found(state, name).await {
        Ok(row) => row,
        Err(refused) => return refused,
    };
    let config = state.config.load_full();
    let route = config.routes.iter().find(|route| route.name == row.route);
    let resolution = match resolution_for(wanted, route) {
        Ok(resolution) => resolution,
        Err((status, why)) => return explained(status, &why),
    };
    let status = match &resolution {
        Resolution::Release => None,
        Resolution::Complete(answer) => Some(answer.status()),
    };
    let (settled, document) = match state.store.resolve(&row.id, resolution).await {
        Ok(Outcome::Kept(row)) => (SettledAs::Complete, row::document(&row)),
        Ok(Outcome::Released) => (SettledAs::Released, row::released(&row)),
        Ok(Outcome::Absent) => return no_record(),
        Ok(Outcome::NotUnknown) => {
            return explained(
                StatusCode::CONFLICT,
                "The outcome of this record is not unknown: there is nothing to resolve.",
            );
        }
        Err(why) => return not_known(why),
    };
    if route.is_some() {
        count(state, &row.route, settled);
    }
    tracing::info!(
        by = by.who,
        admitted = by.admitted.as_str(),
        record = %row.id.short(),
        route = row.route.as_str(),
        outcome = settled.as_str(),
        status = status.map(|status| status.as_u16()),
        "an operator resolved a record"
    );
    json(&document)
}

fn count(state: &AdminState, route: &RouteName, settled: SettledAs) {
    let metrics = state.metrics.for_routes(std::slice::from_ref(route));
    metrics.route(Some(0)).settled(settled);
}

/// The body of a resolution.
async fn read(request: Request<Incoming>) -> Result<Wanted, Answer> {
    if !is_json(request.headers()) {
        return Err(explained(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "A resolution is sent with Content-Type: application/json.",
        ));
    }
    if request.body().size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let reading = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = match timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large()),
        Ok(Err(_)) => return Err(explained(StatusCode::BAD_REQUEST, "The body broke off.")),
        Err(_) => {
            let late = "The body did not come in time.";
            return Err(explained(StatusCode::REQUEST_TIMEOUT, late));
        }
    };
    Wanted::parse(&body).map_err(|why| explained(StatusCode::BAD_REQUEST, &why))
}

fn is_json(headers: &HeaderMap) -> bool {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let essence = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next();
        essence.is_some_and(|own| own.trim_ascii().eq_ignore_ascii_case(b"application/json"))
    };
    types.next().is_some_and(essence)
        && types.next().is_none()
        && !headers.contains_key(CONTENT_ENCODING)
}

fn too_large() -> Answer {
    explained(
        StatusCode::PAYLOAD_TOO_LARGE,
        &format!("A resolution may have at most {MAX_BODY} bytes."),
    )
}

/// A status, and why.
type Refused = (StatusCode, String);

/// What is wanted, if an answer of the upstream on this route could be kept so.
fn resolution_for(wanted: Wanted, route: Option<&Route>) -> Result<Resolution, Refused> {
    let Wanted::Complete(answer) = wanted else {
        return Ok(Resolution::Release);
    };
    let policy = route.map(|route| &route.policy);
    let listed = policy.and_then(|policy| match &policy.replay_headers {
        ReplayHeaders::Only(listed) => Some(listed),
        ReplayHeaders::EndToEnd | ReplayHeaders::None => None,
    });
    let cookies = listed.is_some_and(|listed| listed.contains(&http::header::SET_COOKIE));
    if answer.has_cookies() && !cookies {
        let why =
            "Set-Cookie is not kept for replays on this route: replay_headers does not list it.";
        return Err((StatusCode::BAD_REQUEST, why.to_owned()));
    }
    match policy.map(|policy| policy.max_response_body) {
        Some(most) if answer.body_len() > most => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("max_response_body of this route is {most} bytes."),
        )),
        _ => Ok(Resolution::Complete(answer.into_stored())),
    }
}

fn no_record() -> Answer {
    explained(StatusCode::NOT_FOUND, "There is no such record.")
}

fn no_answer(why: StoreError) -> Answer {
    let (status, detail) = match why {
        StoreError::None => (
            StatusCode::NOT_IMPLEMENTED,
            "store.kind is none: there are no records.",
        ),
        StoreError::Full => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The store has no room for this answer. Nothing was changed.",
        ),
        StoreError::Unavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The store does not answer, or cannot read this record.",
        ),
    };
    not_now(status, detail)
}

/// As [`no_answer`], where something was to be changed.
fn not_known(why: StoreError) -> Answer {
    match why {
        StoreError::None | StoreError::Full => no_answer(why),
        StoreError::Unavailable => not_now(
            StatusCode::SERVICE_UNAVAILABLE,
            "The store does not answer, or cannot read this record. Whether it was changed is not known: look at it again.",
        ),
    }
}

fn not_now(status: StatusCode, detail: &str) -> Answer {
    let mut refused = explained(status, detail);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let again = HeaderValue::from_static("1");
        refused.headers_mut().insert(RETRY_AFTER, again);
    }
    refused
}
