//! House: everything that a store holds is carried to another one, of whatever kind and with however many shards.
//!
//! While that is done nobody else works on the store: its shards are taken. What is under way between shards is delivered
//! first, so that no envelope has to be carried, and what only the old store knew of its runs is left behind.

mod export;
mod file;
mod import;

use std::time::{Duration, Instant};

use abide_kernel::{LetterId, RequestId, ShardMap, Str};
use abide_store::{Fault, Member, Opened, Reader, Store};

pub use export::export;
pub use file::{Contents, Head};
pub use import::import;

use crate::engine::OpenError;

/// How long a node that moves a store is believed to live.
const LEASE: Duration = Duration::from_secs(60);
/// Rows read or written at a time.
const PAGE_ROWS: usize = 1_000;

/// Why a store could not be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HouseError {
    /// The store could not be read or written.
    #[error(transparent)]
    Store(#[from] Fault),
    /// The engine that delivers what is under way could not begin.
    #[error(transparent)]
    Engine(#[from] OpenError),
    /// The file could not be read or written.
    #[error("the file could not be read or written: {0}")]
    File(#[from] std::io::Error),
    /// The file is not whole, or not what was exported.
    #[error("line {line} of the file: {problem}")]
    BadFile {
        /// The line, counted from 1.
        line: u64,
        /// What was expected and what was found.
        problem: String,
    },
    /// Others work on the store.
    #[error("expected a store that no node serves, found {nodes} that live")]
    Served {
        /// Their names.
        nodes: String,
    },
    /// Somebody worked on the store in between.
    #[error("the store was opened by another while it was being moved: what was read is not one state of it")]
    Disturbed,
    /// Something was asked by SQL that nobody has taken in.
    #[error(
        "expected that everything asked by SQL was answered, found {request}, which waits for an engine that has its workflow"
    )]
    Asked {
        /// The first of them.
        request: RequestId,
    },
    /// The same, and it was not there when the export began.
    #[error(
        "{request} was asked by SQL while the store was exported: stop whoever asks, have an engine answer it, and export again"
    )]
    AskedMeanwhile {
        /// The first of them.
        request: RequestId,
    },
    /// A message that begins a run was set aside: the key of that run is held, and there is no run.
    #[error("{letter} would begin a run whose key is held for it: requeue or discard it before the store is exported")]
    Unbegun {
        /// The dead letter.
        letter: LetterId,
    },
    /// What is in the store is not what was in the file.
    #[error("after the import the store has another content: expected {expected}, found {found}")]
    Differs {
        /// What the file has.
        expected: Box<Contents>,
        /// What the store has.
        found: Box<Contents>,
    },
}

/// A store whose every shard is taken by this process.
struct House {
    store: Box<dyn Store>,
    map: ShardMap,
    member: Member,
    /// By shard, as it was taken.
    opened: Vec<Opened>,
    renewed: Instant,
}

impl House {
    /// Takes every shard, unless others live.
    fn take(store: Box<dyn Store>, node: &str) -> Result<Self, HouseError> {
        let process: Str = format!("{:x}-{:016x}", std::process::id(), crate::Entropy::System.next() as u64).into();
        let member = Member { process, node: node.into(), address: "".into(), draining: true };
        let map = store.map();
        let mut house = Self { store, map, member, opened: Vec::new(), renewed: Instant::now() };
        match house.settle_in() {
            Ok(()) => Ok(house),
            Err(error) => {
                house.leave();
                Err(error)
            }
        }
    }

    fn settle_in(&mut self) -> Result<(), HouseError> {
        if let Some(cluster) = self.store.cluster() {
            let seen = cluster.renew(&self.member, LEASE)?;
            let others = seen.living.iter().map(|living| &living.member);
            alone(others.filter(|member| member.process != self.member.process))?;
        }
        for shard in self.map.all() {
            self.opened.push(self.store.open_shard(shard, &self.member.process)?);
        }
        Ok(())
    }

    /// Lets nobody take over while this goes on.
    fn stay(&mut self) -> Result<(), HouseError> {
        if self.renewed.elapsed() >= LEASE / 4 {
            self.check_ours()?;
        }
        Ok(())
    }

    /// Renews the lease, and looks whether every shard is still the one that was taken.
    fn check_ours(&mut self) -> Result<(), HouseError> {
        self.renewed = Instant::now();
        let Some(cluster) = self.store.cluster() else { return Ok(()) };
        let seen = cluster.renew(&self.member, LEASE)?;
        let ours = seen.shards.iter().zip(&self.opened).all(|(owned, opened)| owned.epoch == opened.epoch);
        if ours { Ok(()) } else { Err(HouseError::Disturbed) }
    }

    fn reader(&self) -> Result<Box<dyn Reader>, HouseError> {
        Ok(self.store.reader()?)
    }

    /// Gives everything up. What was written is written: should it fail, others wait until the lease ends.
    fn leave(mut self) {
        if let Some(cluster) = self.store.cluster()
            && let Err(fault) = cluster.leave(&self.member.process)
        {
            tracing::warn!(%fault, "the store could not be left; others can take it when the lease ends");
        }
        if let Err(fault) = self.store.close() {
            tracing::warn!(%fault, "the store could not be closed in good order; nothing is lost");
        }
    }
}

/// Refuses a store that others serve.
fn alone<'a>(others: impl Iterator<Item = &'a Member>) -> Result<(), HouseError> {
    let names: Vec<&str> = others.map(|member| &*member.node).collect();
    if names.is_empty() { Ok(()) } else { Err(HouseError::Served { nodes: names.join(", ") }) }
}
