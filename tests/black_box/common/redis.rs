//! A Redis server of a test's own.

use std::{
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
}

impl Redis {
    pub(crate) fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = spawn(port, &folder);
        let redis = Self {
            child,
            port,
            folder,
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
        self.child = spawn(self.port, &self.folder);
        self.wait();
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

fn spawn(port: u16, folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(folder.path())
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
