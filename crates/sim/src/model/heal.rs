//! Healing: from every state, once nothing fails any more, the run comes to its end.

use abide_kernel::shard::Command;
use abide_kernel::{Phase, Status};

use super::outputs::CLIENT;
use super::state::{State, run_id};
use super::{Act, Bounds, Word};
use crate::Violation;

/// Rounds after which nobody believes any more that it will end.
const ROUNDS_MAX: u32 = 40;

/// The node from which healing begins: it owns the shard and has nothing left to write, to hear of or to look at. Every
/// other state leads to such a one without a fault, and that is looked at for itself.
pub(super) fn begins(state: &State) -> Option<usize> {
    (0..2).find(|node| {
        let machine = &state.nodes[*node];
        machine.owned.as_deref().is_some_and(|owned| {
            let due = owned.shard.next_wake().is_some_and(|due| due <= machine.clock);
            owned.epoch == state.disk.epoch && owned.flying.is_none() && !owned.shard.wants_append() && !due
        })
    })
}

/// Lets everything go well from here on, until the run has ended.
pub(super) fn heal(mut state: State, bounds: &Bounds, node: usize) -> Result<(), Violation> {
    for _ in 0..ROUNDS_MAX {
        settle(&mut state, bounds, node)?;
        if state.disk.run().is_some_and(|run| run.end.is_some()) {
            return ended(&state);
        }
        go_on(&mut state, bounds, node)?;
    }
    let run = state.disk.run();
    Err(format!("the end is never reached, and the run stands at {:?}", run.map(|run| &run.cursors[0].phase)))
}

/// Whatever was gathered becomes durable, and is heard of.
fn settle(state: &mut State, bounds: &Bounds, node: usize) -> Result<(), Violation> {
    loop {
        let Some(owned) = &state.nodes[node].owned else { return Err("the owner lost its shard".into()) };
        let act = match owned.flying {
            Some(_) => Act::Release(node),
            None if owned.shard.wants_append() => Act::Append(node),
            None => return Ok(()),
        };
        state.obey(bounds, act)?;
    }
}

/// One step towards the end.
fn go_on(state: &mut State, bounds: &Bounds, node: usize) -> Result<(), Violation> {
    let Some(run) = state.disk.run() else {
        return state.obey(bounds, Act::Start(node));
    };
    if run.status() == Status::DeadLettered {
        if let Some((clock, owned)) = state.nodes[node].owned() {
            owned.shard.submit(clock, CLIENT, Command::Requeue { run: run_id() });
            owned.load(clock, &state.disk)?;
        }
        return Ok(());
    }
    if let Phase::Claimed(claim) = &run.cursors[0].phase {
        let number = claim.number;
        let holder = (0..2).find(|hand| {
            let speaks = state.nodes[*hand].token(bounds) == state.disk.ledger.claims[&number];
            speaks && state.hands[*hand].claims.contains(&number)
        });
        // Whoever does not speak loses the claim when its lease has ended.
        return match holder {
            Some(hand) => state.obey(bounds, Act::Say { node, hand, claim: number, word: Word::Done }),
            None => pass(state, bounds, node),
        };
    }
    let Some((_, owned)) = state.nodes[node].owned() else { return Ok(()) };
    let hand = owned.hands[0];
    if owned.has_work(hand) {
        return state.obey(bounds, Act::Claim(node, hand));
    }
    pass(state, bounds, node)
}

fn pass(state: &mut State, bounds: &Bounds, node: usize) -> Result<(), Violation> {
    match state.nodes[node].owned.as_ref().and_then(|owned| owned.shard.next_wake()) {
        Some(_) => state.obey(bounds, Act::Expire(node)),
        None => Err("the run has not ended, and nothing will ever wake it".into()),
    }
}

/// The end is what the last step returned, by the one who held its claim.
fn ended(state: &State) -> Result<(), Violation> {
    let Some(run) = state.disk.run() else { return Ok(()) };
    let result = run.result.as_ref().map(|result| result.text().to_owned());
    if result.is_some() && result == state.disk.ledger.done {
        return Ok(());
    }
    Err(format!("the run ended as {:?} with {result:?}, which its last step did not return", run.status()))
}
