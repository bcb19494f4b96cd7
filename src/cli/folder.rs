//! What `--check` says of the disk store's folder: whether a start would get it. Nothing is made, written or locked.

use std::{fs, io::ErrorKind, path::Path};

use rustix::fs::{Access, access};

use crate::config::{Config, StoreKind};

/// Why a start with this configuration could not have its folder, in a sentence; `None`: it could, or it needs none.
pub(super) fn refused(config: &Config) -> Option<String> {
    let path = match config.store.kind {
        StoreKind::Disk => &config.store.disk.path,
        _ => return None,
    };
    why(path).map(|why| format!("store.disk.path = {:?}: {why}", path.display().to_string()))
}

fn why(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => Some("it is no folder".to_owned()),
        Ok(_) => usable(path, "it"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            match fs::metadata(parent) {
                Ok(found) if found.is_dir() => usable(parent, "it is not there, and its parent"),
                Ok(_) => Some("its parent is no folder".to_owned()),
                Err(error) => Some(format!(
                    "it is not there, and its parent cannot be looked at: {error}"
                )),
            }
        }
        Err(error) => Some(format!("it cannot be looked at: {error}")),
    }
}

/// Whether this process's user may make files there.
fn usable(folder: &Path, what: &str) -> Option<String> {
    let denied = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    let why = std::io::Error::from(denied);
    Some(format!("{what} cannot be written to by this user: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_a_start_would_get_is_not_refused_and_is_left_alone() {
        let outer = tempfile::tempdir().expect("a folder");
        assert_eq!(why(outer.path()), None);
        assert_eq!(why(&outer.path().join("store")), None, "it would be made");
        assert_eq!(fs::read_dir(outer.path()).expect("it").count(), 0);
    }

    #[test]
    fn what_a_start_would_not_get_is_refused() {
        let outer = tempfile::tempdir().expect("a folder");
        let file = outer.path().join("file");
        fs::write(&file, "x").expect("a file");
        for (path, said) in [
            (file.clone(), "no folder"),
            (file.join("store"), "cannot be looked at"),
            (
                outer.path().join("missing/store"),
                "parent cannot be looked at",
            ),
        ] {
            let why = why(&path).expect("refused");
            assert!(why.contains(said), "{why}");
        }
        // Nobody, root included, makes a folder there.
        assert!(why(Path::new("/sys/idem-proxy")).is_none_or(|why| why.contains("written")));
    }
}
