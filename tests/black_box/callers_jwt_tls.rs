//! Keys of tokens by `https`: only a server that proves to be the URL's host gives any.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion, crypto::aws_lc_rs,
    pki_types::PrivateKeyDer, version,
};
use serde_json::json;
use tempfile::TempDir;

use crate::common::{
    Proxy, Request, Upstream, eventually, executed, key, problem,
    signer::{Signer, jwks},
};

/// A certification authority, and the file with its certificate.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            STANDARD.encode(own.der())
        );
        fs::write(folder.path().join("ca.pem"), pem).expect("the folder takes a file");
        let issuer = Issuer::new(params, key);
        Self { issuer, folder }
    }

    /// Its file, as `SSL_CERT_FILE` names it.
    fn file(&self) -> String {
        let path = self.folder.path().join("ca.pem");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// A certificate for these names and addresses, as a server needs it.
    fn certify(&self, names: &[&str], until: Until) -> ServerConfig {
        self.certify_for(names, until, &[&version::TLS12, &version::TLS13])
    }

    fn certify_for(
        &self,
        names: &[&str],
        until: Until,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ServerConfig {
        let names: Vec<String> = names.iter().copied().map(str::to_owned).collect();
        let mut params = CertificateParams::new(names).expect("names");
        if let Until::Year(year) = until {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let secret = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_protocol_versions(versions)
                .expect("versions")
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], secret)
                .expect("a certificate and its key");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// How long a certificate is good.
#[derive(Clone, Copy)]
enum Until {
    Always,
    Year(i32),
}

/// A server of keys over TLS; it stays until the process ends.
struct KeyServer {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

/// How an answer is framed.
#[derive(Clone, Copy)]
enum Framed {
    /// By its length.
    Whole,
    /// By the connection's end, which TLS does not confirm: anybody on the way could have cut it.
    Cut,
}

impl KeyServer {
    fn start(config: ServerConfig, keys: &str, framed: Framed) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (config, seen, keys) = (Arc::new(config), Arc::clone(&heads), keys.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that does not believe us goes away: that is for the test to see.
                if let Ok(head) = serve(&config, stream, &keys, framed) {
                    seen.lock().expect("no panic").push(head);
                }
            }
        });
        Self { address, heads }
    }

    /// The heads of requests so far.
    fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }

    /// The settings for its keys, under a name or address for this machine.
    fn settings(&self, host: &str) -> String {
        format!(
            "identity.from = ['jwt:sub']\nidentity.jwt.jwks_url = 'https://{host}:{}/keys?v=hush'",
            self.address.port()
        )
    }
}

/// Answers one request; its head, and the protocol that was agreed on before it.
fn serve(
    config: &Arc<ServerConfig>,
    stream: TcpStream,
    keys: &str,
    framed: Framed,
) -> io::Result<String> {
    let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(connection, stream);
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let alpn = stream.conn.alpn_protocol().unwrap_or_default();
    let head = [alpn, b" ", &head].concat();
    match framed {
        Framed::Whole => {
            let length = keys.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{keys}"
            )?;
            stream.conn.send_close_notify();
        }
        Framed::Cut => write!(stream, "HTTP/1.1 200 OK\r\n\r\n{keys}")?,
    }
    stream.flush()?;
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// A keyed request with a token of the signer's.
fn order(signer: &Signer) -> Request {
    let token = signer.token(&json!({"sub": "ann", "exp": 4_000_000_000_u64}));
    Request::order(&key()).caller(&format!("Bearer {token}"))
}

#[test]
fn a_server_that_proves_its_name_or_address_gives_keys() {
    let (upstream, signer) = (Upstream::start(), Signer::ed25519("k"));
    let ca = Authority::new("A");
    let both = ["localhost", "127.0.0.1"];
    for (host, version) in [
        ("localhost", &version::TLS13),
        ("127.0.0.1", &version::TLS13),
        ("localhost", &version::TLS12),
    ] {
        let config = ca.certify_for(&both, Until::Always, &[version]);
        let server = KeyServer::start(config, &jwks(&[&signer]), Framed::Whole);
        let env = [("SSL_CERT_FILE", ca.file())];
        let env = env.each_ref().map(|(name, value)| (*name, value.as_str()));
        let proxy = Proxy::launch(&upstream, &server.settings(host), &env);
        executed(proxy.send(&order(&signer)));
        problem(&proxy.send(&order(&Signer::ed25519("k"))), "caller-missing");
        let heads = server.heads();
        assert_eq!(heads.len(), 1, "{heads:?}");
        assert!(
            heads[0].starts_with("http/1.1 GET /keys?v=hush HTTP/1.1\r\n"),
            "{heads:?}"
        );
        let authority = format!("host: {host}:{}\r\n", server.address.port());
        assert!(heads[0].contains(&authority), "{heads:?}");
        assert!(!proxy.log().contains("hush"), "the query may hold a secret");
    }
}

#[test]
fn a_server_that_proves_nothing_gives_none() {
    let (upstream, signer) = (Upstream::start(), Signer::ed25519("k"));
    let (ca, other, double) = (
        Authority::new("A"),
        Authority::new("B"),
        Authority::new("A"),
    );
    let keys = jwks(&[&signer]);
    let (here, whole) = (["localhost", "127.0.0.1"], Framed::Whole);
    for (what, config, framed, why) in [
        (
            "another authority",
            other.certify(&here, Until::Always),
            whole,
            "UnknownIssuer",
        ),
        (
            "another authority of the same name",
            double.certify(&here, Until::Always),
            whole,
            "BadSignature",
        ),
        (
            "another name",
            ca.certify(&["id.test", "127.0.0.1"], Until::Always),
            whole,
            "not valid for name",
        ),
        (
            "an old certificate",
            ca.certify(&here, Until::Year(2020)),
            whole,
            "expired",
        ),
        (
            "an answer that is cut off",
            ca.certify(&here, Until::Always),
            Framed::Cut,
            "not answered in whole",
        ),
    ] {
        let server = KeyServer::start(config, &keys, framed);
        let file = ca.file();
        let env = [("SSL_CERT_FILE", file.as_str())];
        let proxy = Proxy::launch(&upstream, &server.settings("localhost"), &env);
        let refused = order(&signer);
        problem(&proxy.send(&refused), "caller-missing");
        eventually("the fault is logged", || proxy.log().contains(why));
        problem(&proxy.send(&refused), "caller-missing");
        let log = proxy.log();
        assert!(
            log.contains("the keys of tokens could not be read"),
            "{what}: {log}"
        );
        assert!(!log.contains("hush"), "{what}: the query may hold a secret");
        if matches!(framed, Framed::Whole) {
            assert_eq!(server.heads(), [""; 0], "{what}: nothing is asked");
        }
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn https_is_not_tried_in_cleartext() {
    let (upstream, signer, ca) = (Upstream::start(), Signer::ed25519("k"), Authority::new("A"));
    let file = ca.file();
    for (said, why) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
            "TLS failed",
        ),
        (b"", "not answered within 5 s"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let heard = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a caller");
            stream.write_all(said).expect("the caller is there");
            let mut heard = Vec::new();
            // Whoever is refused may reset the connection.
            let _ = stream.read_to_end(&mut heard);
            heard
        });
        let settings = format!(
            "identity.from = ['jwt:sub']\nidentity.jwt.jwks_url = 'https://{address}/keys'"
        );
        let proxy = Proxy::launch(&upstream, &settings, &[("SSL_CERT_FILE", &file)]);
        problem(&proxy.send(&order(&signer)), "caller-missing");
        eventually("the fault is logged", || proxy.log().contains(why));
        let heard = heard.join().expect("no panic");
        assert_eq!(heard[..2], [22, 3], "a handshake (RFC 8446, section 5.1)");
        assert!(!heard.windows(5).any(|bytes| bytes == b"/keys"));
    }
    assert_eq!(upstream.executions(), 0);
}

#[test]
fn without_roots_https_is_refused_at_start_and_http_is_not() {
    let (upstream, issuer, signer) = (Upstream::start(), Upstream::start(), Signer::ed25519("k"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let empty = folder.path().join("none.pem");
    fs::write(&empty, "").expect("the folder takes a file");
    let missing = folder.path().join("missing.pem");
    let url = |scheme: &str| {
        format!(
            "identity.from = ['jwt:sub']\nidentity.jwt.jwks_url = '{scheme}://{}/keys?v=hush'",
            issuer.address()
        )
    };
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let (_folder, path) = Proxy::file(&upstream, free, &url("https"));
    let path = path.to_str().expect("UTF-8");
    for file in [&empty, &missing] {
        let file = file.to_str().expect("UTF-8");
        let env = [("SSL_CERT_FILE", file), ("SSL_CERT_DIR", "")];
        let output = Proxy::run_in(&env, &["--config", path]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        for words in ["no root certificates", "SSL_CERT_FILE", "127.0.0.1"] {
            assert!(said.contains(words), "{words} is not in {said}");
        }
        assert!(!said.contains("hush"), "{said}");
    }

    issuer.always(crate::common::reply(200).body(jwks(&[&signer])));
    let env = [("SSL_CERT_FILE", empty.to_str().expect("UTF-8"))];
    let proxy = Proxy::launch(&upstream, &url("http"), &env);
    executed(proxy.send(&order(&signer)));
}
