//! Completion: what a step returned is given to the shard, and its worker is free for the next attempt.

use std::sync::Arc;

use abide_kernel::shard::Command;
use abide_kernel::transition::complete::Completing;
use abide_kernel::transition::fail::Failing;
use abide_kernel::{ClaimId, ErrorInfo, Outcome, TokenHash, mix};

use crate::driver::Shared;
use crate::points;
use crate::program::Verdict;
use crate::steps::Job;

impl Shared {
    /// Records a verdict. What the shard refuses (the lease is over, the run was cancelled) is recorded there as an
    /// anomaly, and the step's work here is dropped.
    pub(crate) fn complete(&self, claim: ClaimId, retries: u32, verdict: Verdict) {
        points::reach("step-returned");
        let mut command = command(claim, self.token, retries, verdict);
        command.iter_mut().for_each(|command| self.settle_versions(command));
        let now = self.now();
        let mut core = self.core.lock();
        if let Some(command) = command {
            core.put_quietly(now, claim.run.slot(), command);
        }
        core.finished(claim);
        core.fill(now);
        let hand_over = self.should_hand_over(&core);
        let draining = core.draining;
        drop(core);
        if draining {
            self.attempt_ended.notify_waiters();
        }
        if hand_over {
            self.writer.ring();
        }
    }

    /// Gives back the claims of attempts whose steps never began: they do not count as deliveries.
    pub(crate) fn give_back_unbegun(&self) {
        while let Some(job) = self.steps.pop() {
            if let Job::Fresh(dispatch, _) = job {
                let command = Command::GiveBack { claim: dispatch.claim, token: self.token };
                let now = self.now();
                self.core.lock().put_quietly(now, dispatch.claim.run.slot(), command);
            }
        }
    }
}

/// What is told to the shard of what came of an attempt; nothing when there is nothing to say.
pub(crate) fn command(claim: ClaimId, token: TokenHash, retries: u32, verdict: Verdict) -> Option<Command> {
    let run = claim.run;
    let number = claim.number;
    // Jitter differs from run to run and from try to try, and is the same when the same facts are met again.
    let seed = mix(run.0 as u64) ^ u64::from(retries);
    let failing = |error: ErrorInfo| Failing {
        claim: number,
        token,
        error: Arc::new(error),
        retry: None,
        seed,
        entries: Vec::new(),
        reopen: Vec::new(),
        set_aside: false,
    };
    let fail = |failing: Failing| Command::Fail { run, failing: Box::new(failing) };
    Some(match verdict {
        Verdict::Outcome { outcome, consume, error, compact_after, entries } => {
            if let Err(refusal) = outcome.validate() {
                let message = format!("the step returned an outcome that cannot be recorded: {refusal}");
                let error = ErrorInfo::terminal(refusal.code(), &message);
                return Some(fail(Failing { entries, ..failing(error) }));
            }
            let outcome: Arc<Outcome> = Arc::new(outcome);
            let error = error.map(Arc::new);
            let completing = Completing { claim: number, token, outcome, consume, error, compact_after, entries };
            Command::Complete { run, completing }
        }
        Verdict::Failed { error, retry, entries, reopen } => fail(Failing { retry, entries, reopen, ..failing(error) }),
        Verdict::SetAside { error } => fail(Failing { set_aside: true, ..failing(error) }),
        Verdict::Abandoned { give_back: true } => Command::GiveBack { claim, token },
        Verdict::Abandoned { give_back: false } => return None,
    })
}
