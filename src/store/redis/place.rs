//! Where a server is, and how to connect to it: credentials, TLS and database are those of the configured URL, wherever it leads.

use std::{convert::Infallible, fmt, sync::Arc, time::Duration};

use ::redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
};

use crate::config::RedisUrl;

/// One server. It may hold a password: only the address is shown.
#[derive(Clone)]
pub(super) struct Place(Arc<At>);

struct At {
    info: ConnectionInfo,
    address: String,
}

impl Place {
    /// Where a URL leads.
    ///
    /// # Errors
    /// It is no URL of a Redis server.
    pub(super) fn of(url: &RedisUrl) -> Result<Self, RedisError> {
        Ok(Self::with(url.expose().into_connection_info()?))
    }

    fn with(info: ConnectionInfo) -> Self {
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                address(host, *port)
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            _ => "an address of an unknown kind".to_owned(),
        };
        Self(Arc::new(At { info, address }))
    }

    /// The server at another host and port, called in the same way.
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let addr = match self.0.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        Self::with(self.0.info.clone().set_addr(addr))
    }

    /// The same server, called without credentials and for no database: as a sentinel is.
    pub(super) fn bare(&self) -> Self {
        let info = self.0.info.clone();
        Self::with(info.set_redis_settings(RedisConnectionInfo::default()))
    }

    /// The same server, called with the credentials but for no database.
    pub(super) fn without_database(&self) -> Self {
        let info = self.0.info.clone();
        let redis = info.redis_settings().clone().set_db(0);
        Self::with(info.set_redis_settings(redis))
    }

    /// Host and port, or the path of a socket.
    pub(super) fn address(&self) -> &str {
        &self.0.address
    }

    /// The host; empty for a socket.
    pub(super) fn host(&self) -> &str {
        match self.0.info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// Whether there is a password to call it with.
    pub(super) fn has_password(&self) -> bool {
        self.0.info.redis_settings().password().is_some()
    }

    /// A connection of which every answer comes within `timeout` or is an error. What is published is shown to `pushed`.
    ///
    /// # Errors
    /// It cannot be reached, or does not take the credentials.
    pub(super) async fn connect(
        &self,
        timeout: Duration,
        pushed: impl Fn(&PushInfo) + Send + Sync + 'static,
    ) -> Result<MultiplexedConnection, RedisError> {
        let config = config(timeout).set_push_sender(move |push: PushInfo| {
            pushed(&push);
            Ok::<_, Infallible>(())
        });
        self.connect_with(&config).await
    }

    /// The same without what is published.
    ///
    /// # Errors
    /// It cannot be reached, or does not take the credentials.
    pub(super) async fn connect_plain(
        &self,
        timeout: Duration,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.connect_with(&config(timeout)).await
    }

    async fn connect_with(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        let info = self.0.info.clone();
        let redis = info.redis_settings().clone();
        let redis = redis.set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(redis))?;
        client
            .get_multiplexed_async_connection_with_config(config)
            .await
    }
}

fn config(timeout: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(timeout))
        .set_response_timeout(Some(timeout))
}

/// A host and a port as servers write them.
pub(super) fn address(host: &str, port: u16) -> String {
    format!("{host}:{port}")
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.0.address).finish()
    }
}
