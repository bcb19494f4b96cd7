//! What Redis may do instead of answering: nothing is executed, and when it is over the proxy goes on by itself.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::common::{
    Proxy, Redis, Request, Upstream, eventually, executed, key, problem, replayed,
};

/// A proxy on a Redis, and a call that was stored before the trouble.
struct House {
    upstream: Upstream,
    proxy: Proxy,
}

impl House {
    fn new(url: &str) -> Self {
        let upstream = Upstream::start();
        let settings = format!(
            "store.kind = 'redis'\nstore.redis.url = '{url}'\nstore.redis.timeout = '300ms'"
        );
        let proxy = Proxy::with(&upstream, &settings);
        Self { upstream, proxy }
    }

    /// New keys are refused, and unkeyed requests pass.
    fn refuses(&self) {
        let before = self.upstream.executions();
        for _ in 0..3 {
            let answer = self.proxy.send(&Request::order(&key()));
            problem(&answer, "store-unavailable");
        }
        assert_eq!(self.upstream.executions(), before);
        let unkeyed = self.proxy.send(&Request::write("POST", "/orders"));
        assert_eq!(unkeyed.status, 201);
    }

    fn is_not_ready(&self) {
        eventually("it is not ready", || self.proxy.ready() == Some(503));
    }

    fn recovers(&self) {
        eventually("it is ready", || self.proxy.ready() == Some(200));
        let request = Request::order(&key());
        let first = executed(self.proxy.send(&request));
        replayed(&self.proxy.send(&request), &first);
    }

    /// From a trouble to its end.
    fn survives(&self, make: impl FnOnce(), mend: impl FnOnce()) {
        self.recovers();
        make();
        self.refuses();
        self.is_not_ready();
        self.refuses();
        mend();
        self.recovers();
    }
}

fn ok(redis: &Redis, words: &[&str]) {
    let said = redis.ask(words);
    assert_eq!(said, "OK", "{words:?}");
}

#[test]
fn it_stands_still() {
    let redis = Redis::start();
    House::new(&redis.url()).survives(|| redis.freeze(), || redis.thaw());
}

#[test]
fn it_takes_no_writes_for_a_while() {
    let redis = Redis::start();
    let pause = || ok(&redis, &["CLIENT", "PAUSE", "600000", "WRITE"]);
    let go_on = || ok(&redis, &["CLIENT", "UNPAUSE"]);
    House::new(&redis.url()).survives(pause, go_on);
}

#[test]
fn it_becomes_a_replica() {
    let (redis, other) = (Redis::start(), Redis::start());
    let port = other.port().to_string();
    let demote = || ok(&redis, &["REPLICAOF", "127.0.0.1", &port]);
    let promote = || ok(&redis, &["REPLICAOF", "NO", "ONE"]);
    House::new(&redis.url()).survives(demote, promote);
}

#[test]
fn it_becomes_a_replica_that_has_lost_its_master() {
    let redis = Redis::start();
    let demote = || {
        ok(&redis, &["CONFIG", "SET", "replica-serve-stale-data", "no"]);
        ok(&redis, &["REPLICAOF", "127.0.0.1", "1"]);
    };
    let promote = || ok(&redis, &["REPLICAOF", "NO", "ONE"]);
    House::new(&redis.url()).survives(demote, promote);
}

#[test]
fn its_password_changes() {
    let redis = Redis::start();
    let user = |rules: &[&str]| {
        let words: Vec<_> = ["ACL", "SETUSER", "proxy"]
            .iter()
            .chain(rules)
            .copied()
            .collect();
        ok(&redis, &words);
    };
    user(&["on", ">old", "~*", "&*", "+@all"]);
    let url = redis.url().replace("redis://", "redis://proxy:old@");
    let change = || {
        user(&["resetpass", ">new"]);
        assert_eq!(redis.ask(&["CLIENT", "KILL", "USER", "proxy"]), "1");
    };
    let house = House::new(&url);
    house.survives(change, || user(&[">old"]));
    // What it may do changes, on the connection that it has.
    house.survives(|| user(&["-@all"]), || user(&["+@all"]));
}

#[test]
fn it_is_busy_with_somebodys_script() {
    let redis = Redis::start();
    ok(&redis, &["CONFIG", "SET", "lua-time-limit", "50"]);
    let house = House::new(&redis.url());
    // Whoever runs it is not told of its end before there is one.
    let mut somebody = TcpStream::connect(("127.0.0.1", redis.port())).expect("it listens");
    let busy = || {
        somebody
            .write_all(b"EVAL 'while true do end' 0\r\n")
            .expect("it reads");
        eventually("it is busy", || redis.ask(&["PING"]).starts_with("-BUSY"));
    };
    house.survives(busy, || ok(&redis, &["SCRIPT", "KILL"]));
}

#[test]
fn it_reads_its_records_from_the_disk() {
    // Large enough that it looks up now and then while it reads, and so slow that there is time to see it.
    let mut redis = Redis::with(&["--key-load-delay", "60000", "--rdbcompression", "no"]);
    let house = House::new(&redis.url());
    house.recovers();
    let fill = "for n = 1, 300 do redis.call('SET', 'filler' .. n, string.rep('x', 131072)) end return redis.status_reply('OK')";
    ok(&redis, &["EVAL", fill, "0"]);
    ok(&redis, &["SAVE"]);
    redis.kill();
    redis.restart();
    eventually("it loads", || {
        redis.ask(&["DBSIZE"]).starts_with("-LOADING")
    });
    house.refuses();
    house.is_not_ready();
    // A server of version 6.2 takes no orders meanwhile, and comes to its end by itself.
    redis.ask(&["CONFIG", "SET", "key-load-delay", "0"]);
    house.recovers();
}

#[test]
fn its_answers_break_off() {
    let redis = Redis::start();
    let relay = Relay::start(([127, 0, 0, 1], redis.port()).into());
    let url = format!("redis://{}", relay.address);
    let cut = || relay.breaks.store(true, Ordering::SeqCst);
    let mend = || relay.breaks.store(false, Ordering::SeqCst);
    House::new(&url).survives(cut, mend);
}

#[test]
fn one_key_has_another_type_and_the_others_work() {
    let redis = Redis::start();
    let house = House::new(&redis.url());
    let request = Request::order(&key());
    executed(house.proxy.send(&request));
    let name = redis.ask(&["KEYS", "idem:*"]);
    assert_eq!(redis.ask(&["DEL", &name]), "1");
    ok(&redis, &["SET", &name, "something else"]);
    let other = House::new(&redis.url());
    problem(&other.proxy.send(&request), "store-unavailable");
    assert_eq!(other.upstream.executions(), 0);
    other.recovers();
    // An operator can free it.
    let id = name.rsplit(':').next().expect("a name ends with its id");
    let purged = Request::new("DELETE", &format!("/api/v1/records/{id}"))
        .without("Host")
        .header("Host", "localhost");
    assert_eq!(other.proxy.admin(&purged).status, 204);
    executed(other.proxy.send(&request));
}

#[test]
fn a_claim_that_came_late_does_not_outlive_the_proxy_that_asked_for_it() {
    let redis = Redis::start();
    let mut house = House::new(&redis.url());
    house.recovers();
    let request = Request::order(&key());
    redis.freeze();
    problem(&house.proxy.send(&request), "store-unavailable");
    // What it was asked is done now, and nobody waits for it any more.
    redis.thaw();
    house.proxy.signal("TERM");
    assert_eq!(house.proxy.exit_code(), Some(0));
    let other = House::new(&redis.url());
    executed(other.proxy.send(&request));
}

/// Passes bytes on; while it `breaks`, half of the next answer and then nothing.
struct Relay {
    address: SocketAddr,
    breaks: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (breaks, ended) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let relay = Self {
            address,
            breaks: Arc::clone(&breaks),
            ended: Arc::clone(&ended),
        };
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), false) = (client, ended.load(Ordering::SeqCst)) else {
                    return;
                };
                let Ok(server) = TcpStream::connect(to) else {
                    continue;
                };
                let asks = (client.try_clone(), server.try_clone());
                let (Ok(ask_from), Ok(ask_to)) = asks else {
                    continue;
                };
                thread::spawn(move || pass(ask_from, ask_to, None));
                let breaks = Arc::clone(&breaks);
                thread::spawn(move || pass(server, client, Some(&breaks)));
            }
        });
        relay
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // It wakes up and ends.
        let _ = TcpStream::connect(self.address);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, breaks: Option<&AtomicBool>) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let broken = breaks.is_some_and(|breaks| breaks.load(Ordering::SeqCst));
        let passed = if broken { length / 2 } else { length };
        if to.write_all(&buffer[..passed]).is_err() || broken {
            break;
        }
    }
    for stream in [&from, &to] {
        // The other side may have closed it.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// A process that ends with the test.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn who_starts_without_it_says_ready_only_when_it_is_there() {
    let (upstream, mut redis) = (Upstream::start(), Redis::start());
    let settings = format!(
        "store.kind = 'redis'\nstore.redis.url = '{}'\nserver.listen = '127.0.0.1:0'\nadmin.listen = '127.0.0.1:0'",
        redis.url()
    );
    redis.kill();
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let (folder, config) = Proxy::file(&upstream, nowhere, &settings);
    let log = folder.path().join("log");
    let output = std::fs::File::create(&log).expect("a file");
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_idem-proxy"))
        .arg("--config")
        .arg(&config)
        .stderr(output)
        .spawn();
    let _ends = Ends(child.expect("the binary starts"));
    let says = |what: &str| {
        let said = std::fs::read_to_string(&log).expect("text");
        said.contains(&format!("\"msg\":\"{what}\""))
    };
    eventually("it says what it waits for", || {
        says("serving, but not ready: the store does not answer")
    });
    assert!(!says("ready"));
    redis.restart();
    eventually("it is ready, and says so", || says("ready"));
}
