//! Encryption at rest.

use super::*;

fn sealed(keys_: &[u8]) -> Setup {
    Setup {
        keys: keys(keys_),
        ..Setup::default()
    }
}

/// Everything in the store's files.
fn bytes(timed: &Timed) -> Vec<u8> {
    let files = std::fs::read_dir(timed.path()).expect("a folder");
    files
        .flat_map(|file| std::fs::read(file.expect("an entry").path()).expect("a file"))
        .collect()
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

async fn executed_with(timed: &Timed, record: u64, body: &[u8]) {
    let claim = timed.claim(record).await;
    let done = Settlement::Complete(answer(body));
    assert!(is_complete(&timed.settle(claim, done).await));
}

#[tokio::test]
async fn neither_answers_nor_digests_nor_routes_are_in_the_files() {
    let digest = request("a").digests().exact;
    for (setup, hidden) in [(sealed(&[1]), true), (Setup::default(), false)] {
        let mut timed = Timed::new(setup);
        executed_with(&timed, 1, b"s3cr3t").await;
        drop(timed.claim(2).await);
        for _ in 0..2 {
            let bytes = bytes(&timed);
            for secret in [&b"s3cr3t"[..], b"application/json", b"orders", &digest] {
                assert_eq!(contains(&bytes, secret), !hidden);
            }
            timed.restart();
        }
        assert!(matches!(timed.meets(1).await, Met::Complete(_, body) if body == b"s3cr3t"));
    }
}

#[tokio::test]
async fn without_its_key_a_record_is_a_failure_and_never_executed_again() {
    let mut timed = Timed::new(sealed(&[1]));
    executed_with(&timed, 1, b"1").await;
    drop(timed.claim(2).await);
    for keys_ in [&[2][..], &[]] {
        timed.setup.keys = keys(keys_);
        timed.restart();
        for record in [1, 2] {
            let refused = timed.try_begin(record, &terms()).await;
            assert!(
                matches!(refused, Err(StoreError::Unavailable)),
                "{refused:?}"
            );
        }
        executed_with(&timed, 100 + keys_.len() as u64, b"new keys work").await;
        timed.pass(Duration::from_mins(2)).await;
        timed.sweep().await;
    }
    timed.setup.keys = keys(&[2, 1]);
    timed.restart();
    assert!(matches!(timed.meets(1).await, Met::Complete(_, body) if body == b"1"));
    assert!(matches!(timed.meets(2).await, Met::Unknown(_)));
    assert!(matches!(timed.meets(100).await, Met::Complete(..)));
    assert!(matches!(timed.meets(101).await, Met::Complete(..)));
    timed.assert_counted();
    // From here on the newest key is enough for what is new, also for the names of routes.
    executed_with(&timed, 3, b"3").await;
    timed.setup.keys = keys(&[2]);
    timed.restart();
    assert!(matches!(timed.meets(3).await, Met::Complete(..)));
    executed_with(&timed, 4, b"4").await;
}

#[tokio::test]
async fn a_record_that_was_changed_in_its_file_is_a_failure() {
    for keys_ in [&[1][..], &[]] {
        let mut timed = Timed::new(sealed(keys_));
        for record in 1..7 {
            executed_with(&timed, record, b"own").await;
        }
        timed.store = None;
        let database = rusqlite::Connection::open(timed.path().join("records.db")).expect("ours");
        let change = |record: u64, what: &str| {
            let sql = format!("UPDATE record SET {what} WHERE id = ?1");
            let done = database.execute(&sql, [id(record).as_bytes()]);
            assert_eq!(done.expect("SQL"), 1);
        };
        change(
            1,
            "head = CAST(substr(head, 1, 40) || x'ff' || substr(head, 42) AS BLOB)",
        );
        change(2, "answer = substr(answer, 1, length(answer) - 1)");
        change(3, "answer = NULL");
        change(4, "state = 3");
        change(5, "head = x'00'");
        drop(database);
        timed.restart();
        for record in 1..6 {
            let refused = timed.try_begin(record, &terms()).await;
            assert!(
                matches!(refused, Err(StoreError::Unavailable)),
                "{record}: {refused:?}"
            );
        }
        assert!(
            timed.store().answers(),
            "one damaged record is not the store"
        );
        assert!(matches!(timed.meets(6).await, Met::Complete(..)));
        timed.pass(Duration::from_hours(48)).await;
        timed.sweep().await;
        assert!(matches!(
            timed.try_begin(1, &terms()).await,
            Err(StoreError::Unavailable)
        ));
    }
}

#[tokio::test]
async fn an_answer_of_another_record_does_not_open() {
    let mut timed = Timed::new(sealed(&[1]));
    executed_with(&timed, 1, b"mine").await;
    executed_with(&timed, 2, b"yours").await;
    timed.store = None;
    let database = rusqlite::Connection::open(timed.path().join("records.db")).expect("ours");
    let sql = "UPDATE record SET answer = (SELECT answer FROM record WHERE id = ?2) WHERE id = ?1";
    let done = database.execute(sql, [id(1).as_bytes(), id(2).as_bytes()]);
    assert_eq!(done.expect("SQL"), 1);
    drop(database);
    timed.restart();
    assert!(matches!(
        timed.try_begin(1, &terms()).await,
        Err(StoreError::Unavailable)
    ));
    assert!(matches!(timed.meets(2).await, Met::Complete(..)));
}
