//! Dead letters: messages between runs that could not be processed. Attempts that were set aside are runs.

use abide_kernel::{DeadLetter, LetterId, Phase, Run, RunId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Error, Instant, RunSummary};

/// A page of runs whose attempt was set aside, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadLetterPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Their attempts that were set aside.
    pub attempts: Vec<DeadAttempt>,
    /// Give it as `before` for the next page; absent at the end.
    #[schemars(with = "Option<crate::shape::Run>")]
    pub next: Option<RunId>,
}

/// An attempt that was set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeadAttempt {
    /// The run.
    #[schemars(with = "crate::shape::Run")]
    pub run: RunId,
    /// The step.
    pub step: Option<String>,
    /// Why.
    pub reason: Error,
    /// The node that gave up.
    pub node: String,
    /// When.
    pub at: Instant,
    /// The attempt as it was scheduled, in the published format of the journal.
    pub envelope: serde_json::Value,
}

impl DeadAttempt {
    /// The attempts of a run that were set aside.
    pub fn of(run: &Run) -> impl Iterator<Item = Self> {
        let id = run.id;
        run.cursors.iter().filter_map(move |cursor| match &cursor.phase {
            Phase::DeadLettered(letter) => Some(Self::new(id, letter)),
            _ => None,
        })
    }

    fn new(run: RunId, letter: &DeadLetter) -> Self {
        Self {
            run,
            step: letter.envelope.step.as_deref().map(str::to_owned),
            reason: Error::from(&letter.reason),
            node: letter.node.to_string(),
            at: Instant(letter.at),
            envelope: serde_json::to_value(&letter.envelope).expect("a fact is plain data with text keys"),
        }
    }
}

/// A message that was set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Letter {
    /// Its id.
    #[schemars(with = "crate::shape::Letter")]
    pub letter: LetterId,
    /// When it was set aside.
    pub at: Instant,
    /// The node that gave up.
    pub node: String,
    /// Why.
    pub reason: String,
    /// The message, whole.
    pub message: serde_json::Value,
}

/// Messages that were set aside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Letters {
    /// The messages.
    pub letters: Vec<Letter>,
}
