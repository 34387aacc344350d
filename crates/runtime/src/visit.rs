//! Visits to the store by threads that do not drive. The driver may find the store busy meanwhile and go to sleep, so that
//! whoever leaves rings: what was gathered would wait for the next deadline else.

use std::ops::{Deref, DerefMut};

use abide_store::Store;
use parking_lot::{Mutex, MutexGuard};

use crate::bell::Bell;
use crate::driver::Shared;

/// The store, until this goes.
pub(crate) struct Visit<'a> {
    /// Always there; taken out only to be released.
    store: Option<MutexGuard<'a, Box<dyn Store>>>,
    bell: &'a Bell,
}

impl<'a> Visit<'a> {
    fn new(store: &'a Mutex<Box<dyn Store>>, bell: &'a Bell) -> Self {
        Self { store: Some(store.lock()), bell }
    }
}

impl Deref for Visit<'_> {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        self.store.as_ref().expect("the store is there until the visit ends").as_ref()
    }
}

impl DerefMut for Visit<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.store.as_mut().expect("the store is there until the visit ends").as_mut()
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Released first: the driver must not find it busy again.
        drop(self.store.take());
        self.bell.ring();
    }
}

impl Shared {
    /// Visits the store, after whoever is there.
    pub(crate) fn visit(&self) -> Visit<'_> {
        Visit::new(&self.store, &self.bell)
    }
}

#[cfg(test)]
mod tests {
    use abide_store::memory::MemoryStore;

    use super::*;

    #[test]
    fn whoever_leaves_the_store_rings() {
        let (store, bell) = (Mutex::new(Box::new(MemoryStore::new(1)) as Box<dyn Store>), Bell::default());
        let visit = Visit::new(&store, &bell);
        assert_eq!(visit.counters().commits, 0);
        assert!(store.try_lock().is_none() && !bell.is_rung());
        drop(visit);
        assert!(store.try_lock().is_some() && bell.is_rung());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bell.wait(None);
            let _visit = Visit::new(&store, &bell);
            panic!("in the middle of it");
        }));
        assert!(panicked.is_err() && bell.is_rung());
    }
}
