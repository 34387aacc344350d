//! Dispatch: what leaves the shards goes where it belongs. Nothing here decides anything.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use abide_kernel::shard::{Answer, Command, Dispatch, Output};
use abide_kernel::{RunId, Scheduled, Str, Timestamp};
use tokio::sync::oneshot;

use crate::core::{Core, Executing, NOBODY};
use crate::desk::Handed;
use crate::driver::Shared;
use crate::link::Letter;
use crate::program::News;
use crate::steps::Job;

/// An answer and the one who waits for it.
pub(crate) type Reply = (oneshot::Sender<Answer>, Answer);

/// A hint for the notifier.
pub(crate) type Hint = (RunId, Scheduled, Str);

/// How many answers are told together.
const ANSWERS_APART: usize = 4;

pub(crate) fn tell(answers: Vec<Reply>) {
    for (waiter, answer) in answers {
        // Whoever asked may have gone; the fact stands all the same.
        let _ = waiter.send(answer);
    }
}

impl Shared {
    /// Sorts what leaves: answers and jobs are handed over without the lock; the rest is done at once.
    pub(crate) fn sort_outputs(
        &self,
        core: &mut Core,
        now: Timestamp,
        outputs: &mut Vec<Output>,
        answers: &mut Vec<Reply>,
        jobs: &mut Vec<Job>,
        hints: &mut Vec<Hint>,
    ) {
        let mut delivered = false;
        for output in outputs.drain(..) {
            if let Output::Dispatch(dispatch) = &output {
                core.observe_dispatch(now, dispatch);
            }
            match output {
                Output::Answer(ticket, answer) => {
                    if ticket != NOBODY
                        && let Some((waiter, _)) = core.take_waiting(ticket)
                    {
                        core.reply(waiter, answer, answers);
                    }
                }
                Output::Dispatch(dispatch) if core.is_local(&dispatch) => {
                    jobs.push(self.register(core, now, dispatch));
                }
                Output::Dispatch(dispatch) => {
                    if let Some(unwanted) = core.desk.deliver(dispatch, &mut core.handed) {
                        core.give_back(now, &unwanted);
                        delivered = true;
                    }
                }
                Output::Revoked(claim) => {
                    if let Some(executing) = core.executing.get(&claim) {
                        executing.news.revoke();
                    }
                }
                Output::Told { claim, id, op } => {
                    if let Some(executing) = core.executing.get(&claim) {
                        executing.news.tell(id, *op);
                    } else if let (Some(member), Some(ring)) = (core.executed_elsewhere(claim), &core.ring) {
                        ring.send(member, Letter::Told { claim, id, op });
                    }
                }
                Output::Progressed(run) => self.tell_moved(core, run),
                Output::Scheduled { run, intent, queue } => hints.push((run, intent, queue)),
                Output::Deliver(envelope) => {
                    delivered |= core.deliver(now, envelope);
                }
            }
        }
        if delivered {
            core.fill(now);
        }
        if let Some(ring) = &mut core.ring {
            ring.send_news(now);
        }
    }

    fn register(&self, core: &mut Core, now: Timestamp, dispatch: Box<Dispatch>) -> Job {
        let news = Arc::new(News::default());
        // Pools joined each shard in the same order, so a worker's number is its pool's.
        let pool = dispatch.worker.0 as usize;
        core.executing.insert(dispatch.claim, Executing { pool, news: news.clone(), since: now });
        core.arm_beat(now, self.lease_ms());
        Job::Fresh(dispatch, news)
    }

    /// Hands over what was sorted.
    pub(crate) fn deliver(&self, answers: Vec<Reply>, jobs: Vec<Job>, handed: Vec<Handed>) {
        self.hand(handed);
        if !jobs.is_empty() {
            self.steps.push_all(jobs);
            self.bell.ring();
        }
        if answers.len() < ANSWERS_APART || self.by_hand {
            tell(answers);
        } else {
            // Where the callers live: told from here, each would be woken for itself and take this thread's core.
            self.handle.spawn(async move { tell(answers) });
        }
    }

    /// Gives hints to the notifier. A hint that fails takes nothing back.
    pub(crate) fn hint_all(&self, hints: Vec<Hint>) {
        for (run, intent, queue) in hints {
            self.hint(run, &intent, &queue);
        }
    }

    fn hint(&self, run: RunId, intent: &Scheduled, queue: &str) {
        let Some(notifier) = &self.notifier else { return };
        // The notifier is the user's: what it does must not keep the engine from going on.
        let _inside = self.handle.enter();
        let told = catch_unwind(AssertUnwindSafe(|| notifier.notify(run, queue, intent)));
        match told.unwrap_or_else(|_| Err("it panicked".into())) {
            Ok(()) => {
                let now = self.now();
                let command = Command::Notified { run, cursor: intent.cursor, turn: intent.turn };
                self.core.lock().put_quietly(now, run.slot(), command);
            }
            Err(error) => tracing::warn!(%run, %error, "the notifier failed; the attempt stays claimable"),
        }
    }
}
