//! How a world's outputs are written down: ids by alias, times relative to the beginning.

use std::collections::BTreeMap;

use abide_kernel::shard::{Answer, Dispatch, Output};
use abide_kernel::transition::start::StartAnswer;
use abide_kernel::{
    After, ChildAnswer, ChildEnd, Fact, OpEnd, Phase, Reply, Resulted, Row, Run, RunId, Started, Timestamp, WaitKind,
};

use super::BASE;

/// Names for runs: what the script calls them; a child is called after its parent, `r1/1`.
#[derive(Default)]
pub struct Aliases {
    names: BTreeMap<RunId, String>,
    children: BTreeMap<RunId, usize>,
}

impl Aliases {
    pub fn insert(&mut self, id: RunId, name: &str) {
        self.names.entry(id).or_insert_with(|| name.into());
    }

    pub fn id(&self, name: &str) -> RunId {
        let found = self.names.iter().find(|(_, known)| *known == name);
        *found.unwrap_or_else(|| panic!("no run is called {name}")).0
    }

    pub fn of(&self, id: RunId) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| format!("unknown run {id}"))
    }

    fn learn(&mut self, row: &Row) {
        for fact in &row.facts {
            if let Fact::ChildStarted(child) = fact
                && !self.names.contains_key(&child.child)
            {
                let parent = self.of(row.run);
                let number = self.children.entry(row.run).or_default();
                *number += 1;
                let name = format!("{parent}/{number}");
                self.names.insert(child.child, name);
            }
        }
    }

    /// The lines for new rows: run by run, without records that only hold a key, which depend on the shards.
    pub fn rows(&mut self, rows: &[Row], reservations: &dyn Fn(RunId) -> bool) -> Vec<String> {
        // Until nothing is left to learn: a child's own children are met before the child has its name.
        for _ in 0..rows.len() {
            rows.iter()
                .filter(|row| self.names.contains_key(&row.run))
                .cloned()
                .collect::<Vec<_>>()
                .iter()
                .for_each(|row| self.learn(row));
        }
        let mut lines: Vec<(String, u64, String)> = rows
            .iter()
            .filter(|row| !reservations(row.run))
            .map(|row| {
                let facts: Vec<String> = row.facts.iter().map(|fact| self.fact(fact)).collect();
                let name = self.of(row.run);
                let line = format!("{name} rev {}: {}", row.rev.0, facts.join("; "));
                (name, row.rev.0, line)
            })
            .collect();
        lines.sort();
        lines.into_iter().map(|(_, _, line)| line).collect()
    }

    fn fact(&self, fact: &Fact) -> String {
        let at = |cursor: u16| {
            if cursor == 0 { String::new() } else { format!("[{cursor}] ") }
        };
        match fact {
            Fact::Started(started) => self.started(started),
            Fact::Pinned(pinned) => format!("pinned {}", pinned.step),
            Fact::Scheduled(s) => {
                let step = s.step.as_deref().unwrap_or("(first)");
                let when = s.visible_at.map_or(String::new(), |at| format!(" at {}", time(at)));
                format!("{}scheduled {step} #{}{when}", at(s.cursor), s.turn)
            }
            Fact::Notified(turn) => format!("{}notified #{}", at(turn.cursor), turn.turn),
            Fact::Claimed(c) => {
                let by = c.by.as_ref().map_or(String::new(), |by| format!(" by {}", by.owner));
                format!("{}claimed {}{by}", at(c.cursor), c.claim)
            }
            Fact::Heartbeat(beat) => format!("heartbeat {} until {}", beat.claim, time(beat.lease_until)),
            Fact::Progressed(said) => format!("{}progressed {} {}", at(said.cursor), said.claim, said.events.len()),
            Fact::Expired(claim) => format!("{}expired {}", at(claim.cursor), claim.claim),
            Fact::Returned(claim) => format!("{}returned {}", at(claim.cursor), claim.claim),
            Fact::Completed(c) => {
                let error = c.error.as_ref().map_or(String::new(), |error| format!(" after {error}"));
                format!("{}completed {} {}{error}", at(c.cursor), c.claim, c.outcome.name())
            }
            Fact::Failed(f) => {
                let retry = f.retry_at.map_or(String::new(), |at| format!(", retry at {}", time(at)));
                format!("{}failed {} {}{retry}", at(f.cursor), f.claim, f.error)
            }
            Fact::Applied(a) => {
                let used = if a.consumed.is_empty() { String::new() } else { format!(" used {:?}", a.consumed) };
                format!("{}applied {}{used}", at(a.cursor), after(&a.then))
            }
            Fact::SignalReceived(signal) => format!("signal {} {}", signal.id, signal.name),
            Fact::Woken(woken) => format!("{}woken by {:?}", at(woken.cursor), woken.by).to_lowercase(),
            Fact::ChildStarted(child) => {
                let key = child.key.as_ref().map_or(String::new(), |key| format!(" key {key}"));
                format!("child {} {}{key}", self.of(child.child), child.workflow)
            }
            Fact::ChildAnswered(answered) => {
                format!("child {} {}", self.of(answered.child), self.child_answer(&answered.answer))
            }
            Fact::ChildEnded(ended) => format!("child {} {}", self.of(ended.child), ended.status),
            Fact::ParentPurged => "parent purged".into(),
            Fact::Begun => "begun elsewhere".into(),
            Fact::Ended(ended) => format!("ended {}", ended.status),
            Fact::DeadLettered(dead) => format!("{}dead letter {}", at(dead.cursor), dead.reason.code),
            Fact::Requeued(cursor) => format!("{}requeued", at(cursor.cursor)),
            Fact::Intended(intended) => format!("{}intended {} {}", at(intended.cursor), intended.op, intended.key),
            Fact::Resulted(resulted) => ended_op(resulted),
            Fact::Retrying(retrying) => format!("retrying {} at {}", retrying.op, time(retrying.until)),
            Fact::Seen(seen) => format!("seen {}", seen.op),
            Fact::Resolved(resolved) => format!("resolved {} by {}", resolved.op, resolved.actor),
            Fact::Cancelling(_) => "cancelling".into(),
            Fact::Asked(asked) => format!("asked {} {} {}", asked.op, asked.kind, asked.key),
            Fact::Assigned(assigned) => {
                format!("assigned {} to {}", assigned.op, assigned.to.as_deref().unwrap_or("nobody"))
            }
            Fact::Decided(decided) => {
                format!("decided {} {} by {}", decided.op, decided.choice, decided.actor.as_deref().unwrap_or("nobody"))
            }
            Fact::Published(published) => format!("published {}", published.state.text()),
            Fact::Requested(asked) => format!("requested {} {}", asked.update, asked.name),
            Fact::Answered(answered) => format!("answered {} {}", answered.update, reply(&answered.reply)),
            Fact::Anomaly(anomaly) => format!("anomaly {}", anomaly.kind),
            Fact::Purged => "purged".into(),
            Fact::Compacted(_) => "compacted".into(),
        }
    }

    fn child_answer(&self, answer: &ChildAnswer) -> String {
        match answer {
            ChildAnswer::Existing(run) => format!("existing {}", self.of(*run)),
            ChildAnswer::Rejected(reason) => format!("rejected {reason}"),
        }
    }

    fn started(&self, started: &Started) -> String {
        let spec = &started.spec;
        let mut text = format!("started {}", spec.workflow);
        if let Some(parent) = &started.parent {
            text.push_str(&format!(" under {} at {}", self.of(parent.run), parent.step));
        }
        text
    }

    /// The line for an output; `None` for what depends on how many shards there are.
    pub fn output(&self, output: &Output) -> Option<String> {
        Some(match output {
            Output::Answer(_, answer) => format!("answer: {}", self.answer(answer)),
            Output::Dispatch(dispatch) => self.dispatch(dispatch),
            Output::Revoked(claim) => format!("revoked: {} claim {}", self.of(claim.run), claim.number),
            Output::Scheduled { run, intent, queue } => {
                format!("notify {queue}: {} #{}", self.of(*run), intent.turn)
            }
            Output::Told { claim, id, op } => {
                format!("told: {} claim {} of {id} {}", self.of(claim.run), claim.number, op.key)
            }
            Output::Progressed(_) | Output::Deliver(_) => return None,
        })
    }

    fn answer(&self, answer: &Answer) -> String {
        match answer {
            Answer::Started(StartAnswer::Created(run)) => format!("created {}", self.of(*run)),
            Answer::Started(StartAnswer::Reused(run)) => format!("reused {}", self.of(*run)),
            Answer::Started(StartAnswer::Rejected { by, reason }) => {
                format!("rejected {} by {}", reason.name(), self.of(*by))
            }
            Answer::Signalled(accepted) if accepted.duplicate => {
                format!("signal {} (duplicate)", accepted.signal)
            }
            Answer::Signalled(accepted) => format!("signal {}", accepted.signal),
            Answer::Requested(accepted) if accepted.duplicate => format!("update {} (duplicate)", accepted.update),
            Answer::Requested(accepted) => format!("update {}", accepted.update),
            Answer::Answered(answer) => format!("answered {}", reply(answer)),
            Answer::Extended { lease_until } => format!("lease until {}", time(*lease_until)),
            Answer::Recorded { duplicate: true, .. } => "nothing new".into(),
            Answer::Recorded { rev, .. } => format!("recorded rev {}", rev.0),
            Answer::Settled => "settled".into(),
            Answer::Child(child) => format!("child {}", self.of(*child)),
            Answer::Ended(ending) => {
                let result = ending.result.as_ref().map_or(String::new(), |result| format!(" {}", result.text()));
                let error = ending.error.as_ref().map_or(String::new(), |error| format!(" {error}"));
                format!("{} ended {}{result}{error}", self.of(ending.run), ending.status)
            }
            Answer::Run(run, _) => self.run(run),
            Answer::Unflushed(unflushed) => format!("{} unflushed", unflushed.records.len()),
            Answer::Refused(refusal) => format!("refused {}", refusal.code()),
        }
    }

    fn run(&self, run: &Run) -> String {
        let mut text = format!("{} {} state {}", self.of(run.id), run.status(), run.visible_state().text());
        for cursor in &run.cursors {
            let step = cursor.step.as_deref().unwrap_or("(first)");
            text.push_str(&format!(", {step} {} attempt {}", phase(&cursor.phase), cursor.retries + cursor.reclaims));
            if !cursor.awaits.is_empty() {
                text.push_str(&format!(" awaits {}", cursor.awaits.join("+")));
            }
        }
        if let Some(result) = &run.result {
            text.push_str(&format!(", result {}", result.text()));
        }
        if let Some(error) = &run.last_error {
            text.push_str(&format!(", error {error}"));
        }
        if !run.inbox.is_empty() {
            let names: Vec<String> = run.inbox.iter().map(|s| format!("{}:{}", s.id, s.name)).collect();
            text.push_str(&format!(", inbox {}", names.join(" ")));
        }
        for seen in &run.anomalies {
            text.push_str(&format!(", anomaly {}", seen.anomaly.kind));
        }
        text
    }

    fn dispatch(&self, dispatch: &Dispatch) -> String {
        let mut text = format!(
            "dispatch: {} {} claim {} attempt {} state {}",
            self.of(dispatch.claim.run),
            dispatch.step,
            dispatch.claim.number,
            dispatch.retries + dispatch.reclaims,
            dispatch.state.text()
        );
        for signal in &dispatch.signals {
            text.push_str(&format!(", signal {} {} {}", signal.id, signal.name, signal.payload.text()));
        }
        for child in &dispatch.children {
            let end = match &child.end {
                None => "open".into(),
                Some(ChildEnd::Answered(answer)) => self.child_answer(answer),
                Some(ChildEnd::Ended { status, .. }) => status.to_string(),
            };
            text.push_str(&format!(", child {} {end}", self.of(child.id)));
        }
        if let Some(by) = dispatch.woken_by {
            text.push_str(&format!(", woken by {}", format!("{by:?}").to_lowercase()));
        }
        text
    }
}

fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Value(value) => value.text().to_owned(),
        Reply::Rejected(error) => format!("rejected {error}"),
    }
}

pub fn time(at: Timestamp) -> String {
    format!("{:+}", at.0 - BASE.0)
}

fn after(then: &After) -> String {
    match then {
        After::Step => "step".into(),
        After::Replay => "replay".into(),
        After::Arrived => "arrived".into(),
        After::Wait(wait) => {
            let what = match &wait.kind {
                WaitKind::Signal { names, .. } => format!("wait for {}", names.join("+")),
                WaitKind::Timer => "sleep".into(),
                WaitKind::Children(barrier) => format!("wait for {} children", barrier.pending),
                WaitKind::Ledger => "wait for the ledger".into(),
            };
            let until = wait.until.map_or(String::new(), |at| format!(" until {}", time(at)));
            format!("{what}{until}")
        }
        After::Continue => "continue".into(),
        After::Finished => "finished".into(),
    }
}

fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Planned { .. } => "planned",
        Phase::Scheduled { .. } => "scheduled",
        Phase::Claimed(_) => "claimed",
        Phase::Completed { .. } => "completed",
        Phase::Failed => "failed",
        Phase::Waiting(_) => "waiting",
        Phase::DeadLettered(_) => "dead",
        Phase::Finished { .. } => "finished",
        Phase::Closed => "closed",
    }
}

fn ended_op(resulted: &Resulted) -> String {
    match resulted.end {
        OpEnd::Update(update) => format!("resulted {} with update {update}", resulted.op),
        OpEnd::Signal(signal) => format!("resulted {} with signal {signal}", resulted.op),
        OpEnd::Reopened => format!("reopened {}", resulted.op),
        OpEnd::Withdrawn => format!("withdrawn {}", resulted.op),
        _ => format!("resulted {}", resulted.op),
    }
}
