//! TLS to upstreams: who is believed, what a failed handshake leaves, and that a cut answer is not whole.

use std::{
    io::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use rustls::{
    RootCertStore, ServerConfig, ServerConnection, Stream, crypto::aws_lc_rs,
    server::WebPkiClientVerifier,
};
use tempfile::TempDir;

use crate::common::{
    Proxy, Request, Upstream,
    authority::{Authority, Certified},
    eventually, executed, key, problem, replayed,
};

/// An origin behind TLS; it stays until the process ends.
struct Origin {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

/// What it answers a request with.
#[derive(Clone, Copy, Debug)]
enum Answers {
    /// A whole answer, again and again.
    Whole,
    /// An answer that ends with the connection, and is said to have ended.
    UntilClose,
    /// The same, cut: nobody says that it has ended.
    Cut,
    /// Nothing, not even to the handshake.
    Silence,
}

impl Origin {
    fn start(config: ServerConfig, answers: Answers) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(AtomicUsize::new(0));
        let (config, seen) = (Arc::new(config), Arc::clone(&requests));
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if matches!(answers, Answers::Silence) {
                    silent.push(stream);
                    continue;
                }
                let (config, seen) = (Arc::clone(&config), Arc::clone(&seen));
                thread::spawn(move || serve(config, stream, answers, &seen));
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Settings of a proxy that calls it by `host` and believes whom `ca` leads to.
    fn settings(&self, host: &str, ca: &Path) -> String {
        format!(
            "upstream.url = 'https://{host}:{}'\nupstream.tls.ca = '{}'\n",
            self.address.port(),
            ca.display()
        )
    }
}

/// Serves one connection; whoever does not believe us, or is not believed, goes.
fn serve(config: Arc<ServerConfig>, mut socket: TcpStream, answers: Answers, seen: &AtomicUsize) {
    let Ok(mut session) = ServerConnection::new(config) else {
        return;
    };
    let mut stream = Stream::new(&mut session, &mut socket);
    while let Some(()) = read_request(&mut stream) {
        let number = seen.fetch_add(1, Ordering::SeqCst) + 1;
        let body = format!("{{\"execution\":{number}}}");
        let framing = match answers {
            Answers::Whole => format!("Content-Length: {}\r\n", body.len()),
            _ => "Connection: close\r\n".to_owned(),
        };
        let answer = format!("HTTP/1.1 201 Created\r\n{framing}\r\n{body}");
        if stream.write_all(answer.as_bytes()).is_err() || stream.flush().is_err() {
            return;
        }
        match answers {
            Answers::Whole => {}
            Answers::UntilClose => {
                stream.conn.send_close_notify();
                let _ = stream.flush();
                return;
            }
            Answers::Cut | Answers::Silence => return,
        }
    }
    // Closed with bytes unread the connection would be reset, and what we said last could be lost.
    let _ = std::io::copy(&mut socket, &mut std::io::sink());
}

/// Reads a request with its body by length; `None`: there is none.
fn read_request(stream: &mut impl std::io::Read) -> Option<()> {
    let (mut read, mut space) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&read).to_ascii_lowercase();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next()?.parse().ok())
                .unwrap_or(0);
            if body.len() >= length {
                return Some(());
            }
        }
        match stream.read(&mut space) {
            Ok(0) | Err(_) => return None,
            Ok(count) => read.extend_from_slice(&space[..count]),
        }
    }
}

fn server(certified: &Certified) -> ServerConfig {
    secured(certified, None)
}

/// A server that shows `certified`, and wants a certificate of `clients`.
fn secured(certified: &Certified, clients: Option<&Authority>) -> ServerConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der().clone()).expect("a certificate");
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    builder
        .with_single_cert(vec![certified.der().clone()], certified.secret())
        .expect("a certificate and its key")
}

fn folder_with(authority: &Authority) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("the folder takes a file");
    (folder, ca)
}

#[test]
fn an_upstream_that_proves_itself_is_called_and_its_connection_reused() {
    let authority = Authority::new("ours");
    let (_folder, ca) = folder_with(&authority);
    let origin = Origin::start(server(&authority.server()), Answers::Whole);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings("localhost", &ca));
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    for _ in 0..5 {
        executed(proxy.send(&Request::order(&key())));
    }
    assert_eq!(origin.requests(), 6);
    let made = [("side", "upstream")];
    let connections = proxy.metrics().sum("idem_proxy_connections_total", &made);
    assert!(connections <= 2.0, "one a worker, not {connections}");
}

#[test]
fn an_address_or_another_name_can_be_what_is_proved() {
    let authority = Authority::new("ours");
    let (_folder, ca) = folder_with(&authority);
    let by_address = authority.certify(|params| {
        let address = "127.0.0.1".parse().expect("an address");
        params.subject_alt_names = vec![rcgen::SanType::IpAddress(address)];
    });
    let origin = Origin::start(server(&by_address), Answers::Whole);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings("127.0.0.1", &ca));
    executed(proxy.send(&Request::order(&key())));

    let origin = Origin::start(server(&authority.server()), Answers::Whole);
    let settings = origin.settings("127.0.0.1", &ca);
    let proxy = Proxy::with(
        &Upstream::start(),
        &format!("{settings}upstream.tls.server_name = 'localhost'"),
    );
    executed(proxy.send(&Request::order(&key())));
}

#[test]
fn one_that_does_not_prove_itself_gets_nothing_and_the_key_is_free() {
    let (authority, other) = (Authority::new("ours"), Authority::new("another"));
    let (_folder, ca) = folder_with(&authority);
    let expired = authority.certify(|params| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName(
            "localhost".try_into().expect("ASCII"),
        )];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    });
    let named = authority.certify(|params| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName(
            "elsewhere.test".try_into().expect("ASCII"),
        )];
    });
    for (what, certified) in [
        ("expired", expired),
        ("another name", named),
        ("another authority", other.server()),
    ] {
        let origin = Origin::start(server(&certified), Answers::Whole);
        let proxy = Proxy::with(&Upstream::start(), &origin.settings("localhost", &ca));
        let request = Request::order(&key());
        for _ in 0..2 {
            let answer = proxy.send(&request);
            assert_eq!(answer.status, 502, "{what}: {answer}");
            problem(&answer, "upstream-unreachable");
        }
        assert_eq!(proxy.send(&Request::get("/free")).status, 502, "{what}");
        assert_eq!(origin.requests(), 0, "{what}");
        let failures = proxy.metrics().sum(
            "idem_proxy_upstream_connect_failures_total",
            &[("reason", "tls")],
        );
        assert!((failures - 3.0).abs() < 0.1, "{what}: {failures}");
    }
}

#[test]
fn a_handshake_that_is_not_answered_ends_with_connect_timeout() {
    let authority = Authority::new("ours");
    let (_folder, ca) = folder_with(&authority);
    let origin = Origin::start(server(&authority.server()), Answers::Silence);
    let settings = origin.settings("localhost", &ca);
    let proxy = Proxy::with(
        &Upstream::start(),
        &format!("{settings}upstream.connect_timeout = '1s'"),
    );
    let request = Request::order(&key());
    for _ in 0..2 {
        problem(&proxy.send(&request), "upstream-unreachable");
    }
    proxy.await_metric(
        "idem_proxy_upstream_connect_failures_total",
        &[("reason", "timeout")],
        2.0,
    );
}

#[test]
fn cleartext_where_tls_is_to_be_is_unreachable() {
    let authority = Authority::new("ours");
    let (_folder, ca) = folder_with(&authority);
    let plain = Upstream::start();
    let settings = format!(
        "upstream.url = 'https://localhost:{}'\nupstream.tls.ca = '{}'",
        plain.address().port(),
        ca.display()
    );
    let proxy = Proxy::with(&plain, &settings);
    problem(&proxy.send(&Request::order(&key())), "upstream-unreachable");
    assert_eq!(plain.executions(), 0);
}

#[test]
fn an_answer_that_ends_with_the_connection_is_whole_only_if_tls_says_so() {
    let authority = Authority::new("ours");
    let (_folder, ca) = folder_with(&authority);
    let whole = Origin::start(server(&authority.server()), Answers::UntilClose);
    let proxy = Proxy::with(&Upstream::start(), &whole.settings("localhost", &ca));
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    assert_eq!(whole.requests(), 1);

    let cut = Origin::start(server(&authority.server()), Answers::Cut);
    let proxy = Proxy::with(&Upstream::start(), &cut.settings("localhost", &ca));
    let request = Request::order(&key());
    problem(&proxy.send(&request), "upstream-failed");
    problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(cut.requests(), 1);
}

#[test]
fn an_upstream_that_wants_a_certificate_gets_it_or_nothing() {
    let authority = Authority::new("ours");
    let clients = Authority::new("clients");
    let (folder, ca) = folder_with(&authority);
    let config = secured(&authority.server(), Some(&clients));
    let origin = Origin::start(config, Answers::Whole);
    let settings = origin.settings("localhost", &ca);
    let shown = |certified: &Certified, name: &str| {
        let (cert, key) = certified.write(&folder.path().join(name));
        format!(
            "{settings}upstream.tls.cert = '{}'\nupstream.tls.key = '{}'",
            cert.display(),
            key.display()
        )
    };
    let good = shown(&clients.client("proxy"), "good");
    let proxy = Proxy::with(&Upstream::start(), &good);
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(origin.requests(), 1);

    for refused in [
        settings.clone(),
        shown(&Authority::new("another").client("proxy"), "bad"),
    ] {
        let proxy = Proxy::with(&Upstream::start(), &refused);
        let request = Request::order(&key());
        for _ in 0..2 {
            // In TLS 1.3 the refusal comes behind our request, and is proof all the same.
            problem(&proxy.send(&request), "upstream-unreachable");
        }
        assert_eq!(origin.requests(), 1);
    }
}

#[test]
fn changed_files_are_followed() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let (_folder, ca) = folder_with(&first);
    let origin = Origin::start(server(&second.server()), Answers::Whole);
    let proxy = Proxy::with(&Upstream::start(), &origin.settings("localhost", &ca));
    let request = Request::order(&key());
    problem(&proxy.send(&request), "upstream-unreachable");
    std::fs::write(&ca, second.pem()).expect("the folder takes a file");
    eventually("the new authority is believed", || {
        proxy.send(&request).status == 201
    });
    assert_eq!(origin.requests(), 1);
}
