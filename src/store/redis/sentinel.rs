//! Sentinels: who the master is, by the word of several of them.
//!
//! All that are configured are asked, and the one whose configuration is the newest (by its epoch) is believed: one that was cut off
//! tells of a master that was. Once more than half of them agree, the others are waited for no longer than a moment: one that does not
//! answer holds nothing up, and its answer is taken when it comes. While one of them runs a failover and has not promoted anybody yet, there is no master: what the old one
//! takes from then on is lost with it. What sentinels publish about failovers makes that known at once, and every second they are asked
//! anyway.
//!
//! The URL's credentials are the server's. A sentinel is called without any, and with the same where it says that it wants some; so no
//! password is sent to one that asks for none, or to what is no sentinel.

use std::{collections::HashMap, pin::Pin, sync::Arc, task::Poll, time::Duration};

use ::redis::{
    ErrorKind, PushInfo, PushKind, RedisError, Value, aio::MultiplexedConnection, from_redis_value,
    pipe,
};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::place::Place;
use crate::{config::RedisUrl, tasks::Tasks};

/// The sentinels of one master.
pub(super) struct Sentinels {
    all: Vec<Sentinel>,
    /// The server's credentials, TLS and database; where it is, the sentinels say.
    template: Place,
    master: Arc<str>,
    timeout: Duration,
    tasks: Tasks,
    /// They have published something about the master.
    pub(super) news: Arc<Notify>,
    /// The newest configuration that any of them has told of.
    newest: u64,
    /// How often they were asked.
    round: u64,
}

struct Sentinel {
    place: Place,
    connection: Option<MultiplexedConnection>,
    /// It is asked, and has not answered yet.
    asked: Option<Asked>,
}

struct Asked {
    answer: JoinHandle<(Option<MultiplexedConnection>, Result<Said, RedisError>)>,
    round: u64,
}

/// What comes of asking one of them.
enum Answer {
    Said(Said),
    Failed(RedisError),
    /// It was asked in an earlier round, or the asking panicked, and that was reported.
    Nothing,
}

/// What they say.
pub(super) enum Told {
    /// Where the master is.
    Master(Place),
    /// There is none now, and why.
    Nobody(&'static str),
    /// None of them answers; what one of them said instead, if it did.
    Silence(Option<RedisError>),
}

/// What one of them says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    epoch: u64,
    master: (String, u16),
    /// It runs a failover, and has not promoted anybody.
    between: bool,
}

impl Sentinels {
    /// # Errors
    /// A URL leads nowhere.
    pub(super) fn new(
        urls: &[RedisUrl],
        master: &str,
        timeout: Duration,
        tasks: Tasks,
    ) -> Result<Self, RedisError> {
        let mut all = Vec::with_capacity(urls.len());
        let mut template = None;
        for url in urls {
            let place = Place::of(url)?;
            let place = if url.has_port() {
                place
            } else {
                place.at(place.host(), PORT)
            };
            template.get_or_insert_with(|| place.clone());
            all.push(Sentinel {
                place,
                connection: None,
                asked: None,
            });
        }
        let template = template.ok_or((ErrorKind::InvalidClientConfig, "no sentinel is named"))?;
        Ok(Self {
            all,
            template,
            master: master.into(),
            timeout,
            tasks,
            news: Arc::default(),
            newest: 0,
            round: 0,
        })
    }

    /// Asks all of them at once that have answered what they were asked before.
    ///
    /// Dropping the future leaves those asked that are.
    pub(super) async fn ask(&mut self) -> Told {
        self.round += 1;
        for sentinel in &mut self.all {
            if sentinel.asked.is_none() {
                let (place, connection) = (sentinel.place.clone(), sentinel.connection.clone());
                let (master, news) = (Arc::clone(&self.master), Arc::clone(&self.news));
                let answer = call(place, connection, master, self.timeout, news);
                sentinel.asked = Some(Asked {
                    answer: self.tasks.detach(answer),
                    round: self.round,
                });
            }
        }
        let (mut said, mut instead, mut until) = (Vec::new(), None, None);
        loop {
            let answer = match until {
                None => self.next().await,
                Some(until) => match tokio::time::timeout_at(until, self.next()).await {
                    Ok(answer) => answer,
                    Err(_) => break,
                },
            };
            match answer {
                None => break,
                Some(Answer::Said(one)) => said.push(one),
                Some(Answer::Failed(error)) => instead = Some(error),
                Some(Answer::Nothing) => {}
            }
            if until.is_none() && agreed(&said, self.all.len()) {
                until = Some(Instant::now() + OTHERS);
            }
        }
        if said.is_empty() {
            return Told::Silence(instead);
        }
        match judge(&said, self.newest, self.all.len()) {
            Ok((newest, (host, port))) => {
                self.newest = newest;
                Told::Master(self.template.at(&host, port))
            }
            Err(why) => Told::Nobody(why),
        }
    }

    /// The next answer of one that is asked; `None`: no more are.
    async fn next(&mut self) -> Option<Answer> {
        std::future::poll_fn(|cx| {
            let mut next = Poll::Ready(None);
            for sentinel in &mut self.all {
                let Some(asked) = &mut sentinel.asked else {
                    continue;
                };
                let Poll::Ready(answer) = Pin::new(&mut asked.answer).poll(cx) else {
                    next = Poll::Pending;
                    continue;
                };
                let late = asked.round < self.round;
                sentinel.asked = None;
                let (connection, said) = match answer {
                    Ok((connection, said)) => (connection, Some(said)),
                    Err(_) => (None, None),
                };
                sentinel.connection = connection;
                return Poll::Ready(Some(match said {
                    Some(Ok(said)) if !late => Answer::Said(said),
                    Some(Err(error)) => Answer::Failed(error),
                    Some(Ok(_)) | None => Answer::Nothing,
                }));
            }
            next
        })
        .await
    }

    /// Where they are.
    pub(super) fn shown(&self) -> String {
        let all: Vec<_> = self.all.iter().map(|one| one.place.address()).collect();
        all.join(" ")
    }
}

/// Whether more than half of them tell the newest configuration that is told, and the same master by it.
fn agreed(said: &[Said], sentinels: usize) -> bool {
    let best = said.iter().max_by_key(|one| one.epoch);
    best.is_some_and(|best| said.iter().filter(|one| *one == best).count() > sentinels / 2)
}

/// Who the master is by what was said, and the epoch of it.
fn judge(
    said: &[Said],
    newest: u64,
    sentinels: usize,
) -> Result<(u64, (String, u16)), &'static str> {
    let best = said.iter().map(|one| one.epoch).max().unwrap_or(0);
    // Epochs start again only where sentinels were made to forget: then most of them say so.
    if best < newest && said.len() <= sentinels / 2 {
        return Err("the sentinels that answer have an older configuration than was seen");
    }
    let mut latest = said.iter().filter(|one| one.epoch == best);
    if latest.clone().any(|one| one.between) {
        return Err("a failover runs, and nobody is promoted yet");
    }
    let first = latest.next().ok_or("no sentinel answers")?;
    if latest.any(|one| one.master != first.master) {
        return Err("the sentinels do not agree who the master is");
    }
    Ok((best, first.master.clone()))
}

/// Asks one of them, over its connection if it has one; that, and what it says.
async fn call(
    place: Place,
    connection: Option<MultiplexedConnection>,
    master: Arc<str>,
    timeout: Duration,
    news: Arc<Notify>,
) -> (Option<MultiplexedConnection>, Result<Said, RedisError>) {
    let connection = match connection {
        Some(connection) => Ok(connection),
        None => connect(&place, &master, timeout, news).await,
    };
    match connection {
        Ok(mut connection) => match ask(&mut connection, &master).await {
            Ok(said) => (Some(connection), Ok(said)),
            Err(error) => (None, Err(error)),
        },
        Err(error) => (None, Err(error)),
    }
}

async fn connect(
    place: &Place,
    master: &Arc<str>,
    timeout: Duration,
    news: Arc<Notify>,
) -> Result<MultiplexedConnection, RedisError> {
    let named = Arc::clone(master);
    let pushed = move |push: &PushInfo| {
        if about(push, &named) {
            news.notify_one();
        }
    };
    let tried = place.bare().connect(timeout, pushed.clone()).await;
    let mut connection = match tried {
        Err(error) if place.has_password() && wants_password(&error) => {
            let known = place.without_database();
            known.connect(timeout, pushed).await?
        }
        tried => tried?,
    };
    connection.subscribe(&CHANNELS[..]).await?;
    Ok(connection)
}

async fn ask(connection: &mut MultiplexedConnection, master: &str) -> Result<Said, RedisError> {
    let mut both = pipe();
    both.cmd("SENTINEL").arg("MASTER").arg(master);
    both.cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master);
    let (state, now): (Value, Option<(String, u16)>) = both.query_async(connection).await?;
    let state: HashMap<String, String> = from_redis_value(state)?;
    let told = |name: &str| state.get(name).map_or("", String::as_str);
    let odd = || RedisError::from((ErrorKind::UnexpectedReturnType, "no answer of a sentinel"));
    let now = now.ok_or_else(odd)?;
    let before = (told("ip"), told("port").parse().map_err(|_| odd())?);
    let mut flags = told("flags").split(',');
    Ok(Said {
        epoch: told("config-epoch").parse().map_err(|_| odd())?,
        between: flags.any(|flag| flag == "failover_in_progress")
            && (now.0.as_str(), now.1) == before,
        master: now,
    })
}

/// Whether this says that nothing is told without credentials.
fn wants_password(error: &RedisError) -> bool {
    error.kind() == ErrorKind::AuthenticationFailed || error.code() == Some("NOAUTH")
}

/// Whether something was published about this master; or nothing can be any more.
fn about(push: &PushInfo, master: &str) -> bool {
    match (&push.kind, push.data.get(1)) {
        (PushKind::Message, Some(Value::BulkString(text))) => text
            .split(u8::is_ascii_whitespace)
            .any(|word| word == master.as_bytes()),
        (PushKind::Disconnection, _) => true,
        _ => false,
    }
}

/// What a failover says of itself, from its start to its end.
const CHANNELS: [&str; 5] = [
    "+failover-state-select-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-state-wait-promotion",
    "+promoted-slave",
    "+switch-master",
];

/// Once most of them agree, the others are waited for so long.
const OTHERS: Duration = Duration::from_millis(50);

/// Where sentinels listen, if nothing else is said.
const PORT: u16 = 26379;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(epoch: u64, port: u16) -> Said {
        Said {
            epoch,
            master: ("m".to_owned(), port),
            between: false,
        }
    }

    fn port(said: &[Said], newest: u64) -> Result<(u64, u16), &'static str> {
        judge(said, newest, 3).map(|(epoch, (_, port))| (epoch, port))
    }

    #[test]
    fn the_newest_configuration_counts() {
        let cut_off = said(1, 1);
        assert_eq!(port(&[cut_off.clone(), said(2, 2)], 1), Ok((2, 2)));
        // One that was cut off is not believed once a newer one was seen, until most say so.
        assert!(port(std::slice::from_ref(&cut_off), 2).is_err());
        assert_eq!(port(&[cut_off.clone(), cut_off], 2), Ok((1, 1)));
    }

    #[test]
    fn most_must_tell_the_newest_of_one_master_before_the_others_are_not_waited_for() {
        assert!(!agreed(&[], 3));
        assert!(!agreed(&[said(1, 1)], 3));
        assert!(agreed(&[said(1, 1), said(1, 1)], 3));
        assert!(!agreed(&[said(1, 1), said(1, 2)], 3));
        assert!(!agreed(&[said(1, 1), said(1, 1), said(2, 2)], 4));
        assert!(agreed(&[said(1, 1)], 1));
    }

    #[test]
    fn nobody_is_master_during_a_failover_or_where_they_differ() {
        let between = Said {
            between: true,
            ..said(1, 1)
        };
        assert!(port(&[said(1, 1), between.clone()], 1).is_err());
        assert_eq!(port(&[said(2, 2), between], 1), Ok((2, 2)));
        assert!(port(&[said(1, 1), said(1, 2)], 1).is_err());
        assert!(port(&[], 0).is_err());
    }

    /// What a listener is told that gives this answer to everything, once a sentinel with a password was looked for there.
    async fn told_to_who_answers(answer: &'static [u8]) -> Vec<String> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("redis://:secret@127.0.0.1:{port}");
        let url: RedisUrl = url.parse().expect("a URL");
        let place = Place::of(&url).expect("a place");
        let mut told = Vec::new();
        let serve = async {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut first = [0; 1024];
                let many = stream.read(&mut first).await.expect("a command");
                let first = first.get(..many).unwrap_or_default();
                told.push(String::from_utf8_lossy(first).into_owned());
                // It may be gone already.
                let _ = stream.write_all(answer).await;
            }
        };
        let (name, timeout) = ("orders".into(), Duration::from_secs(5));
        let asked = call(place, None, name, timeout, Arc::default());
        tokio::select! {
            () = serve => {}
            (_, said) = asked => assert!(said.is_err(), "{said:?}"),
        }
        told
    }

    #[tokio::test]
    async fn a_password_is_told_to_who_asks_for_one_alone() {
        for answer in [
            &b"-ERR no such thing\r\n-ERR no such thing\r\n-ERR no such thing\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            b"-DENIED protected mode\r\n",
        ] {
            let told = told_to_who_answers(answer).await;
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(!told.concat().contains("secret"), "{told:?}");
        }
        let told = told_to_who_answers(b"-NOAUTH 1\r\n-NOAUTH 2\r\n-NOAUTH 3\r\n").await;
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[1].contains("secret"), "{told:?}");
    }

    #[test]
    fn what_is_published_of_other_masters_is_no_news() {
        let push = |text: &str| PushInfo {
            kind: PushKind::Message,
            data: vec![
                Value::BulkString(b"+switch-master".to_vec()),
                Value::BulkString(text.as_bytes().to_vec()),
            ],
        };
        assert!(about(&push("mine 127.0.0.1 1 127.0.0.1 2"), "mine"));
        assert!(about(&push("slave a:1 a 1 @ mine 127.0.0.1 2"), "mine"));
        assert!(!about(&push("other 127.0.0.1 1 127.0.0.1 2"), "mine"));
    }
}
