//! Index rows and checkpoints say what the journal says.

use abide_store::Store;
use abide_store::memory::MemoryStore;

use super::View;
use crate::Violation;

/// Compares every run's record with the fold of its journal. All index rows must have been written.
pub(crate) fn agrees(view: &mut View, store: &mut MemoryStore) -> Result<(), Violation> {
    for (id, told) in &view.runs {
        let stored = store.read_run(*id).map_err(|fault| format!("projection: {id}: {fault}"))?;
        // A record that is behind is folded from the log when it is opened.
        let Some(stored) = stored.filter(|stored| stored.run.rev == told.run.rev) else { continue };
        if format!("{:?}", stored.run) != format!("{:?}", told.run) {
            return Err(format!("projection: the record of {id} is not what its journal says"));
        }
    }
    Ok(())
}
