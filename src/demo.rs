//! `idem-proxy demo`: a sample payments service, the proxy in front of it with its dashboard, and four requests to try.

use std::{
    fmt, io,
    net::TcpListener as StdListener,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
};

use http::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION},
};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::{
    server::listen::{Listener, Listeners},
    tasks::Tasks,
};

/// Where the demo's parts listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The proxy.
    pub proxy: u16,
    /// Its metrics and health.
    pub admin: u16,
    /// The sample service.
    pub upstream: u16,
}

/// The ports, held, so that nobody else gets them.
#[derive(Debug)]
pub struct Held {
    /// Which ones.
    pub ports: Ports,
    proxy: StdListener,
    admin: StdListener,
    upstream: StdListener,
}

impl Held {
    /// The usual ports, or free ones where they are taken.
    ///
    /// # Errors
    /// There is no free port on loopback.
    pub fn choose() -> io::Result<Self> {
        let bind = |usual: u16| {
            StdListener::bind(("127.0.0.1", usual)).or_else(|_| StdListener::bind(("127.0.0.1", 0)))
        };
        let (proxy, admin, upstream) = (
            bind(USUAL.proxy)?,
            bind(USUAL.admin)?,
            bind(USUAL.upstream)?,
        );
        Ok(Self {
            ports: Ports {
                proxy: proxy.local_addr()?.port(),
                admin: admin.local_addr()?.port(),
                upstream: upstream.local_addr()?.port(),
            },
            proxy,
            admin,
            upstream,
        })
    }

    /// Serves the sample payments service on its port, and gives the proxy's listeners.
    ///
    /// # Errors
    /// The event loop does not take them.
    pub fn serve(self, tasks: Tasks) -> io::Result<Listeners> {
        self.upstream.set_nonblocking(true)?;
        serve_payments(TcpListener::from_std(self.upstream)?, tasks);
        Ok(Listeners {
            clients: vec![Listener::adopt(self.proxy)?],
            operators: vec![Listener::adopt(self.admin)?],
        })
    }
}

impl Ports {
    /// The demo's configuration.
    #[must_use]
    pub fn configuration(&self) -> String {
        let Self {
            proxy,
            admin,
            upstream,
        } = self;
        format!(
            r#"[server]
listen = "127.0.0.1:{proxy}"
[admin]
listen = "127.0.0.1:{admin}"
[upstream]
url = "http://127.0.0.1:{upstream}"
[[route]]
name = "payments"
methods = ["POST"]
path = "/payments"
"#
        )
    }

    /// What is printed: where everything is, and what to try.
    #[must_use]
    pub fn tour(&self) -> String {
        let Self {
            proxy,
            admin,
            upstream,
        } = self;
        let curl = |order: u32, amount: u32| {
            format!(
                "curl -i http://127.0.0.1:{proxy}/payments -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-{order}' --json '{{\"amount\":{amount}}}'"
            )
        };
        format!(
            "idem-proxy demo
  a sample payments service   http://127.0.0.1:{upstream}
  idem-proxy in front of it   http://127.0.0.1:{proxy}
  its dashboard               http://127.0.0.1:{admin}/
  metrics and health          http://127.0.0.1:{admin}/metrics  /readyz

1. A payment. It is executed: 201, Idempotency-Key-Reply: miss
{first}

2. The same request again, as a retry would send it. It is replayed: the same 201 with the same payment, Idempotency-Key-Reply: hit
{retry}

3. Another amount under the same key. It is refused: 422 key-reused
{other}

4. A payment whose answer is lost on the way. Nobody can tell what became of it: 502, and 409 outcome-unknown when it is sent again,
   until somebody settles it on the dashboard
{lost}

Ctrl-C ends the demo.
",
            first = curl(42, 1000),
            retry = curl(42, 1000),
            other = curl(42, 2000),
            lost = curl(43, LOST),
        )
    }
}

const USUAL: Ports = Ports {
    proxy: 8080,
    admin: 9090,
    upstream: 3000,
};

/// The amount whose payment is made, and never answered.
const LOST: u32 = 1313;

/// The answer is lost: the connection ends without it.
#[derive(Debug)]
struct NoAnswer;

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer is lost")
    }
}

impl std::error::Error for NoAnswer {}

/// Serves the sample payments service: every `POST /payments` makes a payment, `GET /payments` says how many there are.
fn serve_payments(listener: TcpListener, tasks: Tasks) {
    let payments = Arc::new(AtomicU64::new(0));
    let own = tasks.clone();
    own.detach(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let payments = Arc::clone(&payments);
            let service = service_fn(move |request| pay(request, Arc::clone(&payments)));
            tasks.detach(async move {
                // A connection that ends early ends for the demo as well.
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
}

async fn pay(
    request: Request<Incoming>,
    payments: Arc<AtomicU64>,
) -> Result<Response<Full<Bytes>>, NoAnswer> {
    let is_payments = request.uri().path() == "/payments";
    let wants_to_pay = request.method() == Method::POST;
    let (status, body) = match (is_payments, wants_to_pay) {
        (true, true) => match Limited::new(request.into_body(), MAX_BODY).collect().await {
            Ok(body) => {
                let amount: Option<u64> =
                    serde_json::from_slice::<serde_json::Value>(&body.to_bytes())
                        .ok()
                        .and_then(|order| order.get("amount")?.as_u64());
                match amount {
                    Some(amount) => {
                        let number = payments.fetch_add(1, Ordering::Relaxed) + 1;
                        if amount == u64::from(LOST) {
                            return Err(NoAnswer);
                        }
                        let payment =
                            serde_json::json!({"id": format!("pay_{number}"), "amount": amount});
                        (StatusCode::CREATED, payment)
                    }
                    None => (
                        StatusCode::BAD_REQUEST,
                        serde_json::json!({"error": "amount is missing"}),
                    ),
                }
            }
            Err(_) => (
                StatusCode::BAD_REQUEST,
                serde_json::json!({"error": "the body is broken or too large"}),
            ),
        },
        (true, false) => (
            StatusCode::OK,
            serde_json::json!({"payments": payments.load(Ordering::Relaxed)}),
        ),
        (false, _) => (
            StatusCode::NOT_FOUND,
            serde_json::json!({"error": "there is only /payments"}),
        ),
    };
    let location = body
        .get("id")
        .and_then(|id| id.as_str())
        .map(|id| format!("/payments/{id}"));
    let mut response = Response::new(Full::from(format!("{body}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    if let Some(location) = location.and_then(|location| location.parse().ok()) {
        headers.insert(LOCATION, location);
    }
    Ok(response)
}

/// The largest order that the sample service reads, in bytes.
const MAX_BODY: usize = 64 * 1024;
