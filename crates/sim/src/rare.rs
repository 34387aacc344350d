//! Rare things: what a suite of seeds must have met, or it has proved too little.

use abide::{Fact, Join, Run, Standing, Status, Timestamp, WakeReason};
use abide_kernel::{After, OpEnd, Outcome, Phase, WaitKind};
use abide_store::memory::{Paged, Struck, WriteFault};

use crate::checkers::{Told, View};
use crate::truth::Witness;

/// Everything that must happen sometimes.
pub const SOMETIMES: &[&str] = &[
    "answer_of_another_node",
    "asked_of_the_wrong_node",
    "asked_with_a_report",
    "attempt_at_a_desk",
    "attempt_of_another_nodes_desk",
    "began_anew",
    "cancel_overtakes_a_report",
    "cancel_while_claimed",
    "claim_lost",
    "claim_of_another_now",
    "claim_given_back",
    "completion_refused",
    "dead_letter",
    "deadlines_paged",
    "doubt_resolved",
    "doubted_effect_refused",
    "ended_by_its_deadline",
    "forged_completion_refused",
    "damage_met",
    "join_by_failure",
    "join_by_one",
    "join_by_quorum",
    "key_taken",
    "late_write_refused",
    "line_kept",
    "line_paged",
    "ledger_told_by_another_node",
    "listed",
    "mail_between_nodes",
    "progress_kept",
    "queue_limited",
    "queue_paused",
    "report_late",
    "report_of_another_refused",
    "report_repeated",
    "retries_exhausted",
    "shard_released",
    "shard_taken",
    "signal_after_the_end",
    "signal_before_wait",
    "stale_write_refused",
    "start_reused",
    "task_taken",
    "timer_fired_in_recovery",
    "timer_late",
    "torn_group_recovered",
    "undoing_given_up",
    "undone_after_a_cancel",
    "undone_after_a_failure",
    "undone_in_order",
    "unknown_recovered_as_lost",
    "unknown_recovered_as_written",
    "update_answered",
    "wait_withdrawn",
];

/// How late a timer is that was not there in time.
const LATE_MS: u64 = 60_000;

/// Notes what the journals tell of rare things.
pub(crate) fn note(view: &View, witness: &Witness) {
    (0..view.lines.kept()).for_each(|_| witness.saw("line_kept"));
    for told in view.runs.values() {
        let noted = told.follow(|run, _, fact| {
            rare(run, fact).into_iter().for_each(|what| witness.saw(what));
            Ok(())
        });
        debug_assert!(noted.is_ok(), "whoever only looks finds nothing wrong");
        if told.run.status() == Status::Failed && told.run.cursors.iter().any(|cursor| cursor.retries >= 3) {
            witness.saw("retries_exhausted");
        }
        undone(&told.run, witness);
        late_timers(view, told, witness);
    }
}

/// Notes what an end has undone.
fn undone(run: &Run, witness: &Witness) {
    let undone = || run.effects().filter(|effect| effect.undo && effect.standing == Standing::Committed);
    match run.status() {
        Status::Cancelled if undone().next().is_some() => witness.saw("undone_after_a_cancel"),
        Status::Failed if run.effects().any(|effect| effect.undo && effect.standing == Standing::Failed) => {
            witness.saw("undoing_given_up");
        }
        Status::Failed if undone().next().is_some() => witness.saw("undone_after_a_failure"),
        _ => {}
    }
    if undone().nth(1).is_some() {
        witness.saw("undone_in_order");
    }
}

/// Notes what was met and recovered from: everything, as the world has come to its end.
pub(crate) fn note_recoveries(struck: &Struck, witness: &Witness) {
    for (fault, what) in [
        (WriteFault::UnknownWritten, "unknown_recovered_as_written"),
        (WriteFault::UnknownLost, "unknown_recovered_as_lost"),
        (WriteFault::UnknownTorn, "torn_group_recovered"),
    ] {
        if struck.appends.contains_key(&fault) {
            witness.saw(what);
        }
    }
}

/// Notes that lines and deadlines were read on from the store.
pub(crate) fn note_paging(paged: Paged, witness: &Witness) {
    if paged.lines > 0 {
        witness.saw("line_paged");
    }
    if paged.deadlines > 0 {
        witness.saw("deadlines_paged");
    }
}

/// What a fact tells of, as the run was before it.
fn rare(run: &Run, fact: &Fact) -> Option<&'static str> {
    let claimed = || run.cursors.iter().any(|cursor| matches!(cursor.phase, Phase::Claimed(_)));
    match fact {
        Fact::Expired(_) => Some("claim_lost"),
        Fact::Returned(_) => Some("claim_given_back"),
        Fact::DeadLettered(_) => Some("dead_letter"),
        Fact::Anomaly(_) => Some("completion_refused"),
        Fact::Progressed(_) => Some("progress_kept"),
        Fact::Cancelling(_) if claimed() => Some("cancel_while_claimed"),
        Fact::Ended(ended) if ended.status == Status::Cancelled && claimed() => Some("cancel_while_claimed"),
        Fact::Ended(ended) if ended.error.as_ref().is_some_and(|error| *error.code == *"run_deadline") => {
            Some("ended_by_its_deadline")
        }
        Fact::Applied(applied) if applied.then == After::Continue => Some("began_anew"),
        Fact::Applied(applied) if applied.then == After::Arrived => {
            match &run.cursors[usize::from(applied.cursor)].phase {
                Phase::Completed { outcome, .. } => {
                    matches!(&**outcome, Outcome::Await { .. }).then_some("signal_before_wait")
                }
                _ => None,
            }
        }
        Fact::Assigned(_) => Some("task_taken"),
        Fact::Resulted(resulted) if resulted.end == OpEnd::Withdrawn => Some("wait_withdrawn"),
        Fact::Woken(woken) if woken.by == WakeReason::Children => joined(run, woken.cursor),
        _ => None,
    }
}

/// How a wait for children ended while some of them went on, or under a rule of its own.
fn joined(run: &Run, cursor: u16) -> Option<&'static str> {
    let Phase::Waiting(wait) = &run.cursors[usize::from(cursor)].phase else { return None };
    let WaitKind::Children(barrier) = &wait.kind else { return None };
    let open = run.children.iter().any(|child| child.barrier == Some(wait.token) && child.end.is_none());
    match barrier.join {
        Join::AllTerminal => None,
        Join::AllSucceeded => open.then_some("join_by_failure"),
        Join::Any => open.then_some("join_by_one"),
        Join::Quorum(_) => Some("join_by_quorum"),
    }
}

fn late_timers(view: &View, told: &Told, witness: &Witness) {
    let openings = view.openings(told.run.id);
    // It came to its end between what one owner wrote last and what the next wrote first.
    let in_recovery = |until: Timestamp| {
        openings.iter().any(|head| {
            let before = view.written_at(told.run.id, *head);
            before.is_some_and(|at| at < until)
                && view.written_at(told.run.id, head.next()).is_some_and(|at| until <= at)
        })
    };
    let Ok(mut run) = Run::begin(&told.rows[0]) else { return };
    for row in &told.rows[1..] {
        for fact in &row.facts {
            if let Fact::Woken(woken) = fact
                && let Phase::Waiting(wait) = &run.cursors[usize::from(woken.cursor)].phase
                && woken.by == WakeReason::Timer
                && let Some(until) = wait.until
            {
                if row.at.since(until) > LATE_MS {
                    witness.saw("timer_late");
                }
                if in_recovery(until) {
                    witness.saw("timer_fired_in_recovery");
                }
            }
            run.apply(fact, abide_kernel::Meta { seq: row.seq, at: row.at });
        }
        run.rev = row.rev;
    }
}
