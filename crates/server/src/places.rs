//! Places: of which namespace and queue runs are whose attempts were handed out here, for those that rest at other
//! nodes. Neither changes as long as a run lives.

use std::collections::HashMap;

use abide_kernel::{RunId, Str};
use parking_lot::Mutex;

use crate::limits::PLACES_MAX;

/// The namespaces and queues of runs that workers asked about lately.
#[derive(Default)]
pub(crate) struct Places(Mutex<HashMap<RunId, (Str, Str)>>);

impl Places {
    pub(crate) fn find(&self, run: RunId) -> Option<(Str, Str)> {
        self.0.lock().get(&run).cloned()
    }

    /// Past what is remembered all are forgotten, and looked for again.
    pub(crate) fn note(&self, all: impl IntoIterator<Item = (RunId, Str, Str)>) {
        let mut known = self.0.lock();
        for (run, namespace, queue) in all {
            if known.len() >= PLACES_MAX {
                known.clear();
            }
            known.insert(run, (namespace, queue));
        }
    }
}
