//! What can be executed, and by whom: what is embedded in this node, and what workers offer at the desks of all of them.

use std::collections::BTreeMap;

use abide_kernel::transition::claim::Definition;
use abide_protocol::{Workflow, Workflows};
use abide_runtime::Roster;

use crate::answer::{Answered, json};
use crate::call::Call;

pub(crate) async fn list(call: Call) -> Answered {
    let Roster { workers, silent } = call.engine.roster(&call.namespace()).await;
    let mut found = BTreeMap::new();
    for definition in call.engine.definitions() {
        noted(&mut found, definition).embedded = true;
    }
    for definition in workers.iter().flat_map(|(_, worker)| &worker.definitions) {
        noted(&mut found, definition).workers += 1;
    }
    let silent = silent.iter().map(ToString::to_string).collect();
    json(&Workflows { workflows: found.into_values().collect(), silent })
}

/// The line of a definition. Two that differ have one each, of the same version too: while one replaces the other, or
/// because somebody forgot to count up.
fn noted<'a>(found: &'a mut BTreeMap<(String, u32, String), Workflow>, definition: &Definition) -> &'a mut Workflow {
    let (workflow, fingerprint) = (definition.workflow.to_string(), definition.fingerprint.to_string());
    let key = (workflow.clone(), definition.version, fingerprint.clone());
    found.entry(key).or_insert_with(|| Workflow {
        workflow,
        version: definition.version,
        fingerprint,
        first_step: definition.first_step.to_string(),
        embedded: false,
        workers: 0,
    })
}
