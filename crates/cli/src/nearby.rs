//! The server that `abide dev` runs in this folder, and the store that it keeps there: what the other verbs mean in this folder
//! when nothing else is said.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use abide_store::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};

/// Where `abide dev` keeps its things.
pub(crate) const FOLDER: &str = ".abide";
/// Who says so, as the other verbs tell it.
pub(crate) const FROM: &str = "abide dev in this folder";
/// Who says so of the store that stays when the server has stopped.
pub(crate) const KEPT: &str = "kept by abide dev in this folder, which does not run";

/// The store that stays in a folder.
pub(crate) fn kept(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join("abide.db")
}

/// A server of a folder, as it is written there.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nearby {
    pub(crate) url: String,
    pub(crate) store: PathBuf,
    pub(crate) pid: u32,
}

impl Nearby {
    fn file(folder: &Path) -> PathBuf {
        folder.join(FOLDER).join("dev.json")
    }

    /// The server of a folder, if it is there: whoever wrote the note has the store that it names. The folder may be somebody
    /// else's, so that only an address of this machine is believed.
    pub(crate) fn find(folder: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(Self::file(folder)).ok()?;
        let mut found: Self = serde_json::from_str(&text).ok()?;
        found.store = folder.join(&found.store);
        let holder = SqliteStore::holder(&found.store)?;
        let at: std::net::SocketAddr = found.url.strip_prefix("http://")?.parse().ok()?;
        (holder.pid == found.pid && at.ip().is_loopback()).then_some(found)
    }

    /// Lets other commands in a folder find a server of this process.
    pub(crate) fn announce(folder: &Path, url: &str, store: &Path) -> std::io::Result<Announced> {
        let path = Self::file(folder);
        let beside = folder.join(FOLDER);
        std::fs::create_dir_all(&beside)?;
        let note = Self { url: url.into(), store: store.into(), pid: std::process::id() };
        // Whoever reads meanwhile finds the old note or this one. The name is new each time: the folder may have a
        // link of any name that could be known before, and what it leads to would be overwritten.
        let all = Permissions::from_mode(0o644);
        let mut fresh = tempfile::Builder::new().prefix("dev.").permissions(all).tempfile_in(&beside)?;
        fresh.write_all(serde_json::to_string(&note)?.as_bytes())?;
        fresh.persist(&path)?;
        Ok(Announced { path })
    }
}

/// A note that ends with its server.
pub(crate) struct Announced {
    path: PathBuf,
}

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The folder goes too, unless something is kept in it.
        let _ = self.path.parent().map(std::fs::remove_dir);
    }
}
