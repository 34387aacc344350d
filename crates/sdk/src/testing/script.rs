//! Scripted operations: what effects answer in a test, and how often each was really called.

use std::collections::{BTreeMap, HashMap};

use abide_kernel::{ErrorInfo, Payload, Policy};
use abide_runtime::{Beginning, Instead, Observer};
use parking_lot::Mutex;
use serde::Serialize;

use super::TestEngine;
use crate::StepError;

/// How often an effect was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) key: String,
    pub(super) policy: Policy,
    pub(super) times: u32,
}

/// What effects answer, and what was called. It outlives every restart of the engine, as the world outside does.
#[derive(Default)]
pub(super) struct Script {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answers: HashMap<String, Vec<Result<Payload, ErrorInfo>>>,
    /// By durable identity.
    called: BTreeMap<String, Called>,
}

impl Script {
    fn answer(&self, name: &str, answer: Result<Payload, ErrorInfo>) {
        self.state.lock().answers.entry(name.to_owned()).or_default().push(answer);
    }

    /// Every effect that was called, by its durable identity.
    pub(super) fn called(&self) -> BTreeMap<String, Called> {
        self.state.lock().called.clone()
    }

    /// How often effects of this key were called, in all runs.
    pub(super) fn calls(&self, key: &str) -> u32 {
        self.state.lock().called.values().filter(|called| called.key == key).map(|called| called.times).sum()
    }
}

impl Observer for Script {
    fn begins(&self, effect: Beginning<'_>) -> Instead {
        let mut state = self.state.lock();
        let fresh = || Called { key: effect.key.to_owned(), policy: effect.policy, times: 0 };
        let called = state.called.entry(effect.identity.to_owned()).or_insert_with(fresh);
        called.times += 1;
        let turn = called.times as usize;
        let name = effect.key.split('#').next().unwrap_or_default();
        let Some(answers) = state.answers.get(effect.key).or_else(|| state.answers.get(name)) else {
            return Instead::Nothing;
        };
        // Beyond the last one it stays as it was: an effect that is repeated after a crash is answered as before.
        let answer = answers.get(turn - 1).or(answers.last());
        answer.map_or(Instead::Nothing, |answer| Instead::End(answer.clone()))
    }
}

/// What an effect answers, in the order it is called. Its own code is not called any more.
///
/// Each durable identity is answered from the beginning: `charge` in one run and `charge` in another both get the first
/// answer first. When an effect is called more often than there are answers, it gets the last one again.
#[derive(Clone)]
pub struct Scripted {
    pub(super) engine: TestEngine,
    pub(super) name: String,
}

impl Scripted {
    /// It returns this.
    ///
    /// # Panics
    /// When the value has no JSON form.
    pub fn returns<T: Serialize + ?Sized>(self, value: &T) -> Self {
        let value = Payload::encode(value).expect("what an operation returns has a JSON form");
        self.engine.script().answer(&self.name, Ok(value));
        self
    }

    /// It fails.
    pub fn fails(self, error: StepError) -> Self {
        self.engine.script().answer(&self.name, Err(error.info));
        self
    }

    /// How often it was called so far, in all runs.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.engine.script().calls(&self.name)
    }
}
