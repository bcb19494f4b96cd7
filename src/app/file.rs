//! The configuration file, looked at from time to time: has it changed, and is it whole?

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// More than any configuration has, in bytes; what is beyond is not looked at.
const ENOUGH: u64 = 16 << 20;

/// A file whose content is compared. What its path leads to may change, as where a symbolic link is moved.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    /// What was acted on last.
    known: Content,
    /// What the last looks found, where that is something else, and how many of them: it may be half of it.
    pending: Option<(Content, u32)>,
}

/// So many looks must find the same before it is believed.
const LOOKS: u32 = 3;

/// What is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Something with this SHA-256.
    Digest([u8; 32]),
    /// It cannot be read.
    Unreadable,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// What is known already, or what is too new to be believed.
    Nothing,
    /// Another content, the same at several looks.
    Changed,
}

impl WatchedFile {
    /// Watches the file at `path`; what is in it now is known. Blocks for as long as the file system does.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            known: content(path),
            pending: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it can be read more than once. A pipe cannot, and would be waited for.
    pub(super) fn is_file(&self) -> bool {
        is_file(&self.path)
    }

    /// What is in it now is known from now on.
    pub(super) fn note(&mut self) {
        self.known = content(&self.path);
        self.pending = None;
    }

    /// Looks whether there is something else in it than what is known. A change is told once.
    pub(super) fn look(&mut self) -> Look {
        let now = content(&self.path);
        if now == self.known {
            self.pending = None;
            return Look::Nothing;
        }
        let looks = match self.pending {
            Some((before, looks)) if before == now => looks + 1,
            _ => 1,
        };
        if looks == LOOKS {
            self.known = now;
            self.pending = None;
            return Look::Changed;
        }
        self.pending = Some((now, looks));
        Look::Nothing
    }
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
}

fn content(path: &Path) -> Content {
    read(path).map_or(Content::Unreadable, |text| {
        Content::Digest(Sha256::digest(&text).into())
    })
}

fn read(path: &Path) -> Option<Vec<u8>> {
    if !is_file(path) {
        return None;
    }
    let mut text = Vec::new();
    let mut file = File::open(path).ok()?.take(ENOUGH);
    file.read_to_end(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_once_and_when_it_stands_still() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("proxy.toml");
        fs::write(&path, "one").expect("written");
        let mut file = WatchedFile::new(&path);
        assert_eq!(file.look(), Look::Nothing);
        fs::write(&path, "tw").expect("written");
        assert_eq!(file.look(), Look::Nothing);
        fs::write(&path, "two").expect("written");
        assert_eq!(file.look(), Look::Nothing, "it still changes");
        assert_eq!(file.look(), Look::Nothing);
        assert_eq!(file.look(), Look::Changed);
        assert_eq!(file.look(), Look::Nothing);
        fs::write(&path, "three").expect("written");
        assert_eq!(file.look(), Look::Nothing);
        fs::write(&path, "two").expect("written");
        assert_eq!(file.look(), Look::Nothing, "it is what it was");
        fs::write(&path, "four").expect("written");
        file.note();
        assert_eq!([(); 3].map(|()| file.look()), [Look::Nothing; 3]);
        fs::remove_file(&path).expect("removed");
        let looks = [(); 3].map(|()| file.look());
        assert_eq!(looks, [Look::Nothing, Look::Nothing, Look::Changed]);
        assert_eq!([(); 3].map(|()| file.look()), [Look::Nothing; 3]);
    }

    #[test]
    fn a_link_that_is_moved_is_a_change_and_another_file_with_the_same_content_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second, third, link] =
            ["1", "2", "3", "link"].map(|name| folder.path().join(name));
        for (path, text) in [(&first, "one"), (&second, "one"), (&third, "three")] {
            fs::write(path, text).expect("written");
        }
        let moved_to = |target: &Path| {
            let other = folder.path().join("other");
            std::os::unix::fs::symlink(target, &other).expect("a link");
            fs::rename(&other, &link).expect("moved");
        };
        moved_to(&first);
        let mut file = WatchedFile::new(&link);
        moved_to(&second);
        assert_eq!([(); 3].map(|()| file.look()), [Look::Nothing; 3]);
        moved_to(&third);
        let looks = [(); 3].map(|()| file.look());
        assert_eq!(looks, [Look::Nothing, Look::Nothing, Look::Changed]);
    }

    #[test]
    fn what_is_no_file_is_never_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = WatchedFile::new(folder.path());
        assert!(!file.is_file());
        assert_eq!([(); 3].map(|()| file.look()), [Look::Nothing; 3]);
    }
}
