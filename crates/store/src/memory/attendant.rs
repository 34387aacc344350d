//! Writes that take their time: somebody is asked before each and after it, and may let the world go on meanwhile, or have
//! the process die there.

use std::sync::Arc;

use super::MemoryStore;
use crate::{Fault, FaultKind};

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is on its way: nothing of it is written, and nothing was looked at yet.
    Begun,
    /// It is written, and whoever writes does not know.
    Written,
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// It goes on.
    GoOn,
    /// Whoever writes dies there, and writes nothing more.
    Die,
}

/// Who is asked about the writes through one handle.
pub trait Attendant: Send + Sync + std::fmt::Debug {
    /// A write has come so far. It waits for the answer, and holds nothing of the store meanwhile.
    fn attend(&self, stage: Stage) -> Word;
}

impl MemoryStore {
    /// Another handle on the same contents, about whose writes somebody is asked.
    #[must_use]
    pub fn attended(&self, attendant: Arc<dyn Attendant>) -> Self {
        Self { attendant: Some(attendant), ..self.clone() }
    }

    /// A write begins.
    pub(super) fn begin_write(&mut self) -> Result<(), Fault> {
        self.check_going()?;
        self.attend(Stage::Begun)
    }

    /// A write is done.
    pub(super) fn end_write(&mut self) -> Result<(), Fault> {
        self.attend(Stage::Written)
    }

    /// A shard is about to be taken. One who has the store alone lets nothing go on meanwhile.
    pub(super) fn begin_opening(&mut self) -> Result<(), Fault> {
        if self.is_shared() { self.begin_write() } else { self.check_going() }
    }

    /// A shard is taken.
    pub(super) fn end_opening(&mut self) -> Result<(), Fault> {
        if self.is_shared() { self.end_write() } else { Ok(()) }
    }

    fn attend(&mut self, stage: Stage) -> Result<(), Fault> {
        match self.attendant.as_ref().map_or(Word::GoOn, |attendant| attendant.attend(stage)) {
            Word::GoOn => Ok(()),
            Word::Die => {
                self.stopped = true;
                Err(Fault::new(FaultKind::Fatal, "the process ended while it wrote"))
            }
        }
    }
}
