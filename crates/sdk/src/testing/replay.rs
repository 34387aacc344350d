//! Replay: today's code is run over a journal of yesterday, with nothing done outside.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use abide_kernel::shard::{Dispatch, WorkerId};
use abide_kernel::{
    After, ClaimId, Claimant, Fact, Meta, OpId, Outcome, Row, Run, RunId, Status, TokenHash, WakeReason,
};
use abide_runtime::{Attempt, AttemptLink, Beginning, Instead, Life, Observer, Program, Verdict};
use parking_lot::Mutex;

/// What came of running today's code over a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replayed {
    /// The code does what is recorded.
    Fits {
        /// Recorded entries that the code does not ask for any more.
        removed: Vec<String>,
        /// What the code would do next that is not recorded, for a run that is open.
        next: Vec<String>,
    },
    /// The code does something else.
    Diverges {
        /// The revision at which what it does not fit was recorded, if it was.
        rev: Option<u64>,
        /// Where and why.
        why: String,
    },
    /// No workflow of that name and version was given.
    NoCode {
        /// The name.
        workflow: String,
        /// The version.
        version: u32,
    },
    /// The journal cannot be read, or is not whole.
    Unreadable {
        /// Why.
        why: String,
    },
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits { removed, next } => {
                write!(f, "fits")?;
                if !removed.is_empty() {
                    write!(f, "; not asked for any more: {}", removed.join(", "))?;
                }
                if !next.is_empty() {
                    write!(f, "; goes on with {}", next.join(", "))?;
                }
                Ok(())
            }
            Self::Diverges { rev: Some(rev), why } => write!(f, "diverges from what is recorded at rev {rev}: {why}"),
            Self::Diverges { rev: None, why } => write!(f, "diverges: {why}"),
            Self::NoCode { workflow, version } => write!(f, "no code was given for {workflow} v{version}"),
            Self::Unreadable { why } => write!(f, "cannot be read: {why}"),
        }
    }
}

/// Notes what the code asks for, and keeps it from doing anything.
#[derive(Default)]
struct Withhold {
    asked: Mutex<Vec<String>>,
}

impl Observer for Withhold {
    fn asked(&self, _: RunId, key: &str) {
        self.asked.lock().push(key.to_owned());
    }

    fn begins(&self, _: Beginning<'_>) -> Instead {
        Instead::Never
    }
}

/// Runs the code of a workflow over a journal and the run it makes.
pub(super) fn replay(program: &dyn Program, rows: &[Row], run: &Run) -> Replayed {
    if !program.replays() {
        return check_steps(program, run);
    }
    for life in earlier_lives(rows) {
        let replayed = replay_life(program, rows, &life, Expected::Again);
        if !matches!(replayed, Replayed::Fits { .. }) {
            return replayed;
        }
    }
    let expected = match (run.status(), &run.result) {
        (Status::Done, Some(result)) => Expected::Result(result.text()),
        (status, _) if status.is_terminal() => Expected::Anything,
        _ => Expected::Open,
    };
    replay_life(program, rows, run, expected)
}

/// Steps of a machine are not replayed: they run again as a whole, or not at all. An open run needs the one it stands at.
fn check_steps(program: &dyn Program, run: &Run) -> Replayed {
    let steps = run.cursors.iter().filter_map(|cursor| cursor.step.as_deref());
    let mut missing = steps.filter(|step| !program.has_step(step));
    match missing.next().filter(|_| !run.status().is_terminal()) {
        Some(step) => Replayed::Diverges {
            rev: Some(run.rev.0),
            why: format!("the run stands at step {step:?}, which the code does not have"),
        },
        None => Replayed::Fits { removed: Vec::new(), next: Vec::new() },
    }
}

/// The run as it was each time just before it began again.
fn earlier_lives(rows: &[Row]) -> Vec<Run> {
    let mut lives = Vec::new();
    let mut run: Option<Run> = None;
    for row in rows {
        let Some(known) = &mut run else {
            run = Run::begin(row).ok();
            continue;
        };
        for fact in &row.facts {
            if matches!(fact, Fact::Applied(applied) if applied.then == After::Continue) {
                lives.push(known.clone());
            }
            known.apply(fact, Meta { seq: row.seq, at: row.at });
        }
        known.rev = row.rev;
    }
    lives
}

/// How a life of the run is to come out.
#[derive(Clone, Copy)]
enum Expected<'a> {
    /// It is open: it waits, or goes on.
    Open,
    /// It returned this.
    Result(&'a str),
    /// It began again.
    Again,
    /// It failed or was cancelled: what it would do now is its own affair.
    Anything,
}

fn replay_life(program: &dyn Program, rows: &[Row], run: &Run, expected: Expected<'_>) -> Replayed {
    let withhold = Arc::new(Withhold::default());
    let life = match expected {
        Expected::Open => Life::Open,
        Expected::Result(_) | Expected::Again | Expected::Anything => Life::Over,
    };
    let Some(attempt) = attempt(run, withhold.clone(), life) else {
        // It has not begun: whatever the code does is new.
        return Replayed::Fits { removed: Vec::new(), next: Vec::new() };
    };
    let visit = attempt.dispatch.visit;
    let verdict = pin!(program.execute(attempt)).poll(&mut Context::from_waker(Waker::noop()));
    let asked = withhold.asked.lock();
    let recorded: Vec<(OpId, &str)> =
        run.ops().filter(|(_, op)| op.visit == visit).map(|(id, op)| (id, &*op.key)).collect();
    let is_recorded = |key: &String| recorded.iter().any(|(_, known)| known == key);
    let next: Vec<String> = asked.iter().filter(|key| !is_recorded(key)).cloned().collect();
    let removed = recorded.iter().filter(|(_, key)| !asked.iter().any(|asked| asked == key));
    let removed: Vec<String> = removed.map(|(_, key)| (*key).to_owned()).collect();
    let diverges = |why: String| Replayed::Diverges { rev: asked.last().and_then(|key| rev_of(rows, key)), why };
    let goes_on = || match next.first() {
        Some(key) => format!("the code goes on with {key:?}, which the recorded run never came to"),
        None => "the code goes on where the recorded run ended".to_owned(),
    };
    match (verdict, expected) {
        (Poll::Ready(Verdict::SetAside { error }), _) => diverges(error.message.to_string()),
        (Poll::Ready(Verdict::Outcome { outcome: Outcome::Done { result }, .. }), Expected::Result(recorded)) => {
            if result.text() == recorded {
                Replayed::Fits { removed, next }
            } else {
                let found = result.text();
                Replayed::Diverges { rev: None, why: format!("expected the result {recorded}, found {found}") }
            }
        }
        (Poll::Ready(Verdict::Outcome { outcome: Outcome::ContinueAsNew { .. }, .. }), Expected::Again) => {
            Replayed::Fits { removed, next }
        }
        (Poll::Ready(Verdict::Failed { error, .. }), Expected::Result(_) | Expected::Again) => {
            diverges(format!("the code fails where the recorded run went on: {error}"))
        }
        (_, Expected::Result(_) | Expected::Again) => diverges(goes_on()),
        (_, Expected::Open | Expected::Anything) => Replayed::Fits { removed, next },
    }
}

/// The revision at which an entry of the ledger was first recorded.
fn rev_of(rows: &[Row], key: &str) -> Option<u64> {
    let intends =
        |row: &&Row| row.facts.iter().any(|fact| matches!(fact, Fact::Intended(intended) if &*intended.key == key));
    rows.iter().find(intends).map(|row| row.rev.0)
}

/// An attempt at the run as it stands, whose words lead nowhere.
fn attempt(run: &Run, observer: Arc<dyn Observer>, life: Life) -> Option<Attempt> {
    let cursor = run.cursors.first()?;
    let claim = ClaimId { run: run.id, number: run.claims + 1 };
    let dispatch = Dispatch {
        worker: WorkerId(0),
        by: Claimant::new("nobody".into(), TokenHash(0), 0, None),
        claim,
        started: run.started.clone(),
        epoch: run.epoch,
        step: cursor.step.clone()?,
        visit: cursor.visit,
        turn: cursor.turn,
        cursor: 0,
        retries: cursor.retries,
        reclaims: cursor.reclaims,
        woken_by: Some(WakeReason::Ledger),
        state: run.state.clone(),
        published: run.published.clone(),
        progress: Vec::new(),
        signals: run.inbox.clone(),
        children: run.children.clone(),
        ops: run.ops.clone(),
        ops_dropped: run.ops_dropped,
        ops_ended: run.ops_ended,
        begun_at: run.begun_at,
        eligible_at: run.updated_at,
        lease_until: run.updated_at,
        cancelling: run.cancelling.is_some(),
    };
    let link = AttemptLink::detached(claim, run.updated_at, observer, life);
    Some(Attempt { dispatch: Box::new(dispatch), link })
}
