//! What the system says of processes: CPU time, memory; and where they run.

use std::{fs, process::Command, time::Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::Result;

/// What Linux counts CPU time in where it shows it.
const TICKS_PER_S: f64 = 100.0;

/// Where the proxy is alone.
pub(crate) const PROXY_CORE: &str = "0";

/// Where this process is, with load and upstream.
const LOAD_CORE: &str = "1";

/// A count, as a number that can be divided.
pub(crate) fn real(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Moves this process to its core, and raises its limit of open files, which children inherit; tells that limit.
pub(crate) fn settle() -> Result<usize> {
    let own = std::process::id().to_string();
    let output = Command::new("taskset")
        .args(["-a", "-p", "-c", LOAD_CORE, &own])
        .output()
        .context("taskset does not start; is util-linux installed?")?;
    if !output.status.success() {
        bail!("two cores are needed, {PROXY_CORE} and {LOAD_CORE}");
    }
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let files = limit.current.map_or(Ok(usize::MAX), usize::try_from)?;
    setrlimit(Resource::Nofile, limit)?;
    Ok(files)
}

/// What has been used so far.
pub(crate) struct Used {
    machine: f64,
    proxy: f64,
    own: f64,
    at: Instant,
}

/// What was used between two moments.
#[derive(Clone, Copy)]
pub(crate) struct Spent {
    /// CPU seconds of the proxy.
    pub(crate) proxy: f64,
    /// Cores that others used.
    pub(crate) foreign: f64,
    pub(crate) seconds: f64,
}

impl Used {
    /// By the proxy that is the process of this id and its children, and by all.
    pub(crate) fn now(proxy: u32) -> Result<Self> {
        let mut used = 0.0;
        for process in tree(proxy)? {
            used += process_ticks(process)?;
        }
        Ok(Self {
            machine: machine_ticks()?,
            proxy: used,
            own: process_ticks(std::process::id())?,
            at: Instant::now(),
        })
    }

    pub(crate) fn until(&self, later: &Self) -> Spent {
        let seconds = later.at.duration_since(self.at).as_secs_f64();
        let proxy = later.proxy - self.proxy;
        let others = later.machine - self.machine - proxy - (later.own - self.own);
        Spent {
            proxy: proxy / TICKS_PER_S,
            foreign: others / TICKS_PER_S / seconds,
            seconds,
        }
    }
}

/// The resident memory of a process and its children, in bytes; what they share counts with each.
pub(crate) fn resident(root: u32) -> Result<f64> {
    let mut sum = 0.0;
    for process in tree(root)? {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line
            .and_then(|line| line.split_whitespace().next())
            .context("VmRSS")?;
        sum += kib.parse::<f64>()? * 1024.0;
    }
    Ok(sum)
}

/// The process and all that descend from it.
fn tree(root: u32) -> Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // Others may have ended meanwhile.
        if let Ok(fields) = stat(id)
            && let Some(parent) = fields.get(1)
        {
            parents.push((id, parent.parse::<u32>()?));
        }
    }
    let mut found = vec![root];
    let mut next = 0;
    while let Some(one) = found.get(next).copied() {
        next += 1;
        let children = parents.iter().filter(|(_, parent)| *parent == one);
        found.extend(children.map(|(id, _)| *id));
    }
    Ok(found)
}

/// The fields of `/proc/PID/stat` behind the name, which may hold anything.
fn stat(process: u32) -> Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, fields) = text.rsplit_once(')').context("/proc/PID/stat")?;
    Ok(fields.split_whitespace().map(str::to_owned).collect())
}

/// The CPU time of all threads of a process.
fn process_ticks(process: u32) -> Result<f64> {
    sum(&stat(process)?, &[11, 12])
}

/// All CPU time but the idle one, of all cores.
fn machine_ticks() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat")?;
    let fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    sum(&fields, &[1, 2, 3, 6, 7, 8])
}

fn sum(fields: &[String], at: &[usize]) -> Result<f64> {
    let mut sum = 0.0;
    for index in at {
        let field = fields.get(*index).context("a field of /proc is missing")?;
        sum += field.parse::<f64>()?;
    }
    Ok(sum)
}
