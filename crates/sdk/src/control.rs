//! Controls: what may be done, what may not, and what someone must have said yes to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use abide_kernel::transition::manual::Asking;
use abide_kernel::{ErrorInfo, ManualKind, Policy, Str};

use crate::StepError;
use crate::ledger::moment;

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
    Interrupt,
}

impl Rule {
    fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Block => "block",
            Self::Interrupt => "interrupt",
        }
    }
}

/// Who reviews an operation, and by when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reviewers {
    roles: Vec<Str>,
    assignee: Option<Str>,
    deadline: Option<Duration>,
}

impl Reviewers {
    /// What they are asked, but for what they are shown.
    pub(crate) fn asking(&self) -> Asking {
        Asking {
            roles: self.roles.clone(),
            assignee: self.assignee.clone(),
            deadline: self.deadline.map(moment),
            ..Asking::new(ManualKind::Approval)
        }
    }
}

/// What the controls say of an operation that is not blocked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ruling<'a> {
    /// It may begin.
    Free,
    /// It may begin when one of these has approved it.
    Reviewed(&'a Reviewers),
}

type Predicate = Arc<dyn Fn(&Operation) -> bool + Send + Sync>;

/// A rule for operations: the first control that matches decides. An operation that must not happen twice
/// ([`Policy::UnsafeOnce`]) is refused unless a control matches it.
///
/// ```
/// use abide::{Control, Failure, FnCtx, Function, StepError, days};
///
/// let refund = Function::new("refund", async |ctx: FnCtx, amount: u32| {
///     ctx.effect("wire", async |_| Ok::<_, StepError>(amount)).input(&amount).unsafe_once().await
/// });
/// // A person of finance sees the amount, and says yes or no, within two days.
/// let refund = refund.control(Control::interrupt().named("wire").roles(&["finance"]).deadline(days(2)));
/// ```
#[derive(Clone)]
#[must_use = "a control does nothing until a workflow has it"]
pub struct Control {
    rule: Rule,
    name: Option<String>,
    policy: Option<Policy>,
    when: Option<Predicate>,
    reviewers: Reviewers,
}

impl Control {
    /// Lets operations take place.
    pub fn allow() -> Self {
        Self { rule: Rule::Allow, name: None, policy: None, when: None, reviewers: Reviewers::default() }
    }

    /// Lets no operation take place.
    pub fn block() -> Self {
        Self { rule: Rule::Block, ..Self::allow() }
    }

    /// Lets an operation take place once a person has approved exactly that one. Until then the run waits, at a manual
    /// boundary that shows the operation, its input and its idempotency key.
    pub fn interrupt() -> Self {
        Self { rule: Rule::Interrupt, ..Self::allow() }
    }

    /// The roles of which one is needed to approve or reject. Without any, anybody may. For [`Control::interrupt`].
    pub fn roles(mut self, roles: &[&str]) -> Self {
        self.reviewers.roles = roles.iter().map(|role| Str::from(*role)).collect();
        self
    }

    /// Whose the review is; nobody else may decide it, unless it is given back or handed on. For [`Control::interrupt`].
    pub fn assignee(mut self, name: &str) -> Self {
        self.reviewers.assignee = Some(name.into());
        self
    }

    /// How long the review may take: then the operation fails with `approval_expired`. For [`Control::interrupt`].
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.reviewers.deadline = Some(limit);
        self
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

    /// What is wrong with it, before anything runs.
    fn problem(&self) -> Option<String> {
        if self.rule == Rule::Interrupt {
            return self.reviewers.asking().validate().err().map(|refusal| refusal.to_string());
        }
        let unused = "roles, an assignee and a deadline are for reviews; use Control::interrupt()";
        (self.reviewers != Reviewers::default()).then(|| unused.to_owned())
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

    /// Whether the operation may begin, and what must come before.
    pub(crate) fn check(&self, operation: &Operation) -> Result<Ruling<'_>, StepError> {
        match self.of(operation).map(|control| (control.rule, &control.reviewers)) {
            Some((Rule::Allow, _)) => Ok(Ruling::Free),
            Some((Rule::Interrupt, reviewers)) => Ok(Ruling::Reviewed(reviewers)),
            Some((Rule::Block, _)) => {
                let message = format!("operation {:?} ({}) is blocked by a control", operation.name, operation.policy);
                Err(StepError::of(ErrorInfo::terminal("blocked_by_control", &message)))
            }
            None if operation.policy.requires_control() => {
                Err(StepError::of(ErrorInfo::terminal(REQUIRES_CONTROL, &uncontrolled(operation))))
            }
            None => Ok(Ruling::Free),
        }
    }

    /// What is wrong with the controls, or with the operations that a workflow declares, before anything runs.
    pub(crate) fn plan(&self, operations: &[Operation]) -> Result<(), PlanError> {
        for control in &self.0 {
            if let Some(problem) = control.problem() {
                return Err(PlanError::BadControl { rule: control.rule.name(), name: control.name.clone(), problem });
            }
        }
        let missing = |operation: &&Operation| operation.policy.requires_control() && self.of(operation).is_none();
        match operations.iter().find(missing) {
            Some(operation) => Err(PlanError::RequiresControl { operation: operation.clone() }),
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

/// Why a workflow cannot be run as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An operation may only be used under a control, and has none.
    #[error("unsafe_once_requires_control: {}", uncontrolled(.operation))]
    RequiresControl {
        /// The operation.
        operation: Operation,
    },
    /// A control says something that cannot be meant.
    #[error("bad_control: the control that {rule}s {}: {problem}", .name.as_deref().unwrap_or("operations"))]
    BadControl {
        /// What it does: `allow`, `block` or `interrupt`.
        rule: &'static str,
        /// The name of the operations it is for, if it has one.
        name: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
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

/// The guide, so that its examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/policies.md")]
struct Guide;

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
        assert_eq!(refused, PlanError::RequiresControl { operation: refund.clone() });
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

    /// JI-6, JI-9, JI-22: a control that interrupts is one that matches, so what must not happen twice may be planned.
    #[test]
    fn a_control_that_interrupts_lets_a_reviewer_decide() {
        let wire = operation("wire", Policy::UnsafeOnce);
        let mut controls = Controls::default();
        controls.push(Control::interrupt().named("wire").roles(&["finance"]));
        assert_eq!(controls.plan(std::slice::from_ref(&wire)), Ok(()));
        assert!(matches!(controls.check(&wire), Ok(Ruling::Reviewed(who)) if who.asking().roles == ["finance".into()]));
        assert!(matches!(controls.check(&operation("mail", Policy::Idempotent)), Ok(Ruling::Free)));
    }

    #[test]
    fn a_control_that_cannot_be_meant_is_refused() {
        for (wrong, said) in [
            (Control::interrupt().roles(&[""]), "role"),
            (Control::interrupt().assignee("a\nb"), "assignee"),
            (Control::allow().named("wire").roles(&["finance"]), "use Control::interrupt()"),
            (Control::block().deadline(Duration::ZERO), "use Control::interrupt()"),
        ] {
            let mut controls = Controls::default();
            controls.push(wrong);
            let refused = controls.plan(&[]).unwrap_err().to_string();
            assert!(refused.starts_with("bad_control: ") && refused.contains(said), "{refused}");
        }
    }
}
