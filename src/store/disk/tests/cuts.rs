//! Power cuts: the log cut off at every boundary of a frame, and amid frames, with and without rubbish behind the cut. Whatever
//! was answered before is there, and nothing is there that never was.

use super::*;

/// What was answered, and how long the log was then.
struct Acknowledged {
    record: u64,
    what: What,
    log: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Claimed,
    Completed,
    Released,
}

/// SQLite's log: a header, then frames of a page each.
const LOG_HEADER: usize = 32;
const FRAME: usize = 24 + 4096;

fn files(timed: &Timed) -> (Vec<u8>, Vec<u8>) {
    let read = |name| std::fs::read(timed.path().join(name)).expect("a file");
    (read("records.db"), read("records.db-wal"))
}

/// The workload: claims, completions and releases of a few records, one after the other.
async fn work(timed: &Timed) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    let mut note = |record, what| {
        let log = files(timed).1.len();
        acknowledged.push(Acknowledged { record, what, log });
    };
    for record in 0..12 {
        let claim = timed.claim(record).await;
        note(record, What::Claimed);
        match record % 3 {
            0 => {}
            1 => {
                let body = vec![b'x'; 100 + 700 * usize::try_from(record).expect("small")];
                let done = Settlement::Complete(answer(&body));
                assert!(is_complete(&timed.settle(claim, done).await));
                note(record, What::Completed);
            }
            _ => {
                timed.settle(claim, Settlement::Release).await;
                note(record, What::Released);
            }
        }
    }
    acknowledged
}

/// What must, and what may, stand under a record after a cut at `length`.
fn allowed(acknowledged: &[Acknowledged], record: u64, length: usize) -> Vec<Option<What>> {
    let own = || acknowledged.iter().filter(move |one| one.record == record);
    let last = own().rfind(|one| one.log <= length).map(|one| one.what);
    // What came next may have been written, and not answered yet.
    let next = own().find(|one| one.log > length).map(|one| one.what);
    std::iter::once(last).chain(next.map(Some)).collect()
}

#[tokio::test]
async fn wherever_the_log_is_cut_everything_that_was_answered_is_there() {
    let timed = Timed::new(Setup::default());
    let acknowledged = work(&timed).await;
    let (database, log) = files(&timed);
    assert!(log.len() > 40 * FRAME, "a checkpoint came between");
    let frames = (log.len() - LOG_HEADER) / FRAME;
    let boundaries = (0..=frames).map(|frame| LOG_HEADER + frame * FRAME);
    let amid = (0..frames)
        .map(|frame| LOG_HEADER + frame * FRAME + [1, 23, 24, 25, 2000, FRAME - 1][frame % 6]);
    let mut all = 0;
    for (cut, rubbish) in boundaries
        .map(|cut| (cut, false))
        .chain(amid.map(|cut| (cut, true)))
    {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store");
        std::fs::create_dir(&path).expect("a folder");
        let mut cut_log = log[..cut].to_vec();
        if rubbish {
            // What a disk leaves that was writing when its power went.
            cut_log.extend((0..FRAME + 100).map(|at| u8::try_from(at * 31 % 251).expect("small")));
        }
        std::fs::write(path.join("records.db"), &database).expect("a file");
        std::fs::write(path.join("records.db-wal"), &cut_log).expect("a file");
        let after = Timed {
            store: Some(timed.setup.open(&path).expect("it opens")),
            setup: timed.setup.clone(),
            folder,
        };
        for record in 0..12 {
            let allowed = allowed(&acknowledged, record, cut);
            let found = match after.meets(record).await {
                Met::Nothing => [None, Some(What::Released)],
                Met::Unknown(_) => [Some(What::Claimed); 2],
                Met::Complete(..) => [Some(What::Completed); 2],
                other => panic!("{other:?}"),
            };
            assert!(
                found.iter().any(|found| allowed.contains(found)),
                "cut at {cut}: record {record} is {found:?}, not {allowed:?}"
            );
            all += 1;
        }
        after.assert_counted();
    }
    assert!(all > 1000);
}
