//! Membership: several nodes share a store, and the store knows who lives and who serves what.
//!
//! A node that lives has a lease, and renews it before it ends. A shard belongs to one node, or to none; its ownership
//! changes only when another node takes it, which bumps its epoch and refuses every write of the one before. A shard may
//! be taken from nobody, from oneself, and from a node whose lease has ended by the store's own clock.

use std::time::Duration;

use abide_kernel::{ShardEpoch, ShardId, Str, Timestamp};

use serde::{Deserialize, Serialize};

use crate::Fault;

/// A node, as it enters a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// This life of the node: no two processes share one.
    pub process: Str,
    /// The node's name, for people.
    pub node: Str,
    /// Where other nodes reach it.
    pub address: Str,
    /// Whether it wants no shards: it stays only for a moment, or was asked to hand over what it serves.
    pub draining: bool,
}

/// A node that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Living {
    /// Who.
    pub member: Member,
    /// When its lease ends, by the store's clock.
    pub until: Timestamp,
}

/// A shard and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Which shard.
    pub shard: ShardId,
    /// Its ownership.
    pub epoch: ShardEpoch,
    /// The process that took it last and has not released it, living or not.
    pub owner: Option<Str>,
}

/// Who lives, and who owns what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// The instant of this, by the store's clock.
    pub now: Timestamp,
    /// Nodes whose leases have not ended, by process.
    pub living: Vec<Living>,
    /// Nodes whose leases have ended and that are not forgotten yet. Only those who look are told of them.
    pub gone: Vec<Living>,
    /// Every shard, in order.
    pub shards: Vec<Owned>,
    /// Shards of the node that asks for which messages may wait: whoever sent them could perhaps not say so.
    pub mail: Vec<ShardId>,
}

impl Membership {
    /// The node that serves a shard, if one does.
    #[must_use]
    pub fn owner(&self, shard: ShardId) -> Option<&Living> {
        let owner = self.shards.get(usize::from(shard.0))?.owner.as_ref()?;
        self.living.iter().find(|living| living.member.process == *owner)
    }

    /// The last ownership of a shard that is known.
    #[must_use]
    pub fn epoch(&self, shard: ShardId) -> ShardEpoch {
        self.shards.get(usize::from(shard.0)).map_or(ShardEpoch(0), |owned| owned.epoch)
    }

    /// Whether a shard may be taken: it belongs to nobody who lives.
    #[must_use]
    pub fn is_free(&self, shard: ShardId) -> bool {
        self.owner(shard).is_none()
    }
}

/// What several nodes need of a store they share. A store for one owner at a time has none of it.
pub trait Cluster {
    /// Says that the node lives until `lease` from now, by the store's clock, and tells who lives and who owns what.
    /// Whether it wants shards is what it says as it enters; from then on the store's word counts, see
    /// [`Cluster::drain`]. Members whose leases ended long ago may be forgotten.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn renew(&mut self, member: &Member, lease: Duration) -> Result<Membership, Fault>;

    /// Gives up a shard, so that another may take it at once. Nothing happens if it is not owned under this epoch.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn release(&mut self, shard: ShardId, epoch: ShardEpoch) -> Result<(), Fault>;

    /// Asks a node to hand over what it serves and to take nothing more, or to take its share again. It takes notice when
    /// it renews its lease. Whether there is such a process.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn drain(&mut self, process: &str, draining: bool) -> Result<bool, Fault>;

    /// A secret that all nodes of this store share, by which they know each other. It was made with the store.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn secret(&mut self) -> Result<Vec<u8>, Fault>;

    /// The node is going: its lease ends now, and what it owned is free.
    ///
    /// # Errors
    /// When the store cannot be written.
    fn leave(&mut self, process: &str) -> Result<(), Fault>;
}
