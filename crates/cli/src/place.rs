//! The store that a verb is about: read beside whoever serves it, or opened for a moment to change one thing.

use std::path::{Path, PathBuf};

use abide_kernel::RunId;
use abide_runtime::Snapshot;
use abide_store::sqlite::SqliteReader;
use abide_store::{Durability, PostgresUrl, Reader, StoreUrl, postgres, sqlite};

use crate::failure::{Exit, Failure};
use crate::options::Globals;

/// How many runs are named when a prefix fits several.
const CANDIDATES_SHOWN: usize = 8;

/// A store by its URL.
pub(crate) struct Place {
    pub(crate) at: At,
    namespace: Option<String>,
}

/// Where a store is that can be looked at from here.
#[derive(Clone, Debug)]
pub(crate) enum At {
    /// In a file, which one process owns at a time.
    File { path: PathBuf, durability: Durability },
    /// In a database, which nodes share.
    Database(PostgresUrl),
}

impl At {
    pub(crate) fn of(url: &str) -> Result<Self, Failure> {
        match url.parse()? {
            StoreUrl::Sqlite { path, durability } => Ok(Self::File { path, durability }),
            StoreUrl::Postgres(url) => Ok(Self::Database(url)),
            StoreUrl::Memory => {
                let what = "a store in memory ends with its process; there is nothing to look at from here";
                Err(Failure::usage("bad_store", what).hint("give a file: --store sqlite:abide.db"))
            }
        }
    }

    /// As it may be shown: without a password.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::File { path, .. } => path.display().to_string(),
            Self::Database(url) => url.to_string(),
        }
    }

    pub(crate) fn exists(&self) -> Result<bool, Failure> {
        match self {
            Self::File { path, .. } => Ok(path.exists()),
            Self::Database(url) => Ok(postgres::is_made(url)?),
        }
    }

    pub(crate) fn check_exists(&self) -> Result<(), Failure> {
        if self.exists()? {
            return Ok(());
        }
        let what = format!("there is no store at {}", self.shown());
        let hint = match self {
            Self::File { .. } => "give its path with --store sqlite:PATH or in ABIDE_STORE, or start an engine on it",
            Self::Database(_) => "give its schema, as in ?schema=abide, or start an engine on it",
        };
        Err(Failure::new(Exit::NotFound, "no_store", what).hint(hint))
    }
}

impl Place {
    pub(crate) fn of(globals: &Globals) -> Result<Self, Failure> {
        Ok(Self { at: At::of(&globals.store)?, namespace: globals.namespace.clone() })
    }

    /// As it may be shown: without a password.
    pub(crate) fn shown(&self) -> String {
        self.at.shown()
    }

    /// The file, if it is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        match &self.at {
            At::File { path, .. } => Some(path),
            At::Database(_) => None,
        }
    }

    pub(crate) fn reader(&self) -> Result<Box<dyn Reader>, Failure> {
        self.at.check_exists()?;
        match &self.at {
            At::File { path, .. } => Ok(Box::new(sqlite::open_read_only(path)?)),
            At::Database(url) => Ok(Box::new(postgres::open_read_only(url)?)),
        }
    }

    /// What only a file has: a shape of its own, that others may have changed.
    pub(crate) fn file_reader(&self) -> Result<Option<SqliteReader>, Failure> {
        self.at.check_exists()?;
        self.file().map(|path| Ok(sqlite::open_read_only(path)?)).transpose()
    }

    /// The store as it is, also beside a running engine.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        Ok(Snapshot::read(self.reader()?)?)
    }

    /// The run that is meant by an id or by the beginning of one.
    pub(crate) fn find(&self, snapshot: &mut Snapshot, text: &str) -> Result<RunId, Failure> {
        let bare = text.strip_prefix("run_").unwrap_or(text).to_ascii_lowercase();
        if bare.is_empty() || bare.len() > 32 || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let shown: String = text.chars().take(80).collect();
            let what = format!("expected a run id like run_0193… or the beginning of one, found {shown:?}");
            return Err(Failure::usage("bad_id", what).hint("abide run list shows the ids"));
        }
        let found = snapshot.find(&bare, CANDIDATES_SHOWN + 1)?;
        let missing = || {
            let what = format!("there is no run {text} in {}", self.shown());
            Failure::new(Exit::NotFound, "not_found", what).hint("abide run list shows the runs of this store")
        };
        match found.as_slice() {
            [] => Err(missing()),
            [run] if self.is_theirs(snapshot, *run) => Ok(*run),
            [_] => Err(missing()),
            several => {
                let mut hint = String::from("give more of it; these begin so:");
                for run in several.iter().take(CANDIDATES_SHOWN) {
                    hint.push_str(&format!("\n  {run}"));
                }
                if several.len() > CANDIDATES_SHOWN {
                    hint.push_str("\n  … and more");
                }
                let what = format!("{text} is the beginning of several run ids");
                Err(Failure::usage("ambiguous_id", what).hint(hint))
            }
        }
    }

    /// Whether the run is of the tenant asked for. One that cannot be read is shown as what it is.
    fn is_theirs(&self, snapshot: &mut Snapshot, run: RunId) -> bool {
        let Some(namespace) = &self.namespace else {
            return true;
        };
        match snapshot.show(run) {
            Ok(Some(stored)) => *stored.run.started.spec.namespace == **namespace,
            Ok(None) | Err(_) => true,
        }
    }

    /// The run that is meant, for a verb that changes it. Nothing is opened to write for a run that is not there.
    pub(crate) fn find_to_change(&self, text: &str) -> Result<RunId, Failure> {
        let mut snapshot = self.snapshot()?;
        self.find(&mut snapshot, text)
    }
}
