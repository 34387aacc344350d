//! Versions of children: a step that starts a child without saying which version gets the newest that is known where the
//! command arrives, as whoever starts a run does. It is settled before the shard sees it, so that facts have a number.

use std::sync::Arc;

use abide_kernel::shard::Command;
use abide_kernel::transition::record::{Entry, Wanted};
use abide_kernel::{Outcome, StartSpec, Str};

use crate::driver::Shared;

/// The version of a child of which nobody said one: versions begin at 1.
pub const UNSAID: u32 = 0;

impl Shared {
    /// Settles the versions of the children that a command of a step starts.
    pub(crate) fn settle_versions(&self, command: &mut Command) {
        match command {
            Command::Record { recording, .. } => self.settle_entries(&mut recording.entries),
            Command::StartChild { starting, .. } => self.settle_version(&mut starting.spec),
            Command::Fail { failing, .. } => self.settle_entries(&mut failing.entries),
            Command::Complete { completing, .. } => {
                self.settle_entries(&mut completing.entries);
                let unsaid = |outcome: &Outcome| match outcome {
                    Outcome::Spawn { children, .. } => children.iter().any(|child| child.spec.version == UNSAID),
                    _ => false,
                };
                if unsaid(&completing.outcome)
                    && let Outcome::Spawn { children, .. } = Arc::make_mut(&mut completing.outcome)
                {
                    children.iter_mut().for_each(|child| self.settle_version(&mut child.spec));
                }
            }
            _ => {}
        }
    }

    fn settle_entries(&self, entries: &mut [Entry]) {
        for entry in entries {
            if let Entry::Intend { what: Wanted::Child(spec), .. } = entry {
                self.settle_version(spec);
            }
        }
    }

    fn settle_version(&self, spec: &mut StartSpec) {
        if spec.version == UNSAID {
            spec.version = self.newest(&spec.namespace, &spec.workflow).unwrap_or(1);
        }
    }

    /// The newest version that is registered here, or else that workers outside have.
    fn newest(&self, namespace: &Str, workflow: &Str) -> Option<u32> {
        let here = self.programs.definitions.iter().filter(|known| known.workflow == *workflow);
        let here = here.map(|known| known.version).max();
        here.or_else(|| self.core.lock().desk.newest(namespace, workflow))
    }
}
