//! The search: depth first through every state that can be reached, each looked at once.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use super::act::allowed;
use super::heal::{begins, heal};
use super::state::State;
use super::{Act, Bounds};
use crate::Violation;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Explored {
    /// States, each counted once.
    pub states: u64,
    /// Acts that were tried.
    pub acts: u64,
    /// States from which the run was brought to its end.
    pub healed: u64,
    /// States in which the run has ended.
    pub ended: u64,
    /// The most acts in a row.
    pub depth: usize,
}

/// A law that does not hold, and the shortest way to it that was found.
#[derive(Clone, Debug)]
pub struct Broken {
    /// What does not hold.
    pub violation: Violation,
    /// What happens before it.
    pub acts: Vec<Act>,
}

/// States that were seen, by their prints.
type Seen = HashSet<u128, BuildHasherDefault<Folded>>;

/// A print is a hash already.
#[derive(Default)]
struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}

/// A state on the way, and what is still to be tried from it.
struct Stop {
    state: State,
    print: u128,
    acts: Vec<Act>,
    by: Option<Act>,
}

/// Goes through every state within the bounds.
///
/// # Errors
/// The first law that does not hold.
pub fn explore(bounds: &Bounds) -> Result<Explored, Box<Broken>> {
    let mut search = Search { bounds, seen: Seen::default(), healed: Seen::default(), explored: Explored::default() };
    let mut way: Vec<Stop> = Vec::new();
    let first = State::new(bounds);
    let visited = search.visit(0, first, None);
    way.extend(visited.unwrap_or_default());
    while let Some(stop) = way.last_mut() {
        let Some(act) = stop.acts.pop() else {
            way.pop();
            continue;
        };
        let (before, mut state) = (stop.print, stop.state.clone());
        let visited = state.obey(bounds, act).and_then(|()| search.visit(before, state, Some(act)));
        match visited {
            Ok(next) => way.extend(next),
            Err(violation) => {
                let acts: Vec<Act> = way.iter().filter_map(|stop| stop.by).chain([act]).collect();
                return Err(Box::new(shorten(bounds, Broken { violation, acts })));
            }
        }
        search.explored.depth = search.explored.depth.max(way.len());
    }
    Ok(search.explored)
}

struct Search<'a> {
    bounds: &'a Bounds,
    seen: Seen,
    healed: Seen,
    explored: Explored,
}

impl Search<'_> {
    /// Looks at a state, unless it was seen before.
    fn visit(&mut self, before: u128, mut state: State, by: Option<Act>) -> Result<Option<Stop>, Violation> {
        self.explored.acts += 1;
        let (plain, print) = state.print(by.map_or(0, Act::node));
        // What changes nothing leads nowhere new, whether it counts or not.
        if plain == before || !self.seen.insert(print) {
            return Ok(None);
        }
        self.explored.states += 1;
        self.explored.ended += u64::from(state.disk.run().is_some_and(|run| run.end.is_some()));
        // How it goes on without faults does not depend on how many there were.
        if let Some(node) = begins(&state).filter(|_| self.healed.insert(plain)) {
            self.explored.healed += 1;
            heal(state.clone(), self.bounds, node)?;
        }
        let acts = allowed(&mut state, self.bounds);
        Ok(Some(Stop { state, print: plain, acts, by }))
    }
}

/// Leaves out every act without which something is still broken.
fn shorten(bounds: &Bounds, mut broken: Broken) -> Broken {
    let mut index = 0;
    while index < broken.acts.len() {
        let mut acts = broken.acts.clone();
        acts.remove(index);
        match replay(bounds, &acts) {
            Some(fewer) => broken = fewer,
            None => index += 1,
        }
    }
    broken
}

/// What the acts break, if each of them can happen.
fn replay(bounds: &Bounds, acts: &[Act]) -> Option<Broken> {
    let mut state = State::new(bounds);
    for (index, act) in acts.iter().enumerate() {
        if !allowed(&mut state, bounds).contains(act) {
            return None;
        }
        let broken = |violation| Broken { violation, acts: acts[..=index].to_vec() };
        let heals = |state: &State| begins(state).map_or(Ok(()), |node| heal(state.clone(), bounds, node));
        if let Err(violation) = state.obey(bounds, *act).and_then(|()| heals(&state)) {
            return Some(broken(violation));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::print::Print;
    use super::*;

    /// Everything that can follow, as far as prints tell it apart. Answers that wait for a batch go by its number, which counts
    /// batches that are long over: they are compared when they leave.
    fn futures(state: &State, bounds: &Bounds) -> Vec<(Act, Result<u128, Violation>)> {
        let acts = allowed(&mut state.clone(), bounds);
        let futures = acts.into_iter().map(|act| {
            let mut next = state.clone();
            let print = next.obey(bounds, act).map(|()| {
                let mut print = Print::without("release");
                print.add(&(&next.disk, &next.nodes, &next.hands, &next.spent));
                print.end()
            });
            (act, print)
        });
        futures.collect()
    }

    /// What is left out of prints decides nothing: two states with one print allow the same acts, which lead to the same prints.
    #[test]
    fn states_with_one_print_have_one_future() {
        for bounds in Bounds::small() {
            let mut known = HashMap::new();
            let mut first = State::new(&bounds);
            let mut ahead = vec![(first.print(0).1, first, Vec::new())];
            let mut twice = 0;
            while let Some((print, state, way)) = ahead.pop() {
                let futures = futures(&state, &bounds);
                if let Some((before, other)) = known.get(&print) {
                    twice += 1;
                    assert_eq!(&futures, before, "{bounds:?}: after {way:?}, and after {other:?}");
                    continue;
                }
                for (act, _) in &futures {
                    let mut next = state.clone();
                    next.obey(&bounds, *act).unwrap_or_else(|violation| panic!("{violation}"));
                    let print = next.print(act.node()).1;
                    ahead.push((print, next, [way.clone(), vec![*act]].concat()));
                }
                known.insert(print, (futures, way));
            }
            assert!(twice > 0, "{bounds:?}");
        }
    }
}
