//! The folder of a disk store: made, locked, private.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use super::OpenError;

/// A folder that is ours for as long as the value lives.
#[derive(Debug)]
pub(super) struct Folder {
    database: PathBuf,
    /// Locked; the system lets go of it when the process ends, in whatever way.
    _lock: File,
}

/// Which file a path leads to, for as long as it is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at `path`, if there is one.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }
}

impl Folder {
    /// Makes the folder at `path` where there is none, and locks it. Its parent has to be there.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let at = |what| move |error| OpenError::folder(what, path, error);
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => sync(path.parent()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let metadata = fs::metadata(path).map_err(at("cannot be looked at"))?;
                if !metadata.is_dir() {
                    return Err(OpenError::NoFolder(path.to_owned()));
                }
            }
            Err(error) => return Err(at("cannot be made")(error)),
        }
        let lock = private(&path.join("lock")).map_err(at("cannot be written"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at("cannot be locked")(error)),
        }
        let database = path.join("records.db");
        // Made here, so that nobody else may ever read it; the files that go with it get the same permissions.
        let file = private(&database).map_err(at("cannot be written"))?;
        file.sync_all().map_err(at("cannot be written"))?;
        drop(file);
        sync(Some(path));
        let mut own = &lock;
        // For whoever wonders who holds it. A lock without a number holds as well.
        let _ = lock
            .set_len(0)
            .and_then(|()| writeln!(own, "{}", std::process::id()));
        Ok(Self {
            database,
            _lock: lock,
        })
    }

    /// Where the database is.
    pub(super) fn database(&self) -> &Path {
        &self.database
    }
}

/// A file that its owner alone may read and write, made if there is none.
fn private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        // Another's file, in a folder that is shared on purpose, stays as its owner has it.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Makes what was made in a folder outlast a power cut. A file system that cannot do this for folders does it by itself.
pub(super) fn sync(folder: Option<&Path>) {
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let _ = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").permissions().mode() & 0o777
    }

    #[test]
    fn a_folder_is_made_private_and_is_one_process_only() {
        let outer = tempfile::tempdir().expect("a folder");
        let path = outer.path().join("store");
        let folder = Folder::open(&path).expect("it is made");
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(folder.database()), 0o600);
        let said = fs::read_to_string(path.join("lock")).expect("a number");
        assert_eq!(said.trim(), std::process::id().to_string());
        let second = Folder::open(&path).expect_err("it is locked");
        assert!(matches!(&second, OpenError::InUse(_)), "{second}");
        assert!(second.to_string().contains(path.to_str().expect("UTF-8")));
        drop(folder);
        fs::set_permissions(path.join("records.db"), Permissions::from_mode(0o644)).expect("ours");
        let again = Folder::open(&path).expect("it is free");
        assert_eq!(mode(again.database()), 0o600);
    }

    #[test]
    fn what_cannot_be_a_folder_is_named() {
        let outer = tempfile::tempdir().expect("a folder");
        let file = outer.path().join("file");
        fs::write(&file, "x").expect("a file");
        for path in [
            file.clone(),
            file.join("store"),
            outer.path().join("missing/store"),
            PathBuf::from("/proc/idem-proxy"),
        ] {
            let refused = Folder::open(&path).expect_err("no folder").to_string();
            assert!(refused.contains(path.to_str().expect("UTF-8")), "{refused}");
        }
    }
}
