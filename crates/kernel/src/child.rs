//! Children: what a run's journal says of the runs it started, and what the run knows of them.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::payload::present;
use crate::{ErrorInfo, OpId, Payload, RunId, Status, Str};

/// A child was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildStarted {
    /// The child.
    pub child: RunId,
    /// Its key, for a child started inside a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Str>,
    /// Its workflow.
    pub workflow: Str,
    /// Its version.
    pub version: u32,
    /// The canonical hash of its input.
    pub input_hash: u64,
    /// The step that started it.
    pub step: Str,
    /// The attempt's number within its cursor.
    pub turn: u32,
    /// The token of the join barrier that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier: Option<u64>,
    /// The entry of the ledger that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpId>,
    /// The slot that admits it by its key, when that is not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<u16>,
    /// Anything the one who started it wants to keep.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub metadata: Option<Payload>,
}

/// A child that was asked for exists already, or was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildAnswered {
    /// The child asked for.
    pub child: RunId,
    /// Why it was not inserted.
    pub answer: ChildAnswer,
}

/// Why a child that was asked for was not inserted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildAnswer {
    /// The run that has its key.
    Existing(RunId),
    /// The reason.
    Rejected(Str),
}

/// A child ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildEnded {
    /// The child.
    pub child: RunId,
    /// How it ended.
    pub status: Status,
    /// Its last state.
    pub state: Payload,
    /// Its result.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub result: Option<Payload>,
    /// Its error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<ErrorInfo>>,
}

/// A child, as its parent knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    /// Its id.
    pub id: RunId,
    /// Its key, for a child started inside a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Str>,
    /// Its workflow.
    pub workflow: Str,
    /// The canonical hash of its input.
    pub input_hash: u64,
    /// The step that started it.
    pub step: Str,
    /// The token of the barrier that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub barrier: Option<u64>,
    /// The entry of the ledger that waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpId>,
    /// The slot that admits it by its key, when that is not its own: word for it goes the same way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<u16>,
    /// How it ended or was answered; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ChildEnd>,
}

/// How a child ended, or why it never began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildEnd {
    /// It was not inserted.
    Answered(ChildAnswer),
    /// It ended.
    Ended {
        /// How.
        status: Status,
        /// Its last state.
        state: Payload,
        /// Its result.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
        result: Option<Payload>,
        /// Its error.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Arc<ErrorInfo>>,
    },
}
