//! Reads `[server]`, `[admin]` and `[telemetry]`.

use std::{net::IpAddr, time::Duration};

use super::{
    Admin, Listen, LogFormat, Server, Telemetry, address, kinds::choose, otlp, problem::Refusal,
    reader::Section, tls, token, words::own_path,
};

/// The shortest span that counts as one.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// More of anything than one process can have.
pub(super) const MANY: i64 = 1_000_000_000;

/// The default of `max_connections`.
const USUAL_CONNECTIONS: i64 = 10_000;

/// Reads `[server]`.
pub(super) fn server(mut section: Section<'_>) -> Option<Server> {
    let s = &mut section;
    let listen = s.one_or_more("listen", "127.0.0.1:8080", address::listen);
    let workers = s.count("workers", 0, 0..=1024);
    let drain_delay = s.duration("drain_delay", "0s", Duration::ZERO);
    let drain_timeout = s.duration("drain_timeout", "25s", MOMENT);
    let head_timeout = s.duration("head_timeout", "10s", MOMENT);
    let body_timeout = s.duration("body_timeout", "30s", MOMENT);
    let keepalive_timeout = s.duration("keepalive_timeout", "75s", MOMENT);
    let max_head_bytes = s.size("max_head_bytes", "64KiB");
    let max_target_bytes = s.size("max_target_bytes", "16KiB");
    let write_timeout = s.duration("write_timeout", "60s", MOMENT);
    let max_connections = s.count("max_connections", USUAL_CONNECTIONS, 1..=MANY);
    let max_executions = s.count("max_executions", 4096, 1..=MANY);
    let max_buffered_bytes = s.size("max_buffered_bytes", "256MiB");
    let policy_path = s.text("policy_path", "", own_path);
    let trusted_proxies = s.list("trusted_proxies", &[], address::network);
    let tls = tls::server(s);
    if listen.as_ref().is_some_and(Vec::is_empty) {
        s.object("listen", "it is empty: the proxy would serve nobody");
    }
    for (at, address) in listen.iter().flatten().enumerate() {
        if repeats(listen.as_deref().unwrap_or_default(), at) {
            s.object("listen", format!("{address} stands twice"));
        }
    }
    section.finish();
    Some(Server {
        listen: listen?,
        workers: workers?,
        drain_delay: drain_delay?,
        drain_timeout: drain_timeout?,
        head_timeout: head_timeout?,
        body_timeout: body_timeout?,
        keepalive_timeout: keepalive_timeout?,
        write_timeout: write_timeout?,
        max_head_bytes: max_head_bytes?,
        max_target_bytes: max_target_bytes?,
        max_connections: max_connections?,
        max_executions: max_executions?,
        max_buffered_bytes: max_buffered_bytes?,
        policy_path: policy_path?,
        trusted_proxies: trusted_proxies?,
        tls: tls.ok()?,
    })
}

impl Server {
    /// Whether `max_connections` is its default, which nobody counts on.
    #[must_use]
    pub fn takes_the_usual_connections(&self) -> bool {
        i64::try_from(self.max_connections) == Ok(USUAL_CONNECTIONS)
    }

    /// How many threads `workers` asks for now; at least 1.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            workers => workers,
        }
    }
}

/// Whether the address at this place stands before it already.
fn repeats(addresses: &[Listen], at: usize) -> bool {
    let (before, rest) = addresses.split_at_checked(at).unwrap_or_default();
    let address = rest.first().filter(|address| is_fixed(address));
    address.is_some_and(|address| before.contains(address))
}

/// Whether the address is the same each time: port 0 is another port.
fn is_fixed(address: &Listen) -> bool {
    !matches!(address, Listen::Tcp(text) if text.ends_with(":0"))
}

/// Whether only this machine can reach it, as far as its text tells.
fn is_local(address: &Listen) -> bool {
    match address {
        Listen::Unix(_) => true,
        Listen::Tcp(text) => {
            let host = text.rsplit_once(':').map_or("", |(host, _)| host);
            let host = host.trim_matches(['[', ']']);
            host.eq_ignore_ascii_case("localhost")
                || host
                    .parse::<IpAddr>()
                    .is_ok_and(|address| address.to_canonical().is_loopback())
        }
    }
}

/// Reads `[admin]`; its addresses must not be the clients'.
pub(super) fn admin(mut section: Section<'_>, server: Option<&Server>) -> Option<Admin> {
    let s = &mut section;
    let listen = s.one_or_more("listen", "127.0.0.1:9090", address::listen);
    let token = s.text_or("token_file", None, |path| token::read(path).map(Some));
    let clients = server.map_or(&[][..], |server| &server.listen);
    for (at, address) in listen.iter().flatten().enumerate() {
        if repeats(listen.as_deref().unwrap_or_default(), at) {
            s.object("listen", format!("{address} stands twice"));
        } else if is_fixed(address) && clients.contains(address) {
            s.object("listen", format!("{address} stands in server.listen too"));
        }
    }
    let open: Vec<String> = listen
        .iter()
        .flatten()
        .filter(|it| !is_local(it))
        .map(ToString::to_string)
        .collect();
    if !open.is_empty() && s.find("token_file").is_none() {
        s.report.advise(format!(
            "admin.listen {}: whoever reaches it sees /metrics, the dashboard's page and health; without admin.token_file \
             /api/v1 is refused there (403), and so the dashboard shows nothing",
            open.join(", ")
        ));
    }
    section.finish();
    Some(Admin {
        listen: listen?,
        token: token?,
    })
}

/// Reads `[telemetry]`.
pub(super) fn telemetry(mut section: Section<'_>) -> Option<Telemetry> {
    let s = &mut section;
    let formats = [
        ("auto", Some(LogFormat::Auto)),
        ("text", Some(LogFormat::Text)),
        ("json", Some(LogFormat::Json)),
    ];
    let log_format = s.choice("log_format", "auto", &formats);
    let log_level = s.text("log_level", "info", level);
    let access_log = s.flag("access_log", true);
    let otlp = otlp::otlp(s);
    section.finish();
    Some(Telemetry {
        log_format: log_format?,
        log_level: log_level?,
        access_log: access_log?,
        otlp: otlp.ok()?,
    })
}

/// A level, or a list of `target=level`. A lone word that is no level would be taken for a target and silence the log.
fn level(text: &str) -> Result<String, Refusal> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"].map(|level| (level, Some(())));
    if !text.contains(['=', ',']) {
        return choose(text, &levels).map(|()| text.to_owned());
    }
    let filter = tracing_subscriber::EnvFilter::builder().parse(text);
    filter.map(|_| text.to_owned()).map_err(|_| {
        Refusal::wrong("it is no filter").allowed(
            "off, error, warn, info, debug, trace, or a list such as \"info,idem_proxy=debug\"",
        )
    })
}
