//! Ownership of the file: a lock beside it that names its holder and ends with its process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::{Fault, FaultKind};

/// Who holds a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// What the holder says of itself.
    pub name: String,
}

#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Takes the lock of the store at `path`, or says who has it.
pub(super) fn take(path: &Path, owner: &str) -> Result<Lock, Fault> {
    let lock = beside(path);
    let doing = |error: std::io::Error| {
        let message = format!("the lock file {} cannot be opened: {error}", lock.display());
        Fault::because(FaultKind::Unusable, message, error)
    };
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock).map_err(doing)?;
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
    Ok(Lock { _file: file })
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
    Some(Holder { pid, name: lines.next().unwrap_or_default().to_owned() })
}
