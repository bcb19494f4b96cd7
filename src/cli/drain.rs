//! `idem-proxy drain`: asks a running proxy to drain, and returns when that is done.
//!
//! The proxy is asked by `POST /api/v1/drain` on its admin listener. It answers when what runs has finished, or when `drain_timeout` has
//! passed; that is waited for without a limit, for whoever runs the command has one.

use std::{
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{
    HeaderValue, Request, StatusCode,
    header::{AUTHORIZATION, CONNECTION, HOST},
};
use http_body_util::{BodyExt as _, Collected, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    runtime,
};

use super::{Admin, Exit, refuse};
use crate::config::{self, Listen, Token};

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// One admin listener, and what opens it.
#[derive(Debug)]
struct Door {
    listen: Listen,
    token: Option<Token>,
}

/// Asks the proxy at `admin` to drain. What there is to say goes to the standard streams.
#[must_use]
pub fn run(admin: &Admin) -> Exit {
    let doors = match doors(admin) {
        Ok(doors) => doors,
        Err(why) => return refuse(why),
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let asked = runtime
        .context("no event loop")
        .and_then(|runtime| runtime.block_on(ask(doors)));
    // Where nobody can be told, the exit status still says it.
    match asked {
        Ok(()) => {
            let _ = writeln!(io::stdout().lock(), "drained");
            Exit::Done
        }
        Err(why) => {
            let _ = writeln!(io::stderr().lock(), "idem-proxy drain: {why:#}");
            Exit::Failed
        }
    }
}

/// Where to knock, the best place first. An error is one of the command line or of the configuration.
fn doors(admin: &Admin) -> Result<Vec<Door>, String> {
    match admin {
        Admin::Configured(path) => {
            let loaded = config::load(path, config::environment());
            let admin = loaded
                .map_err(|problems| problems.to_string())?
                .config
                .admin;
            let mut doors: Vec<Door> = admin
                .listen
                .iter()
                .map(|listen| Door {
                    listen: reachable(listen),
                    token: admin.token.clone(),
                })
                .collect();
            doors.sort_by_key(|door| rank(&door.listen));
            Ok(doors)
        }
        Admin::At { url, token_file } => {
            let listen = config::admin_url(url)?;
            let token = token_file.as_deref().map(token).transpose()?;
            Ok(vec![Door { listen, token }])
        }
    }
}

fn token(path: &Path) -> Result<Token, String> {
    Token::read(path).map_err(|why| format!("--token-file {}: {why}", path.display()))
}

/// The address under which a listener of this machine is reached: all addresses are one of them.
fn reachable(listen: &Listen) -> Listen {
    let Listen::Tcp(address) = listen else {
        return listen.clone();
    };
    let Some((host, port)) = address.rsplit_once(':') else {
        return listen.clone(); // an address has a port
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let local: IpAddr = match bare.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => Ipv4Addr::LOCALHOST.into(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => Ipv6Addr::LOCALHOST.into(),
        _ => return listen.clone(),
    };
    match local {
        IpAddr::V4(local) => Listen::Tcp(format!("{local}:{port}")),
        IpAddr::V6(local) => Listen::Tcp(format!("[{local}]:{port}")),
    }
}

/// A unix socket before a loopback address before any other: without a token these two alone are open.
fn rank(listen: &Listen) -> u8 {
    match listen {
        Listen::Unix(_) => 0,
        Listen::Tcp(address) => {
            let local = ["127.", "[::1]", "localhost:"];
            u8::from(!local.iter().any(|start| address.starts_with(start))) + 1
        }
    }
}

/// Asks at the first door that somebody opens.
async fn ask(doors: Vec<Door>) -> anyhow::Result<()> {
    let mut closed = anyhow!("the configuration has no admin listener (admin.listen)");
    for door in doors {
        let connected = match &door.listen {
            Listen::Tcp(address) => match TcpStream::connect(address.as_str()).await {
                Ok(stream) => Ok(ask_over(stream, address, door.token.as_ref()).await),
                Err(error) => Err(error),
            },
            Listen::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(ask_over(stream, "localhost", door.token.as_ref()).await),
                Err(error) => Err(error),
            },
        };
        match connected {
            Ok(answer) => return answer,
            Err(error) => {
                closed = anyhow!(error).context(format!("nobody answers at {}", door.listen));
            }
        }
    }
    Err(closed)
}

async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    token: Option<&Token>,
) -> anyhow::Result<()> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::post("/api/v1/drain")
        .header(HOST, host)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    if let Some(token) = token {
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await;
        anyhow::Ok((status, body.map(Collected::to_bytes).unwrap_or_default()))
    };
    // The connection is driven beside the exchange; its end is seen by the exchange too.
    let (status, body) = tokio::select! {
        answer = exchange => answer,
        never = async { let _ = connection.await; std::future::pending().await } => never,
    }
    .context("the proxy broke off before it had drained")?;
    if status == StatusCode::OK {
        return Ok(());
    }
    bail!("{}", refusal(status, &body))
}

/// What an answer that is no success says.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let document: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = document.get("detail").and_then(|detail| detail.as_str());
    let detail = detail.unwrap_or("the proxy does not drain");
    let mut said = vec![format!("{detail} ({status})")];
    if let Some(connections) = document.get("connections") {
        said.push(format!("  connections that are left: {connections}"));
    }
    let executions = document.get("executions").and_then(|list| list.as_array());
    for record in executions.into_iter().flatten() {
        said.push(format!("  still runs: {record}"));
    }
    said.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> Listen {
        Listen::Tcp(address.into())
    }

    #[test]
    fn all_addresses_are_reached_by_loopback() {
        for (listen, reached) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(reachable(&tcp(listen)), tcp(reached));
        }
        let unix = Listen::Unix("/run/a".into());
        assert_eq!(reachable(&unix), unix);
    }

    #[test]
    fn what_is_open_without_a_token_comes_first() {
        let mut all = [
            tcp("10.0.0.1:1"),
            tcp("127.0.0.1:1"),
            Listen::Unix("/run/a".into()),
        ];
        all.sort_by_key(rank);
        let wanted = [
            Listen::Unix("/run/a".into()),
            tcp("127.0.0.1:1"),
            tcp("10.0.0.1:1"),
        ];
        assert_eq!(all, wanted);
    }

    #[test]
    fn a_refusal_says_what_is_left() {
        let body = br#"{"detail":"Late.","executions":["00ff"],"connections":2}"#;
        let said = refusal(StatusCode::SERVICE_UNAVAILABLE, body);
        assert_eq!(
            said,
            "Late. (503 Service Unavailable)\n  connections that are left: 2\n  still runs: \"00ff\""
        );
        let said = refusal(StatusCode::NOT_FOUND, b"what?");
        assert_eq!(said, "the proxy does not drain (404 Not Found)");
    }
}
