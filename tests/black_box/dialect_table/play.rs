//! Playing a row: what is sent, and what the upstream is told to do meanwhile.

use super::{
    Told,
    document::{Dialect, Expected, Said},
};
use crate::{
    common::{Answer, Proxy, Request, Step, Upstream, key, reply, sleep_ms},
    executions::leader,
};

/// The routes that the rows need, and the settings that bring their cases about soon.
const SETTINGS: &str = r#"
policy.max_response_body = "1KiB"
route = [
    { name = "orders", methods = ["POST", "PUT"], path = "/orders" },
    { name = "order", methods = ["POST"], path = "/orders/{id}" },
    { name = "required", methods = ["POST"], path = "/required", key = "required" },
    { name = "brief", methods = ["POST"], path = "/brief", retention = "1s" },
    { name = "refused", methods = ["POST"], path = "/refused", retention = "1s", after_expiry = "refuse" },
    { name = "asked", methods = ["POST"], path = "/asked", replay_auth = "/me" },
    { name = "hasty", methods = ["POST"], path = "/hasty", upstream = "hasty" },
]
"#;

const FORM: &str = "application/x-www-form-urlencoded";

/// A dialect's proxy, its upstream, and another proxy that has no store.
pub(super) struct Play {
    upstream: Upstream,
    proxy: Proxy,
    storeless: Proxy,
    how: How,
}

/// How a dialect's clients send their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Bare,
    Quoted,
    /// As the token of a form.
    Token,
}

impl How {
    /// A POST to `target` with this key, spelt as the dialect spells keys.
    fn request(self, target: &str, key: &str) -> Request {
        match self {
            Self::Bare | Self::Token => self.spelt(target, key),
            Self::Quoted => self.spelt(target, &format!("\"{key}\"")),
        }
    }

    /// The same with the key as it is.
    fn spelt(self, target: &str, key: &str) -> Request {
        match self {
            Self::Bare | Self::Quoted => self.unkeyed(target).key(key),
            Self::Token => self.unkeyed(target).body(token("RunInstances", key)),
        }
    }

    /// The same without any key. The target may have another method before it.
    fn unkeyed(self, target: &str) -> Request {
        let (method, target) = target.split_once(' ').unwrap_or(("POST", target));
        let request = Request::write(method, target);
        match self {
            Self::Bare | Self::Quoted => request,
            Self::Token => request.media_type(FORM).body("Action=RunInstances"),
        }
    }

    /// The request with this key, and another body.
    fn other_body(self, target: &str, key: &str) -> Request {
        let request = self.request(target, key);
        match self {
            Self::Bare | Self::Quoted => request.body(r#"{"item":"lamp","quantity":3}"#),
            Self::Token => request.body(token("StopInstances", key)),
        }
    }

    /// A request whose body is of this type; a token stands in the query then.
    fn typed(self, media_type: &str, key: &str) -> Request {
        let request = match self {
            Self::Bare | Self::Quoted => self.request("/orders", key),
            Self::Token => Request::write("POST", &format!("/orders?ClientToken={key}")),
        };
        request.media_type(media_type)
    }

    /// The request with its key once more.
    fn twice(self, request: &Request, key: &str) -> Request {
        match self {
            Self::Bare | Self::Quoted => request.clone().key(key),
            Self::Token => {
                let one = token("RunInstances", key);
                request.clone().body(format!("{one}&ClientToken={key}"))
            }
        }
    }
}

/// A form with a token, encoded as far as the keys of these tests need it.
fn token(action: &str, key: &str) -> String {
    let key = key.replace('"', "%22").replace(' ', "+");
    format!("Action={action}&ClientToken={key}")
}

impl Play {
    pub(super) fn start(dialect: &Dialect) -> Self {
        let upstream = Upstream::start();
        upstream.always(reply(201));
        let hasty = format!(
            "upstreams.hasty = {{ url = 'http://{}', response_timeout = '300ms' }}",
            upstream.address()
        );
        let chosen = format!("policy.dialect = '{}'\n", dialect.name);
        let proxy = Proxy::with(&upstream, &format!("{chosen}{hasty}\n{SETTINGS}"));
        let none = format!("{chosen}store.kind = 'none'");
        Self {
            storeless: Proxy::with(&upstream, &none),
            proxy,
            upstream,
            how: match dialect.name.as_str() {
                "ietf" => How::Quoted,
                "aws" => How::Token,
                _ => How::Bare,
            },
        }
    }

    fn send(&self, request: &Request) -> Told {
        self.through(&self.proxy, request)
    }

    fn through(&self, proxy: &Proxy, request: &Request) -> Told {
        let before = self.upstream.executions();
        let answer = proxy.send(request);
        Told {
            answer,
            executed: self.upstream.executions() - before,
        }
    }

    /// The answers of a case, and the one before them that they may repeat.
    pub(super) fn row(&self, case: &str, expected: &[Expected]) -> (Option<Answer>, Vec<Told>) {
        let (how, key) = (self.how, key());
        let request = how.request("/orders", &key);
        let alone = |told: Told| (None, vec![told]);
        let after = |first: &Request, second: &Request| {
            let first = self.send(first).answer;
            assert_eq!(first.status, 201, "{first}");
            (Some(first), vec![self.send(second)])
        };
        match case {
            "the first request" => alone(self.send(&request)),
            "the same again" => after(&request, &request),
            "another body" => after(&request, &how.other_body("/orders", &key)),
            "another query" => after(&request, &how.request("/orders?page=2", &key)),
            "another path" => after(&request, &how.request("/orders/7", &key)),
            "another method" => after(&request, &how.request("PUT /orders", &key)),
            "another media type" => {
                let typed = |media_type| how.typed(media_type, &key);
                after(&typed("text/plain"), &typed("text/markdown"))
            }
            "another caller" => after(&request, &request.clone().caller("Bearer bob")),
            "a copy while it runs" => self.meanwhile(&request, &request, expected),
            "another body while it runs" => {
                self.meanwhile(&request, &how.other_body("/orders", &key), expected)
            }
            "no key, where one is required" => alone(self.send(&how.unkeyed("/required"))),
            "an empty key" => {
                // Sent twice, so that what was protected would be seen to be.
                let empty = how.spelt("/orders", "");
                self.send(&empty);
                alone(self.send(&empty))
            }
            "the key in quotes, then without" => {
                let quoted = how.spelt("/orders", &format!("\"{key}\""));
                self.both(&quoted, &how.spelt("/orders", &key))
            }
            "a key with a space" => {
                let spaced = how.spelt("/orders", &format!("{key} x"));
                let first = self.send(&spaced);
                let again = self.send(&spaced).executed;
                assert_eq!(again, 0, "taken as a key, or refused: {first:?}");
                alone(first)
            }
            "two keys" => alone(self.send(&how.twice(&request, &key))),
            "a key that is a byte too long" => {
                let most = if how == How::Token { 64 } else { 255 };
                let long = format!("{key:x<width$}", width = most + 1);
                let fits = self.send(&how.request("/orders", &long[..most]));
                assert_eq!(fits.answer.status, 201, "{}", fits.answer);
                alone(self.send(&how.request("/orders", &long)))
            }
            "no caller" => alone(self.send(&request.without("Authorization"))),
            case => self.troubled(case, &key, expected),
        }
    }

    /// The cases in which the upstream answers otherwise, late or not at all, and those that take another proxy or time.
    fn troubled(
        &self,
        case: &str,
        key: &str,
        expected: &[Expected],
    ) -> (Option<Answer>, Vec<Told>) {
        let how = self.how;
        let request = how.request("/orders", key);
        match case {
            "the upstream breaks off, then the same again" => {
                self.upstream.then(Step::drop());
                let first = self.send(&request);
                assert_eq!(first.executed, 1, "it was sent: {first:?}");
                (None, vec![first, self.send(&request)])
            }
            "the upstream is down, then up and the same again" => {
                self.upstream.refuse();
                let down = self.send(&request);
                assert_eq!(down.executed, 0, "nothing was sent: {down:?}");
                self.upstream.recover();
                (None, vec![down, self.send(&request)])
            }
            "no answer in time, and the same again while the call goes on" => {
                self.late(&how.request("/hasty", key), expected)
            }
            "an answer too large to keep, then the same again" => {
                self.upstream.then(reply(201).body("x".repeat(2000)));
                self.both(&request, &request)
            }
            "after the retention" => self.later(&how.request("/brief", key)),
            "after the retention, `after_expiry = \"refuse\"`" => {
                self.later(&how.request("/refused", key))
            }
            "again, and `replay_auth` is answered with 403" => {
                let request = how.request("/asked", key);
                let first = self.send(&request).answer;
                self.upstream.then(reply(403));
                let told = self.send(&request);
                let asked = self.upstream.last();
                assert_eq!(
                    (asked.method.as_str(), asked.target.as_str()),
                    ("GET", "/me")
                );
                (Some(first), vec![told])
            }
            "no store" => (None, vec![self.through(&self.storeless, &request)]),
            "the upstream says 500, then another body" => {
                self.upstream.then(reply(500));
                self.both(&request, &how.other_body("/orders", key))
            }
            case => {
                let status = case
                    .strip_prefix("the upstream says ")
                    .and_then(|rest| rest.strip_suffix(", then the same again"))
                    .and_then(|status| status.parse().ok());
                let status = status.unwrap_or_else(|| panic!("{case:?} is not played"));
                self.upstream.then(reply(status));
                self.both(&request, &request)
            }
        }
    }

    /// One after the other.
    fn both(&self, first: &Request, second: &Request) -> (Option<Answer>, Vec<Told>) {
        (None, vec![self.send(first), self.send(second)])
    }

    /// The second request while the first one runs.
    fn meanwhile(
        &self,
        first: &Request,
        second: &Request,
        expected: &[Expected],
    ) -> (Option<Answer>, Vec<Told>) {
        let (mut client, gate) = leader(&self.proxy, &self.upstream, first);
        let told = self.beside(second, expected.first(), || gate.open());
        gate.open();
        (Some(client.answer()), vec![told])
    }

    /// Sends a request while a call under its key runs, which `open` lets end.
    fn beside(&self, request: &Request, expected: Option<&Expected>, open: impl Fn()) -> Told {
        if expected.is_none_or(|expected| expected.said != Said::Shared) {
            return self.send(request);
        }
        let before = self.upstream.executions();
        let mut client = self.proxy.begin(request);
        self.proxy.await_metric("idem_proxy_waiters", &[], 1.0);
        open();
        Told {
            answer: client.answer(),
            executed: self.upstream.executions() - before,
        }
    }

    fn late(&self, request: &Request, expected: &[Expected]) -> (Option<Answer>, Vec<Told>) {
        let gate = self.upstream.hold(reply(201));
        let first = self.send(request);
        assert_eq!(first.executed, 1, "it was sent: {first:?}");
        let second = self.beside(request, expected.get(1), || gate.open());
        gate.open();
        self.proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
        let kept = self.send(request);
        assert_eq!((kept.answer.status, kept.executed), (201, 0), "{kept:?}");
        (Some(kept.answer), vec![first, second])
    }

    fn later(&self, request: &Request) -> (Option<Answer>, Vec<Told>) {
        let first = self.send(request);
        sleep_ms(1200);
        (None, vec![first, self.send(request)])
    }
}
