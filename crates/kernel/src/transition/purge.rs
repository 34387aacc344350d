//! Purge: the record of one terminal run is removed; its inbox goes with it, its children lose their parent.

use super::Transition;
use crate::envelope::Message;
use crate::{Fact, Refusal, Run};

/// Removes a terminal run.
///
/// # Errors
/// When the run has not ended.
pub fn decide(run: &Run) -> Result<Transition, Refusal> {
    if run.end.is_none() {
        return Err(Refusal::RunOpen { run: run.id, status: run.status() });
    }
    let mut transition = Transition::of([Fact::Purged]);
    for child in &run.children {
        let purged = Message::ParentPurged { run: child.id, parent: run.id };
        transition.messages.push(purged.along(child.admission));
    }
    Ok(transition)
}
