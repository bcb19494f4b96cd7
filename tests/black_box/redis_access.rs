//! Ways to one Redis server: TLS, a user with a password and few rights, a numbered database, a Unix socket.

use std::net::TcpListener;

use crate::common::{
    Proxy, Redis, Request, Upstream, authority::Authority, eventually, executed, key, replayed,
};

/// A proxy with this store executes once and replays.
fn works(upstream: &Upstream, url: &str, env: &[(&str, &str)]) -> Proxy {
    let settings =
        format!("store.kind = 'redis'\nstore.redis.url = '{url}'\nstore.redis.timeout = '1s'");
    let proxy = Proxy::launch(upstream, &settings, env);
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    replayed(&proxy.send(&request), &first);
    proxy
}

#[test]
fn a_server_behind_tls_is_believed_by_the_roots() {
    let (upstream, ca) = (Upstream::start(), Authority::new("redis"));
    let folder = tempfile::tempdir().expect("a folder");
    let (cert, secret) = ca.server().write(folder.path());
    let root = folder.path().join("ca.pem");
    std::fs::write(&root, ca.pem()).expect("a file");
    let file = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("an address").port().to_string();
    drop(free);
    let redis = Redis::with(&[
        "--tls-port",
        &port,
        "--tls-auth-clients",
        "no",
        "--tls-cert-file",
        &file(&cert),
        "--tls-key-file",
        &file(&secret),
        "--tls-ca-cert-file",
        &file(&root),
    ]);
    let url = format!("rediss://localhost:{port}");
    works(&upstream, &url, &[("SSL_CERT_FILE", &file(&root))]);
    assert_eq!(redis.ask(&["DBSIZE"]), "1");

    // Another authority's word is not taken.
    let other = folder.path().join("other.pem");
    std::fs::write(&other, Authority::new("other").pem()).expect("a file");
    let config = folder.path().join("proxy.toml");
    let text = format!(
        "[server]\nlisten = '127.0.0.1:0'\n[admin]\nlisten = '127.0.0.1:0'\n[upstream]\nurl = 'http://127.0.0.1:1'\n\
         [store]\nkind = 'redis'\n[store.redis]\nurl = '{url}'\n[[route]]\nname = 'r'\nmethods = ['POST']\npath = '/'\n"
    );
    std::fs::write(&config, text).expect("a file");
    let log = folder.path().join("log");
    let output = std::fs::File::create(&log).expect("a file");
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_idem-proxy"))
        .args(["--config", &file(&config)])
        .env("SSL_CERT_FILE", file(&other))
        .env("SSL_CERT_DIR", "")
        .stdout(output.try_clone().expect("a file"))
        .stderr(output)
        .spawn()
        .expect("the binary starts");
    let _ends = Ends(child);
    let mut said = String::new();
    eventually("it says so", || {
        said = std::fs::read_to_string(&log).expect("text");
        said.contains("Redis cannot be used")
    });
    assert!(said.to_lowercase().contains("certificate"), "{said}");
}

/// A process that ends with the test.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What `docs/operations.md` says that the store needs.
const RIGHTS: [&str; 24] = [
    "~idem:*",
    "&idem:*",
    "-@all",
    "+evalsha",
    "+eval",
    "+script|load",
    "+hset",
    "+hmget",
    "+hget",
    "+hdel",
    "+hstrlen",
    "+del",
    "+exists",
    "+pexpireat",
    "+time",
    "+publish",
    "+subscribe",
    "+scan",
    "+ping",
    "+dbsize",
    "+info",
    "+config|get",
    "resetpass",
    ">hunter2",
];

#[test]
fn a_user_with_the_documented_rights_is_enough_and_its_password_is_never_shown() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let user = [&["ACL", "SETUSER", "idem", "on"], &RIGHTS[..]].concat();
    assert_eq!(redis.ask(&user), "OK");
    redis.ask(&["ACL", "SETUSER", "default", "off"]);
    let url = redis.url().replace("redis://", "redis://idem:hunter2@");
    let proxy = works(&upstream, &url, &[]);
    let list = Request::get("/api/v1/records").without("Host");
    let listed = proxy.admin(&list.header("Host", "localhost"));
    let rows = listed.json()["records"].as_array().map(Vec::len);
    assert_eq!(rows, Some(1), "{listed} {}", proxy.log());
    assert!(!proxy.log().contains("hunter2"), "{}", proxy.log());
}

#[test]
fn what_may_not_be_published_is_not_purged() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let user = [
        &["ACL", "SETUSER", "idem", "on"],
        &RIGHTS[..],
        &["-publish"],
    ]
    .concat();
    assert_eq!(redis.ask(&user), "OK");
    let url = redis.url().replace("redis://", "redis://idem:hunter2@");
    let proxy = works(&upstream, &url, &[]);
    let id = redis.ask(&["KEYS", "idem:*"]);
    let id = id.rsplit(':').next().expect("a name ends with its id");
    let purged = Request::new("DELETE", &format!("/api/v1/records/{id}")).without("Host");
    let refused = proxy.admin(&purged.header("Host", "localhost"));
    // Other replicas would never hear of it.
    assert_eq!(refused.status, 503, "{refused}");
    assert_eq!(redis.ask(&["DBSIZE"]), "1");
    let said = || proxy.log().contains("Redis did not do what it was asked");
    eventually(&format!("it is logged: {}", proxy.log()), said);
}

#[test]
fn records_are_in_the_database_that_the_url_names() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    works(&upstream, &format!("{}/3", redis.url()), &[]);
    assert_eq!(redis.ask(&["DBSIZE"]), "0");
    assert!(redis.ask(&["INFO", "keyspace"]).contains("db3:keys=1"));
}

#[test]
fn a_unix_socket_leads_to_a_server_too() {
    let upstream = Upstream::start();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().expect("UTF-8");
    let redis = Redis::with(&["--unixsocket", socket]);
    works(&upstream, &format!("redis+unix://{socket}?db=2"), &[]);
    assert!(redis.ask(&["INFO", "keyspace"]).contains("db2:keys=1"));
}
