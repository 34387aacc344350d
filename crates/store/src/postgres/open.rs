//! Opening a store: what the server is, the schema's format, how many shards.

use std::sync::Arc;

use abide_kernel::{SLOTS, ShardMap};

use super::append::{MESSAGES, ROW, ROWS};
use super::connect::{Role, Settings};
use super::flush::FLUSH;
use super::link::{Link, Live, Work};
use super::{Lease, Owned, PostgresReader, PostgresStore, Transactions, import, schema};
use crate::{Fault, FaultKind, PostgresUrl};

impl PostgresStore {
    /// Opens the store that `url` names, or makes it with `shards` shards. Any number of nodes may have it open.
    ///
    /// # Errors
    /// When the database cannot be reached, is none that can hold a store, holds one of a newer format, or may not be
    /// written by this user; when it holds a part of what was to be imported; with `strict`, also when the server may
    /// lose what it acknowledged.
    pub fn open(url: &PostgresUrl, shards: u16) -> Result<Self, Fault> {
        if shards == 0 || shards > SLOTS {
            let message = format!("a store has 1 to {SLOTS} shards, not {shards}");
            return Err(Fault::new(FaultKind::Unusable, message));
        }
        let settings = Arc::new(Settings::of(url)?);
        let mut link = Link::new(settings.clone(), Role::Owner)?;
        let doing = format!("opening {url}");
        link.run(&doing, Work::Read, async |live: &mut Live| settings.check(live).await)?;
        // Tables of an earlier release may be large.
        link.run_at_leisure(&doing, async |live: &mut Live| schema::migrate(live, &settings.schema, shards).await)?;
        let found = link.run(&doing, Work::Repeatable, async |live: &mut Live| {
            import::check(live, &settings.schema).await?;
            // The first of each is not to wait for this.
            live.prepare(&[ROW, ROWS, MESSAGES, FLUSH]).await?;
            schema::shards(live).await
        })?;
        let map = ShardMap::new(found);
        let transactions = Arc::new(Transactions::new(settings.clone()));
        Ok(Self {
            link,
            settings,
            map,
            shards: vec![Owned::default(); usize::from(map.count())],
            lease: Lease::default(),
            counts: Arc::default(),
            buffer: Vec::new(),
            transactions,
        })
    }
}

/// Whether there is a store where `url` says. Nothing is made.
///
/// # Errors
/// When the database cannot be reached, or its schema holds something else.
pub fn is_made(url: &PostgresUrl) -> Result<bool, Fault> {
    let settings = Arc::new(Settings::of(url)?);
    let mut link = Link::new(settings.clone(), Role::Reader)?;
    let doing = format!("looking for {url}");
    link.run(&doing, Work::Read, async |live: &mut Live| Ok(schema::format(live, &settings.schema).await?.is_some()))
}

/// A view of the store that `url` names. It never writes, and needs no permission to.
///
/// # Errors
/// When there is no store, or it is of another format.
pub fn open_read_only(url: &PostgresUrl) -> Result<PostgresReader, Fault> {
    PostgresReader::open(Arc::new(Settings::of(url)?), Arc::default())
}
