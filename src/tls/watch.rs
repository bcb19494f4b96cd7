//! Files that change while what was made of them is in use.
//!
//! Nobody tells of a change: the content of all the files is compared every now and then, so that it does not matter how they are
//! replaced (written over, renamed, a symbolic link above them swapped). What was made of them changes as a whole or not at all.

use std::{fmt, fs, path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::{Expiry, Unusable, expiry};

type Build<T> = dyn Fn() -> Result<Arc<T>, Unusable> + Send + Sync;

/// What is made of files, and made anew when they change.
///
/// Whoever uses it asks for [`current`](Self::current) each time: what was taken before goes on as it was.
pub struct Watched<T> {
    /// All that `build` reads.
    files: Vec<PathBuf>,
    /// The one of them whose certificate tells how long it may be used.
    cert: Option<PathBuf>,
    build: Box<Build<T>>,
    current: ArcSwap<Made<T>>,
    seen: Mutex<Seen>,
}

/// What was last looked at.
struct Seen {
    content: [u8; 32],
    /// Why it cannot be used, until that is said.
    refused: Option<Unusable>,
}

struct Made<T> {
    value: Arc<T>,
    expiry: Option<Expiry>,
}

/// What [`Watched::look`] found.
#[derive(Debug)]
#[must_use]
pub enum Look {
    /// The files are what they were.
    Same,
    /// They have changed, and what is made of them now is in use.
    Applied,
    /// They have changed, and what is in them cannot be used: what was there before still is. Said once for each change, and only
    /// when a second look finds the same: the first may have come while they were being written.
    Refused(Unusable),
}

/// What is followed, whatever is made of it.
pub trait Follow: Send + Sync {
    /// As [`Watched::look`].
    fn look(&self) -> Look;

    /// As [`Watched::expiry`].
    fn expiry(&self) -> Option<Expiry>;
}

impl<T: Send + Sync> Follow for Watched<T> {
    fn look(&self) -> Look {
        self.look()
    }

    fn expiry(&self) -> Option<Expiry> {
        self.expiry()
    }
}

impl<T> Watched<T> {
    /// What `build` makes of `files`, now and when one of them has changed. `cert` is the one of them whose first certificate is shown
    /// to others, if any is. Blocks for as long as the file system does.
    ///
    /// # Errors
    /// `build`'s, or `cert` is no certificate.
    pub fn new(
        files: Vec<PathBuf>,
        cert: Option<PathBuf>,
        build: impl Fn() -> Result<Arc<T>, Unusable> + Send + Sync + 'static,
    ) -> Result<Self, Unusable> {
        // Read before it is built: what changes in between is found by the next look.
        let content = content(&files);
        let build: Box<Build<T>> = Box::new(build);
        let made = make(build.as_ref(), cert.as_ref())?;
        Ok(Self {
            files,
            cert,
            build,
            current: ArcSwap::from_pointee(made),
            seen: Mutex::new(Seen {
                content,
                refused: None,
            }),
        })
    }

    /// What is in use. Takes no lock.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.load().value)
    }

    /// When the certificate that is in use expires; `None`: there is none.
    #[must_use]
    pub fn expiry(&self) -> Option<Expiry> {
        self.current.load().expiry
    }

    /// Reads the files again, and makes of them what is used from now on if they have changed. Blocks for as long as the file system
    /// does.
    pub fn look(&self) -> Look {
        let mut seen = self.seen.lock();
        let content = content(&self.files);
        if seen.content == content {
            return seen.refused.take().map_or(Look::Same, Look::Refused);
        }
        seen.content = content;
        seen.refused = None;
        match make(self.build.as_ref(), self.cert.as_ref()) {
            Ok(made) => {
                self.current.store(Arc::new(made));
                Look::Applied
            }
            Err(why) => {
                seen.refused = Some(why);
                Look::Same
            }
        }
    }
}

fn make<T>(build: &Build<T>, cert: Option<&PathBuf>) -> Result<Made<T>, Unusable> {
    Ok(Made {
        value: build()?,
        expiry: cert.map(|path| expiry(path)).transpose()?,
    })
}

/// What tells one content of the files from another; a file that cannot be read has a content of its own. Of what they hold nothing is
/// kept.
fn content(files: &[PathBuf]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for file in files {
        match fs::read(file) {
            Ok(bytes) => {
                hash.update([1]);
                hash.update((bytes.len() as u64).to_be_bytes());
                hash.update(&bytes);
            }
            Err(_) => hash.update([0]),
        }
    }
    hash.finalize().into()
}

impl<T> fmt::Debug for Watched<T> {
    /// The files' names; never what is made of them, which may hold a private key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
