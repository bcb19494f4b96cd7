//! The binary: command line, configuration, logs, listeners, signals, drain, exit code.

use std::{io::Write as _, path::Path, process::ExitCode};

use anyhow::Context as _;
use idem_proxy::{
    app::{App, Drained},
    cli::{self, Command, Exit},
    config::{self, Loaded, StoreKind},
    demo,
    server::{listen::Listeners, worker::Cores},
    tasks::Tasks,
    telemetry::{access::AccessLog, log, metrics::Metrics},
};
use tokio::{
    runtime::{self, Handle},
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};
use tokio_util::task::TaskTracker;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let exit = match Command::parse() {
        Err(exit) => exit,
        Ok(Command::Check { config }) => cli::run_check(&config),
        Ok(Command::PrintConfig { config }) => cli::run_print_config(&config),
        Ok(Command::Serve { config }) => serve(&config),
        Ok(Command::Demo) => run_demo(),
    };
    exit.into()
}

fn serve(path: &Path) -> Exit {
    match config::load(path, config::environment()) {
        Ok(loaded) => run(loaded, None),
        Err(problems) => cli::refuse(problems),
    }
}

fn run_demo() -> Exit {
    let held = match demo::Held::choose() {
        Ok(held) => held,
        Err(error) => return fail(&format!("demo: no free port on loopback: {error}")),
    };
    match config::parse("demo", &held.ports.configuration(), []).loaded() {
        Ok(loaded) => run(loaded, Some(held)),
        Err(problems) => cli::refuse(problems),
    }
}

/// Sets up the logs, and runs the application in the runtime of this thread: it accepts, the workers serve.
fn run(loaded: Loaded, demo: Option<demo::Held>) -> Exit {
    let telemetry = &loaded.config.telemetry;
    let rust_log = config::rust_log();
    let logs = match log::init(
        telemetry.log_format,
        &telemetry.log_level,
        rust_log.as_deref(),
        std::io::stderr(),
    ) {
        Ok(logs) => logs,
        Err(error) => return cli::refuse(error),
    };
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("no event loop: {error}")),
    };
    match runtime.block_on(until_drained(loaded, &logs, demo)) {
        Ok(Drained::Whole) => {
            tracing::info!("drained");
            Exit::Done
        }
        Ok(Drained::CutOff {
            executions,
            connections,
        }) => {
            for record in executions {
                tracing::error!(%record, "this execution was cut off, and its record is left to its lease");
            }
            tracing::error!(connections, "client connections were cut off");
            Exit::Failed
        }
        Err(error) => {
            drop(logs);
            fail(&format!("{error:#}"))
        }
    }
}

async fn until_drained(
    loaded: Loaded,
    logs: &log::LogGuard,
    demo: Option<demo::Held>,
) -> anyhow::Result<Drained> {
    let Loaded {
        config, warnings, ..
    } = loaded;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if config.store.kind == StoreKind::Memory {
        tracing::warn!(
            "records are kept in memory: a restart forgets every key, and a second replica knows none of them"
        );
    }
    let routes: Vec<_> = config
        .routes
        .iter()
        .map(|route| route.name.clone())
        .collect();
    let metrics = Metrics::new(&routes);
    metrics.watch_log(logs.writer());
    let access = if config.telemetry.access_log {
        AccessLog::new(logs, &routes)
    } else {
        AccessLog::off()
    };
    let (term, now) = termination()?;
    let tour = demo.as_ref().map(|held| held.ports.tour());
    let listeners = match demo {
        Some(held) => held.serve(Tasks::new(Handle::current(), TaskTracker::new()))?,
        None => Listeners::bind(&config).await?,
    };
    let cores = Cores::start(config.server.workers).context("cannot start the workers")?;
    let app = App::new(config, listeners, cores, &metrics, access)?;
    for address in app.client_addresses() {
        tracing::info!(
            address,
            version = env!("CARGO_PKG_VERSION"),
            "listening for clients"
        );
    }
    for address in app.operator_addresses() {
        tracing::info!(address, "listening for operators");
    }
    if let Some(tour) = tour {
        // Where nobody reads it there is nobody to guide.
        let _ = std::io::stdout().lock().write_all(tour.as_bytes());
    }
    Ok(app.serve(term, now).await)
}

/// The first SIGTERM or SIGINT, and the second one. Nothing else is listened for, but SIGHUP, which changes nothing yet.
fn termination() -> std::io::Result<(impl Future<Output = ()>, impl Future<Output = ()>)> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let mut hangup = signal(SignalKind::hangup())?;
    let (first, drain) = oneshot::channel();
    let (second, now) = oneshot::channel();
    let tasks = Tasks::new(Handle::current(), TaskTracker::new());
    tasks.detach(async move {
        while hangup.recv().await.is_some() {
            tracing::warn!(
                "SIGHUP: reloading is not available in this version; nothing was changed"
            );
        }
    });
    tasks.detach(async move {
        for told in [first, second] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            // Whoever has stopped listening is past that point.
            let _ = told.send(());
        }
    });
    Ok((signalled(drain), signalled(now)))
}

async fn signalled(signal: oneshot::Receiver<()>) {
    // The task above never ends without telling.
    let _ = signal.await;
}

fn fail(why: &str) -> Exit {
    // Where nobody can be told, the exit status still says it.
    let _ = writeln!(std::io::stderr().lock(), "idem-proxy: {why}");
    Exit::Failed
}
