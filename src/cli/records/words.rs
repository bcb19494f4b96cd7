//! The command line of `idem-proxy records`.

use std::{fs, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use super::{Action, Format, Resolution};
use crate::cli::{Admin, Exit, Place, refuse};

/// The commands on records.
#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Words {
    /// List records, the latest first; exit 3 where there are none
    #[command(
        override_usage = "idem-proxy records list [OPTIONS] <--config FILE | --admin URL [--token-file FILE]>"
    )]
    List {
        /// Those in this state
        #[arg(long, value_parser = ["in-flight", "unknown", "complete", "tombstone"])]
        state: Option<String>,
        /// Those of this route
        #[arg(long, value_name = "NAME")]
        route: Option<String>,
        /// At most so many, up to 1000 [default: 100]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: Option<u16>,
        /// Those behind the page that said so
        #[arg(long, value_name = "PLACE")]
        after: Option<String>,
        /// Print the API's document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Show one record
    #[command(
        override_usage = "idem-proxy records show ID [--json] <--config FILE | --admin URL [--token-file FILE]>"
    )]
    Show {
        #[command(flatten)]
        id: Id,
        /// Print the API's document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Forget a record: the next request with its key is executed. Asks no question
    #[command(
        override_usage = "idem-proxy records purge ID <--config FILE | --admin URL [--token-file FILE]>"
    )]
    Purge {
        #[command(flatten)]
        id: Id,
        #[command(flatten)]
        place: Place,
    },
    /// Settle an unknown outcome
    #[command(
        override_usage = "idem-proxy records resolve ID --outcome release <--config FILE | --admin URL [--token-file FILE]>\n       idem-proxy records resolve ID --outcome complete --status N [--header NAME:VALUE]... [--body-file FILE] <--config FILE | --admin URL [--token-file FILE]>"
    )]
    Resolve {
        #[command(flatten)]
        id: Id,
        #[command(flatten)]
        answer: Answer,
        #[command(flatten)]
        place: Place,
    },
}

/// Which record.
#[derive(Debug, Args)]
pub(in crate::cli) struct Id {
    /// Its id: 64 hexadecimal digits, or at least the first 16, as problems and logs have them
    #[arg(value_name = "ID", value_parser = id)]
    id: String,
}

fn id(text: &str) -> Result<String, String> {
    let hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if hex && (16..=64).contains(&text.len()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("16 to 64 hexadecimal digits are needed".into())
}

/// What came of the call.
#[derive(Debug, Args)]
pub(in crate::cli) struct Answer {
    /// `release`: it was not executed. `complete`: it was, and this is its answer
    #[arg(long)]
    outcome: Outcome,
    /// The status of the answer, 200 to 599
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// A header of the answer; may stand more than once
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// The file with the answer's body, UTF-8 text
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Outcome {
    Release,
    Complete,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("NAME:VALUE is needed")?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err("a header has a name, without spaces".into());
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

impl Answer {
    fn read(self) -> Result<Resolution, String> {
        match (self.outcome, self.status) {
            (Outcome::Release, None) if self.headers.is_empty() && self.body_file.is_none() => {
                Ok(Resolution::Release)
            }
            (Outcome::Release, _) => {
                Err("--status, --header and --body-file are for --outcome complete".into())
            }
            (Outcome::Complete, None) => Err("--outcome complete needs --status".into()),
            (Outcome::Complete, Some(status)) => {
                let body = self.body_file.as_deref().map(|path| {
                    let read = fs::read_to_string(path);
                    read.map_err(|error| format!("--body-file {}: {error}", path.display()))
                });
                Ok(Resolution::Complete {
                    status,
                    headers: self.headers,
                    body: body.transpose()?.unwrap_or_default(),
                })
            }
        }
    }
}

impl Words {
    /// Where to ask, and what.
    pub(in crate::cli) fn read(self) -> Result<(Admin, Action), Exit> {
        let format = |json| if json { Format::Json } else { Format::Text };
        let (place, action) = match self {
            Self::List {
                state,
                route,
                limit,
                after,
                json,
                place,
            } => {
                let action = Action::List {
                    state,
                    route,
                    limit,
                    after,
                    format: format(json),
                };
                (place, action)
            }
            Self::Show { id, json, place } => {
                let format = format(json);
                (place, Action::Show { id: id.id, format })
            }
            Self::Purge { id, place } => (place, Action::Purge { id: id.id }),
            Self::Resolve { id, answer, place } => {
                let resolution = answer.read().map_err(refuse)?;
                let id = id.id;
                (place, Action::Resolve { id, resolution })
            }
        };
        Ok((place.admin()?, action))
    }
}
