//! HTTP/2 upstreams: what they get, what each failure of a stream or connection leaves, and that one stream's trouble is its own.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    thread,
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Reason, RecvStream,
    server::{Builder, SendResponse},
};
use http::{HeaderMap, Response};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    runtime::Handle,
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

use crate::common::{
    Client, Proxy, Request, Upstream, authority::Authority, eventually, executed, key, problem,
    replayed, unprotected,
};

/// An origin that speaks HTTP/2 and does what a request's path says; it stays until the process ends.
struct Origin {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    held: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    seen: Vec<Seen>,
    resets: Vec<Reason>,
    connections: usize,
}

/// A request as it came.
#[derive(Clone, Debug)]
struct Seen {
    uri: String,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Origin {
    /// In cleartext, by prior knowledge.
    fn start() -> Self {
        Self::with(None, None)
    }

    fn with(tls: Option<ServerConfig>, max_streams: Option<u32>) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket option");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            held: watch::Sender::new(true),
        });
        let own = Arc::clone(&shared);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).expect("a listener");
                let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
                while let Ok((stream, _)) = listener.accept().await {
                    let shared = Arc::clone(&own);
                    shared.state().connections += 1;
                    let acceptor = acceptor.clone();
                    Handle::current().spawn(async move {
                        match acceptor {
                            None => shared.connection(stream, max_streams).await,
                            Some(acceptor) => {
                                if let Ok(stream) = acceptor.accept(stream).await {
                                    shared.connection(stream, max_streams).await;
                                }
                            }
                        }
                    });
                }
            });
        });
        Self { address, shared }
    }

    /// A proxy of one worker in front of it.
    fn proxy(&self, settings: &str) -> Proxy {
        let own = format!(
            "upstream.url = 'http://{}'\nupstream.protocol = 'http2'\nserver.workers = 1\n",
            self.address
        );
        Proxy::with(&Upstream::start(), &(own + settings))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// The requests that came to `path`.
    fn seen(&self, path: &str) -> Vec<Seen> {
        let state = self.state();
        let at = |seen: &&Seen| seen.uri.ends_with(path);
        state.seen.iter().filter(at).cloned().collect()
    }

    /// What waits at `/hold` is answered.
    fn release(&self) {
        self.shared.held.send_replace(false);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    async fn connection(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        max_streams: Option<u32>,
    ) {
        let mut builder = Builder::new();
        if let Some(max) = max_streams {
            builder.max_concurrent_streams(max);
        }
        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
            return;
        };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let seen = Seen {
                uri: parts.uri.to_string(),
                headers: parts.headers,
                body: Vec::new(),
                trailers: None,
            };
            let act = path.rsplit('/').next().unwrap_or_default().to_owned();
            match act.as_str() {
                "goaway" => {
                    self.state().seen.push(seen);
                    connection.abrupt_shutdown(Reason::INTERNAL_ERROR);
                    continue;
                }
                "close" => {
                    self.state().seen.push(seen);
                    return;
                }
                "last" => connection.graceful_shutdown(),
                _ => {}
            }
            Handle::current().spawn(Arc::clone(&self).stream(act, seen, body, respond));
        }
    }

    async fn stream(
        self: Arc<Self>,
        act: String,
        mut seen: Seen,
        mut body: RecvStream,
        mut respond: SendResponse<Bytes>,
    ) {
        if act == "refuse" {
            self.state().seen.push(seen);
            respond.send_reset(Reason::REFUSED_STREAM);
            return;
        }
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
            seen.body.extend_from_slice(&piece);
        }
        seen.trailers = body.trailers().await.ok().flatten();
        let number = {
            let mut state = self.state();
            state.seen.push(seen);
            state.seen.len()
        };
        let answer = || Response::builder().status(201);
        let whole = Bytes::from(format!("{{\"execution\":{number}}}"));
        match act.as_str() {
            "cancel" => respond.send_reset(Reason::CANCEL),
            "internal" => respond.send_reset(Reason::INTERNAL_ERROR),
            "hang" => {
                if let Ok(reason) = poll_fn(|cx| respond.poll_reset(cx)).await {
                    self.state().resets.push(reason);
                }
            }
            "half" | "half-in-peace" | "short-in-peace" => {
                let announced = (act == "short-in-peace").then_some(("content-length", "100"));
                let head = announced
                    .into_iter()
                    .fold(answer(), |head, (name, value)| head.header(name, value));
                let head = head.body(()).expect("a head");
                let Ok(mut stream) = respond.send_response(head, false) else {
                    return;
                };
                let _ = stream.send_data(Bytes::from_static(b"{\"exec"), false);
                tokio::time::sleep(Duration::from_millis(50)).await;
                // As proxies do whose own upstream has failed.
                let peace = act.ends_with("-in-peace");
                stream.send_reset(if peace {
                    Reason::NO_ERROR
                } else {
                    Reason::INTERNAL_ERROR
                });
            }
            "short" => {
                let head = answer().header("content-length", "100").body(());
                if let Ok(mut stream) = respond.send_response(head.expect("a head"), false) {
                    let _ = stream.send_data(whole, true);
                }
            }
            "trailers" => {
                let head = answer().header("trailer", "grpc-status").body(());
                let Ok(mut stream) = respond.send_response(head.expect("a head"), false) else {
                    return;
                };
                let _ = stream.send_data(whole, false);
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().expect("a value"));
                let _ = stream.send_trailers(trailers);
            }
            "flood" => {
                let head = answer().body(()).expect("a head");
                let Ok(mut stream) = respond.send_response(head, false) else {
                    return;
                };
                loop {
                    stream.reserve_capacity(16_384);
                    let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
                        break;
                    };
                    if stream
                        .send_data(Bytes::from(vec![b'x'; room]), false)
                        .is_err()
                    {
                        break;
                    }
                }
                if let Ok(reason) = poll_fn(|cx| stream.poll_reset(cx)).await {
                    self.state().resets.push(reason);
                }
            }
            _ => {
                if act == "hold" {
                    let _ = self.held.subscribe().wait_for(|held| !held).await;
                }
                let head = answer().header("content-type", "application/json").body(());
                if let Ok(mut stream) = respond.send_response(head.expect("a head"), false) {
                    let _ = stream.send_data(whole, true);
                }
            }
        }
    }
}

/// A keyed request whose path says what is to be done with it.
fn order(act: &str) -> Request {
    Request::write("POST", &format!("/orders/{act}")).key(&key())
}

#[test]
fn a_keyed_request_is_executed_over_http2_and_replayed() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    let request = order("do").header("Connection", "X-Gone, keep-alive");
    let request = request.header("X-Gone", "1").header("X-Stays", "1");
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    for _ in 0..10 {
        executed(proxy.send(&order("do")));
    }
    let seen = origin.seen("/orders/do");
    assert_eq!(seen.len(), 11);
    assert_eq!(seen[0].uri, "http://shop.test/orders/do");
    assert_eq!(seen[0].body, br#"{"item":"lamp","quantity":2}"#);
    for gone in [
        "host",
        "connection",
        "keep-alive",
        "x-gone",
        "te",
        "transfer-encoding",
    ] {
        assert!(!seen[0].headers.contains_key(gone), "{gone}: {seen:?}");
    }
    assert_eq!(seen[0].headers["x-stays"], "1");
    assert_eq!(seen[0].headers["content-length"], "28");
    assert_eq!(seen[0].headers["x-forwarded-host"], "shop.test");
    assert_eq!(origin.state().connections, 1);
}

#[test]
fn the_upstreams_own_host_can_be_its_authority() {
    let origin = Origin::start();
    let proxy = origin.proxy("upstream.host = 'upstream'");
    executed(proxy.send(&order("do")));
    let uri = &origin.seen("/orders/do")[0].uri;
    assert_eq!(*uri, format!("http://{}/orders/do", origin.address));
}

#[test]
fn a_refused_stream_was_not_processed_and_frees_its_key() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    let request = order("refuse");
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    assert_eq!(
        origin.seen("/refuse").len(),
        2,
        "the second was a try of its own"
    );
    executed(proxy.send(&order("do")));
    assert_eq!(origin.state().connections, 1, "the connection stands");
}

#[test]
fn every_other_end_of_a_stream_leaves_the_outcome_unknown() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    for act in [
        "cancel",
        "internal",
        "goaway",
        "close",
        "half",
        "half-in-peace",
        "short",
        "short-in-peace",
    ] {
        executed(proxy.send(&order("do")));
        let request = order(act);
        let first = proxy.send(&request);
        assert_eq!(first.status, 502, "{act}: {first}");
        problem(&first, "upstream-failed");
        let retry = proxy.send(&request);
        assert_eq!(retry.status, 409, "{act}: {retry}");
        problem(&retry, "outcome-unknown");
        assert_eq!(origin.seen(&format!("/{act}")).len(), 1, "{act}");
    }
    executed(proxy.send(&order("do")));
}

#[test]
fn a_connection_that_is_ended_in_peace_costs_no_request() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    for _ in 0..10 {
        executed(proxy.send(&order("last")));
        executed(proxy.send(&order("do")));
    }
    assert_eq!(origin.state().seen.len(), 20);
    let connections = origin.state().connections;
    assert!((2..=20).contains(&connections), "{connections}");
}

#[test]
fn many_requests_share_a_connection_and_a_time_out_ends_its_own_stream_alone() {
    let origin = Origin::start();
    let proxy = origin.proxy("upstream.response_timeout = '2s'\nupstream.capture_timeout = '60s'");
    let held: Vec<Client> = (0..30).map(|_| proxy.begin(&order("hold"))).collect();
    let hung = proxy.begin(&Request::get("/hang"));
    eventually("all have come", || origin.state().seen.len() == 31);
    assert_eq!(origin.state().connections, 1);
    let mut hung = hung;
    unprotected(&hung.answer(), "upstream-timeout");
    eventually("its stream was reset", || {
        origin.state().resets == [Reason::CANCEL]
    });
    origin.release();
    for mut client in held {
        let status = client.answer().status;
        assert!(status == 201 || status == 504, "{status}");
    }
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    executed(proxy.send(&order("do")));
    assert_eq!(origin.state().connections, 1);
    assert_eq!(origin.state().seen.len(), 32);
}

#[test]
fn an_upstream_that_allows_few_streams_is_not_given_more_and_serves_all() {
    let origin = Origin::with(None, Some(2));
    let proxy = origin.proxy("");
    // The limit is known once something has come.
    executed(proxy.send(&order("do")));
    let held: Vec<Client> = (0..20).map(|_| proxy.begin(&order("hold"))).collect();
    eventually("as many as are allowed have come", || {
        origin.state().seen.len() >= 9
    });
    origin.release();
    for mut client in held {
        executed(client.answer());
    }
    let state = origin.state();
    assert_eq!(state.seen.len(), 21);
    assert!(state.connections <= 4, "{} connections", state.connections);
}

#[test]
fn a_request_that_was_given_up_while_it_waited_for_its_turn_is_never_sent() {
    let origin = Origin::with(None, Some(1));
    let proxy = origin.proxy("upstream.response_timeout = '1s'\nupstream.capture_timeout = '2s'");
    executed(proxy.send(&order("do")));
    // As many streams as all connections take, which nobody reads.
    let endless: Vec<Client> = (0..4)
        .map(|_| proxy.begin(&Request::get("/flood")))
        .collect();
    eventually("all have come", || origin.seen("/flood").len() == 4);
    for request in [order("do"), Request::write("POST", "/free/do")] {
        assert_eq!(proxy.send(&request).status, 504);
    }
    proxy.await_metric("idem_proxy_in_flight", &[], 0.0);
    for client in endless {
        client.reset();
    }
    eventually("there is room again", || origin.state().resets.len() == 4);
    // Who waits now has its turn.
    let waiting: Vec<Client> = (0..3).map(|_| proxy.begin(&order("do"))).collect();
    for mut client in waiting {
        executed(client.answer());
    }
    let seen = [origin.seen("/orders/do"), origin.seen("/free/do")];
    assert_eq!(seen.map(|seen| seen.len()), [4, 0]);
}

#[test]
fn an_answer_that_nobody_reads_holds_up_no_other() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    let mut idle: Vec<Client> = (0..8)
        .map(|_| proxy.begin(&Request::get("/flood")))
        .collect();
    eventually("all have come", || origin.seen("/flood").len() == 8);
    for _ in 0..20 {
        executed(proxy.send(&order("do")));
    }
    // Clients that leave end their streams, not the connection.
    for client in idle.drain(..) {
        client.reset();
    }
    eventually("their streams are reset", || {
        origin.state().resets.len() == 8
    });
    executed(proxy.send(&order("do")));
    assert_eq!(origin.state().connections, 1);
}

#[test]
fn trailers_pass_in_both_directions() {
    let origin = Origin::start();
    let proxy = origin.proxy("");
    let answer = proxy.say(
        "POST /echo/trailers HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nTrailer: X-Sum\r\n\
         Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n",
    );
    assert_eq!(answer.status, 201, "{answer}");
    assert_eq!(answer.trailers.one("grpc-status"), Some("0"), "{answer}");
    let seen = &origin.seen("/echo/trailers")[0];
    assert_eq!(seen.headers["te"], "trailers");
    assert_eq!(seen.body, b"hello");
    let trailers = seen.trailers.as_ref().expect("trailers");
    assert_eq!(trailers["x-sum"], "7");
}

#[test]
fn an_upstream_that_does_not_speak_http2_gets_no_request() {
    let plain = Upstream::start();
    let proxy = Proxy::with(&plain, "upstream.protocol = 'http2'");
    let request = Request::order(&key());
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    // It takes the connection's preface for requests, and that is all it gets.
    assert!(plain.seen().iter().all(|seen| seen.target != "/orders"));
}

#[test]
fn alpn_decides_over_tls() {
    let authority = Authority::new("ours");
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("the folder takes a file");
    for (protocol, offered, served) in [
        ("auto", &["h2", "http/1.1"][..], true),
        ("http2", &["h2"], true),
        ("http2", &["http/1.1"], false),
        ("http2", &[], false),
    ] {
        let certified = authority.server();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certified.der().clone()], certified.secret())
            .expect("a certificate and its key");
        config.alpn_protocols = offered
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let origin = Origin::with(Some(config), None);
        let settings = format!(
            "upstream.url = 'https://localhost:{}'\nupstream.tls.ca = '{}'\nupstream.protocol = '{protocol}'",
            origin.address.port(),
            ca.display()
        );
        let proxy = Proxy::with(&Upstream::start(), &settings);
        let request = order("do");
        if !served {
            problem(&proxy.send(&request), "upstream-unreachable");
            assert!(origin.state().seen.is_empty());
            continue;
        }
        let first = executed(proxy.send(&request));
        replayed(&proxy.send(&request), &first);
        assert_eq!(origin.seen("/do")[0].uri, "https://shop.test/orders/do");
    }
}
