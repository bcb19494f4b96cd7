//! The command line: what the process is asked to do, and the commands that need no running proxy.
//!
//! Exit statuses: 0 done or drained, 1 failed while running, 2 the configuration or the command line is wrong; 3 is `records`' own: nothing
//! fits.

mod client;
pub mod drain;
mod folder;
pub mod records;

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand};

use crate::{
    config::{self, Problems},
    telemetry::log::check_filter,
};

/// What the process is asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `--config FILE`: serve until a signal ends it.
    Serve {
        /// The configuration file.
        config: PathBuf,
    },
    /// `--config FILE --check`: print every problem.
    Check {
        /// The configuration file.
        config: PathBuf,
    },
    /// `--config FILE --print-config`: print the effective configuration.
    PrintConfig {
        /// The configuration file.
        config: PathBuf,
    },
    /// `demo`: a sample upstream and the proxy, on loopback.
    Demo,
    /// `drain`: tell a running proxy to drain, and wait until it has.
    Drain {
        /// Which one.
        admin: Admin,
    },
    /// `records`: see and settle the records of a running proxy.
    Records {
        /// Which one.
        admin: Admin,
        /// What is to be done.
        action: records::Action,
    },
}

/// Where a running proxy's admin API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admin {
    /// `--config FILE`: where this configuration has it, with the token that it names.
    Configured(PathBuf),
    /// `--admin URL`, `--token-file FILE`
    At {
        /// `http://host:port` or `unix:/path`
        url: String,
        /// The file with the bearer token.
        token_file: Option<PathBuf>,
    },
}

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done or drained.
    Done,
    /// 1: failed while running.
    Failed,
    /// 2: the configuration or the command line is wrong.
    Refused,
    /// 3: no record fits what was asked for.
    Nothing,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Refused => 2,
            Exit::Nothing => 3,
        })
    }
}

/// An idempotency sidecar: a reverse proxy that makes the writes of any HTTP API safe to retry.
#[derive(Debug, Parser)]
#[command(name = "idem-proxy", version, args_conflicts_with_subcommands = true)]
struct Line {
    /// The configuration file; alone: serve it (SIGTERM and SIGINT drain, SIGHUP reloads)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Validate the configuration, print every problem found, exit 0 or 2
    #[arg(long, requires = "config", conflicts_with = "print_config")]
    check: bool,
    /// Print the effective configuration, secrets redacted
    #[arg(long, requires = "config")]
    print_config: bool,
    #[command(subcommand)]
    command: Option<Other>,
}

/// Commands by name.
#[derive(Debug, Subcommand)]
enum Other {
    /// A sample payments upstream and the proxy, on loopback
    Demo,
    /// See and settle the records of a running proxy
    #[command(subcommand)]
    Records(records::Words),
    /// Tell a running proxy to drain, and wait until what runs has finished
    #[command(
        override_usage = "idem-proxy drain <--config FILE | --admin URL [--token-file FILE]>"
    )]
    Drain(Place),
}

/// Where the admin API is.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct Place {
    /// The running proxy's configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// Its admin listener: `http://host:port` or `unix:/path`
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// The file with its bearer token
    #[arg(long, value_name = "FILE", requires = "admin")]
    token_file: Option<PathBuf>,
}

impl Place {
    fn admin(self) -> Result<Admin, Exit> {
        match (self.config, self.admin, self.token_file) {
            (Some(config), None, None) => Ok(Admin::Configured(config)),
            (None, Some(url), token_file) => Ok(Admin::At { url, token_file }),
            _ => Err(refuse(
                "--config FILE, or --admin URL with or without --token-file FILE, is needed; see --help",
            )),
        }
    }
}

impl Command {
    /// Reads this process's command line.
    ///
    /// # Errors
    /// How to end where there is nothing to do: 0 after help or the version, 2 after a wrong command line. What is to
    /// be said has been printed then.
    pub fn parse() -> Result<Self, Exit> {
        Self::parse_from(std::env::args_os())
    }

    /// The same for any words, of which the first is the program's name.
    ///
    /// # Errors
    /// As for [`Command::parse`].
    pub fn parse_from(words: impl IntoIterator<Item = OsString>) -> Result<Self, Exit> {
        let line = Line::try_parse_from(words).map_err(|error| {
            // With its stream closed there is nobody to tell.
            let _ = error.print();
            if error.use_stderr() {
                Exit::Refused
            } else {
                Exit::Done
            }
        })?;
        match (line.command, line.config) {
            (Some(Other::Demo), _) => Ok(Self::Demo),
            (Some(Other::Records(words)), _) => {
                let (admin, action) = words.read()?;
                Ok(Self::Records { admin, action })
            }
            (Some(Other::Drain(place)), _) => place.admin().map(|admin| Self::Drain { admin }),
            (None, None) => Err(refuse("--config FILE or a command is needed; see --help")),
            (None, Some(config)) if line.check => Ok(Self::Check { config }),
            (None, Some(config)) if line.print_config => Ok(Self::PrintConfig { config }),
            (None, Some(config)) => Ok(Self::Serve { config }),
        }
    }
}

/// Says on the standard error stream why the configuration or the command line is refused.
#[must_use]
pub fn refuse(why: impl Display) -> Exit {
    // Where nobody can be told, the exit status still says it.
    let _ = writeln!(io::stderr().lock(), "{why}");
    Exit::Refused
}

/// `--check` for this process's environment: problems, warnings and advice go to the standard error stream.
#[must_use]
pub fn run_check(config: &Path) -> Exit {
    // It wins over the file's filter, and a wrong one would stop the start.
    if let Some(Err(why)) = config::rust_log()
        .filter(|filter| !filter.is_empty())
        .map(|filter| check_filter(&filter))
    {
        return refuse(format_args!("RUST_LOG: {why}"));
    }
    check(
        config,
        config::environment(),
        &mut io::stdout().lock(),
        &mut io::stderr().lock(),
    )
    .unwrap_or(Exit::Failed)
}

/// `--print-config` for this process's environment: the configuration goes to the standard output stream.
#[must_use]
pub fn run_print_config(config: &Path) -> Exit {
    print_config(
        config,
        config::environment(),
        &mut io::stdout().lock(),
        &mut io::stderr().lock(),
    )
    .unwrap_or(Exit::Failed)
}

/// `--check`: says on `out` that the configuration is valid, or on `err` every problem.
///
/// # Errors
/// A stream that cannot be written to.
pub fn check(
    config: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let reading = config::read(config, variables);
    for text in reading.warnings.iter().chain(&reading.advice) {
        writeln!(err, "warning: {text}")?;
    }
    if let Some(why) = reading.config().and_then(folder::refused) {
        writeln!(err, "{}: {why}", config.display())?;
        return Ok(Exit::Refused);
    }
    if reading.problems.is_empty() {
        writeln!(out, "{}: the configuration is valid", config.display())?;
        return Ok(Exit::Done);
    }
    tell(&reading.problems, err)
}

/// `--print-config`: the effective configuration on `out`, without secrets. What only this version does not have is
/// said on `err` and printed all the same; with other problems nothing is printed but these.
///
/// # Errors
/// A stream that cannot be written to.
pub fn print_config(
    config: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Exit> {
    let reading = config::read(config, variables);
    if !reading.problems.only_unavailable() {
        return tell(&reading.problems, err);
    }
    for problem in reading.problems.to_string().lines() {
        writeln!(err, "warning: {problem}")?;
    }
    write!(out, "{}", reading.printed)?;
    Ok(Exit::Done)
}

fn tell(problems: &Problems, err: &mut impl Write) -> io::Result<Exit> {
    writeln!(err, "{problems}")?;
    Ok(Exit::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Command, Exit> {
        Command::parse_from(
            std::iter::once("idem-proxy")
                .chain(words.iter().copied())
                .map(OsString::from),
        )
    }

    #[test]
    fn each_command_has_its_words() {
        let config = PathBuf::from("p.toml");
        assert_eq!(
            parse(&["--config", "p.toml"]),
            Ok(Command::Serve {
                config: config.clone()
            })
        );
        assert_eq!(
            parse(&["--config", "p.toml", "--check"]),
            Ok(Command::Check {
                config: config.clone()
            })
        );
        assert_eq!(
            parse(&["--config=p.toml", "--print-config"]),
            Ok(Command::PrintConfig { config })
        );
        assert_eq!(parse(&["demo"]), Ok(Command::Demo));
        let configured = Admin::Configured("p.toml".into());
        assert_eq!(
            parse(&["drain", "--config", "p.toml"]),
            Ok(Command::Drain { admin: configured })
        );
        let at = Admin::At {
            url: "unix:/run/a".into(),
            token_file: Some("t".into()),
        };
        assert_eq!(
            parse(&["drain", "--admin", "unix:/run/a", "--token-file", "t"]),
            Ok(Command::Drain { admin: at })
        );
    }

    #[test]
    fn help_and_version_are_no_mistake() {
        assert_eq!(parse(&["--help"]), Err(Exit::Done));
        assert_eq!(parse(&["drain", "--help"]), Err(Exit::Done));
        assert_eq!(parse(&["--version"]), Err(Exit::Done));
    }

    #[test]
    fn a_wrong_command_line_is_refused() {
        for words in [
            &[][..],
            &["--no-such-option"],
            &["--config"],
            &["--check"],
            &["--print-config"],
            &["--config", "p.toml", "--check", "--print-config"],
            &["--config", "p.toml", "demo"],
            &["nonsense"],
            &["drain"],
            &["drain", "--token-file", "t"],
            &[
                "drain",
                "--config",
                "p.toml",
                "--admin",
                "http://127.0.0.1:9090",
            ],
            &["drain", "--config", "p.toml", "--token-file", "t"],
            &["drain", "--config", "p.toml", "now"],
        ] {
            assert_eq!(parse(words), Err(Exit::Refused), "{words:?}");
        }
    }
    #[test]
    fn records_are_asked_for_by_their_ids() {
        use records::{Action, Format, Resolution};
        let id = "0B64750E824A01B0";
        let of = |words: &[&str]| {
            let words: Vec<&str> = ["records"].iter().chain(words).copied().collect();
            match parse(&[&words[..], &["--config", "p.toml"]].concat()) {
                Ok(Command::Records { admin, action }) => {
                    assert_eq!(admin, Admin::Configured("p.toml".into()));
                    Ok(action)
                }
                Ok(other) => panic!("{other:?}"),
                Err(exit) => Err(exit),
            }
        };
        let lower = id.to_lowercase();
        let list = Action::List {
            state: Some("unknown".into()),
            route: None,
            limit: Some(5),
            after: None,
            format: Format::Json,
        };
        let words = ["list", "--state", "unknown", "--limit", "5", "--json"];
        assert_eq!(of(&words), Ok(list));
        let show = Action::Show {
            id: lower.clone(),
            format: Format::Text,
        };
        assert_eq!(of(&["show", id]), Ok(show));
        assert_eq!(of(&["purge", id]), Ok(Action::Purge { id: lower.clone() }));
        let release = Action::Resolve {
            id: lower.clone(),
            resolution: Resolution::Release,
        };
        assert_eq!(of(&["resolve", id, "--outcome", "release"]), Ok(release));
        let complete = Action::Resolve {
            id: lower,
            resolution: Resolution::Complete {
                status: 201,
                headers: vec![("location".into(), "/a:b".into())],
                body: String::new(),
            },
        };
        let words = ["resolve", id, "--outcome", "complete", "--status", "201"];
        let words = [&words[..], &["--header", "Location: /a:b"]].concat();
        assert_eq!(of(&words), Ok(complete));
        for wrong in [
            &["list", "--state", "done"][..],
            &["list", "--limit", "0"],
            &["list", "--limit", "1001"],
            &["show"],
            &["show", "0b64750e824a01b"],
            &["show", "../../livez/....."],
            &["purge", "zb64750e824a01b0"],
            &["resolve", id],
            &["resolve", id, "--outcome", "maybe"],
            &["resolve", id, "--outcome", "release", "--status", "201"],
            &["resolve", id, "--outcome", "complete"],
            &["resolve", id, "--outcome", "complete", "--status", "199"],
            &[
                "resolve",
                id,
                "--outcome",
                "complete",
                "--status",
                "201",
                "--header",
                "no",
            ],
            &[
                "resolve",
                id,
                "--outcome",
                "complete",
                "--status",
                "201",
                "--body-file",
                "/no/such",
            ],
        ] {
            assert_eq!(of(wrong), Err(Exit::Refused), "{wrong:?}");
        }
        assert_eq!(parse(&["records"]), Err(Exit::Refused));
        assert_eq!(parse(&["records", "list"]), Err(Exit::Refused));
        assert_eq!(parse(&["records", "--help"]), Err(Exit::Done));
    }
}
