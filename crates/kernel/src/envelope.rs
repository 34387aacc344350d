//! Envelopes: durable messages from run to run. They are compact and never carry a whole run.
//!
//! Between shards an envelope is numbered densely per sender and receiver, written with the facts that caused
//! it, and consumed exactly once by moving the receiver's cursor in the batch that obeys it.

use alloc::boxed::Box;
use alloc::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::spec::is_zero;
use crate::{ChildAnswer, ChildEnded, ErrorInfo, RequestId, RunId, ShardId, Slot, Started, Str};

/// A numbered message from one shard to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The shard that sent it.
    pub from: ShardId,
    /// The shard it is for.
    pub to: ShardId,
    /// Its number among those from that sender to that receiver, counted from 1 without gaps.
    pub number: u64,
    /// What it says.
    pub message: Message,
}

/// What one run has to say to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// To a business key's home: admit this child.
    AdmitChild {
        /// The child's id.
        child: RunId,
        /// How it starts.
        started: Box<Started>,
        /// The slot of the key's home.
        slot: u16,
    },
    /// To a run's home: the key is reserved, begin.
    Begin {
        /// The run's id.
        run: RunId,
        /// How it starts.
        started: Box<Started>,
    },
    /// To the record that reserved the key: the run has begun.
    Begun {
        /// The record that holds the key.
        reservation: RunId,
    },
    /// To the record that holds a key: the run has left the statuses that occupy it.
    KeyFreed {
        /// The record that holds the key.
        reservation: RunId,
    },
    /// To a parent: a child it asked for was not inserted.
    ChildAnswered {
        /// The parent.
        parent: RunId,
        /// The child asked for.
        child: RunId,
        /// Why.
        answer: ChildAnswer,
    },
    /// To a parent: a child ended.
    ChildEnded {
        /// The parent.
        parent: RunId,
        /// How the child ended.
        ended: Box<ChildEnded>,
    },
    /// To a business key's home: pass this on, behind what went this way before. A child that was admitted there
    /// may not have begun yet, and word that took the short way would find nobody.
    Forward {
        /// The slot of the key's home.
        slot: u16,
        /// What to pass on.
        message: Box<Message>,
    },
    /// To a child: end, because the parent was cancelled.
    Cancel {
        /// The run to cancel.
        run: RunId,
        /// The request that began it.
        request: RequestId,
        /// Whether its own children end too.
        #[serde(default, skip_serializing_if = "is_zero")]
        cascade: bool,
        /// Why.
        reason: Arc<ErrorInfo>,
    },
    /// To a child: the parent's record is gone.
    ParentPurged {
        /// The child.
        run: RunId,
        /// The parent that is gone.
        parent: RunId,
    },
}

impl Message {
    /// The message, by way of the slot that admitted its target.
    #[must_use]
    pub fn along(self, admission: Option<u16>) -> Self {
        match admission {
            Some(slot) => Self::Forward { slot, message: Box::new(self) },
            None => self,
        }
    }

    /// The run or record the message is for; messages without one yet are for a key's home.
    #[must_use]
    pub fn target(&self) -> Option<RunId> {
        match self {
            Self::AdmitChild { .. } | Self::Forward { .. } => None,
            Self::Begin { run, .. } | Self::Cancel { run, .. } | Self::ParentPurged { run, .. } => Some(*run),
            Self::Begun { reservation } | Self::KeyFreed { reservation } => Some(*reservation),
            Self::ChildAnswered { parent, .. } | Self::ChildEnded { parent, .. } => Some(*parent),
        }
    }

    /// The slot whose shard must receive the message.
    #[must_use]
    pub fn slot(&self) -> Slot {
        match self {
            Self::AdmitChild { slot, .. } | Self::Forward { slot, .. } => Slot(*slot),
            _ => self.target().map_or(Slot(0), RunId::slot),
        }
    }

    /// The word for this kind of message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::AdmitChild { .. } => "admit_child",
            Self::Begin { .. } => "begin",
            Self::Begun { .. } => "begun",
            Self::Forward { .. } => "forward",
            Self::KeyFreed { .. } => "key_freed",
            Self::ChildAnswered { .. } => "child_answered",
            Self::ChildEnded { .. } => "child_ended",
            Self::Cancel { .. } => "cancel",
            Self::ParentPurged { .. } => "parent_purged",
        }
    }
}

/// An envelope that could not be processed, kept whole for a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadEnvelope {
    /// The envelope as it was.
    pub envelope: Envelope,
    /// Why it could not be processed.
    pub reason: Str,
}
