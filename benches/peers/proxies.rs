//! The proxies that are measured, each in a process of its own on core 0, configured alike: one worker, connections to the
//! upstream kept, an access log to a file.

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File},
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{
    Result,
    machine::PROXY_CORE,
    wire::{Upstream, get},
};

/// How long a proxy may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Idem,
    Nginx,
    Haproxy,
}

impl Peer {
    pub(crate) const ALL: [Self; 3] = [Self::Idem, Self::Nginx, Self::Haproxy];

    /// Whether it can be started here.
    pub(crate) fn is_there(self) -> bool {
        let ask = if self == Self::Idem {
            "--version"
        } else {
            "-v"
        };
        let asked = Command::new(self.program())
            .arg(ask)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        asked.is_ok_and(|status| status.success())
    }

    fn program(self) -> OsString {
        match self {
            Self::Idem => std::env::var_os("IDEM_PROXY_BINARY")
                .unwrap_or_else(|| env!("CARGO_BIN_EXE_idem-proxy").into()),
            Self::Nginx => beside("nginx"),
            Self::Haproxy => beside("haproxy"),
        }
    }
}

/// A server's program where Debian puts it, which is not on everybody's path; or as the path has it.
fn beside(name: &str) -> OsString {
    let full = Path::new("/usr/sbin").join(name);
    if full.exists() {
        full.into()
    } else {
        name.into()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idem => "idem-proxy",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        })
    }
}

/// A proxy that runs; it ends with the value.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Proxy {
    /// Starts it, with room for so many bytes of records.
    pub(crate) async fn start(peer: Peer, upstream: &Upstream, max_bytes: u64) -> Result<Self> {
        let store = format!("[store.memory]\nmax_bytes = \"{max_bytes}B\"");
        Self::start_on(peer, upstream, &store).await
    }

    /// The same with a store of its own, where it is an idem-proxy: what stands in its `[store]`.
    pub(crate) async fn start_on(peer: Peer, upstream: &Upstream, store: &str) -> Result<Self> {
        // nginx keeps its records in files; in memory where that can be, as the others do.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            tempfile::tempdir_in(memory)?
        } else {
            tempfile::tempdir()?
        };
        let (address, admin) = (free()?, free()?);
        let at = folder.path();
        let file = at.join("conf");
        let text = match peer {
            Peer::Idem => idem(address, admin, upstream.address, store),
            Peer::Nginx => nginx(address, upstream.address, at)?,
            Peer::Haproxy => haproxy(address, upstream.address),
        };
        fs::write(&file, text)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(at.join("out"))?;
        let mut command = Command::new("taskset");
        command.args(["-c", PROXY_CORE]);
        // Whatever this process ends of, the proxy ends too.
        command
            .args(["setpriv", "--pdeathsig", "TERM"])
            .arg(peer.program());
        match peer {
            Peer::Idem => command.arg("--config").arg(&file),
            Peer::Nginx => command
                .arg("-c")
                .arg(&file)
                .arg("-p")
                .arg(at)
                .arg("-e")
                .arg(at.join("out")),
            Peer::Haproxy => command.arg("-db").arg("-f").arg(&file),
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut proxy = Self {
            address,
            admin,
            child,
            folder,
        };
        let started = Instant::now();
        while TcpStream::connect(address).await.is_err() {
            if proxy.child.try_wait()?.is_some() || started.elapsed() > PATIENCE {
                let said = fs::read(proxy.folder.path().join("out"))?;
                bail!(
                    "{peer} does not start: {}",
                    String::from_utf8_lossy(&said).trim()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(proxy)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Empties the logs, which would otherwise fill the memory that they may lie in.
    pub(crate) fn forget_logs(&self) -> Result<()> {
        for name in ["out", "access.log"] {
            let file = self.folder.path().join(name);
            if file.exists() {
                File::options().write(true).open(file)?.set_len(0)?;
            }
        }
        Ok(())
    }

    /// Records of an idem-proxy that went before their time, by its own count.
    pub(crate) async fn evictions(&self) -> Result<f64> {
        let text = get(self.admin, "/metrics").await?;
        let mut sum = 0.0;
        let mut lines = 0;
        for line in text.lines() {
            if line.starts_with("idem_proxy_store_evictions_total{")
                && line.contains("cause=\"size\"")
            {
                let (_, count) = line.rsplit_once(' ').context("a count")?;
                sum += count.parse::<f64>()?;
                lines += 1;
            }
        }
        if lines == 0 {
            bail!("no count of evictions");
        }
        Ok(sum)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // nginx ends its workers at a SIGTERM alone.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let asked = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody had a moment ago: not every proxy can choose one and tell it.
fn free() -> Result<SocketAddr> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn idem(address: SocketAddr, admin: SocketAddr, upstream: SocketAddr, store: &str) -> String {
    format!(
        r#"[server]
listen = "{address}"
workers = 1
drain_timeout = "1s"
max_connections = 12000
[admin]
listen = "{admin}"
[upstream]
url = "http://{upstream}"
max_idle_connections = 4096
[store]
{store}
[policy]
max_request_body = "2MiB"
max_response_body = "2MiB"
[[route]]
name = "orders"
methods = ["POST"]
path = "/v1/orders"
key = "optional"
"#
    )
}

/// A POST with a key is cached by it and by its caller, as far as nginx can: it compares no bodies and promises no single execution.
fn nginx(address: SocketAddr, upstream: SocketAddr, at: &Path) -> Result<String> {
    let user = if fs::metadata("/proc/self")?.uid() == 0 {
        "user root;"
    } else {
        ""
    };
    let at = at.display();
    Ok(format!(
        r#"daemon off;
{user}
worker_processes 1;
worker_rlimit_nofile 20000;
pid {at}/pid;
events {{ worker_connections 16384; }}
http {{
    access_log {at}/access.log combined buffer=64k flush=1s;
    client_body_temp_path {at}/body;
    proxy_temp_path {at}/proxy;
    fastcgi_temp_path {at}/fastcgi;
    uwsgi_temp_path {at}/uwsgi;
    scgi_temp_path {at}/scgi;
    tcp_nodelay on;
    sendfile on;
    keepalive_requests 1000000000;
    client_max_body_size 2m;
    client_body_buffer_size 64k;
    open_file_cache max=4096 inactive=600s;
    open_file_cache_valid 600s;
    proxy_cache_path {at}/cache levels=1:2 keys_zone=keys:256m max_size=4g inactive=24h use_temp_path=off;
    upstream behind {{
        server {upstream};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    map $http_idempotency_key $unkeyed {{ "" 1; default 0; }}
    server {{
        listen {address} backlog=4096;
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_request_buffering off;
            proxy_cache keys;
            proxy_cache_methods POST;
            proxy_cache_key "$request_method$uri$http_authorization$http_idempotency_key";
            proxy_cache_valid 201 24h;
            proxy_cache_lock on;
            proxy_cache_lock_timeout 30s;
            proxy_cache_lock_age 30s;
            proxy_cache_bypass $unkeyed;
            proxy_no_cache $unkeyed;
        }}
    }}
}}
"#
    ))
}

fn haproxy(address: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        r"global
    nbthread 1
    maxconn 8192
    log stdout format raw local0
defaults
    mode http
    log global
    option httplog
    timeout connect 5s
    timeout client 75s
    timeout server 60s
    option http-keep-alive
    http-reuse always
frontend clients
    bind {address} backlog 4096
    default_backend behind
backend behind
    server upstream {upstream} pool-max-conn -1
"
    )
}
