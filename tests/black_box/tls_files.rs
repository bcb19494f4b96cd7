//! Certificates that change: what is new is in use soon, what is bad changes nothing, and nobody is cut off.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use rcgen::CertificateParams;
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;

use crate::common::{
    Client, Proxy, Request, Upstream,
    authority::{Authority, Certified},
    eventually, executed, key, problem, replayed,
};

const RELOADS: &str = "idem_proxy_certificate_reloads_total";
const EXPIRY: &str = "idem_proxy_certificate_expiry_seconds";

struct Changing {
    proxy: Proxy,
    upstream: Upstream,
    ca: Authority,
    folder: TempDir,
}

impl Changing {
    /// A proxy whose files are below `..data` in its folder, which leads to the folder `0`, as Kubernetes lays secrets out.
    fn start(first: impl FnOnce(&Authority) -> Certified, settings: &str) -> Self {
        let ca = Authority::new("servers");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let data = folder.path().join("..data");
        first(&ca).write(&folder.path().join("0"));
        symlink("0", &data).expect("a link");
        let upstream = Upstream::start();
        let settings = format!(
            "server.head_timeout = '600s'\nserver.tls.cert = {:?}\nserver.tls.key = {:?}\n{}",
            data.join("tls.crt"),
            data.join("tls.key"),
            settings.replace("DATA", &data.display().to_string())
        );
        Self {
            proxy: Proxy::with(&upstream, &settings),
            upstream,
            ca,
            folder,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Lets `..data` lead to this folder, at one stroke.
    fn swap(&self, to: &str) {
        let next = self.path("..next");
        symlink(to, &next).expect("a link");
        fs::rename(&next, self.path("..data")).expect("a swap");
    }

    fn client(&self) -> Client {
        Client::over_tls(self.proxy.address(), &self.ca.connector(None)).expect("a handshake")
    }

    /// The certificate that a new connection is shown.
    fn shown(&self) -> CertificateDer<'static> {
        let mut client = self.client();
        let chain = client.session().peer_certificates().expect("a certificate");
        chain[0].clone().into_owned()
    }

    fn expiry(&self) -> f64 {
        self.proxy.metrics().sum(EXPIRY, &[("which", "server")])
    }

    fn await_reloads(&self, result: &str, wanted: f64) {
        self.proxy
            .await_metric(RELOADS, &[("result", result)], wanted);
    }
}

/// A certificate for `localhost` until that year.
fn until(year: i32) -> impl Fn(&mut CertificateParams) {
    move |params| {
        let name = "localhost".try_into().expect("ASCII");
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
    }
}

const IN_2050: f64 = 2_524_608_000.0;
const IN_2060: f64 = 2_840_140_800.0;

#[track_caller]
fn assert_same(one: f64, other: f64) {
    assert_eq!(one.to_bits(), other.to_bits(), "{one} {other}");
}

#[test]
fn a_swap_under_load_costs_no_handshake_and_no_connection() {
    let tls = Changing::start(|ca| ca.certify(until(2050)), "");
    assert_same(tls.expiry(), IN_2050);
    let mut old = tls.client();
    let order = Request::order(&key());
    let first = executed(old.ask(&order).answer());
    let (done, handshakes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let answer = tls.client().ask(&Request::get("/")).answer();
                    assert_eq!(answer.status, 200, "{answer}");
                    handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 1..=2 {
            let next = tls.ca.certify(until(2060));
            let name = round.to_string();
            next.write(&tls.path(&name));
            tls.swap(&name);
            eventually("the new certificate is shown", || {
                tls.shown() == *next.der()
            });
            replayed(&old.ask(&order).answer(), &first);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(handshakes.load(Ordering::Relaxed) > 10);
    tls.await_reloads("applied", 2.0);
    tls.await_reloads("refused", 0.0);
    assert_same(tls.expiry(), IN_2060);
    let failures = tls.proxy.metrics();
    assert_same(
        failures.sum("idem_proxy_tls_handshake_failures_total", &[]),
        0.0,
    );
    eventually("it is logged", || {
        tls.proxy.log().contains("certificates were replaced")
    });
    assert_eq!(
        tls.upstream.executions(),
        1 + handshakes.load(Ordering::Relaxed)
    );
}

#[test]
fn a_pair_that_does_not_fit_changes_nothing_until_it_is_put_right() {
    let tls = Changing::start(|ca| ca.certify(until(2050)), "");
    let first = tls.shown();
    let mut old = tls.client();
    let next = tls.ca.certify(until(2060));
    fs::write(tls.path("0/tls.crt"), &next.cert).expect("written");
    tls.await_reloads("refused", 1.0);
    assert_eq!(tls.shown(), first);
    assert_same(tls.expiry(), IN_2050);
    let said = "changed certificates cannot be used; those in use stay in use";
    eventually("it is logged", || tls.proxy.log().contains(said));
    let log = tls.proxy.log();
    let line = log.lines().find(|line| line.contains(said)).expect(said);
    for words in [
        "does not go with",
        "tls.key",
        "\"which\":\"server\"",
        "warn",
    ] {
        assert!(line.to_lowercase().contains(words), "{words}: {line}");
    }

    fs::remove_file(tls.path("0/tls.crt")).expect("removed");
    tls.await_reloads("refused", 2.0);
    assert_eq!(tls.shown(), first);

    next.write(&tls.path("0"));
    eventually("the new certificate is shown", || {
        tls.shown() == *next.der()
    });
    tls.await_reloads("applied", 1.0);
    tls.await_reloads("refused", 2.0);
    eventually("it is logged", || {
        tls.proxy.log().contains("certificates were replaced")
    });
    assert_eq!(tls.proxy.log().matches(said).count(), 2, "once a change");
    executed(old.ask(&Request::order(&key())).answer());
}

#[test]
fn whom_clients_must_come_from_changes_with_its_file() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let prepare = |ca: &Authority, folder: &Path| {
        fs::write(folder.join("ca.crt"), ca.pem()).expect("written");
    };
    let holder = tempfile::tempdir().expect("a temporary folder");
    prepare(&old, holder.path());
    let ca = holder.path().join("ca.crt");
    let settings = format!(
        "server.tls.client_auth = 'required'\nserver.tls.client_ca = {ca:?}\nidentity.from = ['client-cert']"
    );
    let tls = Changing::start(Authority::server, &settings);
    let ask = |who: &Certified| {
        let config = tls.ca.connector(Some(who));
        let mut client = Client::over_tls(tls.proxy.address(), &config).ok()?;
        client.ask(&Request::order(&key()));
        client.try_answer(crate::common::PATIENCE).ok()
    };
    let (before, after) = (old.client("ann"), new.client("ann"));
    executed(ask(&before).expect("believed"));
    assert!(ask(&after).is_none());
    let config = tls.ca.connector(Some(&before));
    let mut kept = Client::over_tls(tls.proxy.address(), &config).expect("a handshake");
    executed(kept.ask(&Request::order(&key())).answer());

    prepare(&new, holder.path());
    eventually("the new authority is believed", || ask(&after).is_some());
    assert!(ask(&before).is_none(), "the old one is not");
    executed(kept.ask(&Request::order(&key())).answer());
    let odd = new.client_with("a", &["spiffe://td"]);
    problem(&ask(&odd).expect("believed"), "caller-missing");
}
