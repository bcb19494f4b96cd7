//! A Redis server of a test's own.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

/// It ends with the test.
pub(super) struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
    arguments: Vec<String>,
}

impl Server {
    pub(super) fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
        let child = Self::spawn(port, &folder, &arguments);
        let server = Self {
            child,
            port,
            folder,
            arguments,
        };
        server.wait();
        server
    }

    /// A replica of it, told at once of what it writes.
    pub(super) fn replica(&self) -> Self {
        self.ask(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let port = self.port.to_string();
        Self::start(&["--replicaof", "127.0.0.1", &port])
    }

    fn spawn(port: u16, folder: &TempDir, arguments: &[String]) -> Child {
        command()
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed: scripts/install-test-tools")
    }

    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.try_ask(&[b"PING"]).is_none() {
            assert!(Instant::now() < end, "redis-server does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }

    pub(super) fn restart(&mut self) {
        self.child = Self::spawn(self.port, &self.folder, &self.arguments);
        self.wait();
    }

    pub(super) fn freeze(&self) {
        self.signal("STOP");
    }

    pub(super) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let (flag, pid) = (format!("-{signal}"), self.child.id().to_string());
        let done = Command::new("kill").args([&flag, &pid]).status();
        assert!(done.is_ok_and(|status| status.success()));
    }

    /// One command; what it answers, a list as lines.
    pub(super) fn ask(&self, words: &[&str]) -> String {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.write(&words)
    }

    pub(super) fn write(&self, words: &[&[u8]]) -> String {
        self.try_ask(words).expect("it answers")
    }

    fn try_ask(&self, words: &[&[u8]]) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend_from_slice(word);
            command.extend(b"\r\n");
        }
        stream.write_all(&command).ok()?;
        answer(&mut BufReader::new(stream))
    }
}

/// Which server: `IDEM_PROXY_TEST_REDIS_SERVER`, or the one that is installed. Where the system can see to that, it ends with the thread
/// that starts it, also if that is killed.
fn command() -> Command {
    let program = std::env::var_os("IDEM_PROXY_TEST_REDIS_SERVER");
    let program = program.unwrap_or_else(|| "redis-server".into());
    let setpriv = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if setpriv.is_ok_and(|status| status.success()) {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}

/// A port that is free, and is so 10,000 further up too, where nodes of a cluster talk with each other.
fn free_port() -> u16 {
    loop {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        let bus = port.checked_add(10_000);
        if bus.is_some_and(|bus| TcpListener::bind(("127.0.0.1", bus)).is_ok()) {
            return port;
        }
    }
}

fn answer(from: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    let (kind, rest) = line.trim_end().split_at_checked(1)?;
    match kind {
        "$" => {
            let Ok(length) = rest.parse::<usize>() else {
                return Some(String::new());
            };
            let mut bytes = vec![0; length + 2];
            from.read_exact(&mut bytes).ok()?;
            bytes.truncate(length);
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let count = rest.parse().ok()?;
            let items: Option<Vec<_>> = (0..count).map(|_: usize| answer(from)).collect();
            Some(items?.join("\n"))
        }
        "-" => panic!("{rest}"),
        _ => Some(rest.to_owned()),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that was killed before is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
