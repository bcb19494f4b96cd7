//! Who is at the other end of a client's connection: its address, its certificate, and whether it is believed.

use std::{net::IpAddr, sync::Arc};

use http::HeaderValue;
use ipnet::IpNet;
use parking_lot::Mutex;

use super::{Tunnel, caller::Known};
use crate::core::{caller::Certified, headers::Arrival};

/// Who is at the other end of a client's connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The TCP peer's address; `None` on a unix socket.
    pub address: Option<IpAddr>,
    /// The same as upstreams are told.
    pub arrival: Arrival,
    /// Who its certificate says it is, which was verified; `None`: it has shown none.
    pub certificate: Option<Certified>,
    /// Who its last request was from.
    pub(super) known: Arc<Known>,
    /// What its connection has become.
    pub(super) tunnel: Arc<Mutex<Option<Box<Tunnel>>>>,
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
                trusted: is_in(address, trusted),
                proto: HeaderValue::from_static("http"),
            },
            certificate: None,
            known: Arc::default(),
            tunnel: Arc::default(),
        }
    }

    /// The same peer, over TLS, with the certificate that it has shown.
    #[must_use]
    pub fn over_tls(mut self, certificate: Option<Certified>) -> Self {
        self.arrival.proto = HeaderValue::from_static("https");
        self.certificate = certificate;
        self
    }

    /// The same peer, believed if it is in `trusted` now: a reload may have changed that since it connected.
    pub(super) fn judged(self: Arc<Self>, trusted: &[IpNet]) -> Arc<Self> {
        let is_trusted = is_in(self.address, trusted);
        if is_trusted == self.arrival.trusted {
            return self;
        }
        let mut other = Self::clone(&self);
        other.arrival.trusted = is_trusted;
        Arc::new(other)
    }
}

fn is_in(address: Option<IpAddr>, networks: &[IpNet]) -> bool {
    address.is_some_and(|ip| networks.iter().any(|net| net.contains(&ip)))
}
