//! What a caller says when it asks for a run: the same words for clients, children and schedules.

use alloc::format;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::limits;
use crate::{Fingerprint, Payload, Refusal, RequestId, RunId, Slot, StatusSet, Str, Timestamp, TraceContext};

/// Everything a run is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StartSpec {
    /// The tenant.
    #[serde(default = "default_word", skip_serializing_if = "is_default_word")]
    pub namespace: Str,
    /// The workflow's name.
    pub workflow: Str,
    /// The workflow's version.
    pub version: u32,
    /// The definition's fingerprint, when the one who starts has the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The steps planned at the start. Empty: the workflow's first step, named at the first claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<PlannedStep>,
    /// The input.
    pub input: Payload,
    /// The queue whose workers may claim it.
    #[serde(default = "default_word", skip_serializing_if = "is_default_word")]
    pub queue: Str,
    /// Lower comes first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// At most so many attempts of this key at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<Concurrency>,
    /// The business key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<UniqueKey>,
    /// Not before this instant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eligible_at: Option<Timestamp>,
    /// The whole run must have ended by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Words to find the run by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(Str, Str)>,
    /// Deliveries of one attempt without an answer before it becomes a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliveries_max: Option<u32>,
    /// The place in a trace at which it was asked for.
    #[serde(rename = "traceparent", default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceContext>,
}

/// A step planned at the start, and the steps whose results it needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// The step's name, unique within the plan.
    pub step: Str,
    /// Names of steps that must have finished before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Str>,
}

/// At most `limit` attempts of `key` at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Concurrency {
    /// The key shared by all runs that take turns.
    pub key: Str,
    /// How many may execute at once.
    pub limit: u32,
}

/// A business key: at most one run per key while that run is in one of the occupied statuses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UniqueKey {
    /// The key, verbatim.
    pub key: Str,
    /// The statuses in which the run occupies the key: from its start until it first leaves them. A set without
    /// `runnable` never occupies it.
    pub occupied: StatusSet,
    /// What to answer when the key is taken.
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// What to answer when a business key is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Say that it was rejected, and by which run.
    #[default]
    Reject,
    /// Answer with the run that has the key, if its input is the same.
    Reuse,
}

fn default_word() -> Str {
    "default".into()
}

fn is_default_word(word: &Str) -> bool {
    &**word == "default"
}

pub(crate) fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl StartSpec {
    /// A run of `workflow` at version 1 in the default queue and namespace.
    #[must_use]
    pub fn new(workflow: &str, input: Payload) -> Self {
        Self {
            namespace: default_word(),
            workflow: workflow.into(),
            version: 1,
            fingerprint: None,
            steps: Vec::new(),
            input,
            queue: default_word(),
            priority: 0,
            concurrency: None,
            key: None,
            eligible_at: None,
            deadline: None,
            labels: Vec::new(),
            deliveries_max: None,
            trace: None,
        }
    }

    /// The slot that decides alone whether the start is refused: that of the unique key, else of the run itself.
    #[must_use]
    pub fn admission_slot(&self, request: RequestId) -> Slot {
        match &self.key {
            Some(key) => Slot::of(self.key_identity(&key.key).as_bytes()),
            None => self.home_slot(request),
        }
    }

    /// The slot the run lives in: of its concurrency key, else of its unique key, else of its request.
    #[must_use]
    pub fn home_slot(&self, request: RequestId) -> Slot {
        match (&self.concurrency, &self.key) {
            (Some(concurrency), _) => Slot::of(format!("{}\u{0}{}", self.namespace, concurrency.key).as_bytes()),
            (None, Some(key)) => Slot::of(self.key_identity(&key.key).as_bytes()),
            (None, None) => Slot::of(&request.0.to_le_bytes()),
        }
    }

    /// The run id that this start gets, the same for every retry of the request.
    #[must_use]
    pub fn run_id(&self, request: RequestId) -> RunId {
        RunId::new(request.made_at(), self.home_slot(request), request.0)
    }

    /// The full identity of a business key: keys of different workflows or namespaces never meet.
    #[must_use]
    pub fn key_identity(&self, key: &str) -> alloc::string::String {
        format!("{}\u{0}{}\u{0}{}", self.namespace, self.workflow, key)
    }

    /// Checks names, sizes and the plan before anything is written.
    ///
    /// # Errors
    /// The first thing that is not acceptable.
    pub fn validate(&self) -> Result<(), Refusal> {
        check_name("namespace", &self.namespace)?;
        check_name("workflow", &self.workflow)?;
        check_name("queue", &self.queue)?;
        check_payload("input", &self.input)?;
        if let Some(concurrency) = &self.concurrency {
            check_key("concurrency key", &concurrency.key)?;
            if concurrency.limit == 0 {
                return Err(Refusal::invalid("concurrency limit", "at least 1", "0"));
            }
        }
        if let Some(key) = &self.key {
            check_key("key", &key.key)?;
        }
        check_count("labels", self.labels.len(), limits::LABELS_MAX)?;
        for (name, value) in &self.labels {
            check_name("label", name)?;
            check_most("label value", value.len(), limits::KEY_BYTES_MAX)?;
        }
        self.validate_plan()
    }

    fn validate_plan(&self) -> Result<(), Refusal> {
        check_count("steps", self.steps.len(), limits::CURSORS_MAX)?;
        // A step may need only steps planned before it, so that no cycle can be written down.
        for (index, planned) in self.steps.iter().enumerate() {
            check_name("step", &planned.step)?;
            let before = &self.steps[..index];
            if before.iter().any(|other| other.step == planned.step) {
                return Err(Refusal::invalid("steps", "every step once", format!("{} twice", planned.step)));
            }
            for need in &planned.needs {
                if !before.iter().any(|other| other.step == *need) {
                    return Err(Refusal::invalid(
                        "needs",
                        "names of steps planned earlier",
                        format!("{need} in step {}", planned.step),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A name is not empty, not too long, and free of control characters.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::invalid(what, "a name of at least one character", "an empty one"));
    }
    if name.chars().any(char::is_control) {
        return Err(Refusal::invalid(what, "a name without control characters", format!("{name:?}")));
    }
    check_most(what, name.len(), limits::NAME_BYTES_MAX)
}

pub(crate) fn check_key(what: &str, key: &str) -> Result<(), Refusal> {
    if key.is_empty() {
        return Err(Refusal::invalid(what, "at least one character", "an empty key"));
    }
    check_most(what, key.len(), limits::KEY_BYTES_MAX)
}

pub(crate) fn check_payload(what: &str, payload: &Payload) -> Result<(), Refusal> {
    check_most(what, payload.bytes(), limits::PAYLOAD_BYTES_MAX)
}

pub(crate) fn check_count(what: &str, found: usize, limit: usize) -> Result<(), Refusal> {
    check_most(what, found, limit)
}

fn check_most(what: &str, found: usize, limit: usize) -> Result<(), Refusal> {
    if found <= limit {
        return Ok(());
    }
    Err(Refusal::TooLarge { what: what.into(), limit: limit as u64, found: found as u64 })
}
