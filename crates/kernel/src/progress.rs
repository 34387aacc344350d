//! Progress: what steps say of themselves while they execute. Names and their latest values, and the last events in
//! order. It is best effort: what was said since the last row of the run is in memory only.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::limits::PROGRESS_EVENTS_MAX;
use crate::spec::is_zero;
use crate::{Payload, Str, Timestamp};

/// Something that a step said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressEvent {
    /// Its number: later ones have larger numbers, also after what was in memory only is lost.
    pub seq: u64,
    /// Of what.
    pub name: Str,
    /// How it stands.
    pub value: Payload,
    /// When it was said.
    pub at: Timestamp,
}

/// Steps said something of themselves. It rides with the next row of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progressed {
    /// Which of the run's cursors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cursor: u16,
    /// The claim's number.
    pub claim: u32,
    /// What was said, in order.
    pub events: Vec<ProgressEvent>,
    /// The number of the last event that is left out, because much was said since.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trimmed: u64,
}

impl Progressed {
    /// More was said under the same claim. What would be forgotten anyway is not kept; the last of each name is.
    pub fn take(&mut self, events: Vec<ProgressEvent>) {
        self.events.extend(events);
        while self.events.len() > PROGRESS_EVENTS_MAX {
            let said_again = |at: &usize| {
                let later = &self.events[at + 1..];
                later.iter().any(|other| other.name == self.events[*at].name)
            };
            // There are fewer names than events, so that one of them was said again.
            let oldest = (0..self.events.len()).find(said_again).unwrap_or(0);
            self.trimmed = self.trimmed.max(self.events.remove(oldest).seq);
        }
    }
}

/// Something that a step said of itself, and which step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Kept", into = "Kept")]
pub struct Said {
    /// Which of the run's cursors.
    pub cursor: u16,
    /// Which visit.
    pub visit: u32,
    /// The step.
    pub step: Str,
    /// What.
    pub event: ProgressEvent,
}

/// The same as it is written: in one level. Serde's own way to do so, `flatten`, cannot read a payload as it stands.
#[derive(Clone, Serialize, Deserialize)]
struct Kept {
    #[serde(default, skip_serializing_if = "is_zero")]
    cursor: u16,
    visit: u32,
    step: Str,
    seq: u64,
    name: Str,
    value: Payload,
    at: Timestamp,
}

impl From<Said> for Kept {
    fn from(Said { cursor, visit, step, event }: Said) -> Self {
        let ProgressEvent { seq, name, value, at } = event;
        Self { cursor, visit, step, seq, name, value, at }
    }
}

impl From<Kept> for Said {
    fn from(Kept { cursor, visit, step, seq, name, value, at }: Kept) -> Self {
        Self { cursor, visit, step, event: ProgressEvent { seq, name, value, at } }
    }
}

/// How far the steps of a run have come, as far as they say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The latest value of each name, of the steps as they stand now.
    pub latest: Vec<Said>,
    /// The last events, in order.
    pub events: VecDeque<Said>,
    /// The number of the last event that is not kept any more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub trimmed: u64,
}

impl Progress {
    /// Takes in what a step said.
    pub fn take(&mut self, said: Said) {
        // Who says something in a later visit has left the step before.
        let left = |known: &Said| known.cursor == said.cursor && known.visit != said.visit;
        let same = |known: &Said| known.cursor == said.cursor && known.event.name == said.event.name;
        self.latest.retain(|known| !left(known) && !same(known));
        self.latest.push(said.clone());
        self.events.push_back(said);
        while self.events.len() > PROGRESS_EVENTS_MAX {
            let oldest = self.events.pop_front();
            self.trimmed = oldest.map_or(self.trimmed, |oldest| self.trimmed.max(oldest.event.seq));
        }
    }

    /// The latest values of one visit of a step.
    pub fn of_visit(&self, cursor: u16, visit: u32) -> impl Iterator<Item = &ProgressEvent> {
        let said = self.latest.iter().filter(move |said| (said.cursor, said.visit) == (cursor, visit));
        said.map(|said| &said.event)
    }

    /// The events after a number, in order.
    pub fn after(&self, seq: u64) -> impl Iterator<Item = &Said> {
        self.events.iter().filter(move |said| said.event.seq > seq)
    }

    /// The number of the last event.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.events.back().map_or(self.trimmed, |said| said.event.seq)
    }
}
