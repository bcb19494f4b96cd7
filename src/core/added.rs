//! What the proxy adds to a request's head on its way: who came and how (`X-Forwarded-*`), its own hop (`Via`), and the trace that begins here.
//!
//! Over HTTP/1 these fields are written as they are, behind those of the client: no map has to take them up for that.

use http::{HeaderMap, HeaderName, HeaderValue, header::VIA};

use super::{headers::Arrival, trace::Traceparent};

pub(super) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(super) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(super) const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Fields that a head does not have and is to get. The one name that it may have is `Via`, which then has another line.
#[derive(Debug)]
pub struct Added<'a> {
    /// A stranger's; `None`: what a trusted peer said stands in the head, and so does what was added to it.
    pub stranger: Option<Stranger<'a>>,
    /// This hop.
    pub via: &'a HeaderValue,
    /// `None`: the client's stands in the head.
    pub traceparent: Option<Traceparent>,
}

/// A peer whose claims of whom it speaks for are not believed, and were taken out.
#[derive(Debug)]
pub struct Stranger<'a> {
    /// How it came.
    pub arrival: &'a Arrival,
    /// The host that it named.
    pub host: Option<HeaderValue>,
}

impl Added<'_> {
    /// Adds them to the head of a request.
    pub fn insert_into(&self, headers: &mut HeaderMap) {
        self.each(|name, value| {
            headers.append(name.clone(), value.clone());
        });
        if let Some(parent) = &self.traceparent {
            parent.insert_into(headers);
        }
    }

    /// Writes them as lines of a head of HTTP/1.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.each(|name, value| write_field(out, name, value.as_bytes()));
        if let Some(parent) = &self.traceparent {
            write_field(out, &Traceparent::NAME, parent.as_bytes());
        }
    }

    fn each(&self, mut add: impl FnMut(&HeaderName, &HeaderValue)) {
        if let Some(Stranger { arrival, host }) = &self.stranger {
            if let Some(peer) = &arrival.peer {
                add(&X_FORWARDED_FOR, peer);
            }
            add(&X_FORWARDED_PROTO, &arrival.proto);
            if let Some(host) = host {
                add(&X_FORWARDED_HOST, host);
            }
        }
        add(&VIA, self.via);
    }
}

/// Writes one line of a head of HTTP/1.
pub fn write_field(out: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    let name = name.as_str().as_bytes();
    out.reserve(name.len() + value.len() + 4);
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_say_the_same() {
        let via = HeaderValue::from_static("1.1 here");
        let arrival = Arrival {
            peer: Some(HeaderValue::from_static("192.0.2.7")),
            trusted: false,
            proto: HeaderValue::from_static("http"),
        };
        let unnamed = Arrival {
            peer: None,
            ..arrival.clone()
        };
        let host = Some(HeaderValue::from_static("shop.example"));
        let stranger = |arrival, host| Some(Stranger { arrival, host });
        let parent = Traceparent::sample();
        for (stranger, traceparent, lines) in [
            (
                stranger(&arrival, host),
                Some(parent),
                "x-forwarded-for: 192.0.2.7\r\nx-forwarded-proto: http\r\nx-forwarded-host: shop.example\r\n\
                 via: 1.1 here\r\ntraceparent: 00-000000000000000a000000000000000b-000000000000000c-00\r\n",
            ),
            (
                stranger(&unnamed, None),
                None,
                "x-forwarded-proto: http\r\nvia: 1.1 here\r\n",
            ),
            (None, None, "via: 1.1 here\r\n"),
        ] {
            let added = Added {
                stranger,
                via: &via,
                traceparent,
            };
            let mut out = Vec::new();
            added.write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), lines);
            let mut headers = HeaderMap::new();
            headers.insert(VIA, HeaderValue::from_static("1.0 before"));
            added.insert_into(&mut headers);
            assert_eq!(headers.len(), lines.lines().count() + 1);
            for line in lines.lines() {
                let (name, value) = line.split_once(": ").unwrap();
                let mut values = headers.get_all(name).iter();
                assert_eq!(values.next_back().unwrap(), value, "{name} comes last");
            }
        }
    }
}
