//! The disk store: what outlasts the process, however it ends, and what happens when the disk does not do its part.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Mutex,
};

use tempfile::TempDir;

use crate::common::{
    Gate, Proxy, Request, Step, Upstream, eventually, executed, key, problem, replayed, reply,
    sleep_ms,
};

/// A folder for a store, and the settings that choose it.
struct Volume {
    folder: TempDir,
}

impl Volume {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn settings(&self, more: &str) -> String {
        let path = self.path();
        format!(
            "store.kind = 'disk'\nstore.disk.path = '{}'\n{more}",
            path.display()
        )
    }

    fn serve(&self, upstream: &Upstream, more: &str) -> Proxy {
        Proxy::with(upstream, &self.settings(more))
    }
}

/// Ends a proxy as a power cut would.
fn kill(mut proxy: Proxy) {
    proxy.signal("KILL");
    assert_eq!(proxy.exit_code(), None, "{}", proxy.log());
}

#[test]
fn what_was_answered_outlasts_a_kill() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let settings = "policy.max_response_body = '16KiB'";
    let proxy = volume.serve(&upstream, settings);
    let [stored, large, lost, free] = [(); 4].map(|()| Request::order(&key()));
    upstream.then(
        reply(201)
            .header("Location", "/orders/7")
            .header("X-Odd", b"caf\xe9"),
    );
    let first = executed(proxy.send(&stored));
    upstream.then(reply(202).body(vec![b'x'; 100_000]));
    assert_eq!(proxy.send(&large).status, 202);
    upstream.then(Step::drop());
    problem(&proxy.send(&lost), "upstream-failed");
    upstream.then(reply(500));
    assert_eq!(proxy.send(&free).status, 500);
    kill(proxy);
    // Twice: what was found at a start is there at the next one too.
    for _ in 0..2 {
        let proxy = volume.serve(&upstream, settings);
        replayed(&proxy.send(&stored), &first);
        let other = stored.clone().body("{\"other\":1}");
        problem(&proxy.send(&other), "key-reused");
        let gone = problem(&proxy.send(&large), "response-not-retained");
        assert_eq!(gone["original_status"], 202);
        problem(&proxy.send(&lost), "outcome-unknown");
        assert_eq!(upstream.executions(), 4);
        kill(proxy);
    }
    let proxy = volume.serve(&upstream, settings);
    assert_eq!(executed(proxy.send(&free)).execution(), 5);
}

#[test]
fn a_call_that_a_kill_cut_off_is_an_unknown_outcome_at_once() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let settings = "policy.lease = '10m'\npolicy.unknown_hold = '2s'";
    let proxy = volume.serve(&upstream, settings);
    let request = Request::order(&key());
    let gate = upstream.hold(Step::default());
    let client = proxy.begin(&request);
    gate.arrived();
    kill(proxy);
    drop(client);
    let proxy = volume.serve(&upstream, settings);
    let held = problem(&proxy.send(&request), "outcome-unknown");
    assert_eq!(held["retryable"], true);
    problem(&proxy.send(&request.clone().body("{}")), "key-reused");
    assert_eq!(upstream.executions(), 1);
    gate.open();
    eventually("the hold ends", || proxy.send(&request).status == 201);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn kills_at_any_moment_lose_no_answer_and_repeat_no_write() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    upstream.always(Step::from(reply(201)).after(std::time::Duration::from_millis(3)));
    let answered = Mutex::new(Vec::new());
    for round in 0..4 {
        let proxy = volume.serve(&upstream, "");
        let address = proxy.address();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut client = crate::common::Client::connect(address);
                    loop {
                        let request = Request::order(&key());
                        if client.try_say(request.bytes()).is_err() {
                            return;
                        }
                        match client.try_answer(crate::common::PATIENCE) {
                            Ok(answer) if answer.status == 201 => {
                                answered.lock().expect("no panic").push((request, answer));
                            }
                            _ => return,
                        }
                    }
                });
            }
            // However far each of them is at that moment.
            eventually("they are at work", || {
                answered.lock().expect("no panic").len() > 40 * (round + 1)
            });
            kill(proxy);
        });
    }
    let proxy = volume.serve(&upstream, "");
    let before = upstream.executions();
    for (request, first) in answered.into_inner().expect("no panic") {
        replayed(&proxy.send(&request), &first);
    }
    assert_eq!(upstream.executions(), before);
    let mut times: HashMap<String, u32> = HashMap::new();
    for seen in upstream.seen() {
        let key = seen.one("Idempotency-Key").expect("a key").to_owned();
        *times.entry(key).or_default() += 1;
    }
    assert!(times.values().all(|count| *count == 1), "{times:?}");
}

#[test]
fn the_folder_is_one_process_only_and_nobody_elses_to_read() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let proxy = volume.serve(&upstream, "");
    let address = "127.0.0.1:0".parse().expect("an address");
    let (_kept, config) = Proxy::file(&upstream, address, &volume.settings(""));
    let second = Proxy::run(&["--config", config.to_str().expect("UTF-8")]);
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains(volume.path().to_str().expect("UTF-8")),
        "{said}"
    );
    assert!(said.contains("in use"), "{said}");
    executed(proxy.send(&Request::order(&key())));
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode(&volume.path()), 0o700);
    for file in fs::read_dir(volume.path()).expect("a folder") {
        let path = file.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn a_folder_that_cannot_be_used_ends_the_start_and_is_named() {
    let upstream = Upstream::start();
    let outer = tempfile::tempdir().expect("a temporary folder");
    let file = outer.path().join("file");
    fs::write(&file, "x").expect("a file");
    let garbage = outer.path().join("garbage");
    fs::create_dir(&garbage).expect("a folder");
    fs::write(garbage.join("records.db"), vec![b'x'; 10_000]).expect("a file");
    for path in [
        file.join("store"),
        file,
        outer.path().join("missing/store"),
        "/proc/idem-proxy".into(),
        garbage,
    ] {
        let path = path.display().to_string();
        let settings = format!("store.kind = 'disk'\nstore.disk.path = '{path}'");
        let address = "127.0.0.1:0".parse().expect("an address");
        let (_kept, config) = Proxy::file(&upstream, address, &settings);
        let ended = Proxy::run(&["--config", config.to_str().expect("UTF-8")]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        assert!(said.contains(&path), "{said}");
    }
}

#[test]
fn a_full_store_refuses_new_keys_and_forgets_none() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let proxy = volume.serve(&upstream, "store.disk.max_bytes = '1MiB'");
    upstream.always(reply(201).body(vec![b'x'; 100_000]));
    let mut kept = Vec::new();
    loop {
        let request = Request::order(&key());
        let answer = proxy.send(&request);
        if answer.status != 201 {
            problem(&answer, "store-full");
            break;
        }
        kept.push((request, executed(answer)));
        assert!(kept.len() < 20, "it never gets full");
    }
    assert_eq!(upstream.executions(), kept.len());
    for (request, first) in &kept {
        replayed(&proxy.send(request), first);
    }
    assert_eq!(proxy.send(&Request::get("/free")).status, 201);
    proxy.await_metric(
        "idem_proxy_limit_refusals_total",
        &[("limit", "max_bytes")],
        1.0,
    );
    let metrics = proxy.metrics();
    let disk = [("store", "disk")];
    assert!(metrics.sum("idem_proxy_store_bytes", &disk) <= 1_048_576.0);
    assert_eq!(
        metrics.sum("idem_proxy_store_up", &disk).to_bits(),
        1.0_f64.to_bits()
    );
    assert!(metrics.sum("idem_proxy_store_committed_operations_total", &disk) >= 2.0);
    assert_eq!(proxy.ready(), Some(200), "full is not broken");
}

#[test]
fn expired_answers_leave_the_disk_by_themselves() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let proxy = volume.serve(&upstream, "policy.retention = '1s'");
    for _ in 0..10 {
        executed(proxy.send(&Request::order(&key())));
    }
    let cause = [("store", "disk"), ("cause", "expired")];
    proxy.await_metric("idem_proxy_store_evictions_total", &cause, 10.0);
    proxy.await_metric("idem_proxy_store_records", &[], 0.0);
}

#[test]
fn sealed_records_need_their_key() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let keys = volume.folder.path().join("keys");
    let line = |byte: &str| format!("{}=\n", byte.repeat(43));
    fs::write(&keys, line("A")).expect("a file");
    let settings = format!("store.encryption_key_file = '{}'", keys.display());
    let proxy = volume.serve(&upstream, &settings);
    let request = Request::order(&key());
    upstream.then(reply(201).body("s3cr3t").header("X-Token", "t0k3n"));
    let first = executed(proxy.send(&request));
    kill(proxy);
    for file in fs::read_dir(volume.path()).expect("a folder") {
        let bytes = fs::read(file.expect("an entry").path()).expect("a file");
        for secret in ["s3cr3t", "t0k3n", "orders"] {
            let found = bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes());
            assert!(!found, "{secret}");
        }
    }
    fs::write(&keys, line("E")).expect("a file");
    let proxy = volume.serve(&upstream, &settings);
    problem(&proxy.send(&request), "store-unavailable");
    executed(proxy.send(&Request::order(&key())));
    assert_eq!(upstream.executions(), 2);
    eventually("the log says why", || {
        proxy.log().contains("encryption_key_file")
    });
    assert_eq!(proxy.ready(), Some(200), "one record is not the store");
    kill(proxy);
    fs::write(&keys, line("E") + &line("A")).expect("a file");
    replayed(&volume.serve(&upstream, &settings).send(&request), &first);
}

#[test]
fn a_bad_key_file_is_a_wrong_configuration() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let keys = volume.folder.path().join("keys");
    let settings = volume.settings(&format!("store.encryption_key_file = '{}'", keys.display()));
    let address = "127.0.0.1:0".parse().expect("an address");
    let (_kept, config) = Proxy::file(&upstream, address, &settings);
    let config = config.to_str().expect("UTF-8");
    for text in [None, Some(""), Some("c2hvcnQ="), Some("not base64")] {
        if let Some(text) = text {
            fs::write(&keys, text).expect("a file");
        }
        for arguments in [&["--config", config, "--check"][..], &["--config", config]] {
            let ended = Proxy::run(arguments);
            let said = format!(
                "{}{}",
                String::from_utf8_lossy(&ended.stdout),
                String::from_utf8_lossy(&ended.stderr)
            );
            assert_eq!(ended.status.code(), Some(2), "{said}");
            assert!(said.contains("store.encryption_key_file"), "{said}");
            let shown = text.is_some_and(|text| !text.is_empty() && said.contains(text));
            assert!(!shown, "{said}");
        }
    }
}

/// What /readyz says.
fn readiness(proxy: &Proxy) -> String {
    let answer = proxy.admin(&Request::get("/readyz"));
    String::from_utf8(answer.body).expect("text")
}

#[test]
fn a_database_that_is_taken_away_is_missed_and_found_again() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let proxy = volume.serve(&upstream, "");
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    let gate = upstream.hold(Step::default());
    let running = Request::order(&key());
    let mut client = proxy.begin(&running);
    gate.arrived();
    let (here, away) = (volume.path(), volume.folder.path().join("away"));
    fs::rename(&here, &away).expect("it is moved");
    eventually("it is missed", || {
        readiness(&proxy).contains("store-unavailable")
    });
    let disk = [("store", "disk")];
    proxy.await_metric("idem_proxy_store_up", &disk, 0.0);
    problem(&proxy.send(&Request::order(&key())), "store-unavailable");
    // What runs already has its answer, and a key that nobody can look up executes nothing.
    gate.open();
    let late = client.answer();
    assert_eq!(late.status, 201, "{late}");
    assert!(!here.exists(), "nothing is made anew");
    assert_eq!(upstream.executions(), 2);
    fs::rename(&away, &here).expect("it is moved back");
    eventually("it is found again", || proxy.ready() == Some(200));
    replayed(&proxy.send(&request), &first);
    // The settlement that had to wait is made up for.
    eventually("the late answer is stored", || {
        let again = proxy.send(&running);
        again.status == 201 && again.execution() == 2
    });
    assert_eq!(upstream.executions(), 2);
    kill(proxy);
    let proxy = volume.serve(&upstream, "");
    replayed(&proxy.send(&request), &first);
    assert_eq!(proxy.send(&running).execution(), 2);
}

/// A volume whose database is taken away for longer than the lease of a call that runs, and after which a claim that has lapsed is free.
struct Outage {
    volume: Volume,
    proxy: Proxy,
}

impl Outage {
    fn new(upstream: &Upstream, more: &str) -> Self {
        let volume = Volume::new();
        let settings = "policy.lease = '2s'\npolicy.unknown_outcome = 'release'\n";
        let proxy = volume.serve(upstream, &format!("{settings}{more}"));
        Self { volume, proxy }
    }

    fn away(&self) -> PathBuf {
        self.volume.folder.path().join("away")
    }

    fn begins(&self) {
        fs::rename(self.volume.path(), self.away()).expect("it is moved");
        self.proxy.await_metric("idem_proxy_store_up", &[], 0.0);
    }

    /// Behind the lease of what ran when it began; `retry` is made again and again until the store works, and a little longer.
    fn ends(&self, retry: impl Fn()) {
        sleep_ms(2500);
        retry();
        fs::rename(self.away(), self.volume.path()).expect("it is moved back");
        eventually("it works again", || {
            retry();
            self.proxy.metrics().sum("idem_proxy_store_up", &[]) > 0.0
        });
        retry();
    }
}

#[test]
fn an_answer_that_could_not_be_saved_before_its_lease_was_over_is_not_made_again() {
    let upstream = Upstream::start();
    let outage = Outage::new(&upstream, "");
    let (proxy, request) = (&outage.proxy, Request::order(&key()));
    let gate = upstream.hold(Step::default());
    let mut client = proxy.begin(&request);
    gate.arrived();
    outage.begins();
    gate.open();
    let first = client.answer();
    assert_eq!(first.status, 201, "{first}");
    outage.ends(|| replayed(&proxy.send(&request), &first));
    let settled = "idem_proxy_records_settled_total";
    proxy.await_metric(settled, &[("as", "complete")], 1.0);
    replayed(&proxy.send(&request), &first);
    assert_eq!(upstream.executions(), 1);
}

#[test]
fn a_call_whose_answer_still_comes_when_its_lease_is_over_is_not_made_again() {
    let upstream = Upstream::start();
    let outage = Outage::new(&upstream, "policy.max_response_body = '1KiB'");
    let (proxy, request) = (&outage.proxy, Request::order(&key()));
    // Too large to be held, and its end, which is still to come, releases the key.
    let rest = Gate::new();
    upstream.then(reply(500).halted(&"x".repeat(2000), &rest, "end"));
    let mut client = proxy.begin(&request);
    rest.arrived();
    problem(&proxy.send(&request), "in-flight");
    outage.begins();
    outage.ends(|| drop(problem(&proxy.send(&request), "in-flight")));
    assert_eq!(upstream.executions(), 1);
    rest.open();
    assert_eq!(client.answer().status, 500);
    eventually("its key is free", || proxy.send(&request).status == 201);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_disk_without_room_refuses_and_goes_on_when_there_is_some() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let proxy = Proxy::bounded(&upstream, &volume.settings(""));
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    // The log of the database is longer by now; the log of the proxy is not.
    proxy.bound_files("30000");
    let refused = Request::order(&key());
    problem(&proxy.send(&refused), "store-unavailable");
    eventually("it is not ready", || {
        readiness(&proxy).contains("store-unavailable")
    });
    assert_eq!(upstream.executions(), 1);
    sleep_ms(1200);
    problem(&proxy.send(&refused), "store-unavailable");
    proxy.bound_files("unlimited");
    eventually("it is ready", || proxy.ready() == Some(200));
    assert_eq!(executed(proxy.send(&refused)).execution(), 2);
    kill(proxy);
    let proxy = volume.serve(&upstream, "");
    replayed(&proxy.send(&request), &first);
    assert_eq!(proxy.send(&refused).execution(), 2);
    assert_eq!(upstream.executions(), 2);
}

#[test]
fn a_drain_and_a_start_lose_nothing() {
    let (upstream, volume) = (Upstream::start(), Volume::new());
    let mut proxy = volume.serve(&upstream, "");
    let request = Request::order(&key());
    let first = executed(proxy.send(&request));
    proxy.signal("TERM");
    assert_eq!(proxy.exit_code(), Some(0), "{}", proxy.log());
    // The database has been closed, its log moved into it: the next start has nothing to go through.
    assert!(!volume.path().join("records.db-wal").exists());
    let proxy = volume.serve(&upstream, "");
    replayed(&proxy.send(&request), &first);
    eventually("the start is told", || {
        proxy.log().contains("the disk store is open")
    });
}
