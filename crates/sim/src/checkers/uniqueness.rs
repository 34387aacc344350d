//! A key has one open run at a time.

use std::collections::BTreeMap;

use super::View;
use crate::Violation;

pub(crate) fn check(view: &View) -> Result<(), Violation> {
    let mut open = BTreeMap::new();
    for (id, told) in &view.runs {
        let Some(key) = &told.run.started.spec.key else { continue };
        if told.run.end.is_some() || told.run.is_reservation() {
            continue;
        }
        let spec = &told.run.started.spec;
        let name = (spec.namespace.clone(), spec.workflow.clone(), key.key.clone());
        if let Some(other) = open.insert(name, id) {
            return Err(format!("uniqueness: {other} and {id} are both open under {:?}", key.key));
        }
    }
    Ok(())
}
