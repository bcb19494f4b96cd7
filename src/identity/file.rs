//! Keys from a file: read when the configuration is, and again when the file has changed.

use std::{
    fs::{self, File, Metadata},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use super::{KeySet, MAX_SET_BYTES, Unusable};

/// Reads the keys in the file at `path`. It blocks for as long as the file system does.
///
/// # Errors
/// Why there are none.
pub fn read(path: &Path) -> Result<KeySet, Unreadable> {
    // A pipe would be waited for.
    if !fs::metadata(path)?.is_file() {
        return Err(Unreadable::NoFile);
    }
    let mut text = Vec::new();
    let limit = MAX_SET_BYTES as u64 + 1;
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    if text.len() > MAX_SET_BYTES {
        return Err(Unreadable::TooLarge);
    }
    Ok(KeySet::parse(&text)?)
}

/// Why a file or a URL gives no keys.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The system says why.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A folder, a pipe or a device.
    #[error("it is no regular file")]
    NoFile,
    /// Over a mebibyte.
    #[error("it is over 1 MiB")]
    TooLarge,
    /// The answer has another status than 200.
    #[error("it was answered with status {0}")]
    Status(u16),
    /// Nobody is there who proves to be the URL's host (RFC 9110, section 4.3.4), or TLS failed otherwise.
    #[error("TLS failed: {0}")]
    Tls(#[source] io::Error),
    /// It was not read in time.
    #[error("it was not answered within 5 s")]
    TooLate,
    /// What answers speaks no HTTP, or broke off.
    #[error("it was not answered in whole")]
    Broken,
    /// Its text is no set of keys.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Looks at a file from time to time.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: Option<Stamp>,
    /// Whether it was read twice in the state that was seen. A file that is written while it is read, within one tick of the
    /// file system's clock, shows no change afterwards.
    twice: bool,
    /// What was wrong last; it is said once.
    fault: Option<String>,
}

impl Watch {
    /// The keys, where the file has changed since it was read for good; an error where it is another one than last time.
    pub(super) fn look(&mut self, path: &Path) -> Option<Result<KeySet, Unreadable>> {
        let stamp = fs::metadata(path).as_ref().map(Stamp::of).ok();
        let same = stamp == self.seen;
        if same && self.twice {
            return None;
        }
        self.twice = same;
        self.seen = stamp;
        match read(path) {
            Ok(keys) => {
                self.fault = None;
                Some(Ok(keys))
            }
            Err(fault) => {
                let said = fault.to_string();
                let new = self.fault.as_ref() != Some(&said);
                self.fault = Some(said);
                new.then_some(Err(fault))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"KID","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    #[test]
    fn a_file_is_read_when_it_changes_and_a_fault_is_said_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("jwks.json");
        let mut watch = Watch::default();
        assert!(matches!(watch.look(&path), Some(Err(Unreadable::Io(_)))));
        assert!(watch.look(&path).is_none());
        fs::write(&path, KEYS).expect("written");
        let first = watch.look(&path).expect("a change").expect("keys");
        assert_eq!(
            watch.look(&path).expect("once more").ok(),
            Some(first.clone())
        );
        assert!(watch.look(&path).is_none());
        fs::write(&path, &KEYS[..40]).expect("written");
        assert!(matches!(
            watch.look(&path),
            Some(Err(Unreadable::Unusable(Unusable::NoJson)))
        ));
        assert!(watch.look(&path).is_none());
        let other = folder.path().join("other");
        fs::write(&other, KEYS.replace("KID", "DIK")).expect("written");
        fs::rename(&other, &path).expect("moved");
        let second = watch.look(&path).expect("a change").expect("keys");
        assert_ne!(first, second);
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(read(folder.path()), Err(Unreadable::NoFile)));
        let path = folder.path().join("large");
        fs::write(&path, " ".repeat(MAX_SET_BYTES + 1)).expect("written");
        assert!(matches!(read(&path), Err(Unreadable::TooLarge)));
    }
}
