//! Who serves a store now: the process that owns its file, or the nodes that share its database.

use abide_kernel::RunId;
use abide_store::sqlite::SqliteStore;
use abide_store::{Living, Membership, Serving};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::place::{At, Place};

/// One who serves a store, or a part of it.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    /// Its name, for people.
    pub(crate) name: String,
    /// The number of its process, where that is known.
    pid: Option<u32>,
    /// How the names of its processes begin, under which it claims.
    process: String,
    /// What it can execute, if it says so.
    pub(crate) serving: Option<Serving>,
}

impl Keeper {
    fn node(living: &Living) -> Self {
        let member = &living.member;
        Self { name: member.node.to_string(), pid: None, process: member.process.to_string(), serving: None }
    }

    /// As people are told of it.
    pub(crate) fn shown(&self) -> String {
        match self.pid {
            Some(pid) => format!("process {pid} ({})", self.name),
            None => format!("node {} ({})", self.name, self.process),
        }
    }

    pub(crate) fn json(&self) -> Value {
        match self.pid {
            Some(pid) => json!({"pid": pid, "name": self.name}),
            None => json!({"process": self.process, "name": self.name}),
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Whether a claim by this process is its own.
    pub(crate) fn is(&self, process: &str) -> bool {
        process.starts_with(&self.process)
    }
}

impl Place {
    /// Who lives and who owns what, where nodes share the store.
    pub(crate) fn membership(&self) -> Result<Option<Membership>, Failure> {
        match &self.at {
            At::File { .. } => Ok(None),
            At::Database(_) => Ok(self.reader()?.membership()?),
        }
    }

    /// Everybody who serves the store now.
    pub(crate) fn keepers(&self) -> Result<Vec<Keeper>, Failure> {
        let At::File { path, .. } = &self.at else {
            let seen = self.membership()?.unwrap_or_default();
            return Ok(seen.living.iter().map(Keeper::node).collect());
        };
        let holder = SqliteStore::holder(path);
        Ok(Vec::from_iter(holder.map(|holder| Keeper {
            process: format!("{:x}-", holder.pid),
            pid: Some(holder.pid),
            name: holder.name,
            serving: holder.serving,
        })))
    }

    /// Whoever serves a run now.
    pub(crate) fn keeper_of(&self, run: RunId) -> Result<Option<Keeper>, Failure> {
        let At::Database(_) = &self.at else {
            return Ok(self.keepers()?.into_iter().next());
        };
        let mut reader = self.reader()?;
        let home = reader.map().home(run.slot());
        Ok(reader.membership()?.and_then(|seen| seen.owner(home).map(Keeper::node)))
    }
}
