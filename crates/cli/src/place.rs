//! The store that a verb is about: read beside whoever serves it, or opened for a moment to change one thing.

use std::path::{Path, PathBuf};

use abide_runtime::Snapshot;
use abide_store::sqlite::SqliteReader;
use abide_store::{Durability, PostgresUrl, Reader, StoreUrl, postgres, sqlite};

use crate::failure::{Exit, Failure};
use crate::nearby;
use crate::options::Globals;

/// A store by its URL.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) at: At,
    pub(crate) namespace: Option<String>,
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

    /// With what it promises.
    pub(crate) fn described(&self) -> String {
        match self {
            Self::File { durability, .. } => {
                let durability = if *durability == Durability::Full { "full" } else { "relaxed" };
                format!("{} (sqlite, durability {durability})", self.shown())
            }
            Self::Database(_) => format!("{} (postgres)", self.shown()),
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
            Self::File { .. } => {
                "give its path with --store sqlite:PATH or in ABIDE_STORE, or start an engine on it; --url asks a server"
            }
            Self::Database(_) => "give its schema, as in ?schema=abide, or start an engine on it",
        };
        Err(Failure::new(Exit::NotFound, "no_store", what).hint(hint))
    }
}

impl Place {
    /// The store that is meant, for a verb that needs one.
    pub(crate) fn of(globals: &Globals) -> Result<Self, Failure> {
        if let Some(asked) = globals.server.as_ref().filter(|asked| asked.from != nearby::FROM) {
            let what = format!("this works on a store, and {} names a server, {}", asked.from, asked.url);
            return Err(Failure::usage("needs_store", what)
                .hint("give the store: --store sqlite:abide.db or --store postgres://user@host/database"));
        }
        Ok(Self { at: At::of(&globals.store)?, namespace: globals.namespace.clone() })
    }

    /// As it may be shown: without a password.
    pub(crate) fn shown(&self) -> String {
        self.at.shown()
    }

    /// With what it promises.
    pub(crate) fn described(&self) -> String {
        self.at.described()
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
}
