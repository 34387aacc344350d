//! The reporter: sends what a worker says of its attempts, together where it can, and again until it is answered.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use abide_kernel::shard::Answer;
use abide_kernel::{ClaimId, Refusal, Rev};
use abide_protocol::{Problem, Report, ReportAnswer, Reported, Reports};
use abide_runtime::Unanswered;
use tokio::sync::oneshot;

use super::http::{Ask, Trouble, pause};
use super::worker::Hired;

/// Reports in one request.
const BATCH_MAX: usize = 256;
/// Requests that are under way at once; what is said meanwhile goes together in the next.
const AT_ONCE: usize = 2;

type Told = Result<Answer, Unanswered>;

/// Something said of an attempt, and who waits for the answer.
pub(super) struct Said {
    pub(super) report: Report,
    pub(super) reply: Option<oneshot::Sender<Told>>,
    /// The pool in which a place is free with it.
    pub(super) frees: Option<usize>,
    /// How often it was sent.
    sent: u32,
}

impl Said {
    pub(super) fn new(report: Report, reply: Option<oneshot::Sender<Told>>, frees: Option<usize>) -> Self {
        Self { report, reply, frees, sent: 0 }
    }

    fn tell(&mut self, told: Told) {
        if let Some(reply) = self.reply.take() {
            // Whoever said it may have gone.
            let _ = reply.send(told);
        }
    }
}

/// What is to be sent.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Said>,
    /// Claims of which something is under way: what else is said of them waits, so that it arrives in order.
    under_way: HashSet<ClaimId>,
    senders: usize,
}

impl Outbox {
    /// Whether everything that was said is answered.
    pub(super) fn is_empty(&self) -> bool {
        self.senders == 0
    }

    /// Takes what was said. Whether somebody must begin to send.
    pub(super) fn put(&mut self, said: Said) -> bool {
        self.queue.push_back(said);
        let begins = self.senders < AT_ONCE;
        self.senders += usize::from(begins);
        begins
    }

    /// What may go now: of each claim all that was said, or nothing while something of it is under way.
    fn take(&mut self) -> Vec<Said> {
        let mut batch = Vec::new();
        let mut waiting = VecDeque::new();
        let mut held: HashSet<ClaimId> = HashSet::new();
        while let Some(said) = self.queue.pop_front() {
            let claim = said.report.claim;
            if self.under_way.contains(&claim) || held.contains(&claim) || batch.len() >= BATCH_MAX {
                held.insert(claim);
                waiting.push_back(said);
            } else {
                batch.push(said);
            }
        }
        self.queue = waiting;
        self.under_way.extend(batch.iter().map(|said| said.report.claim));
        batch
    }
}

impl Hired {
    /// Sends a report as soon as it can.
    pub(super) fn say(self: &Arc<Self>, said: Said) {
        let begins = self.state.lock().outbox.put(said);
        if begins {
            self.begin_to_send();
        }
    }

    /// Sends what was put into the outbox.
    pub(super) fn begin_to_send(self: &Arc<Self>) {
        let hired = self.clone();
        self.handle.spawn(async move { hired.send().await });
    }

    async fn send(self: &Arc<Self>) {
        // What becomes ready in the same turn goes together.
        tokio::task::yield_now().await;
        loop {
            let batch = {
                let mut state = self.state.lock();
                let batch = state.outbox.take();
                if batch.is_empty() {
                    state.outbox.senders -= 1;
                    break;
                }
                batch
            };
            let claims: HashSet<ClaimId> = batch.iter().map(|said| said.report.claim).collect();
            self.settle(batch).await;
            let mut state = self.state.lock();
            state.outbox.under_way.retain(|claim| !claims.contains(claim));
        }
        self.changed.notify_waiters();
    }

    /// Sends a batch until it is answered, or the worker is gone.
    async fn settle(self: &Arc<Self>, mut batch: Vec<Said>) {
        let mut tries = 0;
        while !batch.is_empty() {
            if self.is_closed() {
                batch.iter_mut().for_each(|said| said.tell(Err(Unanswered::Gone)));
                return;
            }
            match self.post(&mut batch).await {
                Ok(()) => {}
                Err(trouble) if trouble.may_pass() => {
                    tracing::warn!(?trouble, "reports were not answered, and are sent again");
                }
                Err(trouble) => {
                    if let Some(alone) = self.refused(&mut batch, &trouble) {
                        for said in alone {
                            Box::pin(self.settle(vec![said])).await;
                        }
                    }
                    return;
                }
            }
            if !batch.is_empty() {
                self.rest(pause(tries)).await;
                tries += 1;
            }
        }
    }

    /// Sends a batch once; what must be sent again stays in it.
    async fn post(self: &Arc<Self>, batch: &mut Vec<Said>) -> Result<(), Trouble> {
        let (pool, freed) = self.most_freed(batch);
        let next = (freed > 0).then(|| self.asks(pool, freed, 0)).flatten();
        let asks = next.is_some();
        batch.iter_mut().for_each(|said| said.sent += 1);
        let reports = batch.iter().map(|said| said.report.clone()).collect();
        let body = Reports { token: self.secret.clone(), reports, next: next.map(Box::new) };
        let unsayable = |error: crate::ClientError| Trouble::Nonsense(error.to_string());
        let ask = Ask::post("/worker/reports", &body).map_err(unsayable)?;
        let Reported { answers, claims } = self.http.once(&ask).await?;
        if answers.len() != batch.len() {
            return Err(Trouble::Nonsense(format!("{} answers to {} reports", answers.len(), batch.len())));
        }
        let mut again = Vec::new();
        let mut free = Vec::new();
        for (mut said, answer) in batch.drain(..).zip(answers) {
            free.extend(said.frees.take());
            if let Some(unknown) = hear(said, answer) {
                again.push(unknown);
            }
        }
        *batch = again;
        self.free(&free, if asks { Some((pool, claims)) } else { None });
        Ok(())
    }

    /// The pool in which most places become free, and how many.
    fn most_freed(&self, batch: &[Said]) -> (usize, usize) {
        let freed = |pool: usize| batch.iter().filter(|said| said.frees == Some(pool)).count();
        let pools = (0..self.pools()).map(|pool| (pool, freed(pool)));
        pools.max_by_key(|(_, freed)| *freed).unwrap_or_default()
    }

    /// The request as a whole was refused: one that cannot be read must not take the others with it.
    fn refused(self: &Arc<Self>, batch: &mut Vec<Said>, trouble: &Trouble) -> Option<Vec<Said>> {
        if batch.len() > 1 {
            return Some(std::mem::take(batch));
        }
        tracing::error!(?trouble, "a report was refused as a whole");
        let (code, detail) = match trouble {
            Trouble::Problem(problem) => (problem.code.clone(), problem.detail.clone()),
            Trouble::Unreachable(what)
            | Trouble::Distrusted(what)
            | Trouble::Elsewhere(what)
            | Trouble::Nonsense(what) => ("internal".into(), what.clone()),
        };
        for mut said in batch.drain(..) {
            self.free(&Vec::from_iter(said.frees), None);
            said.tell(Err(Unanswered::Said { code: code.clone(), detail: detail.clone() }));
        }
        None
    }
}

/// Hands an answer to whoever waits for it; it comes back when the server does not know it, and must be asked again.
fn hear(mut said: Said, answer: ReportAnswer) -> Option<Said> {
    let told = match answer {
        ReportAnswer { problem: Some(problem), .. } if problem.status == 503 => return Some(said),
        ReportAnswer { problem: Some(problem), .. } => refusal(&said, *problem),
        ReportAnswer { recorded: Some(recorded), .. } => {
            Ok(Answer::Recorded { rev: Rev(recorded.rev), duplicate: recorded.duplicate })
        }
        ReportAnswer { lease_until: Some(at), .. } => Ok(Answer::Extended { lease_until: at.0 }),
        ReportAnswer { child: Some(child), .. } => Ok(Answer::Child(child)),
        ReportAnswer { .. } => Err(Unanswered::Unexpected("an empty answer to a report".into())),
    };
    said.tell(told);
    None
}

/// Refusals by which a worker knows that it has lost the attempt.
const LOST: [&str; 6] = ["stale_claim", "wrong_token", "lease_expired", "cancelling", "run_over", "not_found"];

fn refusal(said: &Said, problem: Problem) -> Told {
    // The refusal of the second may only mean that the first was recorded.
    if said.sent > 1 && !LOST.contains(&problem.code.as_str()) {
        return Ok(Answer::Refused(Refusal::Unknown));
    }
    Err(Unanswered::Said { code: problem.code, detail: problem.detail })
}

#[cfg(test)]
mod tests {
    use abide_kernel::RunId;
    use abide_protocol::Say;

    use super::*;

    fn said(run: u128) -> Said {
        let claim = ClaimId { run: RunId(run), number: 1 };
        Said::new(Report { claim, say: Say::Heartbeat {} }, None, None)
    }

    /// SQ-35: what is said of one attempt arrives in the order in which it was said.
    #[test]
    fn of_a_claim_one_request_is_under_way_at_a_time() {
        let mut outbox = Outbox::default();
        assert!(outbox.put(said(1)));
        let first = outbox.take();
        assert_eq!(first.len(), 1);
        assert!(outbox.put(said(1)));
        assert!(!outbox.put(said(2)));
        let second = outbox.take();
        assert_eq!(second.len(), 1);
        assert_eq!(second[0].report.claim.run, RunId(2));
        assert!(outbox.take().is_empty());
        outbox.under_way.remove(&first[0].report.claim);
        assert_eq!(outbox.take().len(), 1);
    }

    #[test]
    fn a_batch_ends_where_it_is_full_and_keeps_the_order_of_a_claim() {
        let mut outbox = Outbox::default();
        for run in 0..=BATCH_MAX as u128 {
            outbox.put(said(run));
        }
        outbox.put(said(BATCH_MAX as u128));
        assert_eq!(outbox.take().len(), BATCH_MAX);
        assert_eq!(outbox.take().len(), 2);
    }
}
