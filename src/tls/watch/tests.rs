use std::{
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustls::ServerConfig;

use super::*;
use crate::tls::{Alpn, ClientAuth, Pair, ServerFiles, UpstreamFiles};

const DAY: i64 = 86_400;

/// A certificate of its own that expires so many days after the epoch, and its key.
fn pair(days: i64) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + time_of(days);
    let key = rcgen::KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn time_of(days: i64) -> std::time::Duration {
    std::time::Duration::from_secs(u64::try_from(days * DAY).unwrap())
}

fn write(folder: &Path, (cert, key): &(String, String)) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("cert.pem"), cert).unwrap();
    fs::write(folder.join("key.pem"), key).unwrap();
}

fn files(folder: &Path) -> Pair {
    Pair {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
    }
}

fn server(folder: &Path) -> Watched<ServerConfig> {
    let files = ServerFiles {
        pair: files(folder),
        client_auth: ClientAuth::Off,
    };
    files.watched().unwrap()
}

fn expires<T>(watched: &Watched<T>) -> i64 {
    watched.expiry().unwrap().0 / DAY
}

#[test]
fn what_changed_is_used_and_what_was_taken_before_stays() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &pair(30_000));
    let watched = server(folder.path());
    let before = watched.current();
    assert!(matches!(watched.look(), Look::Same));
    assert!(Arc::ptr_eq(&before, &watched.current()));

    write(folder.path(), &pair(40_000));
    assert_eq!(expires(&watched), 30_000);
    assert!(matches!(watched.look(), Look::Applied));
    assert_eq!(expires(&watched), 40_000);
    assert!(!Arc::ptr_eq(&before, &watched.current()));
    assert!(matches!(watched.look(), Look::Same));
}

#[test]
fn what_cannot_be_used_is_refused_once_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let good = pair(30_000);
    write(folder.path(), &good);
    let watched = server(folder.path());
    let before = watched.current();

    let (cert, _) = pair(40_000);
    fs::write(folder.path().join("cert.pem"), &cert).unwrap();
    assert!(matches!(watched.look(), Look::Same), "more may come");
    let Look::Refused(why) = watched.look() else {
        panic!("a certificate without its key was taken");
    };
    assert!(why.to_string().contains("does not go with"), "{why}");
    assert!(matches!(watched.look(), Look::Same));

    fs::remove_file(folder.path().join("cert.pem")).unwrap();
    assert!(matches!(watched.look(), Look::Same));
    assert!(matches!(watched.look(), Look::Refused(_)));
    assert!(matches!(watched.look(), Look::Same));
    assert!(Arc::ptr_eq(&before, &watched.current()));
    assert_eq!(expires(&watched), 30_000);

    write(folder.path(), &good);
    assert!(matches!(watched.look(), Look::Applied));
}

#[test]
fn files_that_are_written_one_after_the_other_are_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &pair(30_000));
    let watched = server(folder.path());
    let (cert, key) = pair(40_000);
    fs::write(folder.path().join("cert.pem"), cert).unwrap();
    assert!(matches!(watched.look(), Look::Same));
    assert_eq!(expires(&watched), 30_000);
    fs::write(folder.path().join("key.pem"), key).unwrap();
    assert!(matches!(watched.look(), Look::Applied));
    assert!(matches!(watched.look(), Look::Same));
    assert_eq!(expires(&watched), 40_000);
}

#[test]
fn a_symbolic_link_above_the_files_may_be_swapped() {
    let folder = tempfile::tempdir().unwrap();
    let [old, new, link, data] =
        ["old", "new", "..next", "..data"].map(|name| folder.path().join(name));
    write(&old, &pair(30_000));
    write(&new, &pair(40_000));
    symlink(&old, &data).unwrap();
    let watched = server(&data);
    symlink(&new, &link).unwrap();
    fs::rename(&link, &data).unwrap();
    assert!(matches!(watched.look(), Look::Applied));
    assert_eq!(expires(&watched), 40_000);
}

#[test]
fn what_changes_while_it_is_built_is_found_by_the_next_look() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "0").unwrap();
    let (path, built) = (file.clone(), AtomicUsize::new(0));
    let watched = Watched::new(vec![file], None, move || {
        let count = built.fetch_add(1, Ordering::Relaxed);
        if count == 0 {
            fs::write(&path, "1").unwrap();
        }
        Ok(Arc::new(count))
    })
    .unwrap();
    assert!(matches!(watched.look(), Look::Applied));
    assert_eq!(*watched.current(), 1);
    assert!(matches!(watched.look(), Look::Same));
    assert!(watched.expiry().is_none());
}

#[test]
fn a_caller_is_made_anew_when_its_roots_change() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &pair(30_000));
    let files = UpstreamFiles {
        ca: Some(folder.path().join("cert.pem")),
        pair: None,
        server_name: "localhost".try_into().unwrap(),
    };
    let watched = files.watched(Alpn::Http1).unwrap();
    assert!(watched.expiry().is_none(), "it shows no certificate");
    fs::write(folder.path().join("cert.pem"), pair(40_000).0).unwrap();
    assert!(matches!(watched.look(), Look::Applied));
}

#[test]
fn no_key_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = pair(30_000);
    write(folder.path(), &(cert, key.clone()));
    let watched = server(folder.path());
    let shown = format!("{watched:?}");
    assert!(shown.contains("key.pem"), "{shown}");
    let secret = key.lines().nth(1).unwrap();
    assert!(!shown.contains(secret));

    // Its first line is a good key's; what is wrong with the rest is told without it.
    fs::write(folder.path().join("key.pem"), format!("{key}-----BEGIN")).unwrap();
    fs::write(folder.path().join("cert.pem"), pair(40_000).0).unwrap();
    assert!(matches!(watched.look(), Look::Same));
    let Look::Refused(why) = watched.look() else {
        panic!("a key of another certificate was taken");
    };
    assert!(!format!("{why} {why:?}").contains(secret), "{why}");
}
