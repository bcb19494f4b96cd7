//! Asks a running proxy's admin API: one question, one answer.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    runtime,
    time::timeout,
};

use super::Admin;
use crate::config::{self, Listen, Token};

/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// The doors of a proxy's admin API, the best one first.
#[derive(Debug)]
pub(super) struct Client(Vec<Door>);

/// One admin listener, and what opens it.
#[derive(Debug)]
struct Door {
    listen: Listen,
    token: Option<Token>,
}

/// What is asked.
#[derive(Debug)]
pub(super) struct Question {
    method: Method,
    target: String,
    /// A JSON document.
    body: Option<String>,
    /// How long the answer may take; `None`: for ever.
    patience: Option<Duration>,
}

/// What the proxy says to it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

impl Question {
    pub(super) fn new(method: Method, target: impl Into<String>) -> Self {
        Self {
            method,
            target: target.into(),
            body: None,
            patience: None,
        }
    }

    /// The same, given up after so long.
    pub(super) fn within(self, patience: Duration) -> Self {
        Self {
            patience: Some(patience),
            ..self
        }
    }

    pub(super) fn with_json(self, document: String) -> Self {
        Self {
            body: Some(document),
            ..self
        }
    }
}

impl Client {
    /// Knows where to knock. An error is one of the command line or of the configuration.
    pub(super) fn of(admin: &Admin) -> Result<Self, String> {
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
                Ok(Self(doors))
            }
            Admin::At { url, token_file } => {
                let listen = config::admin_url(url)?;
                let token = token_file.as_deref().map(token).transpose()?;
                Ok(Self(vec![Door { listen, token }]))
            }
        }
    }

    /// Asks at the first door that somebody opens, and waits for the answer.
    ///
    /// # Errors
    /// Nobody answers, or not to the end.
    pub(super) fn ask(self, question: &Question) -> anyhow::Result<Answer> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("no event loop")?;
        let asking = ask(self.0, question);
        runtime.block_on(async {
            match question.patience {
                None => asking.await,
                Some(patience) => timeout(patience, asking)
                    .await
                    .context("no answer in time")?,
            }
        })
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

async fn ask(doors: Vec<Door>, question: &Question) -> anyhow::Result<Answer> {
    let mut closed = anyhow!("the configuration has no admin listener (admin.listen)");
    for Door { listen, token } in &doors {
        let token = token.as_ref();
        let connected = match listen {
            Listen::Tcp(address) => match TcpStream::connect(address.as_str()).await {
                Ok(stream) => Ok(ask_over(stream, address, token, question).await),
                Err(error) => Err(error),
            },
            Listen::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(ask_over(stream, "localhost", token, question).await),
                Err(error) => Err(error),
            },
        };
        match connected {
            Ok(answer) => return answer,
            Err(error) => {
                closed = anyhow!(error).context(format!("nobody answers at {listen}"));
            }
        }
    }
    Err(closed)
}

async fn ask_over(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    token: Option<&Token>,
    question: &Question,
) -> anyhow::Result<Answer> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder()
        .method(&question.method)
        .uri(&question.target)
        .header(HOST, host)
        .header(CONNECTION, "close")
        .body(Full::new(Bytes::from(
            question.body.clone().unwrap_or_default(),
        )))?;
    if question.body.is_some() {
        let json = HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
    }
    if let Some(token) = token {
        let mut value = HeaderValue::from_bytes(&[b"Bearer ", token.as_bytes()].concat())?;
        value.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, value);
    }
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER);
        let body = body.collect().await;
        let body = body.map_err(|error| anyhow!(error))?.to_bytes();
        anyhow::Ok(Answer { status, body })
    };
    // The connection is driven beside the exchange; its end is seen by the exchange too.
    tokio::select! {
        answer = exchange => answer,
        never = async { let _ = connection.await; std::future::pending().await } => never,
    }
    .context("the proxy broke off before it had answered")
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
}
