//! The claim protocol within small bounds: every order of everything that can happen, in a debug build.

use abide_sim::model::{Bounds, explore};

/// G2, G3, G5, G6: no two live claims on one attempt, a result once, nothing of a stale owner or an old holder, a journal
/// without gaps that folds to what is in memory, and from everywhere a way to the end.
#[test]
fn no_order_of_events_breaks_a_claim() {
    let (mut states, mut ended) = (0, 0);
    for bounds in Bounds::small() {
        let explored = explore(&bounds).unwrap_or_else(|broken| panic!("{bounds:?}: {broken:#?}"));
        eprintln!("{bounds:?}: {explored:?}");
        (states, ended) = (states + explored.states, ended + explored.ended);
    }
    assert!(states > 2_000 && ended > 0, "{states} states, {ended} ended");
}
