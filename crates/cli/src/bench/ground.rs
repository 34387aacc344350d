//! Where a benchmark keeps its stores: files in a directory of their own, or a schema of its own in a database. They are
//! fresh, and gone afterwards.

use std::path::{Path, PathBuf};

use abide_store::{PostgresUrl, StoreUrl};
use anyhow::{Context, bail};
use tempfile::TempDir;

use super::database::Database;
use super::limit::Limit;

pub(crate) enum Ground {
    Files(TempDir),
    Database(Box<Database>),
}

/// A fresh store, and room beside it for raw rows. It may be used until the next one is made.
pub(crate) struct Plot {
    pub(crate) url: String,
    beside: Beside,
}

enum Beside {
    File(PathBuf),
    Table(PostgresUrl),
}

impl Ground {
    /// In the database of `store`, if it names one; else in files in `dir`.
    pub(crate) fn of(store: &str, dir: Option<&Path>) -> anyhow::Result<Self> {
        match store.parse()? {
            StoreUrl::Postgres(_) if dir.is_some() => {
                bail!("--dir is for files, and {store} is a database: leave one of them out")
            }
            StoreUrl::Postgres(_) => Ok(Self::Database(Box::new(Database::begin(store)?))),
            StoreUrl::Sqlite { .. } | StoreUrl::Memory => Ok(Self::Files(scratch(dir)?)),
        }
    }

    /// What kind of store it has.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Files(_) => "sqlite",
            Self::Database(_) => "postgres",
        }
    }

    /// How many shards a store gets unless it is said otherwise: as many as an engine gives it.
    pub(crate) fn shards(&self) -> u16 {
        match self {
            Self::Files(_) => 1,
            Self::Database(_) => 64,
        }
    }

    /// A fresh store. In a database it takes the place of the one before.
    pub(crate) fn fresh(&self, name: &str) -> anyhow::Result<Plot> {
        match self {
            Self::Files(dir) => Ok(Plot {
                url: format!("sqlite:{}", dir.path().join(format!("{name}.db")).display()),
                beside: Beside::File(dir.path().join(format!("{name}-raw.db"))),
            }),
            Self::Database(database) => {
                let (url, parsed) = database.fresh()?;
                Ok(Plot { url, beside: Beside::Table(parsed) })
            }
        }
    }
}

impl Plot {
    /// The limit for rows of so many bytes, measured in an empty table.
    pub(crate) fn limit(&self, row_bytes: usize) -> anyhow::Result<Limit> {
        match &self.beside {
            Beside::File(path) => Limit::sqlite(path, row_bytes),
            Beside::Table(url) => Limit::postgres(url, row_bytes),
        }
    }
}

/// A directory for the files: fresh, and gone afterwards.
pub(crate) fn scratch(base: Option<&Path>) -> anyhow::Result<TempDir> {
    let base = base.map_or_else(|| PathBuf::from("."), Path::to_owned);
    tempfile::Builder::new()
        .prefix("abide-bench-")
        .tempdir_in(&base)
        .with_context(|| format!("making a directory in {}", base.display()))
}
