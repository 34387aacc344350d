//! Recent starts: which run ids were made lately, so that a retried start is recognised without a read.

use core::mem;

use super::hash::Map;
use crate::limits::RECENT_STARTS_MAX;
use crate::{RunId, Timestamp};

/// Two generations of run ids. An id older than both must be looked up in the store.
#[derive(Debug)]
pub struct Recent {
    young: Map<u64, ()>,
    old: Map<u64, ()>,
    young_since: Timestamp,
    old_since: Timestamp,
}

impl Recent {
    /// Remembers starts from `now` on.
    pub fn new(now: Timestamp) -> Self {
        Self {
            young: Map::default(),
            old: Map::default(),
            young_since: now,
            old_since: now,
        }
    }

    /// Whether a start of `id` can be taken as the first one without asking the store. Remembers it if so.
    pub fn is_first(&mut self, id: RunId, now: Timestamp) -> bool {
        let key = (id.0 >> 64) as u64 ^ id.0 as u64;
        let made_at = id.made_at();
        // An id from before our memory began, or from a clock that is ahead of ours, proves nothing.
        let known = made_at > self.old_since && made_at <= now;
        if !known || self.young.contains_key(&key) || self.old.contains_key(&key) {
            return false;
        }
        if self.young.len() >= RECENT_STARTS_MAX {
            self.old = mem::take(&mut self.young);
            self.old_since = self.young_since;
            self.young_since = now;
        }
        self.young.insert(key, ());
        true
    }
}
