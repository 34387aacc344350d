//! A world from one seed: the real engine, turned by hand, under faults that are drawn; and those who look for anything
//! that is not as it was promised.

mod asking;
mod checkers;
mod dice;
pub mod model;
mod profile;
mod story;
mod truth;
mod workflows;
mod world;

use std::collections::BTreeMap;

use world::World;

/// Why a seed fails.
pub type Violation = String;

/// What a seed came to.
pub struct Lived {
    /// What was found wrong.
    pub outcome: Result<(), Violation>,
    /// The same for every life of the seed.
    pub hash: u64,
    /// Questions that were asked.
    pub questions: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often each rare thing was seen.
    pub sometimes: BTreeMap<&'static str, u64>,
    /// How often each verb was accepted, and how often refused.
    pub verbs: BTreeMap<(&'static str, bool), u64>,
    /// What happened, if it was told.
    pub story: Vec<String>,
}

/// Lives through a seed.
#[must_use]
pub fn live(seed: u64, tells: bool) -> Lived {
    let mut world = World::new(seed, tells);
    let outcome = world.live();
    let (hash, questions) = (world.hash(), world.questions());
    let story = world.story.lines().to_vec();
    let truth = std::mem::take(&mut *world.witness().truth.lock());
    Lived { outcome, hash, questions, faults: truth.faults, sometimes: truth.sometimes, verbs: truth.verbs, story }
}
