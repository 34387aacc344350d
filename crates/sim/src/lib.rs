//! A world from one seed: the real engine, turned by hand, under faults that are drawn; and those who look for anything
//! that is not as it was promised.

mod asking;
mod checkers;
mod dice;
mod disk;
pub mod model;
mod net;
mod nodes;
pub mod panics;
mod parcels;
mod profile;
pub mod rare;
mod story;
mod truth;
mod workers;
mod workflows;
mod world;

use std::collections::BTreeMap;

pub use story::Listener;
use world::World;

/// Every fault that strikes in some world.
pub const FAULTS: &[&str] = &[
    "answer_lost",
    "append_fatal_lost",
    "append_fatal_torn",
    "append_fatal_written",
    "append_refused",
    "append_torn",
    "append_unknown_lost",
    "append_unknown_written",
    "call_fails",
    "call_fails_for_good",
    "call_panics",
    "checkpoint_rots",
    "clock_jump",
    "crash",
    "doubt_ignored",
    "flush",
    "index_lost",
    "leave",
    "letter_lost",
    "letter_twice",
    "mail_rots",
    "ownership",
    "partition",
    "pause",
    "read",
    "report_forged",
    "report_twice",
    "request_twice",
    "row_rots",
    "shard_rots",
    "slow_call",
    "slow_write",
    "worker_away",
    "worker_dies",
    "worker_hangs_up",
    "write_done",
    "write_late",
    "write_lost",
    "write_untold",
];

/// Every verb, and whether some world must see it done, and refused.
pub const VERBS: &[(bool, bool, &str)] = &[
    (true, true, "start"),
    (true, true, "signal"),
    (true, true, "cancel"),
    (true, true, "update"),
    (true, true, "decide"),
    (true, true, "assign"),
    (true, true, "resolve"),
    (true, true, "letter"),
    (true, true, "settle"),
    (true, true, "rule"),
    (true, true, "purge"),
    (true, true, "compact"),
    (true, true, "result"),
    (true, true, "show"),
    (false, true, "forge"),
    (true, true, "report"),
    (true, true, "intend"),
    (true, true, "keep"),
];

/// Seeds that once failed.
pub fn regressions() -> impl Iterator<Item = u64> {
    let lines = include_str!("../regressions.txt").lines();
    lines.filter_map(|line| line.split('#').next()?.trim().parse().ok())
}

/// Why a seed fails.
pub type Violation = String;

/// What a seed came to.
pub struct Lived {
    /// What was found wrong.
    pub outcome: Result<(), Violation>,
    /// The same for every life of the seed.
    pub hash: u64,
    /// Nodes of its world.
    pub nodes: usize,
    /// Questions that were asked.
    pub questions: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often each rare thing was seen.
    pub sometimes: BTreeMap<&'static str, u64>,
    /// How often each verb was accepted, and how often refused.
    pub verbs: BTreeMap<(&'static str, bool), u64>,
}

/// Lives through a seed, and tells whoever listens.
#[must_use]
pub fn live(seed: u64, listener: Option<Listener>) -> Lived {
    let mut world = World::new(seed, listener);
    let outcome = world.live();
    let (hash, questions, nodes) = (world.hash(), world.questions(), world.nodes());
    let truth = std::mem::take(&mut *world.witness().truth.lock());
    Lived { outcome, hash, nodes, questions, faults: truth.faults, sometimes: truth.sometimes, verbs: truth.verbs }
}
