//! Filling a store in memory from elsewhere.

use abide_kernel::LetterId;

use super::{MemoryStore, lock};
use crate::transaction::Outcome;
use crate::{DeadLetterItem, Fault, FaultKind, Import, import};

impl Import for MemoryStore {
    fn begin_import(&mut self) -> Result<(), Fault> {
        self.check_going()?;
        let mut state = lock(&self.state);
        if state.shards.iter().any(|shard| !shard.rows.is_empty()) || !state.dead.is_empty() {
            return Err(import::not_empty("the store"));
        }
        state.importing = true;
        Ok(())
    }

    fn import_letter(&mut self, letter: &DeadLetterItem) -> Result<(), Fault> {
        self.check_going()?;
        let mut state = lock(&self.state);
        state.letters += 1;
        let id = LetterId(state.letters);
        state.dead.push(DeadLetterItem { id, ..letter.clone() });
        Ok(())
    }

    fn import_outcome(&mut self, outcome: &Outcome) -> Result<(), Fault> {
        let message = format!("a store in memory has no transactions; found an outcome of {}", outcome.run);
        Err(Fault::new(FaultKind::Unusable, message))
    }

    fn end_import(&mut self) -> Result<(), Fault> {
        self.check_going()?;
        lock(&self.state).importing = false;
        Ok(())
    }
}
