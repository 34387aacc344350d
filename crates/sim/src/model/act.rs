//! What can happen: every act that a state allows, one at a time.

use super::machine::Owned;
use super::state::State;
use super::{Bounds, Hands};

/// One thing that happens. Nodes and workers go by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A client asks the node for the run.
    Start(usize),
    /// The node takes the shard: whoever had it before is stale. If it has the shard open, it has died since, with all it
    /// had in memory.
    Open(usize),
    /// The node does not learn what became of its batch, drops what it had in memory and opens the shard again.
    Again(usize),
    /// The node lets a worker claim.
    Claim(usize, usize),
    /// The node's batch reaches the store, which takes or refuses it.
    Append(usize),
    /// The node hears of it, and what hung on it leaves.
    Release(usize),
    /// Time passes on the node's clock until something is due, and the node looks.
    Expire(usize),
    /// The node looks at its clock: something is due.
    Tick(usize),
    /// The node writes index rows.
    Flush(usize),
    /// A worker says something about a claim to a node.
    Say {
        /// To which node.
        node: usize,
        /// Which worker.
        hand: usize,
        /// About which claim.
        claim: u32,
        /// What.
        word: Word,
    },
}

impl Act {
    /// The node that it happens to.
    #[must_use]
    pub fn node(self) -> usize {
        match self {
            Self::Start(node)
            | Self::Open(node)
            | Self::Again(node)
            | Self::Claim(node, _)
            | Self::Append(node)
            | Self::Release(node)
            | Self::Expire(node)
            | Self::Tick(node)
            | Self::Flush(node)
            | Self::Say { node, .. } => node,
        }
    }
}

/// What a worker says about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The step is done.
    Done,
    /// The step is done, and the lease has ended since; nobody has looked yet.
    Late,
    /// The step failed and may be tried again.
    Failed,
    /// Half a lease has passed, and it is still at it.
    Beat,
    /// It never began.
    Returned,
}

impl Word {
    /// Whether the worker is at the end of its attempt with it.
    pub(super) fn is_result(self) -> bool {
        match self {
            Self::Done | Self::Late | Self::Failed => true,
            Self::Beat | Self::Returned => false,
        }
    }
}

/// Every act that the state allows.
pub(super) fn allowed(state: &mut State, bounds: &Bounds) -> Vec<Act> {
    let mut acts = Vec::new();
    for node in 0..2 {
        open(state, bounds, node, &mut acts);
        if commit(state, bounds, node, &mut acts) {
            work(state, bounds, node, &mut acts);
            speak(state, bounds, node, &mut acts);
        }
    }
    acts
}

/// A node's death is one act with its opening: what others do in between, they can do before.
fn open(state: &State, bounds: &Bounds, node: usize, acts: &mut Vec<Act>) {
    // The nodes are alike but for their clocks: the first to own the shard is the first node, and the one whose clock is
    // behind takes it from the other where there are three openings.
    let first = state.spent.opens == 0 && node != 0;
    if state.spent.opens >= bounds.opens || first {
        return;
    }
    acts.push(Act::Open(node));
    // A remote worker does not live with the node, and there it makes no difference whether the node died.
    let pending = |owned: &Owned| owned.flying.is_some() || owned.shard.wants_append();
    if bounds.hands.live_in_nodes() && state.nodes[node].owned.as_deref().is_some_and(pending) {
        acts.push(Act::Again(node));
    }
}

/// Batches come and go. Whether anything else is of interest: so many rows wait at most, and a stale owner that has not heard of its last batch can say
/// nothing before it does.
fn commit(state: &State, bounds: &Bounds, node: usize, acts: &mut Vec<Act>) -> bool {
    let Some(owned) = &state.nodes[node].owned else { return false };
    match owned.flying {
        Some(_) => acts.push(Act::Release(node)),
        None if owned.shard.wants_append() => acts.push(Act::Append(node)),
        None if state.spent.flushes < bounds.flushes && owned.shard.behind() > 0 => acts.push(Act::Flush(node)),
        None => {}
    }
    let room = bounds.gathered - usize::from(owned.flying.is_some());
    let current = owned.epoch == state.disk.epoch;
    if current { owned.shard.gathered() < room } else { owned.flying.is_none() }
}

fn work(state: &mut State, bounds: &Bounds, node: usize, acts: &mut Vec<Act>) {
    let spent = state.spent;
    let Some((clock, owned)) = state.nodes[node].owned() else { return };
    if spent.starts < bounds.starts {
        acts.push(Act::Start(node));
    }
    // Time that passes without anything becoming due makes no difference, and is not tried.
    match owned.shard.next_wake() {
        Some(due) if due <= clock => acts.push(Act::Tick(node)),
        Some(_) if spent.expiries < bounds.expiries => acts.push(Act::Expire(node)),
        _ => {}
    }
    for hand in owned.hands.clone() {
        // The workers are alike: the first to claim is the first worker.
        let first = bounds.hands == Hands::Remote && spent.claims == 0 && hand != 0;
        if spent.claims < bounds.claims && !first && owned.has_work(hand) {
            acts.push(Act::Claim(node, hand));
        }
    }
}

/// A worker may speak of every claim that it was ever given, whatever became of it, and as often as the bounds let it.
fn speak(state: &State, bounds: &Bounds, node: usize, acts: &mut Vec<Act>) {
    if state.spent.words >= bounds.words {
        return;
    }
    for hand in 0..2 {
        if bounds.hands == Hands::Local && hand != node {
            continue;
        }
        for claim in state.hands[hand].claims.iter().copied() {
            acts.extend(bounds.says.iter().map(|word| Act::Say { node, hand, claim, word: *word }));
        }
        // Whoever has not been given a claim has heard of it, and says that it is done.
        let others = state.hands[1 - hand].claims.iter().filter(|_| bounds.hands == Hands::Remote);
        acts.extend(others.map(|claim| Act::Say { node, hand, claim: *claim, word: Word::Done }));
    }
}
