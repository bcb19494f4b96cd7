//! The binary: command line, configuration, logs, listeners, signals, drain, exit code.

use std::{io::Write as _, path::Path, process::ExitCode};

use anyhow::Context as _;
use idem_proxy::{
    app::{App, Drained, Left, WatchedFile},
    cli::{self, Command, Exit},
    config::{self, Loaded, StoreKind},
    demo, descriptors,
    server::{listen::Listeners, worker::Cores},
    tasks::Tasks,
    telemetry::{access::AccessLog, log, metrics::Metrics},
};
use tokio::{
    runtime::{self, Handle},
    signal::unix::{SignalKind, signal},
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
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
        Ok(Command::Drain { admin }) => cli::drain::run(&admin),
        Ok(Command::Records { admin, action }) => cli::records::run(&admin, &action),
    };
    exit.into()
}

fn serve(path: &Path) -> Exit {
    // Before the file is read: a change in between is then seen as one.
    let file = WatchedFile::new(path);
    match config::load(path, config::environment()) {
        Ok(loaded) => run(loaded, Source::File(file)),
        Err(problems) => cli::refuse(problems),
    }
}

fn run_demo() -> Exit {
    let held = match demo::Held::choose() {
        Ok(held) => held,
        Err(error) => return fail(&format!("demo: no free port on loopback: {error}")),
    };
    match config::parse("demo", &held.ports.configuration(), []).loaded() {
        Ok(loaded) => run(loaded, Source::Demo(held)),
        Err(problems) => cli::refuse(problems),
    }
}

/// Where a configuration came from.
enum Source {
    /// A file, which may change.
    File(WatchedFile),
    /// The demo's own, with its ports.
    Demo(demo::Held),
}

/// Sets up the logs, and runs the application in the runtime of this thread: it accepts, the workers serve.
fn run(loaded: Loaded, source: Source) -> Exit {
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
    match runtime.block_on(until_drained(loaded, &logs, source)) {
        Ok(Drained::Whole) => {
            tracing::info!("drained");
            Exit::Done
        }
        Ok(Drained::CutOff(left)) => {
            tell(&left);
            Exit::Failed
        }
        Err(error) => {
            drop(logs);
            fail(&format!("{error:#}"))
        }
    }
}

/// Says what was cut off, and what becomes of it.
fn tell(left: &Left) {
    for record in &left.executions {
        tracing::error!(%record, "this execution was cut off, and its record is left to its lease");
    }
    for record in &left.unsaved {
        tracing::error!(
            %record,
            "what came of this execution was never saved: its record is left to its lease, and its outcome is unknown then"
        );
    }
    let Left {
        connections, tasks, ..
    } = *left;
    if connections > 0 {
        tracing::error!(connections, "client connections were cut off");
    }
    if tasks > 0 {
        tracing::error!(
            tasks,
            "tasks behind answers were cut off; no record depends on them"
        );
    }
    tracing::error!(
        executions = left.executions.len(),
        unsaved = left.unsaved.len(),
        connections,
        tasks,
        "ended before all that ran had finished"
    );
}

async fn until_drained(
    loaded: Loaded,
    logs: &log::LogGuard,
    source: Source,
) -> anyhow::Result<Drained> {
    let Loaded {
        config, warnings, ..
    } = loaded;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = descriptors::raise() {
        tracing::warn!(%error, "the limit of open files could not be raised");
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
    let (term, now, hangups) = signals()?;
    let (listeners, file, tour) = match source {
        Source::Demo(held) => {
            let tour = held.ports.tour();
            let tasks = Tasks::new(Handle::current(), TaskTracker::new());
            (held.serve(tasks)?, None, Some(tour))
        }
        Source::File(file) => (Listeners::bind(&config).await?, Some(file), None),
    };
    let cores = Cores::start(config.server.threads()).context("cannot start the workers")?;
    let mut app = App::new(config, listeners, cores, &metrics, access)?;
    match file {
        Some(file) => app.reload_from(file, hangups),
        // So that a SIGHUP is told that nobody listens.
        None => drop(hangups),
    }
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

/// The first SIGTERM or SIGINT, the second one, and each SIGHUP. Nothing else is listened for.
fn signals() -> std::io::Result<(
    impl Future<Output = ()>,
    impl Future<Output = ()>,
    mpsc::Receiver<()>,
)> {
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let mut hangup = signal(SignalKind::hangup())?;
    let (first, drain) = oneshot::channel();
    let (second, now) = oneshot::channel();
    // One that comes while another waits asks for the same.
    let (reload, hangups) = mpsc::channel(1);
    let tasks = Tasks::new(Handle::current(), TaskTracker::new());
    tasks.detach(async move {
        while hangup.recv().await.is_some() {
            if let Err(TrySendError::Closed(())) = reload.try_send(()) {
                tracing::warn!(
                    "SIGHUP: nothing is reloaded while the process drains, or where it has no configuration file"
                );
            }
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
    Ok((signalled(drain), signalled(now), hangups))
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
