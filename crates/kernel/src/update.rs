//! Updates: what a run is asked to do from outside, and what it answers. The request is a fact before anybody acts on it,
//! and the answer is one before the caller sees it.

use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::spec::is_zero;
use crate::{ErrorInfo, OpId, Payload, RequestId, Run, Str, Timestamp};

/// The run was asked to do something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requested {
    /// The update's number within the run.
    pub update: u64,
    /// Its name.
    pub name: Str,
    /// What is asked.
    pub input: Payload,
    /// A key under which the caller asks only once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<Str>,
    /// The canonical hash of what is asked, kept for updates with such a key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input_hash: u64,
    /// The request that brought it.
    pub request: RequestId,
}

/// The run answered an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The update's number.
    pub update: u64,
    /// What it answered.
    pub reply: Reply,
    /// Set when the code never got the update, because it could not read it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: bool,
}

/// What a run answers to an update.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It was done, with this answer.
    Value(Payload),
    /// It was not, for this reason.
    Rejected(Arc<ErrorInfo>),
}

/// An update as its run knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Update {
    /// Its number within the run.
    pub id: u64,
    /// Its name.
    pub name: Str,
    /// The caller's key, if it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<Str>,
    /// The canonical hash of what is asked, where there is a key.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub input_hash: u64,
    /// The request that brought it.
    pub request: RequestId,
    /// When it came.
    pub at: Timestamp,
    /// How far it is.
    pub state: UpdateState,
}

/// How far an update is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateState {
    /// Nobody has taken it yet.
    Waiting {
        /// What is asked.
        input: Payload,
    },
    /// A wait of the ledger got it, and with that what is asked; the code has not answered.
    Given {
        /// The entry of the ledger.
        op: OpId,
    },
    /// It was answered.
    Answered {
        /// When.
        at: Timestamp,
        /// What.
        reply: Reply,
    },
}

impl Update {
    /// What the run answered, if it has.
    #[must_use]
    pub fn reply(&self) -> Option<&Reply> {
        match &self.state {
            UpdateState::Answered { reply, .. } => Some(reply),
            UpdateState::Waiting { .. } | UpdateState::Given { .. } => None,
        }
    }

    /// Whether it is with this entry of the ledger.
    pub(crate) fn is_given_to(&self, entry: OpId) -> bool {
        matches!(self.state, UpdateState::Given { op } if op == entry)
    }
}

impl Run {
    /// An update, open or answered, as long as the run remembers it.
    #[must_use]
    pub fn update(&self, id: u64) -> Option<&Update> {
        self.updates.iter().find(|update| update.id == id)
    }

    pub(crate) fn update_mut(&mut self, id: u64) -> Option<&mut Update> {
        self.updates.iter_mut().find(|update| update.id == id)
    }
}
