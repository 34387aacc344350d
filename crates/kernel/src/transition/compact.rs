//! Compact: a run's journal begins anew with the run as it stands, so that a long life does not pay for its history.
//!
//! The fact holds the whole run, as it is after its own row. Whoever folds may begin with it; the rows before it say
//! nothing more, and the store may empty them.

use alloc::boxed::Box;

use super::Transition;
use crate::{Fact, Phase, Rev, Run, Timestamp};

/// The run in one piece. An empty transition means: its journal has no row but its last.
#[must_use]
pub fn decide(run: &Run, now: Timestamp) -> Transition {
    if run.journal_rows() <= 1 {
        return Transition::default();
    }
    let mut whole = run.clone();
    whole.rev = Rev(run.rev.0 + 1);
    whole.compacted = whole.rev;
    whole.updated_at = now;
    for cursor in &mut whole.cursors {
        if let Phase::Claimed(claim) = &mut cursor.phase {
            // Heartbeats are known in memory only, and are no part of the fold.
            claim.extended_until = Timestamp::default();
        }
    }
    Transition::of([Fact::Compacted(Box::new(whole))])
}

pub(super) fn apply(run: &mut Run, whole: &Run) {
    run.compacted = whole.rev;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transition::start;
    use crate::{Facts, Payload, RequestId, Row, RunId, Seq, StartSpec};

    fn row(run: Option<&Run>, facts: Facts) -> Row {
        let rev = run.map_or(1, |run| run.rev.0 + 1);
        let at = Timestamp(rev as i64);
        Row { seq: Seq(rev * 3), run: RunId(7), rev: Rev(rev), prior: Seq((rev - 1) * 3), at, facts }
    }

    fn begun() -> Run {
        let spec = StartSpec::new("flow", Payload::null());
        let started = start::started(spec, RequestId::new(Timestamp(1), 1), None);
        Run::begin(&row(None, start::decide(RunId(7), started, Timestamp(1)).facts)).expect("it begins")
    }

    /// D1: a journal of one row is as short as it gets, begun or compacted.
    #[test]
    fn a_journal_of_one_row_is_not_compacted() {
        let run = begun();
        assert!(decide(&run, Timestamp(9)).is_empty());
        let mut run = begun();
        run.apply_row(&row(Some(&run), [Fact::ParentPurged].into_iter().collect()));
        let compacting = row(Some(&run), decide(&run, Timestamp(3)).facts);
        run.apply_row(&compacting);
        assert_eq!((run.journal_rows(), run.rev, run.compacted), (1, Rev(3), Rev(3)));
        assert!(decide(&run, Timestamp(9)).is_empty());
    }

    /// D1: a fold that begins with the compacted row is the fold of the whole journal.
    #[test]
    fn a_fold_may_begin_with_the_compacted_row() {
        let mut run = begun();
        run.apply_row(&row(Some(&run), [Fact::ParentPurged].into_iter().collect()));
        let compacting = row(Some(&run), decide(&run, Timestamp(3)).facts);
        run.apply_row(&compacting);
        assert_eq!(Run::begin(&compacting).expect("it begins"), run);
        assert!(run.orphaned);
    }
}
