//! Ownership of the file: a lock beside it that names its holder and ends with its process. Its lines are the process,
//! its name, and, as JSON, what it can execute; of a line that is missing or strange nothing is known.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::{Fault, FaultKind, Serving};

/// Who holds a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// What the holder says of itself.
    pub name: String,
    /// What the holder can execute, if it has said so in a way that is understood here.
    pub serving: Option<Serving>,
}

#[derive(Debug)]
pub(super) struct Lock {
    file: File,
    path: PathBuf,
    /// Where the lines that name the holder end.
    named: u64,
}

impl Lock {
    /// Says what the holder can execute, in place of what it said before. One who reads it half written does not
    /// understand it, and knows no less than before.
    pub(super) fn announce(&mut self, serving: &Serving) -> Result<(), Fault> {
        let mut line = serde_json::to_vec(serving).unwrap_or_default();
        line.push(b'\n');
        let written = self
            .file
            .set_len(self.named)
            .and_then(|()| self.file.seek(SeekFrom::Start(self.named)))
            .and_then(|_| self.file.write_all(&line));
        written.map_err(|error| unusable(&self.path, error))
    }
}

impl Drop for Lock {
    /// By itself a lock ends when the last copy of its file is closed, and a process that is being started from this one
    /// has a copy for a moment.
    fn drop(&mut self) {
        // Should it fail, the lock ends with this process.
        let _ = self.file.unlock();
    }
}

fn unusable(lock: &Path, error: Error) -> Fault {
    let message = format!("the lock file {} cannot be opened or written: {error}", lock.display());
    Fault::because(FaultKind::Unusable, message, error)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Takes the lock of the store at `path`, or says who has it.
pub(super) fn take(path: &Path, owner: &str) -> Result<Lock, Fault> {
    let lock = beside(path);
    let doing = |error: Error| unusable(&lock, error);
    let mut file = open(&lock).map_err(doing)?;
    match try_lock(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = read_holder(&mut file)
                .map_or("another process".to_owned(), |holder| format!("process {} ({})", holder.pid, holder.name));
            let message =
                format!("the store {} is in use by {holder}; stop it, or use commands that only read", path.display());
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        Err(TryLockError::Error(error)) => return Err(doing(error)),
    }
    let text = format!("{}\n{}\n", std::process::id(), owner.replace('\n', " "));
    file.set_len(0).map_err(doing)?;
    file.seek(SeekFrom::Start(0)).map_err(doing)?;
    file.write_all(text.as_bytes()).map_err(doing)?;
    Ok(Lock { file, path: lock, named: text.len() as u64 })
}

/// Opens the lock file, made if it is not there. The folder may be somebody else's: a link in its place could lead to
/// any file of the user, which would be overwritten.
fn open(lock: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    // What is made is made here, and not where a link leads.
    match options.clone().create_new(true).open(lock) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = std::fs::symlink_metadata(lock)?;
    if found.is_symlink() {
        let to = std::fs::read_link(lock)?;
        return Err(Error::other(format!("it is a symbolic link, to {}; remove it", to.display())));
    }
    let file = options.open(lock)?;
    let opened = file.metadata()?;
    // It may have become a link in between.
    match (found.dev(), found.ino()) == (opened.dev(), opened.ino()) {
        true => Ok(file),
        false => Err(Error::other("it was replaced while it was opened")),
    }
}

/// Tries for a moment: one who only asks for the holder has the lock for an instant.
fn try_lock(file: &File) -> Result<(), TryLockError> {
    for _ in 0..5 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(10)),
            other => return other,
        }
    }
    file.try_lock()
}

/// Who holds the store at `path` now; `None` when nobody does.
pub(super) fn holder(path: &Path) -> Option<Holder> {
    let mut file = OpenOptions::new().read(true).write(true).open(beside(path)).ok()?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => read_holder(&mut file),
        _ => None,
    }
}

fn read_holder(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.parse().ok()?;
    let name = lines.next().unwrap_or_default().to_owned();
    let serving = lines.next().and_then(|line| serde_json::from_str(line).ok());
    Some(Holder { pid, name, serving })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]
mod tests {
    use super::*;

    /// A folder of somebody else had a link in place of the lock, and the file it led to was overwritten.
    #[test]
    fn a_link_in_place_of_the_lock_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("abide.db"), folder.path().join("precious"));
        std::os::unix::fs::symlink(&precious, beside(&path)).unwrap();
        let fault = take(&path, "first").unwrap_err();
        assert!(fault.message.contains("symbolic link") && fault.message.contains("precious"), "{}", fault.message);
        assert!(!precious.exists(), "nothing is made where it leads");
        std::fs::write(&precious, "keep me").unwrap();
        assert!(take(&path, "first").is_err());
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "keep me");
    }

    /// A process that is being started has copies of all files until it becomes another program.
    #[test]
    fn a_lock_that_is_given_back_is_free_whoever_has_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abide.db");
        let lock = take(&path, "first").unwrap();
        let copy = lock.file.try_clone().unwrap();
        assert!(take(&path, "second").is_err());
        drop(lock);
        take(&path, "third").unwrap();
        drop(copy);
    }
}
