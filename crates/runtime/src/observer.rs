//! An observer of outside work: told of every effect before it is called, and able to stand in for it. It is how tests
//! count, script and withhold what the code of a workflow does outside.

use abide_kernel::{ErrorInfo, Payload, Policy, RunId};

/// An effect that is about to be called.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Beginning<'a> {
    /// The run.
    pub run: RunId,
    /// Its name in its scope, and which one of that name.
    pub key: &'a str,
    /// Its durable identity: the same over all attempts at it, and of no other effect.
    pub identity: &'a str,
    /// What happens when nobody knows whether it took place.
    pub policy: Policy,
}

impl<'a> Beginning<'a> {
    /// An effect of a run.
    #[must_use]
    pub fn new(run: RunId, key: &'a str, identity: &'a str, policy: Policy) -> Self {
        Self { run, key, identity, policy }
    }
}

/// What takes the place of an effect's call.
#[derive(Clone, Debug)]
pub enum Instead {
    /// Nothing: it is called.
    Nothing,
    /// It is not called, and ends so.
    End(Result<Payload, ErrorInfo>),
    /// It is not called, and does not end.
    Never,
}

/// Told of what the code of workflows does through its ledger. It runs inside the attempt, and must not wait.
pub trait Observer: Send + Sync {
    /// The code of `run` has come to a durable point, new or recorded.
    fn asked(&self, _run: RunId, _key: &str) {}

    /// An effect is about to be called.
    fn begins(&self, effect: Beginning<'_>) -> Instead;
}
