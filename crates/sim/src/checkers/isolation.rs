//! Tenants share nothing: children stay with their parents' tenant. What listings show is looked at by `listing`.

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    for (id, told) in &view.runs {
        let Some(parent) = &told.run.started.parent else { continue };
        let Some(parent) = view.runs.get(&parent.run) else { continue };
        let (ours, theirs) = (&told.run.started.spec.namespace, &parent.run.started.spec.namespace);
        if ours != theirs {
            return Err(format!("isolation: {id} is of {ours}, and its parent of {theirs}"));
        }
    }
    Ok(())
}
