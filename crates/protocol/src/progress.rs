//! Progress: what steps say of themselves while they execute.

use std::collections::BTreeMap;

use abide_kernel::{Payload, Run as Folded, RunId, Said};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Instant;

/// Something that a step said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Its number: later ones have larger numbers, and none is used twice.
    pub seq: u64,
    /// The step.
    pub step: String,
    /// Of what.
    pub name: String,
    /// How it stands.
    #[schemars(with = "serde_json::Value")]
    pub value: Payload,
    /// When it was said.
    pub at: Instant,
    /// Where something before it was said too fast to be told: the number of the last that is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trimmed: Option<u64>,
}

impl From<&Said> for Progress {
    fn from(said: &Said) -> Self {
        let Said { step, event, .. } = said;
        Self {
            seq: event.seq,
            step: step.to_string(),
            name: event.name.to_string(),
            value: event.value.clone(),
            at: Instant(event.at),
            trimmed: None,
        }
    }
}

/// How far the steps of a run have come, as far as they say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProgressPage {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The latest value of each name, of the steps as they stand now.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub latest: BTreeMap<String, Payload>,
    /// What was said after the number that was asked for, in order.
    pub events: Vec<Progress>,
    /// Whether something after that number is not kept any more.
    pub trimmed: bool,
}

impl ProgressPage {
    /// What a run has to say after a number.
    #[must_use]
    pub fn of(run: &Folded, after: u64) -> Self {
        let progress = run.progress.as_deref();
        Self {
            run: run.id,
            latest: latest(run),
            events: progress.iter().flat_map(|progress| progress.after(after)).map(Progress::from).collect(),
            trimmed: progress.is_some_and(|progress| progress.trimmed > after),
        }
    }
}

/// The latest value of each name, of the steps as they stand now.
#[must_use]
pub fn latest(run: &Folded) -> BTreeMap<String, Payload> {
    let said = run.progress.iter().flat_map(|progress| &progress.latest);
    said.map(|said| (said.event.name.to_string(), said.event.value.clone())).collect()
}
