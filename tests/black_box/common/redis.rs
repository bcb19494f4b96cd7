//! A Redis server of a test's own.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::eventually;

/// It ends with the test.
pub(crate) struct Redis {
    child: Child,
    port: u16,
    folder: TempDir,
    arguments: Vec<String>,
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// The same, told more on its command line.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        Self::at(port, arguments)
    }

    /// The same, on a port that the caller found free.
    pub(crate) fn at(port: u16, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let arguments: Vec<_> = arguments.iter().map(|&one| one.to_owned()).collect();
        let child = spawn(port, &folder, &arguments);
        let redis = Self {
            child,
            port,
            folder,
            arguments,
        };
        redis.wait();
        redis
    }

    fn wait(&self) {
        eventually("redis-server listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, &self.arguments);
        self.wait();
    }

    /// One command; what it answers, a list as lines, an error with its `-`.
    pub(crate) fn ask(&self, words: &[&str]) -> String {
        self.try_ask(words).expect("it answers")
    }

    /// The same; `None`: it is gone, or ends the connection, as a server does that changes its role.
    pub(crate) fn try_ask(&self, words: &[&str]) -> Option<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        let words: Vec<_> = words.iter().map(word).collect();
        let command = format!("*{}\r\n{}", words.len(), words.concat());
        (&stream).write_all(command.as_bytes()).ok()?;
        answer(&mut BufReader::new(stream))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A replica of it, told at once of what it writes.
    pub(crate) fn replica(&self) -> Self {
        self.ask(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        Self::with(&["--replicaof", "127.0.0.1", &self.port.to_string()])
    }

    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let done = Command::new("kill").args([signal, &pid]).status();
        assert!(done.is_ok_and(|status| status.success()));
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
            let items: Option<Vec<_>> = (0..rest.parse().ok()?)
                .map(|_: usize| answer(from))
                .collect();
            Some(items?.join("\n"))
        }
        "-" => Some(line.trim_end().to_owned()),
        _ => Some(rest.to_owned()),
    }
}

/// Which server: `IDEM_PROXY_TEST_REDIS_SERVER`, or the one that is installed. Where the system can see to that, it ends with the thread
/// that starts it, also if that is killed.
pub(super) fn command() -> Command {
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

impl Drop for Redis {
    fn drop(&mut self) {
        // One that was killed before is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
