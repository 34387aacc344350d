//! Taking in: what was read is given to its shards, and what has no answer stays open beside what is read after it. A shard that
//! nobody serves delays nobody else; of what is asked of it, so much is kept here and the rest is read again later.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use abide_kernel::shard::{Answer, Command, Ticket};
use abide_kernel::{Refusal, RequestId, RunId, ShardEpoch, ShardId, ShardMap, Slot};
use abide_store::intake::{Answered, Asked, HOST, Ring, Started};
use abide_store::{Fault, Intake, Verdict};
use hashbrown::{HashMap, HashSet};
use tokio::task::JoinSet;

use super::asked::{ACCEPTED, Named, answered, command, named_run, refused};
use crate::driver::Shared;

/// How many requests are read together.
const AT_ONCE: usize = 256;
/// How long the answers to those are waited for: what comes together is written together.
const MOMENT: Duration = Duration::from_millis(50);
/// So many without an answer are kept for a shard, and so many bytes if it is more than one.
pub(super) const OPEN_MAX: usize = 2_000;
const OPEN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// When what was left out is read again: it doubles from time to time.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// What is taken in under one ownership of the host shard. Dropped, it takes back what waits for other nodes: whoever takes in
/// next gives it again.
pub(super) struct Taking {
    shared: Arc<Shared>,
    map: ShardMap,
    epoch: ShardEpoch,
    /// What was read and has no answer that is written.
    open: HashMap<RequestId, Open>,
    /// What that comes to, by shard.
    kept: HashMap<ShardId, Kept>,
    /// How many of those are with their shards.
    given: usize,
    /// What is asked of runs whose starts are open, by start.
    behind: HashMap<RequestId, Vec<Asked>>,
    /// The same, where the start was answered.
    ready: Vec<Asked>,
    answers: Vec<Answered>,
    left_out: LeftOut,
    said: Sender<(RequestId, Answer)>,
    came: Receiver<(RequestId, Answer)>,
    ring: Ring,
    /// Those who wait for answers.
    waiting: JoinSet<()>,
}

/// Something that was read.
struct Open {
    shard: ShardId,
    bytes: usize,
    is_start: bool,
    about: Option<RunId>,
    /// Under which it was given.
    ticket: Option<Ticket>,
}

#[derive(Default)]
struct Kept {
    count: usize,
    bytes: usize,
}

/// What was read, could not be answered and is not kept.
struct LeftOut {
    shards: HashSet<ShardId>,
    /// No sooner is it read again.
    at: Instant,
    pause: Duration,
}

/// What is known of a run that is named by the request that starts it.
enum Start {
    Run(RunId),
    Open(ShardId),
    LeftOut,
    Nothing,
}

/// What a turn came to.
pub(super) enum Took {
    /// Everything was read. Without a ring it is to look again after so long.
    All { again: Option<Duration> },
    /// Another takes in.
    Stale,
}

impl Taking {
    pub(super) fn new(shared: &Arc<Shared>, epoch: ShardEpoch, ring: Ring) -> Self {
        let (said, came) = channel();
        Self {
            shared: shared.clone(),
            map: shared.core.lock().map,
            epoch,
            open: HashMap::new(),
            kept: HashMap::new(),
            given: 0,
            behind: HashMap::new(),
            ready: Vec::new(),
            answers: Vec::new(),
            left_out: LeftOut { shards: HashSet::new(), at: Instant::now(), pause: AGAIN },
            said,
            came,
            ring,
            waiting: JoinSet::new(),
        }
    }

    pub(super) fn epoch(&self) -> ShardEpoch {
        self.epoch
    }

    /// Takes in everything there is, and writes the answers there are. After a fault it is of no use any more.
    pub(super) fn turn(&mut self, intake: &mut dyn Intake) -> Result<Took, Fault> {
        let mut before = self.given;
        while !self.shared.is_stopping() {
            self.gather(before);
            before = self.given;
            if !self.ready.is_empty() {
                for asked in std::mem::take(&mut self.ready) {
                    self.close(asked.request);
                    self.take(intake, asked)?;
                }
                continue;
            }
            if self.write(intake)? == Verdict::Stale {
                return Ok(Took::Stale);
            }
            if self.again().is_some_and(|again| again.is_zero()) {
                self.left_out.shards.clear();
                self.left_out.pause = (self.left_out.pause * 2).min(AGAIN_MAX);
                intake.begin_anew();
            }
            let asked = intake.read(AT_ONCE)?;
            if asked.is_empty() {
                break;
            }
            for one in asked {
                self.take(intake, one)?;
            }
        }
        if self.open.is_empty() && self.left_out.shards.is_empty() {
            intake.is_through();
            self.left_out.pause = AGAIN;
        }
        Ok(Took::All { again: self.again() })
    }

    /// Makes a command of what was asked and gives it, or says why there is none. One about a run whose start is open waits for
    /// that.
    fn take(&mut self, intake: &mut dyn Intake, asked: Asked) -> Result<(), Fault> {
        let request = asked.request;
        if self.open.contains_key(&request) {
            return Ok(());
        }
        let about = match named_run(&asked) {
            Ok(None) => None,
            Ok(Some(Named::Run(run))) => Some(run),
            Ok(Some(Named::Started(by))) => match self.start(intake, by)? {
                Start::Run(run) => Some(run),
                Start::Open(shard) => {
                    if self.keep(&asked, shard, None) {
                        self.behind.entry(by).or_default().push(asked);
                    }
                    return Ok(());
                }
                Start::LeftOut => {
                    self.leave_out(HOST);
                    return Ok(());
                }
                Start::Nothing => {
                    let found = format!("expected a request that started a run, found {by}");
                    self.refuse(&asked, None, "not_found", found);
                    return Ok(());
                }
            },
            Err(problem) => {
                self.refuse(&asked, None, "invalid", problem);
                return Ok(());
            }
        };
        match command(&self.shared, &asked, about) {
            Ok((slot, command)) => self.give(&asked, about, slot, command),
            Err((code, problem)) => self.refuse(&asked, about, code, problem),
        }
        Ok(())
    }

    /// What is known of a start that was asked for before.
    fn start(&self, intake: &mut dyn Intake, by: RequestId) -> Result<Start, Fault> {
        if let Some(open) = self.open.get(&by) {
            // What was answered is perhaps not written yet.
            let answer = self.answers.iter().find(|answer| answer.request == by);
            return Ok(match answer {
                _ if !open.is_start => Start::Nothing,
                None => Start::Open(open.shard),
                Some(Answered { run: Some(run), code, .. }) if code == ACCEPTED => Start::Run(*run),
                Some(_) => Start::Nothing,
            });
        }
        Ok(match intake.started(by)? {
            Started::Run(run) => Start::Run(run),
            Started::Waiting => Start::LeftOut,
            Started::Nothing => Start::Nothing,
        })
    }

    /// Gives a command to its shard. Its answer is heard of later.
    fn give(&mut self, asked: &Asked, about: Option<RunId>, slot: Slot, command: Command) {
        if !self.keep(asked, self.map.home(slot), about) {
            return;
        }
        let (ticket, answer) = self.shared.give(slot, command);
        let request = asked.request;
        if let Some(open) = self.open.get_mut(&request) {
            open.ticket = Some(ticket);
        }
        self.given += 1;
        let (said, ring) = (self.said.clone(), self.ring.clone());
        let wait = async move {
            let answer = answer.await.unwrap_or(Answer::Refused(Refusal::Unknown));
            let _ = said.send((request, answer));
            ring();
        };
        self.waiting.spawn_on(wait, &self.shared.handle);
    }

    fn refuse(&mut self, asked: &Asked, run: Option<RunId>, code: &str, problem: String) {
        if self.keep(asked, HOST, run) {
            self.answers.push(refused(asked.request, run, code, problem));
        }
    }

    /// Notes something as open, if there is room for more of its shard.
    fn keep(&mut self, asked: &Asked, shard: ShardId, about: Option<RunId>) -> bool {
        let bytes = asked.payload.len() + asked.asked.len();
        let kept = self.kept.entry(shard).or_default();
        if kept.count >= OPEN_MAX || (kept.count > 0 && kept.bytes + bytes > OPEN_BYTES_MAX) {
            self.leave_out(shard);
            return false;
        }
        kept.count += 1;
        kept.bytes += bytes;
        let is_start = asked.what == "start";
        self.open.insert(asked.request, Open { shard, bytes, is_start, about, ticket: None });
        true
    }

    /// It is not open any more.
    fn close(&mut self, request: RequestId) -> Option<ShardId> {
        let open = self.open.remove(&request)?;
        if let Some(kept) = self.kept.get_mut(&open.shard) {
            kept.count -= 1;
            kept.bytes -= open.bytes;
            if kept.count == 0 {
                self.kept.remove(&open.shard);
            }
        }
        Some(open.shard)
    }

    fn leave_out(&mut self, shard: ShardId) {
        if self.left_out.shards.is_empty() {
            self.left_out.at = Instant::now() + self.left_out.pause;
        }
        self.left_out.shards.insert(shard);
    }

    /// When what was left out is read again: once nothing of such a shard is open. Until then a ring says so.
    fn again(&self) -> Option<Duration> {
        let is_free = self.left_out.shards.iter().any(|shard| !self.kept.contains_key(shard));
        is_free.then(|| self.left_out.at.saturating_duration_since(Instant::now()))
    }

    /// Hears the answers that have come, and for a moment waits for those of what was given last.
    fn gather(&mut self, before: usize) {
        while let Ok((request, answer)) = self.came.try_recv() {
            self.hear(request, answer);
        }
        while self.given > before
            && let Ok((request, answer)) = self.came.recv_timeout(MOMENT)
        {
            self.hear(request, answer);
        }
        while self.waiting.try_join_next().is_some() {}
    }

    fn hear(&mut self, request: RequestId, answer: Answer) {
        self.given -= 1;
        let Some(open) = self.open.get_mut(&request) else { return };
        open.ticket = None;
        let behind = self.behind.remove(&request).unwrap_or_default();
        match answered(request, open.about, answer) {
            Some(answer) => {
                self.answers.push(answer);
                self.ready.extend(behind);
            }
            None => {
                let left = std::iter::once(request).chain(behind.iter().map(|asked| asked.request));
                for request in left {
                    if let Some(shard) = self.close(request) {
                        self.leave_out(shard);
                    }
                }
            }
        }
    }

    fn write(&mut self, intake: &mut dyn Intake) -> Result<Verdict, Fault> {
        if self.answers.is_empty() {
            return Ok(Verdict::Durable);
        }
        let verdict = intake.answer(self.epoch, &self.answers)?;
        for answer in std::mem::take(&mut self.answers) {
            self.close(answer.request);
        }
        Ok(verdict)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        let mut core = self.shared.core.lock();
        let tickets = self.open.values().filter_map(|open| open.ticket);
        let waiters: Vec<_> = tickets.filter_map(|ticket| core.take_back(ticket)).collect();
        drop(core);
        // Without the lock: it may wake someone.
        drop(waiters);
    }
}
