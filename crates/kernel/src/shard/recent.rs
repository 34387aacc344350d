//! Recent starts: which run ids began here lately, so that a retried start is recognised without a read.

use core::mem;

use super::hash::Map;
use crate::limits::RECENT_STARTS_MAX;
use crate::{RunId, Timestamp};

/// Two generations of run ids. What must hold: every id that ever began here and was made after `since` is in one
/// of them.
#[derive(Clone, Debug)]
pub struct Recent {
    young: Generation,
    old: Generation,
    since: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct Generation {
    /// Whole: an id that were taken for another would be answered as begun, and never begin.
    ids: Map<RunId, ()>,
    newest: Timestamp,
}

impl Recent {
    /// Remembers starts from `now` on.
    pub fn new(now: Timestamp) -> Self {
        Self { young: Generation::default(), old: Generation::default(), since: now }
    }

    /// Whether `id` is certain never to have begun here, without asking the store.
    pub fn is_first(&self, id: RunId, now: Timestamp) -> bool {
        // An id from a clock that is ahead of ours may have begun before we were opened.
        id.made_at() <= now && id.made_at() > self.since && !self.holds(id)
    }

    /// `id` begins.
    pub fn remember(&mut self, id: RunId) {
        if id.made_at() <= self.since {
            return;
        }
        if self.young.ids.len() >= RECENT_STARTS_MAX {
            let dropped = mem::replace(&mut self.old, mem::take(&mut self.young));
            self.since = self.since.max(dropped.newest);
        }
        self.young.newest = self.young.newest.max(id.made_at());
        self.young.ids.insert(id, ());
    }

    /// `id` began before: ids as old as it that are not held may have, too.
    pub fn found(&mut self, id: RunId) {
        if id.made_at() > self.since && !self.holds(id) {
            self.since = id.made_at();
        }
    }

    /// Whether `id` is remembered to have begun here.
    pub fn holds(&self, id: RunId) -> bool {
        self.young.ids.contains_key(&id) || self.old.ids.contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slot;

    fn id(at: i64, entropy: u128) -> RunId {
        RunId::new(Timestamp(at), Slot(1), entropy)
    }

    #[test]
    fn an_id_is_first_only_when_nothing_could_have_begun_it() {
        let mut recent = Recent::new(Timestamp(100));
        let now = Timestamp(200);
        assert!(!recent.is_first(id(100, 1), now), "made before we were opened");
        assert!(!recent.is_first(id(201, 1), now), "made by a clock ahead of ours");
        assert!(recent.is_first(id(150, 1), now));
        recent.remember(id(150, 1));
        assert!(!recent.is_first(id(150, 1), now));
        assert!(recent.is_first(id(150, 2), now));
        recent.found(id(160, 9));
        assert!(!recent.is_first(id(155, 2), now), "others of that age may have begun before us too");
        assert!(recent.is_first(id(161, 2), now));
    }

    /// Starts whose request ids were counted up in one instant were answered and not made: the slot of one and the number of
    /// another came to the same.
    #[test]
    fn counted_ids_do_not_meet() {
        let mut recent = Recent::new(Timestamp(100));
        for slot in 0..64 {
            for number in 0..64 {
                let id = RunId::new(Timestamp(200), Slot(slot), number);
                assert!(!recent.holds(id), "slot {slot}, number {number}");
                recent.remember(id);
            }
        }
    }

    /// A client whose clock was ahead made an id that later fell out of memory: its retry must not begin it again.
    #[test]
    fn a_generation_that_is_dropped_takes_its_newest_id_along() {
        let mut recent = Recent::new(Timestamp(100));
        recent.remember(id(5_000, 1));
        for n in 0..2 * RECENT_STARTS_MAX as u128 {
            recent.remember(id(200, n));
        }
        assert!(!recent.is_first(id(5_000, 1), Timestamp(9_000)));
        assert!(recent.is_first(id(5_001, 1), Timestamp(9_000)));
    }

    #[test]
    fn what_is_found_never_makes_older_ids_first() {
        let mut recent = Recent::new(Timestamp(100));
        recent.found(id(50, 1));
        assert!(!recent.is_first(id(80, 1), Timestamp(200)));
        recent.found(id(150, 1));
        assert!(!recent.is_first(id(150, 2), Timestamp(200)) && recent.is_first(id(151, 1), Timestamp(200)));
    }
}
