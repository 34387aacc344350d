//! Patches: an edit that open runs must not meet half-way. A run that comes to it for the first time is marked and goes the
//! new way; one whose history has passed it goes the old way; both for good.

use std::panic::Location;

use abide_kernel::transition::record::Wanted;
use abide_kernel::{EndedAt, OpState, Payload, Str};

use super::{Known, Ledger, LocalKind, State, check_name, divergence};

impl Ledger {
    /// Whether the code goes the new way at the edit of this name. What is decided first counts for the whole life of the
    /// run, so that two places of one edit never disagree.
    pub(crate) fn patched(&self, name: &str, place: &'static Location<'static>) -> bool {
        let mut state = self.state.lock();
        if let Err(error) = check_name(name) {
            Self::end_attempt(&mut state, error.info);
            return false;
        }
        if let Some(decided) = state.patches.get(name) {
            return *decided;
        }
        let key: Str = name.into();
        let recorded = state.by_key.get(&key).copied();
        let patched = match recorded {
            Some(local) => {
                state.ask(local);
                let known = &state.entries[local];
                if let Some(error) = divergence(known, LocalKind::Patch, 0, place) {
                    Self::end_attempt(&mut state, error);
                }
                true
            }
            None => !(self.link.is_over() || state.has_more()),
        };
        if recorded.is_none() && patched {
            state.mark(key.clone());
        }
        state.patches.insert(name.to_owned(), patched);
        drop(state);
        if let Some(observer) = self.link.observer().filter(|_| patched) {
            observer.asked(self.link.claim().run, &key);
        }
        patched
    }
}

impl State {
    /// Whether the history goes on beyond where the code is: something was seen that the code has not seen again, or was
    /// begun that the code has not asked for. Marks of other edits say nothing about that.
    fn has_more(&self) -> bool {
        let counts = |known: &Known| known.kind != LocalKind::Patch;
        let unseen = self.replay.iter().any(|local| counts(&self.entries[*local]));
        unseen || self.unasked > 0 && self.entries.iter().any(|known| !known.asked && counts(known))
    }

    /// Marks the run: it goes the new way.
    fn mark(&mut self, key: Str) {
        self.ended += 1;
        let at = self.now;
        let when = EndedAt { ended: self.ended, seen: 0, at };
        let state = OpState::Done { when, value: Payload::null() };
        let mark = Known::new(key, LocalKind::Patch, 0);
        let local = self.add(Known { state, asked: true, delivered: true, released: true, ..mark });
        self.write_intent(local, Wanted::Patch { at });
    }
}
