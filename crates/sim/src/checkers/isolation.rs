//! Tenants share nothing: children stay with their parents' tenant, and a listing of one shows nothing of another.

use abide::{Filter, Listed};

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

/// Compares a listing of one tenant with the journals of all.
pub(crate) fn lists(view: &View, filter: &Filter, listed: &[Listed]) -> Result<(), Violation> {
    let wanted = filter.namespace.as_ref();
    if let Some(other) = listed.iter().find(|run| Some(&run.namespace) != wanted) {
        return Err(format!("isolation: a listing of {wanted:?} shows {} of {}", other.run, other.namespace));
    }
    let is_ours = |told: &super::Told| Some(&told.run.started.spec.namespace) == wanted && !told.run.is_reservation();
    let missing = view.runs.iter().find(|(id, told)| is_ours(told) && listed.iter().all(|run| run.run != **id));
    match missing {
        Some((id, _)) => Err(format!("isolation: a listing of {wanted:?} lacks {id}")),
        None => Ok(()),
    }
}
