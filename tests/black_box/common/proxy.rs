//! The proxy under test: the built binary, started with a configuration of the test's own, gone with the test.

use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tempfile::TempDir;
use toml::{Table, Value};

use super::{Answer, Client, PATIENCE, Request, Upstream};

/// Stands for the proxy's own address in a test's settings.
const SELF: &str = "SELF";

/// Stands for the admin listener's own.
const SELF_ADMIN: &str = "SELF-ADMIN";

const BINARY: &str = env!("CARGO_BIN_EXE_idem-proxy");

/// The routes of a proxy whose test names none.
const ROUTES: &str = r#"
[[route]]
name = "orders"
methods = ["POST", "PUT", "PATCH", "DELETE"]
path = "/orders"
[[route]]
name = "order"
methods = ["POST", "PUT", "PATCH", "DELETE"]
path = "/orders/{id}"
"#;

/// A running proxy. When a test fails, the end of its log is shown; when it panicked, the test fails.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    folder: TempDir,
    address: SocketAddr,
    admin: SocketAddr,
    url: String,
    exit: Option<ExitStatus>,
    /// Keeps both ports from everybody else, also while nothing listens on them.
    _ports: [Socket; 2],
}

impl Proxy {
    /// A proxy with the defaults in front of `upstream`.
    pub(crate) fn start(upstream: &Upstream) -> Self {
        Self::with(upstream, "")
    }

    /// A proxy that is its own upstream.
    pub(crate) fn looped(upstream: &Upstream) -> Self {
        Self::launch(upstream, &format!("upstream.url = 'http://{SELF}'"), &[])
    }

    /// A proxy with `settings`: TOML that is laid over the harness's own, key by key. Dotted keys read best:
    /// `policy.in_flight = "conflict"`. Where it has routes, there are no others.
    pub(crate) fn with(upstream: &Upstream, settings: &str) -> Self {
        Self::launch(upstream, settings, &[])
    }

    /// The same, with variables in its environment.
    pub(crate) fn launch(upstream: &Upstream, settings: &str, env: &[(&str, &str)]) -> Self {
        Self::launch_after("", upstream, settings, env)
    }

    /// A proxy that lives on when a file of its may not grow any more: the write fails instead.
    pub(crate) fn bounded(upstream: &Upstream, settings: &str) -> Self {
        Self::launch_after("trap '' XFSZ", upstream, settings, &[])
    }

    /// How large files may become from now on, in bytes; `unlimited` is no bound.
    pub(crate) fn bound_files(&self, bytes: &str) {
        let (pid, limit) = (self.child.id().to_string(), format!("--fsize={bytes}:"));
        let done = Command::new("prlimit")
            .args(["--pid", &pid, &limit])
            .status();
        assert!(done.is_ok_and(|status| status.success()), "prlimit {limit}");
    }

    /// The same, started by a shell that has done `before`: "ulimit -n 64".
    pub(crate) fn launch_after(
        before: &str,
        upstream: &Upstream,
        settings: &str,
        env: &[(&str, &str)],
    ) -> Self {
        let ports = [port(), port()];
        let [address, admin] = [local(&ports[0]), local(&ports[1])];
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = format!("http://{}", upstream.address());
        let file = configuration(settings, &address.to_string(), &admin.to_string(), &url);
        let config = folder.path().join("proxy.toml");
        std::fs::write(&config, file).expect("the temporary folder takes a file");
        let log =
            File::create(folder.path().join("log")).expect("the temporary folder takes a file");
        let mut command = if before.is_empty() {
            Command::new(BINARY)
        } else {
            let mut shell = Command::new("sh");
            let script = format!("{before} && exec \"$0\" \"$@\"");
            shell.args(["-c", &script, BINARY]);
            shell
        };
        command.arg("--config").arg(&config).env_remove("RUST_LOG");
        let outputs = (log.try_clone().expect("a file"), log);
        command
            .stdin(Stdio::null())
            .stdout(outputs.0)
            .stderr(outputs.1);
        let child = command
            .envs(env.iter().copied())
            .spawn()
            .expect("the binary starts");
        let mut proxy = Self {
            child,
            folder,
            address,
            admin,
            url,
            exit: None,
            _ports: ports,
        };
        let until = Instant::now() + PATIENCE;
        while proxy.ready() != Some(200) {
            assert!(
                proxy.exited().is_none(),
                "the proxy ended at start: {}",
                proxy.log()
            );
            assert!(
                Instant::now() < until,
                "the proxy is not ready: {}",
                proxy.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        proxy
    }

    /// The binary with these arguments, run to its end.
    pub(crate) fn run(arguments: &[&str]) -> Output {
        Self::run_in(&[], arguments)
    }

    /// The same, with variables in its environment.
    pub(crate) fn run_in(env: &[(&str, &str)], arguments: &[&str]) -> Output {
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .env_remove("RUST_LOG")
            .envs(env.iter().copied())
            .stdin(Stdio::null());
        command.output().expect("the binary starts")
    }

    /// A configuration file for [`Proxy::run`], listening at `address`, in a folder that goes with the value.
    pub(crate) fn file(
        upstream: &Upstream,
        address: SocketAddr,
        settings: &str,
    ) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("proxy.toml");
        let url = format!("http://{}", upstream.address());
        let file = configuration(
            settings,
            &address.to_string(),
            &local(&port()).to_string(),
            &url,
        );
        std::fs::write(&path, file).expect("the temporary folder takes a file");
        (folder, path)
    }

    // --- as a client ---

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// The answer to a request on a connection of its own.
    pub(crate) fn send(&self, request: &Request) -> Answer {
        self.client().ask(request).answer()
    }

    /// Sends a request on a connection of its own; its answer is read later, from the client.
    pub(crate) fn begin(&self, request: &Request) -> Client {
        let mut client = self.client();
        client.ask(request);
        client
    }

    /// The answer to these bytes on a connection of their own.
    pub(crate) fn say(&self, bytes: impl AsRef<[u8]>) -> Answer {
        self.client().say(bytes).answer()
    }

    // --- as an operator ---

    /// Its configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("proxy.toml")
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// What its configuration file says with these settings.
    pub(crate) fn configuration(&self, settings: &str) -> String {
        let [address, admin] = [self.address, self.admin].map(|address| address.to_string());
        configuration(settings, &address, &admin, &self.url)
    }

    /// Replaces its configuration file as a deployment does: another one is moved over it.
    pub(crate) fn put_config(&self, text: &str) {
        let fresh = self.folder.path().join("fresh");
        std::fs::write(&fresh, text).expect("the temporary folder takes a file");
        std::fs::rename(&fresh, self.config()).expect("the temporary folder takes a file");
    }

    /// Replaces its configuration and sends SIGHUP; waits until it is in force.
    pub(crate) fn reload(&self, settings: &str) {
        let reloads = || {
            let metrics = self.metrics();
            ["applied", "refused"]
                .map(|result| metrics.sum("idem_proxy_config_reloads_total", &[("result", result)]))
        };
        let [before, refused] = reloads();
        self.put_config(&self.configuration(settings));
        self.signal("HUP");
        super::eventually("the configuration is reloaded", || {
            let [now, refused_now] = reloads();
            assert!(refused_now <= refused, "the reload was refused");
            now > before
        });
    }

    /// The answer of the admin listener.
    pub(crate) fn admin(&self, request: &Request) -> Answer {
        Client::connect(self.admin).ask(request).answer()
    }

    /// The status of /readyz; `None`: nobody listens there.
    pub(crate) fn ready(&self) -> Option<u16> {
        std::net::TcpStream::connect(self.admin).ok()?;
        let mut client = Client::connect(self.admin);
        client.try_say(Request::get("/readyz").bytes()).ok()?;
        client.try_answer(PATIENCE).ok().map(|answer| answer.status)
    }

    pub(crate) fn metrics(&self) -> Metrics {
        let answer = self.admin(&Request::get("/metrics"));
        assert_eq!(answer.status, 200, "{answer}");
        Metrics(String::from_utf8(answer.body).expect("metrics are text"))
    }

    /// Waits until a metric, summed over the series that carry `labels`, is `wanted`.
    pub(crate) fn await_metric(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let mut last = f64::NAN;
        let until = Instant::now() + PATIENCE;
        while last.to_bits() != wanted.to_bits() {
            assert!(
                Instant::now() < until,
                "{name}{labels:?} is {last}, not {wanted}"
            );
            std::thread::sleep(Duration::from_millis(10));
            last = self.metrics().sum(name, labels);
        }
    }

    /// Everything it wrote to its standard output and error.
    pub(crate) fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its process's id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The most memory it ever had resident, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, line: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the proxy runs");
        let found = status.lines().find_map(|l| l.strip_prefix(line));
        let kib = found.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.expect("the kernel tells how much memory a process has") * 1024
    }

    /// Sends a signal by its name, e.g. `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.child.id());
        let done = Command::new("sh").args(["-c", &script]).status();
        assert!(done.is_ok_and(|status| status.success()), "{script}");
    }

    /// Its exit status, if it has ended.
    fn exited(&mut self) -> Option<ExitStatus> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().expect("the proxy is ours");
        }
        self.exit
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.exited().is_none()
    }

    /// Waits for its end; its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while self.runs() {
            assert!(
                Instant::now() < until,
                "the proxy does not end: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        self.exited().and_then(|status| status.code())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        if std::thread::panicking() {
            let from = log.char_indices().rev().nth(4000).map_or(0, |(at, _)| at);
            eprintln!("--- the end of the proxy's log ---\n{}", &log[from..]);
        } else {
            assert!(!log.contains("panicked at"), "the proxy panicked: {log}");
        }
    }
}

/// A port of our own: bound, so that nobody else gets it, and not listening, so that the proxy can.
fn port() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("a socket option");
    let any = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    socket.bind(&any.into()).expect("a free port");
    socket
}

fn local(socket: &Socket) -> SocketAddr {
    let address = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_socket());
    address.expect("a bound socket has an address")
}

fn configuration(settings: &str, address: &str, admin: &str, url: &str) -> String {
    let mut base: Table = toml::from_str(ROUTES).expect("the harness's own TOML");
    let own = format!(
        "server.listen = '{address}'\nserver.workers = 2\nadmin.listen = '{admin}'\nupstream.url = '{url}'\n\
         telemetry.log_format = 'json'\n"
    );
    lay(
        &mut base,
        toml::from_str(&own).expect("the harness's own TOML"),
    );
    let settings = settings.replace(SELF_ADMIN, admin).replace(SELF, address);
    let settings =
        toml::from_str(&settings).unwrap_or_else(|error| panic!("the test's TOML: {error}"));
    lay(&mut base, settings);
    toml::to_string(&base).expect("a table is TOML")
}

/// Lays `over` on `base`: tables key by key, everything else whole.
fn lay(base: &mut Table, over: Table) {
    for (name, value) in over {
        match (base.get_mut(&name), value) {
            (Some(Value::Table(below)), Value::Table(above)) => lay(below, above),
            (_, value) => {
                base.insert(name, value);
            }
        }
    }
}

/// What /metrics said.
#[derive(Debug)]
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// Name, labels as written, and value of each series.
    pub(crate) fn series(&self) -> impl Iterator<Item = (&str, &str, f64)> {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            Some((name, labels.trim_end_matches('}'), value.parse().ok()?))
        })
    }

    /// The sum over all series of `name` that carry `labels`.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let carries = |have: &str| {
            labels.iter().all(|(label, value)| {
                have.split(',')
                    .any(|one| one == format!("{label}=\"{value}\""))
            })
        };
        self.series()
            .filter(|(n, have, _)| *n == name && carries(have))
            .map(|(_, _, value)| value)
            .sum()
    }

    /// Whether there is a series of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.series().any(|(n, _, _)| n == name)
    }
}
