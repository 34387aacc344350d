//! Controls: what may be done, what may not, and what someone must have said yes to.

use std::fmt;
use std::sync::Arc;

use abide_kernel::{ErrorInfo, Policy};

use crate::StepError;

/// A piece of outside work that a workflow does: its name, and whether it may be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The effect's name, without its scope.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
}

/// What a control says of the operations it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Allow,
    Block,
}

type Predicate = Arc<dyn Fn(&Operation) -> bool + Send + Sync>;

/// A rule for operations: the first control that matches decides. An operation that must not happen twice
/// ([`Policy::UnsafeOnce`]) is refused unless a control matches it.
#[derive(Clone)]
#[must_use = "a control does nothing until a workflow has it"]
pub struct Control {
    rule: Rule,
    name: Option<String>,
    policy: Option<Policy>,
    when: Option<Predicate>,
}

impl Control {
    /// Lets operations take place.
    pub fn allow() -> Self {
        Self { rule: Rule::Allow, name: None, policy: None, when: None }
    }

    /// Lets no operation take place.
    pub fn block() -> Self {
        Self { rule: Rule::Block, ..Self::allow() }
    }

    /// Only those of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only those under this policy.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Only those of which this is true.
    pub fn when(mut self, when: impl Fn(&Operation) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(when));
        self
    }

    fn matches(&self, operation: &Operation) -> bool {
        self.name.as_ref().is_none_or(|name| *name == operation.name)
            && self.policy.is_none_or(|policy| policy == operation.policy)
            && self.when.as_ref().is_none_or(|when| when(operation))
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Control");
        shown.field("rule", &self.rule).field("name", &self.name).field("policy", &self.policy);
        shown.finish_non_exhaustive()
    }
}

/// The controls of a workflow, in the order they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls(Vec<Control>);

impl Controls {
    pub(crate) fn push(&mut self, control: Control) {
        self.0.push(control);
    }

    fn of(&self, operation: &Operation) -> Option<&Control> {
        self.0.iter().find(|control| control.matches(operation))
    }

    /// Whether the operation may begin.
    pub(crate) fn check(&self, operation: &Operation) -> Result<(), StepError> {
        match self.of(operation).map(|control| control.rule) {
            Some(Rule::Allow) => Ok(()),
            Some(Rule::Block) => {
                let message = format!("operation {:?} ({}) is blocked by a control", operation.name, operation.policy);
                Err(StepError::of(ErrorInfo::terminal("blocked_by_control", &message)))
            }
            None if operation.policy.requires_control() => {
                Err(StepError::of(ErrorInfo::terminal(REQUIRES_CONTROL, &uncontrolled(operation))))
            }
            None => Ok(()),
        }
    }

    /// What is wrong with the operations that a workflow declares, before anything runs.
    pub(crate) fn plan(&self, operations: &[Operation]) -> Result<(), PlanError> {
        let missing = |operation: &&Operation| operation.policy.requires_control() && self.of(operation).is_none();
        match operations.iter().find(missing) {
            Some(operation) => Err(PlanError { operation: operation.clone() }),
            None => Ok(()),
        }
    }
}

/// The word for an operation that may only be used under a control, and has none.
const REQUIRES_CONTROL: &str = "unsafe_once_requires_control";

fn uncontrolled(operation: &Operation) -> String {
    format!(
        "operation {:?} ({}) must not happen twice, and no control matches it; add one with .control(Control::allow().named({:?}))",
        operation.name, operation.policy, operation.name
    )
}

/// An operation that may only be used under a control, and has none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unsafe_once_requires_control: {}", uncontrolled(.operation))]
pub struct PlanError {
    /// The operation.
    pub operation: Operation,
}

/// What a workflow will do, as far as it declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The workflow's name.
    pub workflow: String,
    /// Its version.
    pub version: u32,
    /// The operations it declares.
    pub operations: Vec<Operation>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str, policy: Policy) -> Operation {
        Operation { name: name.into(), policy }
    }

    fn code(controls: &Controls, operation: &Operation) -> Option<String> {
        controls.check(operation).err().map(|error| error.info().code.to_string())
    }

    /// JI-5, JI-6, JI-7, JI-8: without a control an operation that must not happen twice is refused, and named.
    #[test]
    fn what_must_not_happen_twice_needs_a_control() {
        let refund = operation("refund", Policy::UnsafeOnce);
        let mut controls = Controls::default();
        let refused = controls.plan(&[operation("read", Policy::Pure), refund.clone()]).unwrap_err();
        assert_eq!(refused.operation, refund);
        assert!(refused.to_string().contains("\"refund\" (unsafe_once)"), "{refused}");
        assert_eq!(code(&controls, &refund).as_deref(), Some("unsafe_once_requires_control"));
        controls.push(Control::allow().named("refund").policy(Policy::Idempotent));
        assert!(controls.plan(std::slice::from_ref(&refund)).is_err(), "it matches another policy");
        controls.push(Control::allow().when(|operation| operation.name.starts_with("re")));
        assert_eq!(controls.plan(std::slice::from_ref(&refund)), Ok(()));
        assert_eq!(code(&controls, &refund), None);
    }

    /// JI-9, JI-22: a control that blocks never lets an operation take place; the first that matches decides.
    #[test]
    fn the_first_control_that_matches_decides() {
        let mut controls = Controls::default();
        controls.push(Control::block().named("wipe"));
        controls.push(Control::allow());
        assert_eq!(code(&controls, &operation("wipe", Policy::Idempotent)).as_deref(), Some("blocked_by_control"));
        assert_eq!(code(&controls, &operation("mail", Policy::UnsafeOnce)), None);
    }
}
