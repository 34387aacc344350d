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

use abide_store::memory::{Operation, WriteFault};
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
    "renewal",
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

/// A world in which one thing goes wrong with the store, and nothing else.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is asked in it, and in which order things happen.
    pub seed: u64,
    /// How many nodes it has.
    pub nodes: usize,
    /// What goes wrong.
    pub operation: Operation,
    /// How many of them go well before.
    pub well: usize,
    /// How it goes wrong.
    pub fault: WriteFault,
}

impl Plan {
    /// Everything that can go wrong first, in every way.
    pub fn all(seed: u64) -> impl Iterator<Item = Self> {
        use WriteFault::{Refused, UnknownLost, UnknownWritten};
        let of_nodes: &[WriteFault] = &[Refused, UnknownWritten, UnknownLost];
        let ways = [
            (Operation::Append, &WriteFault::ALL[..]),
            (Operation::Flush, &WriteFault::ALL),
            (Operation::Ownership, of_nodes),
            (Operation::Renewal, of_nodes),
            (Operation::Read, &[Refused]),
        ];
        let all = ways.into_iter().flat_map(|(operation, faults)| faults.iter().map(move |fault| (operation, *fault)));
        all.flat_map(move |(operation, fault)| {
            let nodes = if operation == Operation::Renewal { 2..=2 } else { 1..=2 };
            nodes.map(move |nodes| Self { seed, nodes, operation, well: 0, fault })
        })
    }
}

/// Lives through a seed, and tells whoever listens.
#[must_use]
pub fn live(seed: u64, listener: Option<Listener>) -> Lived {
    lived(&mut World::new(seed, listener))
}

/// Lives through a world in which one thing goes wrong. Whether it did: it is not if there were not as many.
#[must_use]
pub fn live_with(plan: &Plan, listener: Option<Listener>) -> (Lived, bool) {
    let mut world = World::with(plan, listener);
    let lived = lived(&mut world);
    (lived, world.struck() > 0)
}

fn lived(world: &mut World) -> Lived {
    let outcome = world.live();
    let (hash, questions, nodes) = (world.hash(), world.questions(), world.nodes());
    let truth = std::mem::take(&mut *world.witness().truth.lock());
    Lived { outcome, hash, nodes, questions, faults: truth.faults, sometimes: truth.sometimes, verbs: truth.verbs }
}
