//! Boundaries: what runs ask of people, and what they answer.

use abide_kernel::{BoundaryId, Choice, Manual, ManualKind, OnTimeout, Payload, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// What a run asks of a person: an approval, or a task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Boundary {
    /// Its id, by which it is decided.
    #[schemars(with = "crate::shape::Boundary")]
    pub boundary: BoundaryId,
    /// The run that asks.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// Its workflow.
    pub workflow: String,
    /// What is asked.
    #[schemars(with = "crate::shape::Kind")]
    pub kind: ManualKind,
    /// The name that the workflow gave it.
    pub name: String,
    /// The step that asks.
    pub step: String,
    /// `open`, or how it ended.
    pub standing: String,
    /// What the person is shown.
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
    /// Roles of which one is needed; none means anybody.
    pub roles: Vec<String>,
    /// Whose it is.
    pub assignee: Option<String>,
    /// When it was asked.
    pub asked_at: Instant,
    /// By when it must be decided.
    pub until: Option<Instant>,
    /// What follows when nobody has decided by then.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub on_timeout: OnTimeout,
    /// What was decided.
    pub decision: Option<Decision>,
    /// What happened to it so far.
    pub events: Vec<BoundaryEvent>,
}

/// A decision that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// What.
    #[schemars(with = "String")]
    pub choice: Choice,
    /// By whom; absent when the deadline did.
    pub actor: Option<String>,
    /// The roles in which they did.
    #[serde(default)]
    pub roles: Vec<String>,
    /// Why.
    pub note: Option<String>,
    /// What was handed in.
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
}

/// Something that happened to a boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BoundaryEvent {
    /// What.
    pub event: String,
    /// When.
    pub at: Instant,
    /// By whom.
    pub actor: Option<String>,
    /// Whose it became.
    pub to: Option<String>,
    /// Why.
    pub note: Option<String>,
}

impl Boundary {
    /// Whether nobody has decided it yet.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.standing == "open"
    }

    /// As it is shown.
    #[must_use]
    pub fn of(boundary: BoundaryId, workflow: &str, manual: &Manual) -> Self {
        let asked = &manual.asked;
        let text = |text: &Option<abide_kernel::Str>| text.as_deref().map(str::to_owned);
        let event = |event: &abide_kernel::ManualEvent| BoundaryEvent {
            event: event.kind.name().into(),
            at: Instant(event.at),
            actor: text(&event.actor),
            to: text(&event.to),
            note: text(&event.note),
        };
        Self {
            boundary,
            run: boundary.run,
            workflow: workflow.into(),
            kind: asked.kind,
            name: asked.key.to_string(),
            step: asked.step.to_string(),
            standing: manual.end.as_ref().map_or("open", |end| end.name()).into(),
            payload: asked.payload.clone(),
            roles: asked.roles.iter().map(ToString::to_string).collect(),
            assignee: text(&manual.assignee),
            asked_at: Instant(manual.at()),
            until: asked.until.map(Instant),
            on_timeout: asked.on_timeout.clone(),
            decision: manual.decided().map(|decided| Decision {
                choice: decided.choice,
                actor: text(&decided.actor),
                roles: decided.roles.iter().map(ToString::to_string).collect(),
                note: text(&decided.note),
                payload: decided.payload.clone(),
            }),
            events: manual.events.iter().map(event).collect(),
        }
    }
}

/// A page of what is asked of people, newest run first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BoundaryPage {
    /// What is asked.
    pub boundaries: Vec<Boundary>,
    /// Give it as `before` for the next page; absent at the end.
    #[schemars(with = "Option<crate::shape::Run>")]
    pub next: Option<RunId>,
}

/// A decision.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Decide {
    /// Who decides; the token's name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Roles in which they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What they hand in; `null` if absent.
    #[serde(default)]
    #[schemars(with = "serde_json::Value")]
    pub payload: Payload,
}

/// A task that is taken, handed on or given back.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    /// Who acts; the token's name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// Whose it becomes, when it is claimed; the actor's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Roles in which they act.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<String>,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Also when somebody else has it.
    #[serde(default)]
    pub take_over: bool,
}
