//! The one deadline index: for every run the earliest instant at which something must happen to it by itself.
//!
//! Entries are lazy: one that comes too early is looked at and re-armed, so that a lease that moves forward
//! with every step costs nothing. Runs outside memory keep their entries only up to a horizon; what is due
//! later stays in the store and is read when the horizon comes near.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::{RunId, Timestamp};

/// The deadlines of a shard.
#[derive(Clone, Debug, Default)]
pub struct Deadlines {
    entries: BTreeSet<(Timestamp, RunId)>,
    /// Deadlines of runs outside memory beyond this instant are only in the store. `None`: there are none.
    horizon: Option<Timestamp>,
}

impl Deadlines {
    /// Arms an entry.
    pub fn arm(&mut self, at: Timestamp, run: RunId) {
        self.entries.insert((at, run));
    }

    /// Removes an entry.
    pub fn disarm(&mut self, at: Timestamp, run: RunId) {
        self.entries.remove(&(at, run));
    }

    /// Takes the earliest entry that is due.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<RunId> {
        let (at, run) = *self.entries.first()?;
        if at > now {
            return None;
        }
        self.entries.remove(&(at, run));
        Some(run)
    }

    /// How many entries are due by an instant.
    pub fn due_by(&self, then: Timestamp) -> usize {
        self.entries.iter().take_while(|(at, _)| *at <= then).count()
    }

    /// The next instant at which something in memory is due.
    pub fn first(&self) -> Option<Timestamp> {
        self.entries.first().map(|(at, _)| *at)
    }

    /// The next instant at which something is due, in memory or beyond the horizon.
    pub fn next(&self) -> Option<Timestamp> {
        match (self.first(), self.horizon) {
            (Some(first), Some(horizon)) => Some(first.min(horizon)),
            (first, horizon) => first.or(horizon),
        }
    }

    /// Whether the store must be asked for what is due after the horizon, and from where.
    pub fn wants_page(&self, now: Timestamp) -> Option<Timestamp> {
        self.horizon.filter(|horizon| *horizon <= now)
    }

    /// Says that deadlines of runs outside memory beyond `horizon` are only in the store.
    pub fn set_horizon(&mut self, horizon: Option<Timestamp>) {
        self.horizon = horizon;
    }

    /// Keeps the entry of a run that leaves memory, or leaves it to the store when it lies beyond the horizon.
    pub fn park(&mut self, at: Timestamp, run: RunId) {
        if self.horizon.is_some_and(|horizon| at > horizon) {
            self.entries.remove(&(at, run));
        } else {
            self.entries.insert((at, run));
        }
    }

    /// Leaves the far entries of runs outside memory to the store, so that memory stays bounded: those after the first
    /// `window`, once there are twice as many.
    pub fn trim(&mut self, window: usize, resident: impl Fn(RunId) -> bool) {
        if self.entries.len() < 2 * window {
            return;
        }
        let far: Vec<(Timestamp, RunId)> =
            self.entries.iter().skip(window).filter(|(_, run)| !resident(*run)).copied().collect();
        for entry in &far {
            self.entries.remove(entry);
        }
        if let Some((first, _)) = far.first() {
            self.horizon = Some(self.horizon.map_or(*first, |horizon| horizon.min(*first)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DUE_WINDOW_MAX;

    fn filled(count: usize) -> Deadlines {
        let mut deadlines = Deadlines::default();
        (0..count).for_each(|at| deadlines.arm(Timestamp(at as i64), RunId(at as u128)));
        deadlines
    }

    #[test]
    fn what_lies_beyond_the_horizon_is_left_to_the_store() {
        let mut deadlines = Deadlines::default();
        deadlines.arm(Timestamp(11), RunId(1));
        deadlines.set_horizon(Some(Timestamp(10)));
        for (at, run) in [(9, 2), (10, 3), (11, 1)] {
            deadlines.park(Timestamp(at), RunId(run));
        }
        assert_eq!([9, 10, 99].map(|then| deadlines.due_by(Timestamp(then))), [1, 2, 2]);
    }

    #[test]
    fn memory_keeps_one_window_of_deadlines_and_those_of_its_own_runs() {
        let most = 2 * DUE_WINDOW_MAX;
        let mut short = filled(most - 1);
        short.trim(DUE_WINDOW_MAX, |_| false);
        assert_eq!((short.entries.len(), short.horizon), (most - 1, None), "there is room for two windows");
        let mut long = filled(most);
        let resident = RunId(most as u128 - 1);
        long.trim(DUE_WINDOW_MAX, |run| run == resident);
        assert_eq!(long.entries.len(), DUE_WINDOW_MAX + 1);
        assert!(long.entries.iter().any(|(_, run)| *run == resident));
        assert_eq!(long.horizon, Some(Timestamp(DUE_WINDOW_MAX as i64)));
        // A second look moves the horizon only towards now.
        (0..DUE_WINDOW_MAX).for_each(|n| long.arm(Timestamp(-1), RunId(1 << 64 | n as u128)));
        long.trim(DUE_WINDOW_MAX, |_| false);
        assert_eq!(long.horizon, Some(Timestamp(0)));
    }
}
