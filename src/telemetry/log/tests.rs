//! Logs against sinks that keep, block and fail.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use tracing::dispatcher::with_default;

use super::{writer::QUEUE_BYTES, *};

/// Keeps what it is given; its writes can be held up, or made to fail.
#[derive(Clone, Default)]
pub(in crate::telemetry) struct Sink(Arc<(Mutex<Kept>, Condvar)>);

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    mood: Mood,
    /// Writes that were held up.
    held: usize,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Mood {
    #[default]
    Takes,
    Blocks,
    Fails,
    WouldBlockOnce,
}

impl Sink {
    pub(in crate::telemetry) fn lines(&self) -> Vec<String> {
        let kept = self.0.0.lock();
        let text = String::from_utf8(kept.bytes.clone()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        text.lines().map(str::to_owned).collect()
    }

    fn of(mood: Mood) -> Self {
        let sink = Self::default();
        sink.become_(mood);
        sink
    }

    fn become_(&self, mood: Mood) {
        self.0.0.lock().mood = mood;
        self.0.1.notify_all();
    }

    fn until_held(&self) {
        let mut kept = self.0.0.lock();
        while kept.held == 0 {
            self.0.1.wait(&mut kept);
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.0.lock();
        if kept.mood == Mood::Blocks {
            kept.held += 1;
            self.0.1.notify_all();
            while kept.mood == Mood::Blocks {
                self.0.1.wait(&mut kept);
            }
        }
        match kept.mood {
            Mood::Fails => Err(io::ErrorKind::BrokenPipe.into()),
            Mood::WouldBlockOnce => {
                kept.mood = Mood::Takes;
                Err(io::ErrorKind::WouldBlock.into())
            }
            // A short write, as pipes do.
            Mood::Takes | Mood::Blocks => {
                let taken = bytes.len().min(1_000);
                kept.bytes.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn logged(format: LineFormat, filter: &str, log: impl FnOnce()) -> Vec<String> {
    let sink = Sink::default();
    let (dispatch, guard) = start(format, filter, None, sink.clone()).unwrap();
    with_default(&dispatch, log);
    drop(guard);
    sink.lines()
}

#[test]
fn text_lines_read_so() {
    let lines = logged(LineFormat::Text, "info", || {
        tracing::info!(
            address = "127.0.0.1:8080",
            tries = 3,
            name = "a b",
            "listening"
        );
        tracing::debug!("not this");
        tracing::error!(error = ?"x\ny", ready = true, "bad\nline");
    });
    let [first, second] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert_eq!(
        &first[24..],
        "  INFO idem_proxy::telemetry::log::tests: listening address=127.0.0.1:8080 tries=3 name=\"a b\""
    );
    assert!(first[..24].ends_with('Z'), "{first}");
    assert_eq!(
        &second[24..],
        r#" ERROR idem_proxy::telemetry::log::tests: bad\nline error="\"x\\ny\"" ready=true"#
    );
}

#[test]
fn json_lines_are_json() {
    let lines = logged(LineFormat::Json, "debug", || {
        tracing::warn!(
            status = 503_u16,
            left = -1,
            ratio = f64::NAN,
            ok = false,
            "no \"store\"\u{1b}[0m"
        );
        tracing::debug!(
            target = "t",
            level = 1,
            time = "now",
            msg = "m",
            "fields that the line has itself"
        );
        tracing::debug!(error = %io::Error::other("one\ntwo"), "failed");
    });
    assert_eq!(lines.len(), 3);
    let read: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut first = read[0].as_object().unwrap().clone();
    let time = first.remove("time").unwrap();
    assert_eq!(
        time.as_str().unwrap().len(),
        "2026-11-30T18:57:33.123Z".len()
    );
    assert_eq!(
        serde_json::Value::from(first),
        serde_json::json!({
            "level": "warn", "target": "idem_proxy::telemetry::log::tests", "msg": "no \"store\"\u{1b}[0m",
            "status": 503, "left": -1, "ratio": "NaN", "ok": false,
        })
    );
    assert_eq!(read[1]["field.target"], "t");
    assert_eq!(read[1]["field.level"], 1);
    assert_eq!(read[1]["field.time"], "now");
    assert_eq!(read[1]["level"], "debug");
    assert_eq!(read[2]["error"], "one\ntwo");
    assert!(lines.iter().all(|line| !line.chars().any(char::is_control)));
}

#[test]
fn rust_log_wins_unless_it_is_empty() {
    for (level, rust_log, expected) in [
        ("error", Some("debug"), 2),
        ("debug", Some("error"), 0),
        ("info", Some(""), 1),
        ("info", None, 1),
        ("off", None, 0),
        ("warn,idem_proxy=debug", None, 2),
    ] {
        let sink = Sink::default();
        let (dispatch, guard) = start(LineFormat::Text, level, rust_log, sink.clone()).unwrap();
        with_default(&dispatch, || {
            tracing::info!("one");
            tracing::debug!("two");
        });
        drop(guard);
        assert_eq!(sink.lines().len(), expected, "{level} {rust_log:?}");
    }
}

#[test]
fn a_bad_filter_is_refused_and_says_what_is_allowed() {
    for good in [
        "info",
        "INFO",
        "off",
        "warn,hyper=debug",
        "idem_proxy::access=off",
        "2,hyper::proto=4",
    ] {
        assert_eq!(check_filter(good), Ok(()), "{good}");
    }
    for (bad, named) in [
        ("", "``"),
        ("inof", "`inof`"),
        ("info,", "``"),
        ("hyper=", "``"),
        ("info,hyper", "`hyper`"),
        ("hyper::proto", "`hyper::proto`"),
        ("hyper=inof", "`inof`"),
        ("a=b=c", "`b=c`"),
        ("=info", "``"),
        ("a b=info", "`a b`"),
        ("info, hyper=debug", "` hyper`"),
        ("hyper[request]=info", "`hyper[request]`"),
    ] {
        let said = check_filter(bad).unwrap_err().to_string();
        assert!(
            said.contains(named) && said.contains("allowed: off, error"),
            "{said}"
        );
    }
    let said = start(LineFormat::Text, "info", Some("lots"), Sink::default())
        .unwrap_err()
        .to_string();
    assert!(said.starts_with("RUST_LOG: `lots`"), "{said}");
    let said = start(LineFormat::Text, "lots", None, Sink::default())
        .unwrap_err()
        .to_string();
    assert!(said.starts_with("telemetry.log_level: `lots`"), "{said}");
}

#[test]
fn lines_show_soon_while_the_process_lives() {
    let sink = Sink::default();
    let writer = LineWriter::start(sink.clone()).unwrap();
    let (event, access) = (LineKind::Event, LineKind::Access);
    let mut pushed = 0;
    for together in [
        &[event][..],
        &[access],
        &[event],
        &[access, event],
        &[access],
    ] {
        for kind in together {
            writer.push(b"a line\n", *kind);
        }
        pushed += together.len();
        let until = Instant::now() + Duration::from_secs(10);
        while sink.lines().len() < pushed {
            assert!(Instant::now() < until, "line {pushed} is not there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(writer.dropped(), 0);
}

#[test]
fn a_stalled_sink_stalls_nobody_and_what_is_dropped_is_counted() {
    let sink = Sink::of(Mood::Blocks);
    let writer = LineWriter::start(sink.clone()).unwrap();
    let line = [[b'x'; 1023].as_slice(), b"\n"].concat();
    writer.push(&line, LineKind::Access);
    sink.until_held(); // the thread has the first line in its hands
    let room = QUEUE_BYTES / line.len();
    let started = Instant::now();
    for _ in 0..room + 10 {
        writer.push(&line, LineKind::Access);
    }
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "somebody waited"
    );
    // Requests leave room for 64 lines that the proxy itself has to say.
    assert_eq!(writer.dropped(), 64 + 10);
    for _ in 0..64 {
        writer.push(&line, LineKind::Event);
    }
    assert_eq!(writer.dropped(), 64 + 10);
    writer.push(&line, LineKind::Event);
    assert_eq!(writer.dropped(), 64 + 11);

    sink.become_(Mood::Takes);
    writer.close();
    assert_eq!(sink.lines().len(), 1 + room);
    assert!(
        sink.lines().iter().all(|kept| kept.len() == 1023),
        "lines were torn"
    );
    writer.push(&line, LineKind::Event);
    assert_eq!(writer.dropped(), 64 + 12, "a line after the end");
}

#[test]
fn the_end_does_not_wait_for_a_stalled_sink_for_ever() {
    let sink = Sink::of(Mood::Blocks);
    let (dispatch, guard) = start(LineFormat::Text, "info", None, sink.clone()).unwrap();
    with_default(&dispatch, || tracing::info!("stuck"));
    sink.until_held();
    let started = Instant::now();
    drop(guard);
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );
    sink.become_(Mood::Takes);
}

#[test]
fn lines_that_cannot_be_written_are_counted() {
    let sink = Sink::of(Mood::Fails);
    let writer = LineWriter::start(sink.clone()).unwrap();
    writer.push(b"one\n", LineKind::Event);
    writer.push(b"two\n", LineKind::Event);
    writer.close();
    assert_eq!(writer.dropped(), 2);
    assert!(sink.lines().is_empty());
}

#[test]
fn a_sink_that_would_block_is_tried_again() {
    let sink = Sink::of(Mood::WouldBlockOnce);
    let writer = LineWriter::start(sink.clone()).unwrap();
    writer.push(b"one\n", LineKind::Event);
    writer.close();
    assert_eq!(sink.lines(), ["one"]);
    assert_eq!(writer.dropped(), 0);
}

#[test]
fn many_threads_tear_no_line() {
    let sink = Sink::default();
    let writer = LineWriter::start(sink.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let writer = &writer;
            scope.spawn(move || {
                for number in 0..500 {
                    writer.push(format!("{thread} {number}\n").as_bytes(), LineKind::Access);
                }
            });
        }
    });
    writer.close();
    assert_eq!(writer.dropped(), 0);
    for thread in 0..4 {
        let prefix = format!("{thread} ");
        let numbers: Vec<_> = sink
            .lines()
            .iter()
            .filter_map(|line| line.strip_prefix(&prefix)?.parse::<u32>().ok())
            .collect();
        assert!(numbers.iter().copied().eq(0..500), "thread {thread}");
    }
}
