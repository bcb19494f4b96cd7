//! TLS to clients: what is spoken, who is refused, and whom a certificate names.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
};

use rcgen::ExtendedKeyUsagePurpose;
use rustls::{
    ClientConfig, HandshakeKind, ProtocolVersion,
    client::{ClientSessionMemoryCache, Resumption},
    version,
};
use tempfile::TempDir;

use crate::common::{
    Answer, Client, PATIENCE, Proxy, Request, Upstream,
    authority::{Authority, Certified},
    eventually, executed, key, problem, replayed,
};

/// A proxy over TLS, and what it takes to speak to it.
struct Secured {
    proxy: Proxy,
    upstream: Upstream,
    server: Authority,
    clients: Authority,
    _folder: TempDir,
}

impl Secured {
    fn start(settings: &str) -> Self {
        Self::asking("off", settings)
    }

    /// One that asks for certificates so.
    fn asking(client_auth: &str, settings: &str) -> Self {
        let (server, clients) = (Authority::new("servers"), Authority::new("clients"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (cert, key) = server.server().write(folder.path());
        let ca = folder.path().join("ca.pem");
        fs::write(&ca, clients.pem()).expect("the folder takes a file");
        let upstream = Upstream::start();
        let settings = format!(
            "server.tls.cert = {cert:?}\nserver.tls.key = {key:?}\nserver.tls.client_ca = {ca:?}\n\
             server.tls.client_auth = '{client_auth}'\n{settings}"
        );
        Self {
            proxy: Proxy::with(&upstream, &settings),
            upstream,
            server,
            clients,
            _folder: folder,
        }
    }

    /// One whose callers are their certificates.
    fn by_certificate(client_auth: &str, missing: &str) -> Self {
        let settings = format!("identity.from = ['client-cert']\nidentity.missing = '{missing}'");
        Self::asking(client_auth, &settings)
    }

    /// A connection of whoever shows this certificate.
    fn client(&self, certificate: Option<&Certified>) -> Client {
        self.connect(&self.server.connector(certificate))
    }

    fn connect(&self, config: &Arc<ClientConfig>) -> Client {
        Client::over_tls(self.proxy.address(), config).expect("a handshake")
    }

    /// The answer to a request of whoever shows this certificate.
    fn send(&self, certificate: Option<&Certified>, request: &Request) -> Answer {
        self.client(certificate).ask(request).answer()
    }

    /// A request that is refused in the handshake; what the client is told.
    fn refused(
        &self,
        certificate: Option<&Certified>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> String {
        let config = Arc::new(self.server.settings(certificate, versions));
        let mut client = match Client::over_tls(self.proxy.address(), &config) {
            Ok(client) => client,
            Err(error) => return error.to_string(),
        };
        // With TLS 1.3 the client has done its part before it is refused.
        let said = client.try_say(Request::order(&key()).bytes());
        let heard = client.try_answer(PATIENCE);
        assert!(heard.is_err(), "it was answered: {heard:?}");
        let session = client.session();
        let alert = session.process_new_packets().err();
        alert.map_or_else(|| format!("{said:?} {heard:?}"), |error| error.to_string())
    }

    fn failed(&self, reason: &str) -> f64 {
        let labels = [("reason", reason)];
        let name = "idem_proxy_tls_handshake_failures_total";
        self.proxy.metrics().sum(name, &labels)
    }

    fn await_failed(&self, reason: &str, wanted: f64) {
        let name = "idem_proxy_tls_handshake_failures_total";
        self.proxy.await_metric(name, &[("reason", reason)], wanted);
    }
}

#[test]
fn a_write_is_executed_once_and_replayed_over_tls() {
    let tls = Secured::start("");
    let order = Request::order(&key());
    let mut first = None;
    for (version, name) in [
        (&version::TLS13, ProtocolVersion::TLSv1_3),
        (&version::TLS12, ProtocolVersion::TLSv1_2),
    ] {
        for alpn in [&b"http/1.1"[..], b""] {
            let mut config = tls.server.settings(None, &[version]);
            config.alpn_protocols.retain(|_| !alpn.is_empty());
            let mut client = tls.connect(&Arc::new(config));
            assert_eq!(client.session().protocol_version(), Some(name));
            let agreed = client.session().alpn_protocol().unwrap_or_default();
            assert_eq!(agreed, alpn);
            let answer = client.ask(&order).answer();
            match &first {
                None => first = Some(executed(answer)),
                Some(first) => replayed(&answer, first),
            }
            // The connection goes on.
            assert_eq!(client.ask(&Request::get("/")).answer().status, 200);
        }
    }
    let seen = tls.upstream.seen();
    assert_eq!(seen.len(), 5);
    for request in &seen {
        assert_eq!(request.one("X-Forwarded-Proto"), Some("https"));
    }
}

#[test]
fn a_large_body_passes_whole_in_both_directions() {
    let tls = Secured::start("");
    let body: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    tls.upstream
        .always(crate::common::reply(200).body(body.clone()));
    let request = Request::new("POST", "/files").body(&body);
    for request in [request.clone(), request.chunked()] {
        let answer = tls.send(None, &request);
        assert!(answer.body == body);
    }
    for seen in tls.upstream.seen() {
        assert_eq!(seen.body_size, body.len() as u64);
        assert!(seen.body == body[..seen.body.len()]);
    }
}

#[test]
fn a_client_that_shows_no_good_certificate_reaches_nobody() {
    let tls = Secured::by_certificate("required", "reject");
    let expired = tls.clients.certify(|params| {
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    });
    let early = tls.clients.certify(|params| {
        params.not_before = rcgen::date_time_ymd(4000, 1, 1);
    });
    let not_a_client = tls.clients.certify(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let stranger = Authority::new("strangers").client("ann");
    let impostor = Authority::new("clients").client("ann");
    let versions: [&[_]; 2] = [&[&version::TLS13], &[&version::TLS12]];
    let mut refusals = 0.0;
    for version in versions {
        for (what, certificate, told) in [
            (
                "none",
                None,
                &["CertificateRequired", "HandshakeFailure"][..],
            ),
            ("an old one", Some(&expired), &["CertificateExpired"]),
            (
                "one of the future",
                Some(&early),
                &["BadCertificate", "CertificateExpired"],
            ),
            (
                "a server's",
                Some(&not_a_client),
                &["UnsupportedCertificate", "BadCertificate"],
            ),
            (
                "another authority's",
                Some(&stranger),
                &["UnknownCA", "UnknownCa"],
            ),
            (
                "one of the same name",
                Some(&impostor),
                &["DecryptError", "BadCertificate"],
            ),
        ] {
            let said = tls.refused(certificate, version);
            assert!(
                told.iter().any(|alert| said.contains(alert)),
                "{what}: {said}"
            );
            refusals += 1.0;
        }
    }
    tls.await_failed("client_certificate", refusals);
    assert_eq!(tls.upstream.seen().len(), 0);
    let ann = tls.clients.client("ann");
    executed(tls.send(Some(&ann), &Request::order(&key())));
}

#[test]
fn a_caller_is_who_its_certificate_is_for() {
    let tls = Secured::by_certificate("required", "reject");
    let (ann, renewed, bob) = (
        tls.clients.client("ann"),
        tls.clients.client("ann"),
        tls.clients.client("bob"),
    );
    let order = Request::order(&key());
    let first = executed(tls.send(Some(&ann), &order));
    replayed(&tls.send(Some(&ann), &order), &first);
    replayed(&tls.send(Some(&renewed), &order), &first);
    // A credential in the request is no part of the caller here.
    replayed(
        &tls.send(Some(&ann), &order.clone().caller("Bearer b")),
        &first,
    );
    let other = executed(tls.send(Some(&bob), &order));
    assert_ne!(first.execution(), other.execution());
    assert_eq!(tls.upstream.executions(), 2);
}

#[test]
fn who_may_have_a_certificate_and_has_none_is_as_configured() {
    let tls = Secured::by_certificate("optional", "reject");
    let order = Request::order(&key());
    problem(&tls.send(None, &order), "caller-missing");
    assert_eq!(tls.send(None, &Request::get("/")).status, 200);
    executed(tls.send(Some(&tls.clients.client("ann")), &order));
    // A bad one is not the same as none.
    let stranger = Authority::new("strangers").client("ann");
    tls.refused(Some(&stranger), &[&version::TLS13]);
    tls.await_failed("client_certificate", 1.0);

    let tls = Secured::by_certificate("optional", "anonymous");
    let first = executed(tls.send(None, &order));
    replayed(&tls.send(None, &order), &first);
    executed(tls.send(Some(&tls.clients.client("ann")), &order));
    let nobody = tls.clients.client("");
    problem(&tls.send(Some(&nobody), &order), "caller-missing");
}

#[test]
fn where_nobody_is_asked_nobody_shows_one() {
    let tls = Secured::start("");
    let stranger = Authority::new("strangers").client("ann");
    executed(tls.send(Some(&stranger), &Request::order(&key())));
}

#[test]
fn a_spiffe_id_is_the_caller_whatever_the_subject() {
    let tls = Secured::by_certificate("required", "anonymous");
    let order = Request::order(&key());
    let id = "spiffe://prod.test/ns/shop/sa/orders";
    let certificate = |name: &str, uris: &[&str]| tls.clients.client_with(name, uris);
    let first = executed(tls.send(Some(&certificate("a", &[id])), &order));
    for name in ["a", "b", ""] {
        replayed(&tls.send(Some(&certificate(name, &[id])), &order), &first);
    }
    executed(tls.send(
        Some(&certificate("a", &["spiffe://prod.test/ns/shop/sa/other"])),
        &order,
    ));
    // Without an id the subject is the caller, which is nobody's id.
    executed(tls.send(Some(&certificate("a", &["https://a.test/"])), &order));
    let executions = tls.upstream.executions();
    assert_eq!(executions, 3);
    for uris in [
        &[id, "spiffe://prod.test/ns/shop/sa/other"][..],
        &[id, id],
        &[id, "https://a.test/"],
        &["spiffe://prod.test"],
        &["spiffe://prod.test/a/"],
        &["spiffe://prod.test/%61"],
        &["SPIFFE://prod.test/a"],
    ] {
        let answer = tls.send(Some(&certificate("a", uris)), &order);
        problem(&answer, "caller-missing");
    }
    assert_eq!(tls.upstream.executions(), executions);
}

#[test]
fn a_client_that_does_not_believe_the_server_is_counted() {
    let tls = Secured::start("");
    let config = Authority::new("strangers").connector(None);
    Client::over_tls(tls.proxy.address(), &config).expect_err("it believes another authority");
    tls.await_failed("refused", 1.0);
    executed(tls.send(None, &Request::order(&key())));
}

/// The first record of a handshake: a `ClientHello` for this version and nothing newer.
fn hello(version: [u8; 2]) -> Vec<u8> {
    let mut hello = version.to_vec();
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 4, 0xc0, 0x13, 0x00, 0x2f]); // two suites of TLS 1.0
    hello.extend([1, 0]); // no compression
    let mut record = vec![22, 3, 1, 0, 0, 1, 0, 0, 0];
    let length = |bytes: usize| u8::try_from(bytes).expect("a short one");
    record[8] = length(hello.len());
    record[4] = length(hello.len() + 4);
    record.extend(hello);
    record
}

/// All that a connection says that begins so.
fn heard(tls: &Secured, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(tls.proxy.address()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("an option");
    stream.write_all(said).expect("it is read");
    let mut heard = Vec::new();
    stream
        .read_to_end(&mut heard)
        .expect("it is closed in good order");
    heard
}

const HANDSHAKE_FAILURE: u8 = 40;
const PROTOCOL_VERSION: u8 = 70;

/// A fatal alert (RFC 8446, section 6), and nothing behind it.
fn is_alert(heard: &[u8], description: u8) -> bool {
    matches!(heard, [21, 3, _, 0, 2, 2, told] if *told == description)
}

#[test]
fn old_versions_are_refused() {
    let tls = Secured::start("");
    for minor in [0, 1, 2] {
        let heard = heard(&tls, &hello([3, minor]));
        let told = [PROTOCOL_VERSION, HANDSHAKE_FAILURE].map(|alert| is_alert(&heard, alert));
        assert!(told.contains(&true), "{heard:?}");
    }
    tls.await_failed("incompatible", 3.0);
}

#[test]
fn a_client_that_speaks_no_protocol_of_ours_is_refused() {
    let tls = Secured::start("");
    let mut config = tls.server.settings(None, &[&version::TLS13]);
    config.alpn_protocols = vec![b"spdy/3".to_vec()];
    let told = Client::over_tls(tls.proxy.address(), &Arc::new(config)).expect_err("no protocol");
    assert!(told.to_string().contains("NoApplicationProtocol"), "{told}");
    tls.await_failed("incompatible", 1.0);
}

#[test]
fn http_in_cleartext_gets_an_alert_and_reaches_nobody() {
    let tls = Secured::start("");
    let h2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let order = Request::order(&key()).bytes();
    let large = Request::order(&key()).body(vec![b'x'; 100_000]).bytes();
    let nonsense = [0x80; 64];
    let cases = [&order[..], h2, &large, &nonsense];
    for said in cases {
        let heard = heard(&tls, said);
        assert_eq!(heard.first(), Some(&21), "an alert: {heard:?}");
        assert_eq!(heard.len(), 7, "and nothing else: {heard:?}");
    }
    tls.await_failed("not_tls", 4.0);
    assert_eq!(tls.upstream.seen().len(), 0);
    executed(tls.send(None, &Request::order(&key())));
}

#[test]
fn a_handshake_that_is_late_is_ended_and_keeps_nobody_waiting() {
    let tls = Secured::start("server.head_timeout = '1s'");
    let hello = hello([3, 3]);
    let held: Vec<_> = (0..60)
        .map(|n| {
            let mut stream = TcpStream::connect(tls.proxy.address()).expect("a connection");
            let said = match n % 3 {
                0 => &[][..],
                1 => &hello[..3],
                _ => &hello[..hello.len() - 1],
            };
            stream.write_all(said).expect("it is taken");
            stream
        })
        .collect();
    executed(tls.send(None, &Request::order(&key())));
    for mut stream in held {
        stream.set_read_timeout(Some(PATIENCE)).expect("an option");
        let mut heard = Vec::new();
        // Unread bytes make it a reset.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.is_empty(), "{heard:?}");
    }
    tls.await_failed("late", 60.0);
}

#[test]
fn a_client_that_leaves_in_the_handshake_is_counted() {
    let tls = Secured::start("");
    let hello = hello([3, 3]);
    for said in [&[][..], &hello[..20]] {
        let mut stream = TcpStream::connect(tls.proxy.address()).expect("a connection");
        stream.write_all(said).expect("it is taken");
        stream.shutdown(Shutdown::Write).expect("it stands");
    }
    tls.await_failed("gone", 2.0);
}

#[test]
fn half_a_handshake_does_not_hold_a_drain() {
    let mut tls = Secured::start("server.head_timeout = '600s'\nserver.drain_timeout = '600s'");
    let mut stream = TcpStream::connect(tls.proxy.address()).expect("a connection");
    stream.write_all(&hello([3, 3])[..20]).expect("it is taken");
    let connections = [("side", "client")];
    tls.proxy
        .await_metric("idem_proxy_connections", &connections, 1.0);
    tls.proxy.signal("TERM");
    assert_eq!(tls.proxy.exit_code(), Some(0));
}

#[test]
fn a_drain_lets_an_answer_over_tls_end() {
    let mut tls = Secured::start("");
    let gate = tls.upstream.hold(crate::common::reply(201).body("{}"));
    let mut client = tls.client(None);
    client.ask(&Request::order(&key()));
    eventually("the upstream is called", || tls.upstream.executions() == 1);
    tls.proxy.signal("TERM");
    eventually("it drains", || tls.proxy.ready() == Some(503));
    gate.open();
    let answer = client.answer();
    assert_eq!(
        (answer.status, answer.one("Connection")),
        (201, Some("close"))
    );
    assert!(client.is_closed());
    assert_eq!(tls.proxy.exit_code(), Some(0));
}

#[test]
fn over_the_limit_a_connection_is_closed_before_its_handshake() {
    let tls = Secured::start("server.max_connections = 1");
    let mut first = tls.client(None);
    executed(first.ask(&Request::order(&key())).answer());
    let config = tls.server.connector(None);
    Client::over_tls(tls.proxy.address(), &config).expect_err("there is no room");
    let labels = [("limit", "max_connections")];
    tls.proxy
        .await_metric("idem_proxy_limit_refusals_total", &labels, 1.0);
    executed(first.ask(&Request::order(&key())).answer());
    drop(first);
    eventually("there is room again", || {
        Client::over_tls(tls.proxy.address(), &config).is_ok()
    });
}

#[test]
fn sessions_are_resumed_without_early_data_and_never_with_certificates() {
    for client_auth in ["off", "optional", "required"] {
        let tls = Secured::asking(client_auth, "");
        let ann = tls.clients.client("ann");
        for version in [&version::TLS13, &version::TLS12] {
            let mut config = tls.server.settings(Some(&ann), &[version]);
            config.resumption = Resumption::store(Arc::new(ClientSessionMemoryCache::new(8)));
            config.enable_early_data = true;
            let config = Arc::new(config);
            executed(tls.connect(&config).ask(&Request::order(&key())).answer());
            let mut again = tls.connect(&config);
            assert!(again.session().early_data().is_none());
            assert!(!again.session().is_early_data_accepted());
            let kind = match client_auth {
                "off" => HandshakeKind::Resumed,
                _ => HandshakeKind::Full,
            };
            assert_eq!(
                again.session().handshake_kind(),
                Some(kind),
                "{client_auth}"
            );
            executed(again.ask(&Request::order(&key())).answer());
        }
    }
}

#[test]
fn many_handshakes_at_once_all_come_through() {
    let tls = Secured::by_certificate("required", "reject");
    let order = Request::order(&key());
    let names: Vec<_> = (0..4)
        .map(|n| tls.clients.client(&format!("c{n}")))
        .collect();
    thread::scope(|scope| {
        for certificate in &names {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(tls.send(Some(certificate), &order).status, 201));
            }
        }
    });
    assert_eq!(tls.upstream.executions(), 4, "one a caller");
    for reason in ["late", "gone", "client_certificate", "broken"] {
        assert_eq!(tls.failed(reason).to_bits(), 0.0_f64.to_bits(), "{reason}");
    }
}

#[test]
fn nothing_of_a_key_is_ever_written_down() {
    let (upstream, ca) = (Upstream::start(), Authority::new("servers"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let certified = ca.server();
    let (cert, private) = certified.write(folder.path());
    let settings = format!("server.tls.cert = {cert:?}\nserver.tls.key = {private:?}");
    let proxy = Proxy::launch(&upstream, &settings, &[("RUST_LOG", "trace")]);
    let mut client = Client::over_tls(proxy.address(), &ca.connector(None)).expect("a handshake");
    executed(client.ask(&Request::order(&key())).answer());
    fs::write(&private, format!("{}x", certified.key)).expect("the folder takes a file");
    fs::write(&cert, ca.server().cert).expect("the folder takes a file");
    eventually("the fault is logged", || {
        proxy.log().contains("changed certificates cannot be used")
    });
    let stranger = Authority::new("strangers").connector(None);
    Client::over_tls(proxy.address(), &stranger).expect_err("it believes another authority");
    eventually("debug lines are logged", || {
        proxy.log().contains("a TLS handshake failed")
    });
    let told = proxy.log() + &proxy.metrics().0;
    for line in certified.key.lines().filter(|line| !line.starts_with('-')) {
        assert!(!told.contains(line), "a part of the key was told");
    }
}

#[test]
fn by_alpn_http2_and_http1_share_callers_and_records() {
    let tls = Secured::by_certificate("required", "reject");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (cert, private) = tls.clients.client("ann").write(folder.path());
    let ca = folder.path().join("ca.pem");
    fs::write(&ca, tls.server.pem()).expect("the folder takes a file");
    let url = format!("https://localhost:{}/orders", tls.proxy.address().port());
    let key = format!("Idempotency-Key: {}", key());
    for (option, told) in [
        ("--http2", "2 201 miss"),
        ("--http2", "2 201 hit"),
        ("--http1.1", "1.1 201 hit"),
        ("--no-alpn", "1.1 201 hit"),
    ] {
        let output = std::process::Command::new("curl")
            .args(["-sS", option, "--max-time", "30", "-d", "{}", "-H", &key])
            .arg("--cacert")
            .arg(&ca)
            .arg("--cert")
            .arg(&cert)
            .arg("--key")
            .arg(&private)
            .args(["-o", "/dev/null", "--resolve"])
            .arg(format!(
                "localhost:{}:127.0.0.1",
                tls.proxy.address().port()
            ))
            .args([
                "-w",
                "%{http_version} %{http_code} %header{idempotency-key-reply}",
            ])
            .arg(&url)
            .output()
            .expect("curl runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, told, "{option}: {output:?}");
    }
    assert_eq!(tls.upstream.executions(), 1);
}
